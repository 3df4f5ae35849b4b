-- SPDX-License-Identifier: Apache-2.0
-- Several NICs in one session: each carries a share of the bytes.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local weather = require "spec.rdma.weather"

local SIZE = 2 ^ 23

local function services(_, perigee_, _, agent)
  local size = 2 ^ 23
  local shared = agent.engine:alloc(size, { name = "m", access = "rw" })
  local region = agent.engine:alloc(size)
  return {
    name = "x", version = 1,
    methods = {
      same = function(x) return x end,
      -- The immediate that arrived, and whether all bytes were there by then.
      immediate = function(value)
        local came = perigee_.context().session:recv_imm():wait(10)
        return came, shared:slice():string() == string.char(value):rep(size)
      end,
      echo = { landing = function(length) return region:slice(0, length) end,
               function(slice) return slice end },
    },
  }
end

-- Packets sent, as the device counts them.
local function sent_by(device)
  local path = ("/sys/class/infiniband/%s/ports/1/hw_counters/sent_pkts")
    :format(device)
  local file = assert(io.open(path))
  local count = tonumber(file:read "*a")
  file:close()
  return count
end

describe("a session over two NICs", function()
  local sides, why = weather.across "qps=2 stripe=64K"
  if not sides then return pending(why) end
  local both = { near = sides.near:gsub("nics=rxe1 gid=1", "nics=rxe1,rxe0"),
                 far = sides.far:gsub("nics=rxe2 gid=1", "nics=rxe2,rxe0") }
  local agent, child, proxy, session, here

  before_each(function()
    agent = weather.agent(both.near)
    child = weather.worker(both, services)
    proxy = assert(agent:proxy("worker", "x", { timeout = 20 }))
    session = assert(agent:session("worker"))
    here = agent.engine:alloc(2 * SIZE)
  end)
  after_each(cases.cleanup)

  it("says which NIC carries it, and that there are others", function()
    local told = session:explain()
    assert.equal("verbs", told.transport)
    assert.matches("rxe1/1 and others, 4 queue pairs", told.carrier)
    assert.equal("rxe1/1 and others", told.facts.device)
    assert.equal(4, told.facts.queue_pairs)
  end)

  it("carries each byte to its place and back, over both", function()
    local remote = assert(session:region("m"))
    local before = { sent_by "rxe0", sent_by "rxe1" }
    for _, size in ipairs { 1, 65537, 2 ^ 20 + 13, SIZE } do
      local from, to = here:slice(0, size), here:slice(SIZE, size)
      local p = ffi.cast("uint32_t *", from.pointer)
      for i = 0, size / 4 - 1 do p[i] = i * 2654435761 + size end
      to:fill(0)
      assert(session:write { from = from, to = remote:slice(0, size) }:wait(20))
      assert(session:read { from = remote:slice(0, size), to = to }:wait(20))
      assert.is_true(from:string() == to:string(), size .. " bytes differ")
    end
    assert.is_true(sent_by "rxe0" - before[1] > 1000, "rxe0 was idle")
    assert.is_true(sent_by "rxe1" - before[2] > 1000, "rxe1 was idle")
  end)

  it("brings an immediate once, after all its data", function()
    local remote = assert(session:region("m"))
    for value = 1, 3 do
      local from = here:slice(0, SIZE):fill(value)
      local write = session:write_imm({ from = from, to = remote:slice() },
                                      value)
      local came, all = proxy:immediate(value)
      assert.same({ value, true }, { came, all })
      assert(write:wait(10))
    end
  end)

  it("brings a payload to its landing, and back", function()
    local from, into = here:slice(0, SIZE):fill(0x5a), here:slice(SIZE, SIZE)
    into:fill(0)
    assert(proxy:with({ into = into }):echo(from))
    assert.is_true(into:string() == from:string())
  end)

  it("ends in one typed error when the peer is killed", function()
    local remote = assert(session:region("m"))
    local future = session:write { from = here:slice(0, SIZE),
                                   to = remote:slice(0, SIZE) }
    child:kill()
    local done, err = weather.ended(future)
    assert.is_true(done or err.kind == "peer_lost", tostring(err))
    assert.is_true(cases.eventually(function()
      return session:explain().state == "ended"
    end, weather.SOON))
  end)
end)
