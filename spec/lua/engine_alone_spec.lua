-- SPDX-License-Identifier: Apache-2.0
-- A program that makes engines and no agent, in a process in which nothing else
-- has loaded the modules of agents.
local cases = require "spec.support.cases"

local SCRIPT = [[
  local perigee = require "perigee"
  local server, client = perigee.engine {}, perigee.engine {}
  local listener = assert(server:listen("unix:" .. arg[1]))
  local session = assert(client:connect("unix:" .. arg[1]))
  assert(listener:accept(5))
  local proxy, err = session:proxy("calc", { timeout = 5 })
  print(proxy, err and err.kind)
  local region = server:alloc(64, { name = "kv", access = "rw" })
  region:slice(0, 2):write "ok"
  print(assert(session:region "kv").length)
]]

describe("a program with engines alone", function()
  after_each(cases.cleanup)

  it("is asked for a service that it has not, and keeps its sessions",
     function()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local path = cases.folder .. "/alone.lua"
    local file = assert(io.open(path, "w"))
    file:write(SCRIPT)
    file:close()
    local pipe = io.popen(("spec/support/with luajit '%s' '%s' 2>&1"):format(
      path, cases.folder .. "/alone.sock"))
    local said = pipe:read "*a"
    pipe:close()
    assert.equal("nil\tno_method\n64\n", said)
  end)
end)
