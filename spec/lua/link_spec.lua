-- SPDX-License-Identifier: Apache-2.0
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local links = require "perigee.link"
local perigee = require "perigee"
local process = require "spec.support.process"
local races = require "perigee.link.race"
local sessions = require "perigee.engine.session"

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

describe("the link to a peer that is away", function()
  local real, attempts, told, watches, link

  before_each(function()
    real, attempts, watches = sessions.connect, 0, 0
    sessions.connect = function()
      attempts = attempts + 1
      return futures.done(nil, errors.new("not_found", "made up", false))
    end
    link = links.new({ engine = { handle = true } }, "worker", {
      near = false,
      find = function() return futures.done { addresses = { "tcp://x:1" } } end,
      expect = function() return "worker" end,
      explain = function(_, err) return err end,
      watch = function(_, f)
        told, watches = f, watches + 1
        return { close = function() watches = watches - 1 end }
      end,
    })
    link.tries = 20                     -- so that its pauses are long
  end)

  after_each(function() sessions.connect = real end)

  local function wait_for(f)
    local limit = process.now() + 20
    repeat perigee.sleep(0.001) until f() or process.now() > limit
  end

  it("dials when a watch tells that the peer is back, and not when it tells "
    .. "of others", function()
    local reaching = perigee.spawn(function()
      return link:reach(math.huge, math.huge)
    end)
    wait_for(function() return link.pausing end)
    assert.equal(1, watches)
    for _ = 1, 3 do
      local pausing, before = link.pausing, attempts
      told { kind = "up", entry = { name = "worker-2" } }
      told { kind = "down", entry = { name = "worker" } }
      assert.is_false(pausing.ended)
      told { kind = "up", entry = { name = "worker" } }
      assert.is_true(pausing.ended)
      wait_for(function() return attempts > before and link.pausing end)
    end
    link.engine.handle = false
    link:close()
    assert.equal("closed", select(2, reaching:wait(5)).kind)
    assert.equal(0, watches)
  end)
end)

describe("a peer with several addresses", function()
  local real, stagger, dialled, closed, link

  before_each(function()
    real, dialled, closed = sessions.connect, {}, {}
    stagger = races.stagger
    races.stagger = 3600e9
    sessions.connect = function(_, address, options)
      local attempt = futures.new()
      attempt.address, attempt.options = address, options
      dialled[#dialled + 1] = attempt
      return attempt
    end
    link = links.new({ engine = { handle = true } }, "worker", {
      near = false,
      find = function()
        return futures.done { addresses = { "tcp://a:1", "tcp://b:1",
                                            "tcp://c:1" } }
      end,
      expect = function() return "worker" end,
      explain = function(_, err) return err end,
    })
  end)

  after_each(function() sessions.connect, races.stagger = real, stagger end)

  local function open()
    local opening = perigee.spawn(function() return link:open(20) end)
    perigee.sleep(0.001)
    return opening
  end

  local function fail(attempt, kind)
    futures.settle(attempt, nil, errors.new(kind, "made up: " .. kind, false))
    perigee.sleep(0.001)
  end

  -- Ends an attempt as session.lua does when it has made a session.
  local function succeed(attempt)
    local session = { handle = true, address = attempt.address }
    function session.close() closed[#closed + 1] = session end
    attempt.options.link:arrived(session)
    futures.settle(attempt, session)
    return session
  end

  local function wait_for(count)
    local limit = process.now() + 20
    repeat perigee.sleep(0.001)
    until #dialled >= count or process.now() > limit
    assert.equal(count, #dialled)
  end

  it("is dialled at the next one while the one before is silent, and all the "
    .. "others are cancelled then", function()
    races.stagger = 1e6
    local opening = open()
    wait_for(3)
    assert.equal("tcp://a:1", dialled[1].address)
    assert.equal("tcp://b:1", dialled[2].address)
    local session = succeed(dialled[2])
    assert.equal(session, (opening:wait(20)))
    assert.equal(session, link:live())
    assert.equal("tcp://b:1", link.address)
    assert.equal("cancelled", select(2, dialled[1]:wait(0)).kind)
    assert.equal("cancelled", select(2, dialled[3]:wait(0)).kind)
    assert.equal(0, #closed)
  end)

  it("is dialled at the next one at once when the one before has failed",
     function()
    local opening = open()
    fail(dialled[1], "not_found")
    assert.equal(2, #dialled)
    fail(dialled[2], "peer_lost")
    local session = succeed(dialled[3])
    assert.equal(session, (opening:wait(20)))
  end)

  it("has one session, even if two addresses answer at once", function()
    races.stagger = 1e6
    local opening = open()
    wait_for(3)
    dialled[1].cancel = function() end  -- it comes too late
    local first = succeed(dialled[3])
    local second = succeed(dialled[1])
    assert.equal(first, (opening:wait(20)))
    assert.same({ second }, closed)
    assert.equal(first, link:live())
  end)

  it("is dialled no more once the engine was closed", function()
    local dial = sessions.connect
    function sessions.connect(...)
      link.engine.handle = false        -- at the end of the first dial
      return dial(...)
    end
    for i, way in ipairs { "an attempt has ended", "it is time for another" } do
      races.stagger = i == 1 and 3600e9 or 1e6
      link.engine.handle = true
      local opening = open()
      if i == 1 then fail(dialled[1], "closed") end
      local none, err = opening:wait(20)
      assert.is_nil(none)
      assert.equal("closed", err.kind, way)
      assert.equal(i, #dialled)
      assert.is_truthy(dialled[i].ended)
    end
  end)

  it("is dialled at any number of addresses that fail at once", function()
    local list = {}
    for i = 1, 50000 do list[i] = "tcp://a:" .. i end
    local dial = sessions.connect
    function sessions.connect(_, address, options)
      if address == list[1] or address == list[#list] then
        return dial(_, address, options)
      end
      return futures.done(nil, errors.new("too_large", "made up", false))
    end
    local race = races.begin(link, list, 20, { peer_lost = true })
    fail(dialled[1], "peer_lost")
    assert.equal(list[#list], dialled[2].address)
    fail(dialled[2], "denied")
    assert.equal("peer_lost", select(2, race:wait(20)).kind)
  end)

  it("is away where no address answers, even if one is somebody else's",
     function()
    local opening = open()
    fail(dialled[1], "denied")
    fail(dialled[2], "not_found")
    fail(dialled[3], "denied")
    local none, err = opening:wait(20)
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
  end)
end)
