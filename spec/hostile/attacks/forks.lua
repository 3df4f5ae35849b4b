-- SPDX-License-Identifier: Apache-2.0
-- A peer whose death is hidden by a child: in the middle of calls it forks a
-- child that does nothing, and is killed. The child has all its sockets, and
-- lives until the judge has looked.
local process = require "spec.support.process"

local PEERS, LIVES = 3, 8

local function hiding(child, _, ffi, address, transport, secret)
  local peer = assert(require("spec.hostile.bare").new {
    secret = secret, scope = child.cases.scope })
  local session = assert(peer:dial(address, transport))
  local slice = peer:memory(2 ^ 22)
  local bytes = "\0" .. require("string.buffer").encode(1)
  for _ = 1, 20 do
    peer:send(session, slice)
    peer:call(session, { typed = true, bytes = bytes, slice = slice })
  end
  peer:attend(0.05)
  if ffi.C.spec_fork() == 0 then
    ffi.C.spec_usleep(8e6)
    ffi.C.spec_exit(0)
  end
  child.say "forked"
  child.hear()
end

return function(attack)
  local peers = {}
  for i = 1, PEERS do
    peers[i] = process.start(hiding, attack.address, attack.transport,
                             attack.secret)
  end
  for i = 1, PEERS do
    peers[i]:expect("forked", LIVES)
    peers[i]:kill()
    attack:done()
  end
  attack:nap_to_the_end()
end
