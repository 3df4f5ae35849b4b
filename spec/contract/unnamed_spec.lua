-- SPDX-License-Identifier: Apache-2.0
-- An agent whose registry has not answered yet: it listens, and serves no call
-- before the name is its own. Callers wait; where it does not get the name,
-- their calls are made by the next one that listens there.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 30 * cases.slow

-- An agent in a registry that answers when the parent says what.
local function server(child, perigee_, _, address)
  local registry = { release = print, lookup = print }
  function registry.hold(_, entry)
    child.say("asked " .. table.concat(entry.addresses, " "))
    return perigee_.spawn(function()
      if child.attend() == "held" then return true end
      return nil, "name_taken", "another has it"
    end)
  end
  local agent, err = child.cases.agent("late", {
    registry = registry, listen = address ~= "" and address or nil,
    services = { { name = "x", methods = {
      typed = function()
        child.say "served"
        return 7
      end,
      raw = { raw = true, function()
        child.say "served"
        return "seven"
      end },
    } } } })
  child.say(agent and "made" or err.kind)
  child.attend()
  if agent then agent:close() end
end

describe("an agent whose registry has not answered", function()
  local agent, place

  before_each(function()
    agent = assert(cases.agent())
    place = cases.address "place"
  end)
  after_each(cases.cleanup)

  -- Returns the child once it has asked for its name, and where it listens.
  local function start()
    local child = process.start(server, place)
    return child, assert(child:read(LONG, cases.pump)):match "^asked (%S+)"
  end

  -- The proxy of a life before, which was served.
  local function known()
    local child = start()
    child:tell "held"
    child:expect("made", LONG, cases.pump)
    local proxy = assert(agent:proxy(place, "x", { reconnect = 60,
                                                   timeout = 60 }))
    child:tell "over"
    child:wait()
    return proxy
  end

  local function calls_of(proxy)
    return { perigee.spawn(proxy.typed, proxy), proxy.async:typed(),
             perigee.spawn(proxy.raw, proxy), proxy.async:raw() }
  end

  local function answered(child, calls)
    for _ in ipairs(calls) do child:expect("served", LONG, cases.pump) end
    for i, wanted in ipairs { 7, 7, "seven", "seven" } do
      assert.equal(wanted, (calls[i]:wait(LONG)))
    end
  end

  local function not_served(child, calls)
    assert.is_nil((child:read(0.3, cases.pump)))
    for _, call in ipairs(calls) do assert.is_false(call:done()) end
  end

  it("serves no call by an address before the name is its own", function()
    local proxy = known()
    local child = start()
    local calls = calls_of(proxy)
    not_served(child, calls)
    child:tell "held"
    child:expect("made", LONG, cases.pump)
    answered(child, calls)
  end)

  it("serves none by its place in the folder either", function()
    local child, own = start()
    local made = perigee.spawn(agent.proxy, agent, own, "x", { timeout = 60 })
    assert.is_nil((child:read(0.3, cases.pump)))
    assert.is_false(made:done())
    child:tell "held"
    child:expect("made", LONG, cases.pump)
    assert.equal(7, (assert(made:wait(LONG)):typed()))
  end)

  it("serves none if the name is another's, and the next one does", function()
    local proxy = known()
    local child = start()
    local calls = calls_of(proxy)
    not_served(child, calls)
    child:tell "taken"
    child:expect("name_taken", LONG, cases.pump)
    for _, call in ipairs(calls) do assert.is_false(call:done()) end
    local other = start()
    other:tell "held"
    other:expect("made", LONG, cases.pump)
    answered(other, calls)
  end)

  -- Over a session that there is already, calls come before the description.
  it("leaves a call unread that a session has, and tells its caller", function()
    local child = start()
    local session = assert(agent.engine:connect(place, { timeout = LONG }))
    local made = perigee.spawn(session.proxy, session, "x", { timeout = 60 })
    assert.is_nil((child:read(0.3, cases.pump)))
    assert.is_false(made:done())
    child:tell "taken"
    child:expect("name_taken", LONG, cases.pump)
    assert.equal("peer_lost", select(2, made:wait(LONG)).kind)
  end)
end)
