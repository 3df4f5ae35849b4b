-- SPDX-License-Identifier: Apache-2.0
-- Sessions that do nothing: 500, in a long run as many as descriptors allow.
local FEW, MANY = 500, 10000

return function(attack)
  local count = attack.scale < 1 and FEW or MANY
  local peer = attack:peer { sessions = 65536 }
  for _ = 1, count do
    local session = peer:dial(attack.address, attack.transport, 2)
    if not session then break end
    attack:done()
  end
  while not attack:over() do peer:attend(0.1) end
  peer:close()
end
