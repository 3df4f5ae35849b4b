-- SPDX-License-Identifier: Apache-2.0
-- The worker of these specs: its services, and its region "m". It prints the
-- address where it listens.
local M = {}

local SIZE = 2 ^ 24

local function services(perigee, agent)
  local function caller() return select(2, next(agent.engine.sessions)) end
  local region = agent.engine:alloc(SIZE)
  return {
    name = "x", version = 1,
    methods = {
      same = function(x) return x end,
      sessions = function() return agent.engine:stats().sessions end,
      nap = function(seconds) perigee.sleep(seconds) return "slept" end,
      echo = { raw = true, function(request) return request end },
      get = function(length, byte)
        return region:slice(0, length):fill(byte)
      end,
      put = { landing = function(length) return region:slice(0, length) end,
              function(slice, byte)
                local whole = string.char(byte):rep(slice.length)
                return slice:string() == whole and slice.length
              end },
      -- Two-sided operations with the caller.
      hear = function(length)
        return (caller():recv(region:slice(0, length)):wait(10))
      end,
      tell = function(length, byte)
        return (caller():send(region:slice(0, length):fill(byte)):wait(10))
      end,
      heard = function()
        return (caller():recv_imm():wait(10))
      end,
    },
  }
end

-- options: those of agents.
function M.serve(child, perigee, options)
  local agent = assert(child.cases.agent("worker", options))
  agent.engine:alloc(SIZE, { name = "m", access = "rw" })
  agent:serve(services(perigee, agent))
  child.say(agent.addresses[1])
  perigee.run()
  agent:close()
end

-- Does everything that a session does, once; raises if a result is wrong. here:
-- 8 MiB or more.
function M.all_kinds(cases, proxy, session, here, round)
  local function own(i, size) return here:slice(i * 2 ^ 21, size) end
  local byte = round % 200 + 20
  local remote = assert(session:region("m"))
  assert(proxy:same(round) == round, "another result")
  for _, size in ipairs { 0, 64, 8193, 2 ^ 20 + 4096 } do
    local text = cases.bytes(size, round)
    assert(assert(proxy:echo(text)) == text, "another echo")
    if size > 0 then
      local from, to = own(0, size):fill(byte), own(1, size):fill(0)
      local there = remote:slice(8 * 2 ^ 20, size)
      assert(session:write { from = from, to = there }:wait(30))
      assert(session:read { from = there, to = to }:wait(30))
      assert(to:string() == from:string(), "other bytes")
      assert(assert(proxy:put(own(2, size):fill(byte + 1), byte + 1)) == size,
             "something else came")
      local into = proxy:with { into = own(3, size) }
      local got = assert(into:get(size, byte + 2))
      assert(got:string() == string.char(byte + 2):rep(size), "another reply")
    end
  end
  local heard = proxy.async:hear(100)
  assert(session:send(own(0, 100)):wait(10))
  assert(assert(heard:wait(10)) == 100, "another message")
  local receive = session:recv(own(1, 4096))
  local told = proxy.async:tell(77, byte)
  assert(assert(receive:wait(10)) == 77 and assert(told:wait(10)))
  local immediate = proxy.async:heard()
  assert(session:write_imm({ from = own(0, 64), to = remote:slice(0, 64) },
                           round):wait(10))
  assert(assert(immediate:wait(10)) == round, "another immediate")
end

return M
