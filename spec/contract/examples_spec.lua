-- SPDX-License-Identifier: Apache-2.0
-- Every example runs by itself, from any folder, and leaves nothing running.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

local NAMES = { "read", "write", "write_imm", "send_recv", "strided",
                "prepared", "bulk_landing", "inplace",
                "services_calling_services", "fan_in", "call" }

local function anywhere(name)
  return { "sh", "-c", ([[top=$PWD; mkdir -p -m 700 %s; cd /; TMPDIR=%s \
    PERIGEE_SCOPE=%s exec luajit "$top/examples/%s.lua"]])
    :format(cases.folder, cases.folder, cases.scope, name) }
end

local function left()
  local pipe = io.popen(("find '%s' ! -type d"):format(cases.folder))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- Processes that were given a driver's id.
local function followers(id)
  local pipe = io.popen(("grep -laz '^%d$' /proc/[0-9]*/cmdline 2>/dev/null"
    .. " | wc -l"):format(id))
  local count = tonumber(pipe:read("*a"))
  pipe:close()
  return count
end

describe("examples/", function()
  after_each(cases.cleanup)

  for _, name in ipairs(NAMES) do
    it(name .. ".lua checks itself", function()
      local child = process.spawn(anywhere(name))
      local id = child.pid
      local last, lines = nil, {}
      repeat
        local line = child:read(60)
        last = line or last
        lines[#lines + 1] = line
      until not line
      local how, code = child:wait(10)
      assert.same({ "exit", 0 }, { how, code }, table.concat(lines, "\n"))
      assert.equal("ok", last)
      assert.is_true(#lines >= 2)
      assert.equal(0, followers(id))
      assert.equal("", left())
    end)
  end

  it("serve.lua serves until it is told to stop", function()
    local child = process.spawn(anywhere("serve"))
    assert.matches("serving", child:read(10))
    local agent = assert(cases.agent())
    local calc = assert(agent:proxy("worker:0", "calc", { timeout = 5 }))
    assert.equal(3, (calc:add(1, 2)))
    assert.equal("bytes", (calc:echo("bytes")))
    child:signal("TERM")
    child:expect("stopped")
    assert.same({ "exit", 0 }, { child:wait(5) })
  end)
end)
