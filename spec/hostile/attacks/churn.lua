-- SPDX-License-Identifier: Apache-2.0
-- A peer that connects and disconnects without end, in the middle of calls,
-- look-ups of regions that do not exist, and operations that it cancels at
-- once.
local native = require "perigee.native"

local C = native.C
local PEERS = 4

local function bother(attack, peer, session)
  local bytes = ("b"):rep(attack:random(9000))
  for i = 1, attack:random(60) do
    local operation = peer:call(session, { method = attack.methods.echo,
                                           bytes = bytes, timeout = 1 })
    if i % 2 == 0 and operation >= 0 then
      C.perigee_cancel(peer.handle, operation)
    end
    C.perigee_lookup(session, "no region has this name", 1e9)
  end
end

return function(attack)
  local peers = {}
  for i = 1, PEERS do peers[i] = attack:peer() end
  while not attack:over() do
    local peer = peers[attack:random(PEERS) + 1]
    local session = attack:dial(peer, 1)
    if session then
      bother(attack, peer, session)
      if attack:random(2) == 0 then peer:attend(0.002) end
      peer:hang_up(session)
      attack:done()
    end
    peer:poll()
  end
  for _, peer in ipairs(peers) do peer:close() end
end
