-- SPDX-License-Identifier: Apache-2.0
local errors = require "perigee.errors"
local futures = require "perigee.future"
local links = require "perigee.link"
local perigee = require "perigee"
local sessions = require "perigee.session"

describe("the link to a peer", function()
  local real, link, attempts

  before_each(function()
    real, attempts = sessions.connect, {}
    sessions.connect = function(_, _, options)
      local attempt = futures.new()
      attempts[#attempts + 1] = attempt
      attempt.asked = options.timeout
      return attempt
    end
    link = links.new({ engine = { handle = true } }, "worker", {
      near = false,
      find = function() return futures.done { addresses = { "tcp://x:1" } } end,
      expect = function() return "worker" end,
      explain = function(_, err) return err end,
    })
  end)

  after_each(function() sessions.connect = real end)

  local function open(timeout)
    return perigee.spawn(function() return link:open(timeout) end)
  end

  local function fail(attempt, kind)
    futures.settle(attempt, nil, errors.new(kind, "made up: " .. kind, false))
    perigee.sleep(0.001)
  end

  local function expect(future, kind, text)
    local session, err = future:wait(5)
    assert.is_nil(session)
    assert.equal(kind, err.kind, tostring(err))
    assert.is_false(err.sent)
    if text then assert.matches(text, tostring(err), 1, true) end
  end

  it("is asked for a session within 30 s by who does not say", function()
    local first, second = open(), open()
    perigee.sleep(0.001)
    assert.equal(1, #attempts)
    assert.is_true(attempts[1].asked > 29 and attempts[1].asked <= 30)
    fail(attempts[1], "timeout")
    expect(first, "timeout")
    assert.equal(2, #attempts)
    assert.is_true(attempts[2].asked > 29 and attempts[2].asked <= 30)
    fail(attempts[2], "not_found")
    expect(second, "not_found")
  end)

  it("keeps nobody waiting longer than was asked for", function()
    local patient = open(20)
    perigee.sleep(0.001)
    expect(open(0.01), "timeout", "connecting to worker: no answer within 0.01")
    assert.is_false(patient:done())
    assert.equal(1, #attempts)
    futures.settle(attempts[1], "a session")
    assert.equal("a session", (patient:wait(5)))
  end)

  it("goes on where only another's time is over", function()
    local hasty, one, other = open(1), open(10), open(20)
    perigee.sleep(0.001)
    fail(attempts[1], "timeout")
    expect(hasty, "timeout")
    assert.equal(2, #attempts)
    fail(attempts[2], "timeout")
    expect(one, "timeout")
    assert.is_false(other:done())
    assert.equal(3, #attempts)
    futures.settle(attempts[3], "a session")
    assert.equal("a session", (other:wait(5)))
  end)

  it("tells all who wait of one failure", function()
    local first, second, third = open(), open(), open()
    perigee.sleep(0.001)
    fail(attempts[1], "not_found")
    expect(first, "not_found")
    fail(attempts[2], "denied")
    expect(second, "denied")
    expect(third, "denied")
    assert.equal(2, #attempts)
  end)
end)
