-- SPDX-License-Identifier: Apache-2.0
-- Sessions that do nothing: more than a server takes by default, and where it
-- takes more, 10,000 or as many as descriptors allow.
local native = require "perigee.native"

local FEW, MANY = 1100, 10000
local PATIENCE = 5 -- seconds, in a short run, until there are enough

return function(attack)
  local count = attack.scale < 1 and FEW or MANY
  local peer = attack:peer { sessions = 65536 }
  local limit = native.clock() + PATIENCE * 1e9 * (count / FEW)
  for _ = 1, count do
    if native.clock() > limit then break end
    local session = peer:dial(attack.address, attack.transport, 2)
    if not session then break end
    attack:done()
  end
  while not attack:over() do peer:attend(0.1) end
  peer:close()
end
