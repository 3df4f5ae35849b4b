-- SPDX-License-Identifier: Apache-2.0
-- Sessions that do nothing: more than a server accepts by default, or, where it
-- accepts more, 10,000 or as many as descriptors allow. The attacker takes each
-- free place at once.
local native = require "perigee.native"

local C = native.C
local FEW, MANY, AT_ONCE = 1100, 10000, 16
-- Seconds in a short run to get enough sessions: fewer than the judge waits.
local PATIENCE = { few = 5, many = 20 }

return function(attack)
  local few = attack.scale < 1
  local count = few and FEW or MANY
  local peer = attack:peer { sessions = 65536 }
  local open, under_way, failed = 0, 0, 0
  local function ended(event)
    if event.kind ~= C.PERIGEE_EVENT_CONNECTED then return end
    under_way = under_way - 1
    if event.status ~= 0 then
      failed = failed + 1
      return
    end
    open = open + 1
    attack:done()
  end
  local function go_on()
    while under_way < AT_ONCE and open + under_way < count
      and C.perigee_connect(peer.handle, attack.address, attack.transport,
                            2e9) >= 0 do
      under_way = under_way + 1
    end
    if peer:poll(ended) == 0 then peer:wait(0.002) end
  end
  local patience = few and PATIENCE.few or PATIENCE.many
  local limit = native.clock() + patience * 1e9
  while native.clock() < limit and open < count and failed < AT_ONCE do
    go_on()
  end
  while not attack:over() do go_on() end
  peer:close()
end
