-- SPDX-License-Identifier: Apache-2.0
-- Sparse outboxes: shared memory that is as long as may be announced but mostly
-- not allocated, and then smaller ones that still find room beside it. An
-- attacker's address space is no larger than the victim's: it takes two
-- attackers to fill that.
local SESSIONS, MOST, LEAST = 64, 2 ^ 40, 2 ^ 30

return function(attack)
  local peers, pool = {}, MOST
  while pool >= LEAST do
    local peer = attack:try_peer { pool = pool }
    peers[#peers + 1] = peer
    for _ = 1, peer and SESSIONS or 0 do
      if not peer:dial(attack.address, attack.transport, 1) then break end
      attack:done()
    end
    pool = pool / 2
  end
  attack:nap_to_the_end()
  for _, peer in ipairs(peers) do peer:close() end
end
