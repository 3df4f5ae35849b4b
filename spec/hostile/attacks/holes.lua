-- SPDX-License-Identifier: Apache-2.0
-- Memory without a page in it, for the victim to make the pages: loans that are
-- never written, and rings of 256 KiB that the replies of echoes fill. All of
-- it is held when the attack is over, and then for a second more.
local ffi = require "ffi"
local native = require "perigee.native"

local C = native.C
local LOANS = { sessions = 64, each = 8, length = 2 ^ 20, seconds = 10 }
local RINGS = { sessions = 100, ring = 2 ^ 18, echo = 8000, seconds = 5 }
local AFTER = 1.2

local function lend(session, method)
  local loan, message = native.loan_t(), native.message_t()
  if C.perigee_call_begin(session, LOANS.length, loan) < 0 then return false end
  message.method, message.timeout = method, 30e9
  return C.perigee_call_commit(session, message, LOANS.length) >= 0
end

-- Each session lends blocks that lie side by side and reads the replies.
local function loans(attack)
  local peer = attack:peer { sessions = 4096 }
  for _ = 1, LOANS.sessions do
    local session, asked, read = attack:dial(peer, 2), 0, 0
    for _ = 1, session and LOANS.each or 0 do
      asked = asked + (lend(session, attack.methods.weigh) and 1 or 0)
    end
    peer:attend(LOANS.seconds, function(event)
      read = read + (event.kind == C.PERIGEE_EVENT_REPLY and 1 or 0)
      return read >= asked
    end)
    attack:done()
  end
  return peer
end

-- Nobody reads the replies, but those who would ask for more must poll. Once
-- the peer has its share of such rings, sessions are refused.
local function rings(attack)
  local peer = attack:peer { sessions = 4096, ring = RINGS.ring,
                             operations = 65536 }
  local bytes = ("r"):rep(RINGS.echo)
  local limit, open = native.clock() + RINGS.seconds * 1e9, {}
  for i = 1, RINGS.sessions do
    open[i] = attack:dial(peer, 2)
    attack:done()
  end
  for _ = 1, RINGS.ring / RINGS.echo do
    for _, session in pairs(open) do
      if native.clock() > limit then return peer end
      peer:call(session, { method = attack.methods.echo, bytes = bytes })
      attack:done()
    end
    ffi.C.spec_usleep(200)
  end
  return peer
end

return function(attack)
  local peer = (attack.by == "rings" and rings or loans)(attack)
  attack:nap(AFTER)
  attack.say "held"
  attack.hear()
  peer:close()
end
