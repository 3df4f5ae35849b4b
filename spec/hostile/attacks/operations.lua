-- SPDX-License-Identifier: Apache-2.0
-- Operation hogs: sessions full of messages that nobody receives.
local SESSIONS, SENDS = 16, 1024

return function(attack)
  local peer = attack:peer()
  local slice = peer:memory(100)
  for _ = 1, SESSIONS do
    local session = attack:dial(peer, 1)
    if session then
      for _ = 1, SENDS do peer:send(session, slice) end
      attack:done()
      peer:attend(0.005)
    end
  end
  while not attack:over() do peer:attend(0.05) end
  peer:close()
end
