-- SPDX-License-Identifier: Apache-2.0
-- Slices that are announced and whose bytes never come, since their owner stops
-- doing anything; they get shorter, so that no room is left for others. Also
-- echoes whose replies are not received.
local values = require "spec.hostile.values"

local LENGTHS = { 34 * 2 ^ 20, 34 * 2 ^ 20, 5 * 2 ^ 20 }
local SESSIONS, ECHOES = 34, 40

return function(attack)
  local peer = attack:peer { pull = 0 }
  local bytes = values.NIL .. values.encode(1)
  local echo = ("e"):rep(60000)
  local slices = {}
  for i, length in ipairs(LENGTHS) do slices[i] = peer:memory(length) end
  for n = 1, SESSIONS do
    local session = attack:dial(peer, 1)
    for _, slice in ipairs(session and slices or {}) do
      peer:call(session, { method = 0, typed = true, bytes = bytes,
                           slice = slice, timeout = 60 })
    end
    session = n % 4 == 0 and attack:dial(peer, 1)
    for _ = 1, session and ECHOES or 0 do
      peer:call(session, { method = attack.methods.echo, bytes = echo,
                           timeout = 60 })
    end
    attack:done()
  end
  attack:nap_to_the_end()
  peer:close()
end
