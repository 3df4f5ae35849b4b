-- SPDX-License-Identifier: Apache-2.0
-- Peers that send requests and read no reply: short requests whose replies fill
-- the ring, then requests for as many and as long replies as allowed, all
-- within the 64 KB of a ring.
local values = require "spec.hostile.values"

local SESSIONS, GETS, RENDERS = 4, 200, 256
local ROOM = 2 ^ 21

return function(attack)
  local peer = attack:peer()
  local ids, key = attack.methods, values.encode(1)
  local function ask(session, typed, method, bytes, capacity)
    peer:call(session, { method = method, bytes = bytes, timeout = 60,
                         typed = typed, capacity = capacity })
  end
  for round = 1, SESSIONS do
    local session = attack:dial(peer, 1)
    for _ = 1, session and GETS or 0 do
      if round % 2 == 0 then
        ask(session, true, ids.get, key)
      else
        ask(session, false, ids.echo, "short")
      end
    end
    for _ = 1, session and RENDERS or 0 do
      ask(session, false, ids.render, "", ROOM)
    end
    attack:nap(0.02)
    attack:done()
  end
  attack:nap_to_the_end()
  peer:close()
end
