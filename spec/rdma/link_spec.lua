-- SPDX-License-Identifier: Apache-2.0
-- A link that goes down and comes back, loses packets and delays them. A short
-- outage costs only time; a long one ends sessions in peer_lost, on both sides.
-- Soft-RoCE fails at once while its interface is down, since there is no route
-- then: if it has anything to send in that moment, the session ends, however
-- short the outage.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local MIB = 2 ^ 20

describe("a link", function()
  local sides, why = weather.across()
  if not sides then return pending(why) end
  local agent, proxy, session, here

  local function begin(more)
    local with = weather.across(more)
    agent = weather.agent(with.near)
    here = agent.engine:alloc(12 * MIB)
    weather.worker(with, weather.services)
    proxy = assert(agent:proxy("worker", "x", { timeout = weather.LONG }))
    session = assert(agent:session("worker"))
    assert.equal("verbs", session:explain().transport)
  end

  after_each(function()
    weather.calm()
    cases.cleanup()
  end)

  it("that carries nothing for a moment costs time, and no operation",
  function()
    begin "qps=2 timeout=17" -- 0.5 s, and 6 retries
    for round = 1, 3 do
      local futures, check = weather.mix(proxy, session, here, round)
      weather.netem "loss 100%"
      perigee.sleep(0.05)
      weather.calm()
      local got = {}
      for i, future in ipairs(futures) do got[i] = weather.well(future) end
      check(got)
    end
    assert.equal("open", session:explain().state)
  end)

  it("that stays down ends what is under way in peer_lost", function()
    begin "qps=2" -- 67 ms, and 6 retries
    local futures = weather.mix(proxy, session, here, 1)
    for i = 1, 10 do futures[#futures + 1] = proxy.async:sleep(30 + i) end
    weather.link(false)
    futures[#futures + 1] = proxy.async:same(2)
    assert.is_true(weather.lost(futures, 20) >= 11)
    assert.equal("ended", session:explain().state)
    local text = weather.loss(session)
    assert.matches("with worker is lost", text)
    assert.is_truthy(text:find("the way to it is gone; `rdma link`", 1, true)
                     or text:find("the peer .*cut the connection"), text)
    assert.equal(0, agent.engine:stats().operations)
    -- The next operation dials again, by a device that has no link.
    local none, err = proxy:same(1)
    assert.is_nil(none)
    assert.is_true(err.kind == "peer_lost" or err.kind == "unsupported",
                   tostring(err))
    assert.is_false(err.sent)
  end)

  it("that comes back carries the next session", function()
    begin "qps=2"
    for round = 1, 2 do
      local future = proxy.async:same(round)
      weather.link(false)
      assert.is_true(weather.lost({ future, proxy.async:same(0) }, 20) > 0)
      weather.calm()
      local again
      assert.is_true(cases.eventually(function()
        again = agent:proxy("worker", "x", { timeout = weather.LONG })
        return again
      end, 20))
      proxy, session = again, assert(agent:session("worker"))
      weather.fair(proxy, session, here, round)
    end
  end)

  it("that is down is named by a new session", function()
    begin()
    weather.link(false)
    local other = weather.agent(sides.near)
    local none, err = other:proxy("worker", "x", { timeout = 10 })
    assert.is_nil(none)
    assert.equal("unsupported", err.kind)
    assert.matches("rxe1/1 is down .*ip link set veth1 up", tostring(err))
  end)

  it("of which nobody uses anything may go, and come", function()
    begin "qps=2"
    weather.link(false)
    perigee.sleep(1)
    weather.calm()
    weather.fair(proxy, session, here, 7)
  end)

  it("that swallows all packets while it looks fine is noticed", function()
    begin "qps=2"
    weather.netem "loss 100%"
    local futures = weather.mix(proxy, session, here, 1)
    assert.equal(#futures, weather.lost(futures, 20))
    -- The side that notices first cuts the connection.
    local text = weather.loss(session)
    assert.is_truthy(text:find("the way to it is gone", 1, true)
                     or text:find("the peer .*cut the connection"), text)
  end)

  it("that loses 2 % and delays by 2 ms carries right bytes, once", function()
    begin "qps=3 stripe=64K timeout=15" -- 134 ms, and 6 retries
    weather.netem "loss 2% delay 2ms"
    local before = assert(proxy:calls())
    for round = 1, 3 do
      weather.fair(proxy, session, here, round)
      local futures = {}
      for i = 1, 50 do futures[i] = proxy.async:same(i) end
      for i = 1, 50 do assert.equal(i, weather.well(futures[i])) end
    end
    assert.equal(before + 3 * 51, assert(proxy:calls()))
    assert.equal("open", session:explain().state)
  end)
end)

-- Prints each immediate that arrives, and whether all its bytes were there.
local function immediates(child, perigee_, _, rdma, count, size, long)
  count, size, long = tonumber(count), tonumber(size), tonumber(long)
  local engine = child.cases.engine { rdma = rdma, hello_timeout = 90 }
  local region = engine:alloc(count * size, { name = "box", access = "w" })
  local listener = assert(engine:listen(child.cases.address()))
  child.say("ready")
  local session = assert(listener:accept(long))
  for _ = 1, count do
    local value = assert(session:recv_imm({ timeout = long }):wait())
    local bytes = region:slice((value - 1) * size, size):string()
    child.say(value, bytes == string.char(value):rep(size))
  end
  local more, err = session:recv_imm({ timeout = 1 }):wait()
  child.say(more or err.kind)
  perigee_.run()
end

describe("immediates over four queue pairs", function()
  after_each(function()
    weather.calm()
    cases.cleanup()
  end)

  it("come once each, after their bytes, whatever is lost", function()
    local sides, why = weather.across "qps=4 stripe=64K timeout=15"
    if not sides then return pending(why) end
    local COUNT, SIZE = 20, 300000
    local child = process.start(immediates, sides.far, COUNT, SIZE,
                                weather.LONG)
    child:expect("ready", weather.LONG)
    local engine = cases.engine(weather.options(sides.near))
    local session = assert(engine:connect(cases.address(),
      { transport = "verbs", timeout = weather.LONG }))
    local box = assert(session:region("box"))
    local here = engine:alloc(COUNT * SIZE)
    weather.netem "loss 2% delay 2ms"
    local futures, seen = {}, {}
    for i = 1, COUNT do
      local slice = here:slice((i - 1) * SIZE, SIZE):fill(i)
      futures[i] = session:write_imm(
        { from = slice, to = box:slice((i - 1) * SIZE, SIZE),
          timeout = weather.LONG }, i)
    end
    for i = 1, COUNT do weather.well(futures[i]) end
    for _ = 1, COUNT do
      local line = assert(child:read(weather.LONG))
      local value, whole = line:match("^(%d+) (%a+)$")
      assert.equal("true", whole)
      assert.is_nil(seen[value])
      seen[value] = true
    end
    child:expect("timeout", weather.LONG)
  end)
end)
