-- SPDX-License-Identifier: Apache-2.0
-- A peer that lies: an engine of the C core without the Lua layer above it,
-- which can send anything that the core's scan lets pass. It runs in the
-- process of the honest agents and is polled in turn with their loop. A seed
-- determines all that it says.
--
-- It dials (liar:dial), floods with calls (liar:call), listens and answers
-- requests. liar.answer gives the answers if it is set; otherwise the answers
-- are lies, except that liar.describes makes it describe a service truly.
local perigee = require "perigee"
local native = require "perigee.native"

local buffer = require "string.buffer"
local ffi = require "ffi"
local C = native.C

local M = {}
local Liar = {}
Liar.__index = Liar

local REGION = 2 ^ 17
local NAMES = { "", "add", "close", "with", "async", "a\27[31m\r\n\0b",
                ("n"):rep(300), "__index", "wait", "copy" }

-- ---- Chance ----------------------------------------------------------------

--- Random numbers from a seed (xorshift32): next(n) gives 1 to n, pick() an
-- element of a list.
function M.chance(seed)
  local x = bit.tobit(seed * 2654435761 % 2 ^ 32)
  if x == 0 then x = 1 end
  local chance = {}
  function chance.next(n)
    x = bit.bxor(x, bit.lshift(x, 13))
    x = bit.bxor(x, bit.rshift(x, 17))
    x = bit.bxor(x, bit.lshift(x, 5))
    return bit.band(x, 0x7fffffff) % n + 1
  end
  function chance.pick(list) return list[chance.next(#list)] end
  function chance.one_in(n) return chance.next(n) == 1 end
  return chance
end

-- ---- Values ----------------------------------------------------------------

-- A table whose encoding contains a key twice, which the scan does not check.
local TWICE = "\9\2\33k\1\33k\2"

local function a_number(chance)
  return chance.pick { 0, 1, -1, 2, 3, 0.5, 250, 65535, 65536, 2 ^ 31, 2 ^ 53,
                       2 ^ 63, 2 ^ 64, -2 ^ 40, 1e308, math.huge, -math.huge,
                       0 / 0 }
end

local value

local function a_table(chance, depth)
  local list = {}
  for _ = 1, chance.next(5) - 1 do
    if chance.one_in(2) then
      list[#list + 1] = value(chance, depth + 1)
    else
      list[chance.pick(NAMES)] = value(chance, depth + 1)
    end
  end
  return list
end

local function a_method(chance)
  if chance.one_in(6) then return value(chance, 1) end
  local kinds = { "typed", "raw", "inplace", "other", 7, {} }
  return { id = chance.one_in(3) and a_number(chance) or chance.next(4),
           kind = chance.pick(kinds),
           idempotent = chance.one_in(3) and value(chance, 1) or nil,
           landing = chance.one_in(3) and value(chance, 1) or nil }
end

-- Almost a valid description of a service.
local function a_description(chance)
  local methods = {}
  for _ = 1, chance.next(6) - 1 do
    local key = chance.one_in(8) and chance.next(3) or chance.pick(NAMES)
    methods[key] = a_method(chance)
  end
  if chance.one_in(6) then methods = value(chance, 1) end
  return { version = chance.one_in(3) and a_number(chance) or 1,
           methods = methods }
end

function value(chance, depth)
  local kind = chance.next(depth < 4 and 11 or 8)
  if kind <= 2 then return a_number(chance) end
  if kind == 3 then return nil end
  if kind == 4 then return chance.one_in(2) end
  if kind == 5 then return 1LL * chance.next(1000) - 500 end
  if kind == 6 then return 0xffffffffffffffffULL end
  if kind == 7 then return chance.pick(NAMES) end
  if kind == 8 then return ("s\0\n"):rep(chance.next(9) * chance.next(200)) end
  if kind == 9 then return a_description(chance) end
  return a_table(chance, depth)
end

-- More values than one decoding step takes.
local function large(chance)
  local list = {}
  for i = 1, 1000 + chance.next(3000) do
    list[i] = chance.one_in(3) and "item " .. i or i + 0.5
    if chance.one_in(100) then list[i] = value(chance, 3) end
  end
  if chance.one_in(2) then list.name = a_description(chance) end
  return buffer.encode(list)
end

local COUNTS = { 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 8, 249, 250, 251, 252, 8000,
                 10000 }

-- Typed data, most of which passes the scan.
local function typed(chance, out)
  local n = chance.pick(COUNTS)
  out:reset()
  if n > 200 then
    for i = 1, n do out:encode(i % 2 == 0 and chance.pick(NAMES) or i) end
  else
    for _ = 1, n do out:encode(value(chance, 0)) end
  end
  if chance.one_in(40) then out:put(large(chance)) end
  if chance.one_in(5) then out:put(TWICE) end
  if chance.one_in(3) then out:encode(chance.next(4)) end -- a slice's place
  if chance.one_in(30) then
    local bytes = out:tostring()
    if #bytes > 0 then
      local at = chance.next(#bytes)
      out:reset():put(bytes:sub(1, at - 1), string.char(chance.next(256) - 1),
                      bytes:sub(at + 1))
    end
  end
  return out:ref()
end

-- ---- Messages --------------------------------------------------------------

local LENGTHS = { 0, 0, 1, 7, 63, 64, 65, 1000, 8191, 8192, 8193, 65537, 1e5 }
local CAPACITIES = { 0, 0, 1, 63, 64, 100, 8192, 8193, 2 ^ 16, 2 ^ 20, 2 ^ 40,
                     2 ^ 53, 2 ^ 63 }

local function a_slice(liar, slice)
  local chance = liar.chance
  slice.region = liar.region
  slice.offset = chance.next(64) - 1
  slice.length = chance.pick(LENGTHS) % (REGION - 64)
  slice.count, slice.stride = 1, slice.length
end

-- Fills a message with random content. Typed data stays valid until 4,095 more
-- of it were made.
local function fill(liar)
  local chance, m = liar.chance, native.message_t()
  if chance.one_in(3) then
    m.head, m.length = liar.bytes, chance.pick(LENGTHS)
  else
    liar.turn = liar.turn % 4096 + 1
    local out = liar.buffers[liar.turn] or buffer.new()
    liar.buffers[liar.turn] = out
    m.head, m.length = typed(chance, out)
    m.flags = C.PERIGEE_TYPED
  end
  if chance.one_in(4) then a_slice(liar, m.slice) end
  if chance.one_in(8) then m.code = chance.next(1000) end
  return m
end

-- ---- What it is asked ------------------------------------------------------

local HONEST = { version = 1, methods = {
  typed = { id = 1, kind = "typed" }, raw = { id = 2, kind = "raw" },
  inplace = { id = 3, kind = "inplace" },
  again = { id = 4, kind = "typed", idempotent = true },
  rawly = { id = 5, kind = "raw", idempotent = true },
} }

local function describe(liar, served)
  local m = native.message_t()
  local out = buffer.new():encode(HONEST)
  m.head, m.length = out:ref()
  m.flags = C.PERIGEE_TYPED
  C.perigee_reply(liar.handle, served, m)
  liar.kept = out
end

-- Fails with almost valid failure data.
local function fail(liar, m)
  local chance, turn = liar.chance, liar.turn % 4096 + 1
  m.status = 1 - chance.next(25)
  if chance.one_in(3) then return end
  local out = buffer.new():put(chance.pick(NAMES))
  if not chance.one_in(10) then out:put("\0") end
  for _ = 1, chance.next(5) - 1 do out:encode(value(chance, 1)) end
  liar.turn, liar.buffers[turn] = turn, out
  m.head, m.length = out:ref()
  m.flags = C.PERIGEE_TYPED
  if not chance.one_in(10) then m.slice.region = nil end
end

local function lie(liar, served)
  local m = fill(liar)
  if liar.chance.one_in(3) then fail(liar, m) end
  liar.lies = liar.lies + 1
  C.perigee_reply(liar.handle, served, m)
end

local function give_back(liar, event)
  if bit.band(event.flags, C.PERIGEE_POOLED) ~= 0 then
    C.perigee_pool_free(liar.handle, event.landed)
  end
end

local on = {}

on[C.PERIGEE_EVENT_REQUEST] = function(liar, event)
  give_back(liar, event)
  if event.method == 0 and liar.describes then
    return describe(liar, event.operation)
  end
  if liar.answer then return liar:answer(event.operation) end
  if not liar.chance.one_in(50) then lie(liar, event.operation) end
end

on[C.PERIGEE_EVENT_LANDING] = function(liar, event)
  if C.perigee_land(liar.handle, event.operation, nil) < 0 then
    lie(liar, event.operation)
  end
end

on[C.PERIGEE_EVENT_REPLY] = function(liar, event)
  local f = liar.waiting[event.operation]
  liar.waiting[event.operation] = nil
  if f then f(event) end
  give_back(liar, event)
  liar.ended = liar.ended + 1
end

on[C.PERIGEE_EVENT_CONNECTED] = function(liar, event)
  liar.session = event.status == 0
    and C.perigee_session(liar.handle, event.session) or false
end

on[C.PERIGEE_EVENT_LOST] = function(liar, event)
  local session = C.perigee_session(liar.handle, event.session)
  if liar.session and session == liar.session then liar.session = nil end
  if session ~= nil then C.perigee_session_free(session) end
end

--- Polls once and handles the events.
function Liar:poll()
  local n = C.perigee_poll(self.handle, self.events, 64)
  for i = 0, n - 1 do
    local event = self.events[i]
    local f = on[event.kind]
    if f then f(self, event) end
  end
end

--- Polls both sides until f() is true; returns false after `seconds` (10).
function Liar:until_true(f, seconds)
  local limit = native.clock() + (seconds or 10) * 1e9
  repeat
    perigee.sleep(0)
    self:poll()
    if f() then return true end
  until native.clock() > limit
  return false
end

-- ---- What it asks ----------------------------------------------------------

--- Dials if there is no session; returns whether there is one now.
function Liar:dial(address)
  if self.session then return true end
  self.session = nil
  assert(C.perigee_connect(self.handle, address, nil, 5e9) >= 0)
  return self:until_true(function() return self.session ~= nil end)
    and self.session
end

local function lend(liar, m)
  local loan, length = native.loan_t(), tonumber(m.length)
  if C.perigee_call_begin(liar.session, length, loan) < 0 then return end
  ffi.copy(loan.pointer, m.head, length)
  return C.perigee_call_commit(liar.session, m, length)
end

--- Calls a random method, up to the given number.
function Liar:call(methods)
  local chance, m = self.chance, fill(self)
  m.method = chance.one_in(20) and 65535 or chance.next(methods + 1) - 1
  m.capacity = chance.pick(CAPACITIES)
  if chance.one_in(20) then m.capacity = -1LL end
  m.timeout = chance.one_in(10) and chance.next(1000) * 1000 or 5e9
  local operation
  if m.flags == 0 and m.slice.region == nil and chance.one_in(3) then
    operation = lend(self, m)
  else
    operation = C.perigee_call(self.session, m)
  end
  self.lies = self.lies + 1
  if operation and operation >= 0 then
    self.begun = self.begun + 1
    if chance.one_in(40) then C.perigee_cancel(self.handle, operation) end
  end
end

--- A message of typed values, with a slice of `length` bytes if it is given.
function Liar:typed(length, ...)
  local m, out = native.message_t(), buffer.new()
  for i = 1, select("#", ...) do out:encode((select(i, ...))) end
  self.turn = self.turn % 4096 + 1
  self.buffers[self.turn] = out
  m.head, m.length = out:ref()
  m.flags, m.timeout = C.PERIGEE_TYPED, 5e9
  if length then
    m.slice.region, m.slice.length = self.region, length
    m.slice.count, m.slice.stride = 1, length
  end
  return m
end

--- Sends a message as a call; on_reply is called with the event that ends it.
-- Returns a status if the liar's own core refuses the call.
function Liar:send(message, on_reply)
  local operation = C.perigee_call(self.session, message)
  if operation < 0 then return operation end
  self.begun = self.begun + 1
  self.waiting[operation] = on_reply
end

function Liar:close()
  if self.handle then C.perigee_engine_close(self.handle) end
  self.handle = false
end

--- A liar that listens at address and lies by seed. pool is its engine's pool
-- size.
function M.new(address, seed, pool)
  local options, out = native.options_t(), ffi.new "struct perigee_engine *[1]"
  C.perigee_options_init(options, ffi.sizeof(options))
  options.pool = pool or options.pool
  assert(C.perigee_engine_open(options, out) == 0)
  local liar = setmetatable({
    handle = out[0], events = native.events_t(64), chance = M.chance(seed),
    bytes = native.bytes_t(2 ^ 17), buffers = {}, turn = 0, session = nil,
    lies = 0, begun = 0, ended = 0, describes = true, answer = false,
    waiting = {},
  }, Liar)
  local region = ffi.new "struct perigee_region *[1]"
  assert(C.perigee_region_alloc(liar.handle, nil, REGION, 0, nil, region) == 0)
  liar.region = region[0]
  local listener = ffi.new "struct perigee_listener *[1]"
  assert(C.perigee_listen(liar.handle, address, listener) == 0)
  return liar
end

return M
