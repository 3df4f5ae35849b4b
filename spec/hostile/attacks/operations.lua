-- SPDX-License-Identifier: Apache-2.0
-- Sessions full of messages that no one receives, which use up operations.
-- attack.each is nothing (one peer has all sessions), or "peer" (each session
-- seems to have a peer of its own).
local SESSIONS, SENDS = 16, 1024

return function(attack)
  local peers, slice = {}, nil
  for i = 1, SESSIONS do
    if i == 1 or attack.each == "peer" then
      peers[#peers + 1] = attack:peer()
      slice = peers[#peers]:memory(100)
    end
    local peer = peers[#peers]
    local session = attack:dial(peer, 1)
    for _ = 1, session and SENDS or 0 do peer:send(session, slice) end
    if session then attack:done() end
    peer:attend(0.005)
  end
  while not attack:over() do
    for _, peer in ipairs(peers) do peer:poll() end
    attack:nap(0.01)
  end
  for _, peer in ipairs(peers) do peer:close() end
end
