-- SPDX-License-Identifier: Apache-2.0
-- Tables whose keys, numbers or strings, have the same hash: as large as a
-- typed payload may be, and many small ones.
local values = require "spec.hostile.values"

-- A key takes 10 bytes; the default limit of a payload is 1 MiB.
local KEYS = 90000

return function(attack)
  local peer = attack:peer()
  local session = attack:dial(peer)
  local heads = { values.flood(KEYS), values.strings(KEYS / 10),
                  values.flood(1000), values.array(90, values.flood(1000)),
                  values.array(900, values.flood(100)) }
  while not attack:over() do
    for _, head in ipairs(heads) do
      peer:call(session, { method = 0, typed = true, bytes = head })
      peer:attend(0.02)
      attack:done()
    end
    session = attack:keep(peer, session)
  end
  peer:close()
end
