-- SPDX-License-Identifier: Apache-2.0
-- Amplification: bytes that decode to as many tables, each much larger.
local values = require "spec.hostile.values"

local SIZES = { 2 ^ 20 - 100, 16 * 2 ^ 20 - 100 }

return function(attack)
  local peer = attack:peer { typed = 2 ^ 24, pool = 2 ^ 30 }
  local session = attack:dial(peer)
  local heads = {}
  for i, size in ipairs(SIZES) do
    heads[i] = values.array(size, values.EMPTY)
  end
  heads[3] = values.nested(60, 2 ^ 19)
  -- Tables with one pair each, and short strings that are all different.
  heads[4] = values.array(2 ^ 17, values.pairs(1, values.TRUE:rep(2)))
  heads[5] = values.words(2 ^ 17)
  while not attack:over() do
    for _, head in ipairs(heads) do
      peer:call(session, { method = 0, typed = true, bytes = head })
      peer:attend(0.3, function() return true end)
      attack:done()
      session = attack:keep(peer, session)
    end
  end
  peer:close()
end
