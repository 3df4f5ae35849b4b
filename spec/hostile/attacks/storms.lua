-- SPDX-License-Identifier: Apache-2.0
-- Peers that are stopped, continued and killed in the middle of calls of every
-- kind. Each checks its replies as long as it lives.
local process = require "spec.support.process"

local PEERS, PAUSE = 4, 0.01

local function calling(child, perigee, _, address, transport, secret)
  local own = assert(child.cases.agent(nil, { secret = secret,
                                              transport = transport }))
  local function proxy(name)
    return assert(own:proxy(address, name, { timeout = 20, reconnect = 0 }))
  end
  local calc, store = proxy "calc", proxy "store"
  local from = own.engine:alloc(2 ^ 16):slice(0, 2 ^ 16)
  child.say "there"
  local function lost(err) return err and err.kind ~= "remote" end
  for round = 1, math.huge do
    local size = (round * 7919) % 300000
    local text = child.cases.bytes(size, round)
    local asked = { calc.async:echo(text), calc.async:add(round, 1),
                    calc.async:copy(text:sub(1, 5000)),
                    store.async:put(from, round), store.async:get(round) }
    local want = { text, round + 1, text:sub(1, 5000), 2 ^ 16 }
    for i, future in ipairs(asked) do
      local got, err = future:wait()
      if lost(err) then return end
      if want[i] and got ~= want[i] then
        child.say("wrong", i, size, tostring(err or type(got)))
      end
      if i == 5 and got then got:close() end
    end
  end
  perigee.stop()
end

return function(attack)
  local function peer()
    return process.start(calling, attack.address, attack.transport,
                         attack.secret)
  end
  local peers = {}
  for i = 1, PEERS do peers[i] = peer() end
  while not attack:over() do
    local i = attack:random(PEERS) + 1
    local one, what = peers[i], attack:random(4)
    local line = one:read(0)
    if line and line:find "^wrong" then attack:found(line) end
    if what == 0 then
      one:close()
      peers[i] = peer()
    elseif what == 1 then
      one:signal "STOP"
    else
      one:signal "CONT"
    end
    attack:done()
    attack:nap(PAUSE)
  end
  process.cleanup()
end
