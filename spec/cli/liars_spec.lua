-- SPDX-License-Identifier: Apache-2.0
-- Commands with agents and registries that answer anything.
local cjson = require "cjson"
local command = require "spec.support.command"
local control = require "spec.support.control"
local process = require "spec.support.process"

-- Its method 0 answers what no agent does.
local LIAR = [[
local perigee = require "perigee"
local agent = assert(perigee.agent { name = "liar:0", services = {
  { name = "odd", methods = { f = function() end } } } })
local odd = { version = 1, methods = { one = { id = 1, kind = {},
  capacity = {} }, two = { id = 2, kind = "raw", capacity = -1 },
  three = { id = 3, kind = "typed", capacity = 0 / 0 } } }
local answers = { odd, { version = 1, methods = {} }, 7, false, error }
local turn = 0
agent.engine.methods[0].handler = function(name)
  turn = turn % 5 + 1
  local answer = name == "" and answers[turn] or odd
  if answer == error then error "no luck" end
  return answer
end
return agent
]]

after_each(command.clean)

local function a_liar()
  local liar = command.start("serve", command.file("liar.lua", LIAR))
  assert.matches("^serving odd as liar:0 ", liar:read())
end

local function output(...)
  local status, text, errors = command.run(...)
  assert.equal(0, status, errors)
  return text
end

describe("perigee ping", function()
  it("counts any answer of a peer's", function()
    a_liar()
    assert.matches("^liar:0: 10 sent, 10 answered, 0 lost\n",
                   output("ping", "liar:0", "-c", "10", "-i", "0"))
  end)
end)

describe("perigee describe", function()
  it("tells what it can of a description that is odd", function()
    a_liar()
    assert.matches("service odd, version 1\n    one +%?\n    three +typed\n"
      .. "    two +raw\n", output("describe", "liar:0"))
    local told = cjson.decode(output("describe", "liar:0", "--json"))
    assert.is_nil(told.services.odd.methods.one.capacity)
  end)

  it("tells of an agent that has published nothing of itself", function()
    a_liar()
    local entry = command.folder() .. "/perigee/cli/liar:0.lock"
    assert.is_true(#command.content(entry) > 0)
    assert(io.open(entry, "w")):close()
    assert.matches("^liar:0, an agent, which has told the registry nothing of "
      .. "itself\n  at unix:/[^\n]*\n  limits: ", output("describe", "liar:0"))
    assert.equal("liar:0", cjson.decode(output("describe", "liar:0",
                                               "--json")).name)
  end)
end)

-- A server that answers each request for a topology with the next body.
local function server(child, _, _, ...)
  local sockets = require "spec.net.sockets"
  local door, port = sockets.listen "127.0.0.1"
  local bodies, turn = { ... }, 0
  child.say(port)
  while true do
    local fd = sockets.accept(door)
    local text = ""
    while not text:find "\r\n\r\n" do
      sockets.readable({ fd }, 60)
      text = text .. (sockets.receive(fd) or "")
    end
    local body = '{"items":[]}'
    if text:find "^GET %S*/topology" then
      turn = turn + 1
      body = bodies[turn]
    end
    sockets.send(fd, ("HTTP/1.1 200 OK\r\nConnection: close\r\n"
      .. "Content-Length: %d\r\n\r\n%s"):format(#body, body))
    sockets.close(fd)
  end
end

describe("perigee ctrl topology get", function()
  it("says so where the answer is none", function()
    if not control.is_there() then return pending(control.needs) end
    local bodies = {
      '{}', '{"wanted":{},"actual":null}', '{"wanted":[],"actual":[1]}',
      '{"wanted":{"mesh":[{}]},"actual":[]}',
      '{"wanted":{},"actual":[{"ends":["a"],"state":"up"}]}',
      '{"wanted":{},"actual":[{"state":"up"}]}',
      '{"wanted":{},"actual":[{"ends":["a","b"],"state":"up","since":"x"}]}',
      '{"wanted":{},"actual":[{"ends":["a","b"],"state":"absent",'
        .. '"absent":[{}]}]}',
    }
    local child = process.start(server, unpack(bodies))
    local url = "http://127.0.0.1:" .. child:read(60)
    for _, body in ipairs(bodies) do
      local status, text, why = command.run("ctrl", "topology", "get",
                                            "--registry", url)
      assert.equal(1, status, body)
      assert.equal("", text)
      assert.equal(("perigee ctrl topology get: the control server at %s: "
        .. "what it answers is no topology\n"):format(url), why, body)
    end
  end)
end)
