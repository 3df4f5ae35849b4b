-- SPDX-License-Identifier: Apache-2.0
-- Three hosts whose agents have their names in a server on the first one: they
-- find each other, also after the way to the server was cut.
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local redis = require "spec.support.redis"
local switch = require "spec.net.switch"

local LONG = 60 * cases.slow
local TTL = 6 * cases.slow

-- Has the name "host" and its number; says what comes of what it is told to do.
local function person(child, perigee_, _, registry, i, address)
  local agent = assert(child.cases.agent("host" .. i, {
    registry = registry, listen = ("tcp://%s:0"):format(address),
    secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=" }))
  agent:serve { name = "x", methods = { where = function() return i end } }
  local proxies, does = {}, {}
  -- Calls NAME; tells its answer and the epoch of the session, or the kind of
  -- the error.
  function does.call(name)
    proxies[name] = proxies[name] or assert(agent:proxy(name, "x"))
    local number, err = proxies[name]:where()
    if not number then return err.kind end
    return number, perigee_.session(proxies[name]).epoch
  end
  function does.look(name)
    local entry, err, last = agent:lookup(name, { timeout = 0.2 })
    if entry then return "found" end
    return err.kind, last and last.stale and "stale"
  end
  function does.held() return tostring(agent.held) end
  function does.list()
    local list, err, last = agent:list { timeout = 0.2 }
    local words = { list and "now" or err.kind }
    for _, entry in ipairs(list or last) do
      words[#words + 1] = entry.name .. (entry.stale and "?" or "")
    end
    return unpack(words)
  end
  child.say "ready"
  for line in child.attend do
    local word, name = line:match "^(%w+) ?(.*)$"
    child.say(does[word](name))
  end
end

local servers = {
  Redis = redis.is_there() and function()
    local server = redis.serve { "--bind", switch.address(1), "127.0.0.1",
                                 "--protected-mode", "no" }
    return ("redis://%s:%d"):format(switch.address(1), server.port)
  end,
  ["control server"] = control.is_there() and function()
    return control.start({ host = switch.address(1), "--insecure" }).url
  end,
}

describe("on three hosts, agents with names in a", function()
  local possible, why = switch.possible(3)

  before_each(function()
    if possible then assert(switch.start(3)) end
  end)
  after_each(switch.finish)

  local people

  local function ask(i, question)
    people[i]:tell(question)
    return (assert(people[i]:read(LONG)))
  end

  -- Asks until the answer is this one.
  local function expect(i, question, answer)
    local got
    assert(cases.eventually(function()
      got = ask(i, question)
      return got == answer
    end, LONG), question .. ": " .. tostring(got))
  end

  local function begin(address)
    people = {}
    for i = 1, 3 do
      people[i] = switch.on(i, person, ("%s/?ttl=%g&timeout=%g"):format(address,
        TTL, LONG), i, switch.address(i)):expect("ready", LONG)
    end
  end

  -- A call may be lost with a session that is taken as lost after a cut.
  local function find_each_other()
    local told = {}
    for i = 1, 3 do
      for j = 1, 3 do
        cases.await(function()
          if i ~= j then told[i .. j] = ask(i, "call host" .. j) end
          return i == j or j == tonumber(told[i .. j]:match "^%d")
        end)
      end
      expect(i, "list", "now host1 host2 host3")
    end
    return told
  end

  for name, start in pairs(servers) do
    it(name .. " find each other, but not while it is away", function()
      if not possible then return pending(why) end
      if not start then return pending "it is not there" end
      begin(start())
      local told = find_each_other()
      for i = 2, 3 do expect(i, "look host1", "found") end
      switch.plug(1, false)
      assert.equal(told["23"], ask(2, "call host3"))
      for i = 2, 3 do
        assert.equal("timeout stale", ask(i, "look host1"))
        assert.equal("timeout host1? host2? host3?", ask(i, "list"))
      end
      expect(1, "list", "now host1")    -- the others' time is over
      for i = 2, 3 do assert.equal("false", ask(i, "held")) end
      switch.plug(1, true)
      find_each_other()
      assert.equal(told["23"], ask(2, "call host3"))
    end)
  end
end)
