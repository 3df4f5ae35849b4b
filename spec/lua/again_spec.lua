-- SPDX-License-Identifier: Apache-2.0
-- Calls that continue when their peer is back: the errors when they cannot, and
-- that they stop when no one wants their result.
local again = require "perigee.call.again"
local cases = require "spec.support.cases"
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local perigee = require "perigee"
local process = require "spec.support.process"
local reply = require "perigee.serving.reply"

local function server(child, _, _, version)
  child.serve { name = "x", version = tonumber(version), methods = {
    same = function(x) return x end,
    often = { idempotent = true, function() child.hear() end },
  } }
end

local child, proxy, agent

local function start(version)
  child = process.start(server, version)
  child:expect("ready")
end

local function kill()
  local session = assert(agent:session("worker"))
  child:kill()
  assert.is_true(cases.eventually(function() return not session.handle end))
end

describe("a call whose peer is gone", function()
  before_each(function()
    start(1)
    proxy, agent = cases.proxy("x", { timeout = 60, reconnect = 60,
                                      version = 1 })
  end)
  after_each(cases.cleanup)

  local function cancel(future)
    local link = agent.peers.worker
    assert.is_true(cases.eventually(function() return link.tries > 2 end))
    future:cancel()
    local got, err = future:wait(5)
    assert.is_nil(got)
    assert.equal("cancelled", err.kind)
    assert.matches("calling x.often of worker: it was cancelled", tostring(err),
                   1, true)
    assert.is_true(cases.eventually(function() return not link.retrying end))
    assert.is_true(not link.attempt or link.attempt:done())
  end

  it("asks for it no more once it is cancelled", function()
    kill()
    cancel(proxy.async:often())
  end)

  it("nor if it had been under way", function()
    local future = proxy.async:often()
    perigee.sleep(0.05)
    kill()
    cancel(future)
  end)

  it("goes on for others when one is cancelled", function()
    kill()
    local one, other = proxy.async:often(), proxy.async:same("same")
    one:cancel()
    perigee.sleep(0.05)
    assert.is_false(other:done())
    start(1)
    assert.equal("same", (other:wait(10)))
  end)

  -- Its end may come late: copies of its memory can be under way.
  it("goes on by the session that its proxy has found meanwhile", function()
    local before = perigee.session(proxy)
    kill()
    start(1)
    assert.equal(1, (proxy:same(1)))
    local after = perigee.session(proxy)
    assert.is_true(before ~= after)
    local method = { name = "often", text = "x.often", idempotent = true }
    local made = { session = before, began = loop.now() }
    local lost = before:gone("calling x.often of worker")
    local call, other = again.renew(proxy, method, lost, made)
    assert.is_function(call, tostring(other))
    assert.equal(after, perigee.session(other))
    local refused = errors.new("closed", "it drains", false)
    refused.code = reply.DRAINING
    call, other = again.renew(proxy, method, refused, made)
    assert.is_function(call, tostring(other))
    assert.equal(after, perigee.session(other))
  end)

  it("counts the attempts, if there were any in vain", function()
    perigee.sleep(1.1) -- a session that lives so long has not failed
    kill()
    start(2)
    local got, err = proxy:same(1)
    assert.is_nil(got)
    assert.equal("version", err.kind)
    assert.matches("; then: opening service x of worker: it has version 2",
                   tostring(err), 1, true)
    kill()
    got, err = proxy:with { reconnect = 0 }:same(1)
    assert.is_nil(got)
    assert.matches("; then, after [1-9]%d* attempts?: ", tostring(err))
  end)
end)
