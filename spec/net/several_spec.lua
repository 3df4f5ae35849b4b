-- SPDX-License-Identifier: Apache-2.0
-- A host's name with two addresses, of which the first is silent: nothing comes
-- back of what is sent there. All that we dial by a name finds the second.
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local redis = require "spec.support.redis"
local sockets = require "spec.net.sockets"
local switch = require "spec.net.switch"

local LONG = 60 * cases.slow

-- The host that is not there is preferred, as the longer part of its address is
-- that of the client's.
local HERE, CLIENT, NOBODY = 1, 2, 3
local SECRET = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="

-- On a host whose file of hosts is its own: does what it is told, and says what
-- comes of it.
local function person(child, _, ffi, silent, there, folder)
  ffi.cdef "int unshare(int);"
  local function run(command) assert(os.execute(command) == 0, command) end
  assert(ffi.C.unshare(0x20000) == 0)
  local file = assert(io.open(folder .. "/hosts", "w"))
  file:write(("%s several\n%s several\n"):format(silent, there))
  file:close()
  run(("mount --make-rprivate / && mount --bind '%s/hosts' /etc/hosts")
    :format(folder))
  run(("ip neighbour add %s lladdr 02:00:00:00:08:63 dev cable nud permanent")
    :format(silent))
  local does = {}
  function does.take(registry)
    local agent = assert(child.cases.agent("one", { registry = registry }))
    local name = assert(agent:lookup "one").name
    agent:close()
    return name
  end
  function does.call(address)
    local agent = assert(child.cases.agent(nil, {
      secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=" }))
    local answer = assert(agent:proxy(address, "x")):who()
    agent:close()
    return answer
  end
  -- Counts how often this process wakes up while a name server says nothing.
  function does.wait(registry)
    local function wakes()
      local status = assert(io.open "/proc/self/status")
      local text = status:read "*a"
      status:close()
      return tonumber(text:match "\nvoluntary_ctxt_switches:%s+(%d+)")
    end
    local asked = assert(io.open(folder .. "/resolv.conf", "w"))
    asked:write("nameserver ", silent, "\n")
    asked:close()
    run(("mount --bind '%s/resolv.conf' /etc/resolv.conf"):format(folder))
    local before = wakes()
    local none, err = child.cases.agent("one", { registry = registry })
    assert(not none and err.kind == "timeout", tostring(err))
    return wakes() - before
  end
  child.say "ready"
  for line in child.attend do
    local word, what = line:match "^(%w+) (.*)$"
    child.say(does[word](what))
  end
end

describe("by a name whose first address is silent", function()
  local possible, why = switch.possible(2)

  before_each(function()
    if possible then assert(switch.start(2)) end
  end)
  after_each(switch.finish)

  -- The answer that an agent on the other host gets to the question.
  local function ask(question)
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local one = switch.on(CLIENT, person, switch.address(NOBODY),
                          switch.address(HERE), cases.folder)
    one:expect("ready", LONG)
    one:tell(question)
    return (assert(one:read(LONG, cases.pump)):match "^(%S+)")
  end

  local function can(it_is_there)
    if not possible then pending(why) return false end
    if it_is_there == false then pending "it is not there" return false end
    return true
  end

  it("a Redis server is found by its second", function()
    if not can(redis.is_there()) then return end
    local server = redis.serve { "--bind", switch.address(HERE), "127.0.0.1",
                                 "--protected-mode", "no" }
    assert.equal("one", ask(("take redis://several:%d?timeout=%g&ttl=%g")
      :format(server.port, 5 * cases.slow, 30 * cases.slow)))
  end)

  it("a Redis server is found by its second, also in a short time", function()
    if not can(redis.is_there()) then return end
    local server = redis.serve { "--bind", switch.address(HERE), "127.0.0.1",
                                 "--protected-mode", "no" }
    assert.equal("one", ask(("take redis://several:%d?timeout=0.4&ttl=%g")
      :format(server.port, 30 * cases.slow)))
  end)

  it("a Redis server is looked up without looks at the time", function()
    if not can(redis.is_there()) then return end
    local wakes = ask "wait redis://nowhere.example?timeout=3"
    assert.is_true(tonumber(wakes) < 150, wakes) -- 200 a second once
  end)

  it("a control server is found by its second", function()
    if not can(control.is_there()) then return end
    local url = control.start({ host = switch.address(HERE), "--insecure",
                                "--name", "several" }).url
    assert.equal("one", ask(("take http://several:%s?timeout=%g&ttl=%g")
      :format(url:match ":(%d+)$", 5 * cases.slow, 30 * cases.slow)))
  end)

  it("an agent is found by its second", function()
    if not can() then return end
    local port = sockets.free_port()
    local agent = assert(cases.agent("two", { secret = SECRET,
      listen = ("tcp://%s:%d"):format(switch.address(HERE), port) }))
    agent:serve { name = "x", methods = { who = function() return "two" end } }
    assert.equal("two", ask(("call tcp://several:%d"):format(port)))
  end)
end)
