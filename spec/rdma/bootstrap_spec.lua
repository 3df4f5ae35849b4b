-- SPDX-License-Identifier: Apache-2.0
-- Endpoints: two texts that are exchanged by any means become a session,
-- whichever side is first. Invalid texts become none.
local cases = require "spec.support.cases"
local endpoints = require "spec.rdma.endpoints"
local perigee = require "perigee"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local function works(session)
  local calc = assert(session:proxy("calc", { timeout = 10 }))
  assert.equal(5, (assert(calc:add(2, 3))))
end

describe("endpoints", function()
  local sides, why = weather.anywhere()
  if not sides then return pending(why) end
  local near, far

  before_each(function()
    near, far = endpoints.agents()
    for _, agent in ipairs { near, far } do
      agent:serve { name = "calc", version = 1,
                    methods = { add = function(a, b) return a + b end } }
    end
  end)
  after_each(function()
    weather.calm()
    cases.cleanup()
  end)

  local function fine(a, b)
    works(a)
    works(b)
    assert.equal("verbs", a:explain().transport)
    assert.equal("endpoint", a:explain().address)
    assert.is_nil(a:explain().pid)
  end

  describe("become a session", function()
    for _, calls in ipairs { true, false } do
      for _, pause in ipairs { 0, 0.05, 3 } do
        it(("when the one that %s is first by %g s"):format(
          calls and "calls" or "listens", pause), function()
          local a, b = endpoints.pair(near, far, calls)
          fine(endpoints.connect(a, b, pause))
        end)
      end
    end

    it("of one engine with itself", function()
      fine(endpoints.connect(endpoints.pair(near, near)))
    end)

    it("with blanks and line ends around the text", function()
      local a, b = endpoints.pair(near, far)
      local text = b:info()
      assert.matches("^%S+$", text)
      assert.is_true(#text < 4096)
      local first = perigee.spawn(function()
        return assert(a:connect(" \t" .. text .. "\r\n", { timeout = 10 }))
      end)
      fine(assert(b:connect(a:info() .. "\n", { timeout = 10 })),
           assert(first:wait(10)))
    end)

    it("eight at once", function()
      local pairs_, futures = {}, {}
      for i = 1, 8 do
        pairs_[i] = { endpoints.pair(near, far) }
        for k = 1, 2 do
          futures[#futures + 1] = perigee.spawn(function()
            return assert(pairs_[i][k]:connect(pairs_[i][3 - k]:info(),
                                               { timeout = 20 }))
          end)
        end
      end
      for i = 1, 8 do
        fine(assert(futures[2 * i - 1]:wait(20)),
             assert(futures[2 * i]:wait(20)))
      end
    end)

    it("although packets are lost", function()
      if not sides.crossing then return pending "it wants a link" end
      weather.netem "loss 2%"
      for round = 1, 4 do
        local a, b = endpoints.pair(near, far, round % 2 == 0)
        fine(endpoints.connect(a, b, 0.1 * round))
      end
    end)
  end)

  describe("become none", function()
    local function refused(kind, endpoint, ...)
      for _, text in ipairs { ... } do
        local none, err = endpoint:connect(text, { timeout = 5 })
        assert.is_nil(none, text)
        assert.equal(kind, err.kind, tostring(err))
      end
    end

    it("when the peer never connects", function()
      for _, calls in ipairs { true, false } do
        local a, b = endpoints.pair(near, far, calls)
        local before = process.now()
        local none, err = a:connect(b:info(), { timeout = 1 })
        assert.is_nil(none)
        assert.equal("timeout", err.kind)
        assert.matches("endpoint", tostring(err))
        assert.is_true(process.now() - before >= 1)
        assert.is_true(process.now() - before < 5)
        -- The peer gets no session either.
        none, err = b:connect(a:info(), { timeout = 1 })
        assert.is_nil(none)
        assert.is_true(err.kind == "timeout" or err.kind == "peer_lost")
      end
      assert.equal(0, near.engine:stats().sessions)
      assert.equal(0, near.engine:stats().operations)
      fine(endpoints.sessions(near, far))
    end)

    it("when the text is none, in part or changed", function()
      local a, b = endpoints.pair(near, far)
      local text = b:info()
      refused("protocol", a, "", " ", "garbage", ("x"):rep(10000), text .. "00",
              text .. text, text .. " " .. text, "perigee-endpoint:",
              "perigee-endpoint:0", text:sub(2), text:upper(),
              ("\255"):rep(900), text:sub(1, 500) .. "\0" .. text:sub(502))
      for at = 1, #text - 1, 7 do
        refused("protocol", a, text:sub(1, at), text:sub(1, at - 1)
          .. string.char(bit.bxor(text:byte(at), 1)) .. text:sub(at + 1))
      end
      refused("protocol", a, a:info())
      -- None of these attempts did any harm.
      fine(endpoints.connect(a, b))
    end)

    it("when the text is of another version", function()
      local a, b = endpoints.pair(near, far)
      local bytes = endpoints.unpack(b:info())
      assert.equal(b:info(), endpoints.pack(bytes))
      refused("version", a, endpoints.pack("\9" .. bytes:sub(2)))
      local function with(at, text)
        return endpoints.pack(bytes:sub(1, at) .. text
          .. bytes:sub(at + #text + 1))
      end
      refused("version", a, with(endpoints.HELLO_VERSION_MIN, "\9\0\0\0\9"))
      a = endpoints.endpoint(near)
      refused("version", a, with(endpoints.OFFER_VERSION, "\9"))
    end)

    it("when the text lies", function()
      local b = endpoints.endpoint(far)
      local bytes = endpoints.unpack(b:info())
      local seed = 7
      local function random(n)
        seed = (seed * 1103515245 + 12345) % 2 ^ 31
        return math.floor(seed / 2 ^ 31 * n)
      end
      for _ = 1, 60 do
        local at = 12 + random(#bytes - 12)
        local text = endpoints.pack(bytes:sub(1, at)
          .. string.char(random(256)) .. bytes:sub(at + 2))
        local a = endpoints.endpoint(near)
        local none, err = a:connect(text, { timeout = 0.05 })
        assert.is_nil(none)
        assert.is_true(perigee.is_error(err))
        a:close()
      end
      fine(endpoints.sessions(near, far))
    end)

    it("when the two sides have not as many NICs", function()
      if not sides.crossing then return pending "it wants two devices" end
      local both = weather.agent "nics=rxe1,rxe2 gid=1"
      local a, b = endpoints.pair(near, both)
      refused("unsupported", a, b:info())
      refused("unsupported", b, a:info())
    end)

    it("when an endpoint is closed meanwhile", function()
      local a, b = endpoints.pair(near, far)
      local future = perigee.spawn(function()
        return a:connect(b:info(), { timeout = 20 })
      end)
      perigee.sleep(0.1)
      a:close()
      a:close()
      local none, err = future:wait(5)
      assert.is_nil(none)
      assert.equal("cancelled", err.kind)
      assert.has_error(function() a:info() end)
      assert.has_error(function() a:connect(b:info()) end)
    end)

    it("when the engine is closed meanwhile", function()
      local a, b = endpoints.pair(near, far)
      endpoints.endpoint(near)
      local future = perigee.spawn(function()
        return a:connect(b:info(), { timeout = 20 })
      end)
      perigee.sleep(0.1)
      near:close()
      local none, err = future:wait(5)
      assert.is_nil(none)
      assert.equal("closed", err.kind)
      assert.has_error(function() a:info() end)
    end)
  end)

  it("are connected once", function()
    local a, b = endpoints.pair(near, far)
    local one, other = endpoints.connect(a, b)
    assert.error_matches(function() a:connect(b:info()) end, "connected before")
    fine(one, other)
    a:close()
    b:close()
    fine(one, other)
  end)

  it("are asked for by what can be", function()
    local engine = near.engine
    assert.has_error(function() engine:endpoint { port = 1 } end)
    assert.has_error(function() engine:endpoint { transport = 1 } end)
    local none, err = engine:endpoint { transport = "shm" }
    assert.is_nil(none)
    assert.equal("unsupported", err.kind)
    none, err = engine:endpoint { transport = "pigeon" }
    assert.is_nil(none)
    assert.equal("unsupported", err.kind)
    local endpoint = assert(engine:endpoint { transport = "verbs" })
    assert.has_error(function() endpoint:connect(7) end)
    assert.has_error(function() endpoint:connect("", { wait = 1 }) end)
  end)

  it("that are never connected cost nothing for long", function()
    local before = near.engine:stats().sessions
    for i = 1, 60 do
      endpoints.endpoint(near):close()
      if i % 10 == 0 then perigee.sleep(0.001) end
    end
    perigee.sleep(0.01)
    assert.equal(before, near.engine:stats().sessions)
  end)
end)
