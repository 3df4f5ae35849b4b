-- SPDX-License-Identifier: Apache-2.0
-- Descriptions of services with many methods: a service has 1,024 at most, and
-- a peer that describes more is not believed.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

local MOST, MANY = 1024, 25000

-- Answers every call with a description of so many methods.
local function describer(child, _, _, count)
  local bare = require "spec.hostile.bare"
  local native = require "perigee.native"
  local values = require "spec.hostile.values"
  local peer = assert(bare.new { insecure = 1, typed = 2 ^ 22 })
  local methods = {}
  for i = 1, tonumber(count) do
    methods["m" .. i] = { id = i, kind = "typed" }
  end
  local bytes = values.encode { version = 1, methods = methods }
  child.say(peer:listen(child.cases.address "describer"))
  while true do
    peer:attend(1, function(event)
      if event.kind == native.C.PERIGEE_EVENT_REQUEST then
        peer:reply(event.operation, { typed = true, bytes = bytes })
      end
    end)
  end
end

local function opened(count)
  local address = process.start(describer, count):read(30 * cases.slow)
  local agent = assert(cases.agent())
  return agent:proxy(address, "big", { timeout = 20 * cases.slow })
end

local function service(count)
  local methods = {}
  for i = 1, count do methods["m" .. i] = function() return i end end
  return { name = "big", methods = methods }
end

describe("a description of many methods", function()
  after_each(cases.cleanup)

  it("is believed up to 1,024", function()
    assert.is_truthy(opened(MOST))
  end)

  it("is refused beyond, and takes no memory for its methods", function()
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
    finally(function() collectgarbage "restart" end)
    local before = collectgarbage "count"
    local proxy, err = opened(MANY)
    local kib = collectgarbage "count" - before
    assert.is_nil(proxy)
    assert.equal("protocol", err.kind)
    assert.matches("more than 1024 methods", err.message, 1, true)
    assert.is_true(kib < 16 * 1024, ("%d KiB"):format(kib))
  end)

  it("is made of no service with more", function()
    local agent = assert(cases.agent "many")
    agent:serve(service(MOST))
    local fine, why = pcall(agent.serve, agent, service(MOST + 1))
    assert.is_false(fine)
    assert.matches("big has more than 1024 methods", why, 1, true)
  end)
end)

-- Answers every call as told: with a status, or with nil and an error of that
-- kind. Says how many it has answered when it is told to.
local function denier(child, _, _, how, kind)
  local bare = require "spec.hostile.bare"
  local errors = require "perigee.runtime.errors"
  local native = require "perigee.native"
  local values = require "spec.hostile.values"
  local peer = assert(bare.new { insecure = 1 })
  local answer = { typed = true, bytes = values.encode(nil) .. values.encode {
    [errors.MARK] = 1, kind = kind, message = "made up" } }
  if how == "a status" then
    answer = { status = errors.status(kind), bytes = "made up" }
  end
  child.say(peer:listen(child.cases.address "denier"))
  local count = 0
  while true do
    peer:attend(1, function(event)
      if event.kind == native.C.PERIGEE_EVENT_REQUEST then
        count = count + 1
        peer:reply(event.operation, answer)
        child.say(tostring(count))
      end
    end)
  end
end

describe("a description that is an error of the peer's", function()
  after_each(cases.cleanup)

  -- A peer that is lost is asked again once it is back.
  for how, kind in pairs { ["a status"] = "a status",
                           ["an error that it returns"] = "an error" } do
    it("is asked for once, as " .. how, function()
      local peer = process.start(denier, kind, "peer_lost")
      local agent = assert(cases.agent())
      local proxy, err = agent:proxy(peer:read(30 * cases.slow), "x",
                                     { timeout = 20 * cases.slow,
                                       reconnect = 0.2 })
      assert.is_nil(proxy)
      assert.equal("protocol", err.kind, tostring(err))
      assert.matches("made up", tostring(err), 1, true)
      peer:expect("1")
      assert.is_nil((peer:read(0.1)))
    end)
  end
end)
