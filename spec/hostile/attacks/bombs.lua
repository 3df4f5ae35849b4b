-- SPDX-License-Identifier: Apache-2.0
-- Calls with more values than a function takes as arguments: to the built-in
-- method, to typed ones and to landings, with and without a slice.
local values = require "spec.hostile.values"

local COUNTS = { 251, 8000, 10000, 60000 }

return function(attack)
  local peer = attack:peer()
  local session = attack:dial(peer)
  local slice = peer:memory(100)
  while not attack:over() do
    local n = COUNTS[attack:random(#COUNTS) + 1]
    local bytes = values.NIL:rep(n) .. values.encode(1)
    for method = 0, 4 do
      peer:call(session, { method = method, typed = true, bytes = bytes,
                           timeout = 1,
                           slice = attack:random(2) == 0 and slice or nil })
      peer:attend(0.02)
    end
    attack:done()
    session = attack:keep(peer, session)
  end
  peer:close()
end
