-- SPDX-License-Identifier: Apache-2.0
-- Requests whose replies may have one byte, to a handler that copies its whole
-- request, while replies find no room because the attacker reads none.
return function(attack)
  local bytes = ("c"):rep(8000)
  while not attack:over() do
    local peer = attack:peer()
    local session = attack:dial(peer)
    if session then
      for i = 1, 100 do
        peer:call(session, { method = attack.methods.copy, bytes = bytes,
                             capacity = i < 20 and 8000 or 1, timeout = 1 })
      end
      attack:nap(0.05)
      peer:attend(0.05)
      attack:done()
    end
    peer:close()
  end
end
