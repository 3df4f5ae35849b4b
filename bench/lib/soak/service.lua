-- SPDX-License-Identifier: Apache-2.0
-- What a peer of the soak serves, and what it receives. Every payload that
-- comes is checked, and that no call comes twice.
--
-- Regions that other peers reach:
--   "slots"   each of their tasks writes to a slot of its own
--   "notice"  they read it: payloads of this peer, of different lengths
--   "brief"   memory that is closed in use, again and again. Once a close has
--             returned nobody writes to it, which is checked

local ffi = require "ffi"
local ledger = require "bench.lib.soak.ledger"
local letter = require "bench.lib.soak.letter"
local perigee = require "perigee"
local payload = require "bench.lib.payload"
local now = require "bench.lib.process".now

local M = {}

local SLOT, NOTICE = 2 ^ 16, { 24, 64, 1000, 8192, 65532, 262144 }
local BRIEF, MESSAGE = 2 ^ 16, 2 ^ 16
local REMEMBERED = 4096 -- calls of each peer
local DISTURBS = 200    -- calls, of which one closes a session in its handler
local LONGER = { timeout = math.huge }

M.SLOT, M.BRIEF, M.MESSAGE, M.NOTICE = SLOT, BRIEF, MESSAGE, NOTICE

local me -- who, life, slots, blocks, leave_any: as M.start was told

-- ---- What comes ------------------------------------------------------------

-- The last calls of each peer's present life, by their number.
local heard = {}

local function once(who, life, serial)
  local of = heard[who]
  if not of or of.life ~= life then
    of = { life = life, last = {} }
    heard[who] = of
  end
  local place = serial % REMEMBERED
  if of.last[place] == serial then
    ledger.fault("double delivery", "call %d of peer %d was served twice",
                 serial, who)
  end
  of.last[place] = serial
end

-- Checks a call's payload; returns its serial.
local function take(pointer, length, what)
  local who, life, serial = letter.read(pointer, length)
  if who then
    once(who, life, serial)
    return serial
  end
  ledger.fault("mismatch", "peer %d was given, by %s: %s", me.who, what, life)
  return 0
end

-- Has what a slow peer does wait; for `most` seconds.
local function drowse(most)
  local left = (me.slow_until - now()) * 1e-9
  if left > 0 then perigee.sleep(math.min(left, most)) end
end

-- ---- Methods ---------------------------------------------------------------

local function typed(text, number, list)
  me.held = text -- while it is looked at by its address
  local serial = take(ffi.cast("const uint8_t *", text), #text, "a typed call")
  me.held = nil
  drowse(0.5)
  return me.who, serial, number, list, #text
end

-- Closes a session of this peer's sometimes, from code on the loop, under
-- whatever its tasks are at there.
local function disturb()
  if me.going and math.random(DISTURBS) == 1 then me.leave_any() end
end

local function echo(request)
  disturb()
  take(request.pointer, request.length, "a raw call")
  return request
end

local function copy(request, reply)
  take(request.pointer, request.length, "an inplace call")
  disturb()
  return reply:write(request)
end

-- May be served twice, so that only its payload is looked at.
local function again(text)
  me.held = text
  local who, life = letter.read(ffi.cast("const uint8_t *", text), #text)
  me.held = nil
  if not who then
    ledger.fault("mismatch", "peer %d was given, by an idempotent call: %s",
                 me.who, life)
  end
  drowse(0.5)
  return text
end

-- Is this payload in that part of the slots?
local function stored(offset, length, who, life, serial)
  local slice = me.slots:slice(offset, length)
  return letter.differs(slice.pointer, length, who, life, serial) or "stored"
end

-- A block for bulk data, or nil: others have them all.
local function block_of(length)
  disturb()
  local block = table.remove(me.blocks)
  if not block then return nil, "no block is free" end
  me.lent[block] = true
  return block:slice(0, length)
end

local function give_back(slice)
  for block in pairs(me.lent) do
    if block.pointer == slice.pointer then
      me.lent[block] = nil
      me.blocks[#me.blocks + 1] = block
      return
    end
  end
end

-- Checks bulk data and sends the same back.
local function put(slice)
  take(slice.pointer, slice.length, "a bulk call")
  local context = perigee.context()
  perigee.spawn(function()
    context:sent()
    give_back(slice)
  end)
  return slice
end

local METHODS = {
  typed = typed, stored = stored, again = { idempotent = true, again },
  echo = { raw = true, echo }, copy = { raw = true, inplace = true, copy },
  put = { landing = block_of, abandoned = give_back, put },
}

-- ---- Messages --------------------------------------------------------------

-- Messages of a session come in order, and each once.
local function receive(session)
  local region = assert(me.engine:alloc(MESSAGE))
  local slice, last = region:slice(), 0
  while true do
    local length, err = session:recv(slice, LONGER):wait()
    if not length then
      region:close()
      if err.kind ~= "peer_lost" and err.kind ~= "closed"
        and err.kind ~= "protocol" then
        ledger.fault("unexpected end", "a receive: %s", tostring(err))
      end
      return
    end
    local who, life, serial = letter.read(slice.pointer, length)
    if not who then
      ledger.fault("mismatch", "peer %d received: %s", me.who, life)
    elseif serial <= last and not me.faults then
      ledger.fault("double delivery", "message %d came after %d", serial, last)
    end
    last = serial or last
    drowse(60)
  end
end

-- ---- The region that is closed in use --------------------------------------

local function brief(memory)
  local region = me.engine:register(memory, BRIEF, { name = "brief",
                                                     access = "rw" })
  if not region then return perigee.sleep(0.01) end
  perigee.sleep(0.02 + math.random() * 0.2)
  local fine, err = region:close(30)
  if not fine then
    return ledger.fault("unexpected end", "closing a region in use: %s",
                        tostring(err))
  end
  letter.fill(memory, BRIEF, me.who, me.life, 0)
  perigee.sleep(0.02)
  local why = letter.differs(memory, BRIEF, me.who, me.life, 0)
  if why then
    ledger.fault("mismatch", "a closed region was written: %s", why)
  end
end

-- ---- Starting --------------------------------------------------------------

local function notice(engine)
  local total = 0
  for _, length in ipairs(NOTICE) do total = total + length end
  local slice = assert(engine:alloc(total, { name = "notice", access = "r" }))
                :slice()
  local at = 0
  for i, length in ipairs(NOTICE) do
    letter.fill(slice.pointer + at, length, me.who, me.life, i)
    at = at + length
  end
end

--- The place of notice i.
function M.notice(i)
  local at = 0
  for k = 1, i - 1 do at = at + NOTICE[k] end
  return at, NOTICE[i]
end

-- Closes and opens "brief" while `self.going`.
local function keep_brief(self)
  local memory = payload.private(BRIEF)
  ledger.enter "brief"
  while self.going do brief(memory) end
  ledger.leave()
end

--- Serves all of it for an agent. self: who, life, slots (how many), bulk
-- (bytes), slow_until (ns).
function M.start(agent, self)
  me = self
  me.engine, me.lent, me.blocks = agent.engine, {}, {}
  notice(agent.engine)
  me.slots = assert(agent.engine:alloc(me.slot_count * SLOT,
                                       { name = "slots", access = "rw" }))
  for i = 1, 3 do
    me.blocks[i] = assert(agent.engine:alloc(me.bulk)):slice()
  end
  agent:on_session(function(session)
    disturb()
    perigee.spawn(receive, session)
  end)
  agent:serve { name = "soak", methods = METHODS }
end

M.keep_brief = keep_brief

return M
