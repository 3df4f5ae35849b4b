-- SPDX-License-Identifier: Apache-2.0
-- Sparse outboxes: shared memory of which nothing is there but its length, as
-- long as it may be announced, and then what still finds room beside it. An
-- attacker's own address space is no larger: it takes two to fill another's.
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
