-- SPDX-License-Identifier: Apache-2.0
-- The kinds of operations that a task of the soak makes. Each makes one with a
-- target, `to` (who, proxy, session, kept), and checks all that comes back. It
-- returns something true, or nil and an error.

local ffi = require "ffi"
local ledger = require "bench.lib.soak.ledger"
local letter = require "bench.lib.soak.letter"
local perigee = require "perigee"
local service = require "bench.lib.soak.service"

local SHORTEST, SLOT = letter.SHORTEST, service.SLOT
local random, floor = math.random, math.floor

local LONGEST = 2 ^ 18 -- bytes of all but bulk payloads, notices too
local INSIDE = 50      -- inplace calls, of which one leaves in its own code

local M = { LONGEST = LONGEST }

-- ---- Payloads --------------------------------------------------------------

-- A length up to most, each order of magnitude as likely as another.
local function length_of(most)
  local ratio = most / SHORTEST
  return math.min(most, floor(SHORTEST * ratio ^ random() + 0.5))
end

-- Makes this task's next payload at pointer; returns its serial.
local function fresh(self, pointer, length)
  local peer = self.peer
  peer.serial = peer.serial + 1
  letter.fill(pointer, length, peer.who, peer.life, peer.serial)
  return peer.serial
end

local function same(self, pointer, length, serial, what)
  local why = letter.differs(pointer, length, self.peer.who, self.peer.life,
                             serial)
  if why then
    ledger.fault("mismatch", "peer %d got back, by %s: %s", self.peer.who,
                 what, why)
  end
  return true
end

-- The same of a string, which nothing else holds while it is looked at by its
-- address.
local function same_text(self, text, serial)
  self.held = text
  same(self, ffi.cast("const uint8_t *", text), #text, serial, "a raw call")
  self.held = nil
  return true
end

-- What must be there, in a reply of Lua values.
local function equal(what, wanted, got)
  if wanted ~= got then
    ledger.fault("mismatch", "%s: %s came for %s", what, tostring(got),
                 tostring(wanted))
  end
end

-- ---- Operations ------------------------------------------------------------

local OPERATIONS = {}
M.OPERATIONS = OPERATIONS

function OPERATIONS.typed(self, to)
  local length = length_of(4000)
  local serial = fresh(self, self.out.pointer, length)
  local text = ffi.string(self.out.pointer, length)
  local who, which, number, list, long = to.proxy:typed(text, serial + 0.5,
                                                        { serial, "a", {} })
  if who == nil then return nil, which end
  equal("typed", to.who, who)
  equal("typed", serial, which)
  equal("typed", serial + 0.5, number)
  equal("typed", serial, type(list) == "table" and list[1])
  equal("typed", length, long)
  return true
end

function OPERATIONS.raw(self, to)
  local length = length_of(LONGEST)
  local from = self.out:slice(0, length)
  local serial = fresh(self, from.pointer, length)
  if random(2) == 1 then
    local into = to.proxy:with { into = self.into:slice(0, length) }
    local got, err = into:echo(from)
    if not got then return nil, err end
    return same(self, got.pointer, got.length, serial, "a raw call")
  end
  local got, err = to.proxy:echo(from:string())
  if not got then return nil, err end
  return same_text(self, got, serial)
end

-- Its writer or its reader may close the session that it is called for.
function OPERATIONS.inplace(self, to)
  local length, serial = length_of(LONGEST), nil
  local leaves = random(INSIDE)
  local filled = to.proxy:with {
    capacity = length, timeout = self.peer.timeout,
    reader = function(reply)
      if leaves == 1 then self.leave(to) end
      return same(self, reply.pointer, reply.length, serial, "an inplace call")
    end,
  }
  return filled:copy(function(loan)
    if leaves == 2 then self.leave(to) end
    serial = fresh(self, loan.pointer, length)
    return length
  end)
end

-- An idempotent call, which may be made again in another session, and served
-- twice.
function OPERATIONS.again(self, to)
  local length = length_of(4000)
  local serial = fresh(self, self.out.pointer, length)
  local text = ffi.string(self.out.pointer, length)
  local got, err
  if random(2) == 1 then
    got, err = to.proxy:again(text)
  else
    got, err = to.proxy.async:again(text):wait()
  end
  if got == nil then return nil, err end
  return same_text(self, got, serial)
end

function OPERATIONS.bulk(self, to)
  local length = length_of(self.peer.bulk)
  local from = self.out:slice(0, length)
  local serial = fresh(self, from.pointer, length)
  local got, err = to.proxy:with { into = self.into }:put(from)
  if not got then return nil, err end
  return same(self, got.pointer, got.length, serial, "a bulk call")
end

-- A slot of this task's own in the target's region. Looks at it by the same
-- region, which is stale in another life of the target.
local function write_by(self, session, what)
  local length = length_of(SLOT)
  local offset, from = self.slot * SLOT, self.out:slice(0, length)
  local serial = fresh(self, from.pointer, length)
  local remote, err = session:region("slots", self.patience)
  if not remote then return nil, err end
  local there = remote:slice(offset, length)
  local spec = { from = from, to = there, timeout = self.peer.timeout }
  local fine, why = session:write(spec):wait()
  if not fine then return nil, why end
  local back = self.into:slice(0, length)
  fine, why = session:read({ from = there, to = back,
                             timeout = self.peer.timeout }):wait()
  if not fine then return nil, why end
  return same(self, back.pointer, length, serial, what)
end

function OPERATIONS.write(self, to)
  return write_by(self, to.session, "a write and a read")
end

function OPERATIONS.kept(self, to)
  return write_by(self, to.kept, "a write and a read of a kept session")
end

function OPERATIONS.read(self, to)
  local remote, err = to.session:region("notice", self.patience)
  if not remote then return nil, err end
  local i = random(#service.NOTICE)
  local at, length = service.notice(i)
  local into = self.into:slice(0, length)
  local fine, why = to.session:read({ from = remote:slice(at, length),
                                      to = into,
                                      timeout = self.peer.timeout }):wait()
  if not fine then return nil, why end
  local who, life, serial = letter.read(into.pointer, length)
  if not who then
    ledger.fault("mismatch", "a read of peer %d: %s", to.who, life)
  end
  equal("a read", to.who, who)
  equal("a read", i, serial)
  return true
end

function OPERATIONS.send(self, to)
  local length = length_of(service.MESSAGE)
  local from = self.out:slice(0, length)
  fresh(self, from.pointer, length)
  return to.session:send(from, { timeout = self.peer.timeout }):wait()
end

-- Writes to and reads from a region that its owner closes meanwhile.
function OPERATIONS.brief(self, to)
  local remote, err = to.session:region("brief", self.patience)
  if not remote then return nil, err end
  local length = length_of(service.BRIEF)
  local from, there = self.out:slice(0, length), remote:slice(0, length)
  fresh(self, from.pointer, length)
  local fine, why = to.session:write({ from = from, to = there,
                                       timeout = self.peer.timeout }):wait()
  if not fine then return nil, why end
  return to.session:read({ from = there, to = self.into:slice(0, length),
                           timeout = self.peer.timeout }):wait()
end

-- An engine of its own connects, calls and closes.
function OPERATIONS.connect(self, to)
  local peer = self.peer
  local agent, err = perigee.agent { scope = peer.scope, engine = peer.options,
                                     transport = peer.transport }
  if not agent then return nil, err end
  local proxy, why = agent:proxy(peer.name_of(to.who), "soak",
                                 { timeout = peer.timeout })
  local got = true
  if proxy then
    local length = length_of(2 ^ 14)
    local serial = fresh(self, self.out.pointer, length)
    got, why = proxy:echo(ffi.string(self.out.pointer, length))
    if got then same_text(self, got, serial) end
  end
  ledger.check_dropped(agent.engine)
  agent:close()
  return proxy and got and true, why
end

--- A raw call that is cancelled at once, or soon.
function M.cancelled(self, to)
  local length = length_of(2 ^ 16)
  local from = self.out:slice(0, length)
  local serial = fresh(self, from.pointer, length)
  local into = to.proxy:with { into = self.into:slice(0, length) }
  local future = into.async:echo(from)
  if random(2) == 1 then perigee.sleep(random() * 0.002) end
  future:cancel()
  local got, err = future:wait()
  if not got then return nil, err end
  return same(self, got.pointer, got.length, serial, "a raw call")
end

return M
