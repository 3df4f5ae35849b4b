-- SPDX-License-Identifier: Apache-2.0
--- Requests of a cache's clients and the answers to them, byte by byte, as
-- native/cache/cache.h lays them out. A request is made in one buffer and given
-- as a string. An answer is read in a reader of a proxy, so all that a function
-- here gives is a copy. What an answer says is checked against its length: the
-- cache may lie.
--
-- An answer whose second byte is 0 is a refusal, which the service makes: a
-- status of the core stands in place of its count.
local ffi = require "ffi"
local native = require "perigee.cache.native"
local new_table = require "table.new"

local C = native.C
local PROTOCOL = require "perigee.native".C.PERIGEE_PROTOCOL
local cast, copy, text = ffi.cast, ffi.copy, ffi.string
local tonumber = tonumber

local M = {}

local u16, u32, u64 = ffi.typeof "uint16_t *", ffi.typeof "uint32_t *",
                      ffi.typeof "uint64_t *"
local i32, bytes = ffi.typeof "int32_t *", ffi.typeof "const uint8_t *"
local HEAD, PLACE = 8, 56

--- Bytes of a value up to which it comes along with its request or its answer.
-- Both stay below the limit of what travels in the ring.
M.SMALL = 7 * 1024
--- Keys of one request at most. Their answers fit into ROOM.
M.KEYS = 512
M.ROOM = 64 * 1024
--- Room for the answer to one LOCATE.
M.ONE = HEAD + 4 + PLACE + 4 + M.SMALL

local PUT = 2 * (2 + C.PERIGEE_CACHE_KEY) + 30
local size = HEAD + math.max(M.KEYS * (2 + C.PERIGEE_CACHE_KEY), PUT + M.SMALL)
local bytes_t = ffi.typeof "uint8_t[?]"
local buffer = bytes_t(size)

-- ---- Requests --------------------------------------------------------------

local function begin(what, flags, count)
  buffer[0], buffer[1] = 1, what
  cast(u16, buffer + 2)[0] = flags
  cast(u32, buffer + 4)[0] = count
  return HEAD
end

local function put_key(at, key)
  cast(u16, buffer + at)[0] = #key
  copy(buffer + at + 2, key, #key)
  return at + 2 + #key
end

--- A request about one key.
function M.key(what, flags, key)
  return text(buffer, put_key(begin(what, flags, 1), key))
end

--- A request about keys from list[first] to list[last], KEYS at most.
function M.keys(what, flags, list, first, last)
  local at = begin(what, flags, last - first + 1)
  for i = first, last do at = put_key(at, list[i]) end
  return text(buffer, at)
end

--- RELEASE of leases, each { low, high }.
function M.release(list, first, last)
  local at = begin(C.PERIGEE_CACHE_RELEASE, 0, last - first + 1)
  for i = first, last do
    cast(u32, buffer + at)[0], cast(u32, buffer + at)[1] = list[i].low,
                                                           list[i].high
    at = at + 8
  end
  return text(buffer, at)
end

--- The first cursor of what is below.
M.LIST_BELOW = 2 ^ 52

--- LIST from a cursor, a number.
function M.list(cursor, prefix, most)
  local at = begin(C.PERIGEE_CACHE_LIST, most, 1)
  cast(u64, buffer + at)[0] = cursor
  return text(buffer, put_key(at + 8, prefix))
end

--- EVENTS from a number.
function M.events(from, most)
  local at = begin(C.PERIGEE_CACHE_EVENTS, most, 1)
  cast(u64, buffer + at)[0] = from
  return text(buffer, at + 8)
end

--- STAT of the whole store.
function M.counters()
  return text(buffer, begin(C.PERIGEE_CACHE_STAT, 0, 0))
end

--- PUT of a value with SMALL bytes at most; from: a pointer or a string. put
-- has group, ttl (ns), pin (a number), if_absent and parent.
function M.put(key, from, length, put, checksum)
  local at = put_key(begin(C.PERIGEE_CACHE_PUT, 0, 1), key)
  cast(u64, buffer + at)[0] = put.group
  cast(u64, buffer + at)[1] = put.ttl
  buffer[at + 16], buffer[at + 17] = put.pin, put.if_absent and 1 or 0
  at = put_key(at + 18, put.parent or "")
  cast(u64, buffer + at)[0] = checksum
  cast(u32, buffer + at + 8)[0] = length
  copy(buffer + at + 12, from, length)
  return text(buffer, at + 12 + length)
end

-- ---- Answers ---------------------------------------------------------------

-- Returns the bytes, the length and the count of an answer; or nil and the
-- status of a refusal, which is negative.
local function open(view)
  local p, n = view.pointer, view.length
  if n < HEAD or p[0] ~= 1 then return nil, PROTOCOL end
  if p[1] ~= 0 then return p, n, cast(u32, p + 4)[0] end
  local status = cast(i32, p + 4)[0]
  return nil, status < 0 and status or PROTOCOL
end

--- Reads the count of an answer alone: of MATCH.
function M.count(view)
  local p, n, count = open(view)
  if not p then return nil, n end
  return count
end

--- Reads bytes of 0 or 1 (of HAS): a text of them.
function M.flags(view)
  local p, n, count = open(view)
  if not p then return nil, n end
  if HEAD + count > n then return nil, PROTOCOL end
  return text(p + HEAD, count)
end

--- Reads statuses: a list.
function M.statuses(view)
  local p, n, count = open(view)
  if not p then return nil, n end
  if HEAD + 4 * count > n then return nil, PROTOCOL end
  local list = {}
  for i = 1, count do list[i] = cast(i32, p + HEAD)[i - 1] end
  return list
end

--- Reads the first status, of an answer to one item.
function M.status(view)
  local p, n, count = open(view)
  if not p then return n end
  if count < 1 or n < HEAD + 4 then return PROTOCOL end
  return cast(i32, p + HEAD)[0]
end

-- Makes a lease (leases.lua) of the place at p: slab, offset, length, version,
-- checksum, the two halves of its number, and `till`: its ns, for who asked
-- adds when that was. It has all the fields that it will ever have, for a table
-- that grows is slow, and they are 16, for one more takes twice the memory.
local function lease(p)
  local w, h = cast(u64, p), cast(u32, p)
  return { slab = h[0], offset = tonumber(w[1]), length = tonumber(w[2]),
           version = tonumber(w[3]), checksum = w[4], low = h[10], high = h[11],
           till = tonumber(w[6]),
           sent = 0, over = 0, asked = false, again = false, kept = false,
           views = 0, among = false, from = false }
end

-- The same of an entry, to which there is no lease.
local function entry(p)
  local w, h = cast(u64, p), cast(u32, p)
  return { length = tonumber(w[2]), version = tonumber(w[3]), checksum = w[4],
           below = h[1] ~= 0 }
end

--- Reads the answer to LOCATE of one key: a status, and if it is 0 either the
-- value, its checksum and its version, or false and a lease.
function M.located(view)
  local p, n, count = open(view)
  if not p then return n end
  if count < 1 or n < HEAD + 4 then return PROTOCOL end
  local status = cast(i32, p + HEAD)[0]
  if status ~= 0 then return status end
  if n < HEAD + 4 + PLACE + 4 then return PROTOCOL end
  p = p + HEAD + 4
  local length, along = tonumber(cast(u64, p)[2]), cast(u32, p + PLACE)[0]
  if cast(u64, p)[5] ~= 0 then return 0, false, lease(p) end
  if along ~= length or n < HEAD + 4 + PLACE + 4 + along then
    return PROTOCOL
  end
  return 0, text(p + PLACE + 4, along), cast(u64, p)[4],
         tonumber(cast(u64, p)[3])
end

-- Reads the answer to LOCATE or STAT of several keys (along: of LOCATE): a list
-- of what `make` returns of places, and statuses. It may be shorter than what
-- was asked.
local function places(view, along, make)
  local p, n, count = open(view)
  if not p then return nil, n end
  if HEAD + 4 * count > n then return nil, PROTOCOL end
  local list, at = new_table(count, 0), HEAD
  for i = 1, count do
    if at + 4 > n then return nil, PROTOCOL end
    local status = cast(i32, p + at)[0]
    at, list[i] = at + 4, status
    if status == 0 then
      if at + PLACE + along > n then return nil, PROTOCOL end
      list[i] = make(p + at)
      at = at + PLACE
      if along > 0 then
        local more = cast(u32, p + at)[0]
        if at + 4 + more > n then return nil, PROTOCOL end
        at = at + 4 + more
      end
    end
  end
  return list
end

--- Reads leases.
function M.places(view) return places(view, 4, lease) end

--- Reads what STAT tells of entries.
function M.stats(view) return places(view, 0, entry) end

--- Reads the answer to a PUT: a status and a version.
function M.sealed(view)
  local p, n, count = open(view)
  if not p then return n end
  if count < 1 or n < HEAD + 12 then return PROTOCOL end
  return cast(i32, p + HEAD)[0], tonumber(cast(u64, p + HEAD + 4)[0])
end

-- Reads a key at offset at; returns it and what is behind it, or nil.
local function key_at(p, n, at)
  if at + 2 > n then return nil end
  local length = cast(u16, p + at)[0]
  if at + 2 + length > n then return nil end
  return text(p + at + 2, length), at + 2 + length
end

--- Reads the answer to LIST: a list of keys, and the next cursor, a number;
-- nil: the end.
function M.listed(view)
  local p, n, count = open(view)
  if not p then return nil, n end
  if n < HEAD + 8 then return nil, PROTOCOL end
  local list, at = {}, HEAD + 8
  for i = 1, count do
    list[i], at = key_at(p, n, at)
    if not at then return nil, PROTOCOL end
  end
  local cursor = tonumber(cast(u64, p + HEAD)[0])
  return list, cursor < 2 ^ 64 and cursor or nil
end

local KINDS = {
  [C.PERIGEE_CACHE_SEALED] = "sealed", [C.PERIGEE_CACHE_EVICTED] = "evicted",
  [C.PERIGEE_CACHE_DELETED] = "deleted", [C.PERIGEE_CACHE_EXPIRED] = "expired",
  [C.PERIGEE_CACHE_REPLACED] = "replaced",
}

--- Reads the answer to EVENTS: a list of events with `next` and `lost`.
function M.told(view)
  local p, n, count = open(view)
  if not p then return nil, n end
  if n < HEAD + 16 then return nil, PROTOCOL end
  local w = cast(u64, p + HEAD)
  local list, at = { next = tonumber(w[0]), lost = w[1] ~= 0 }, HEAD + 16
  for i = 1, count do
    if at + 25 > n then return nil, PROTOCOL end
    local key, behind = key_at(p, n, at + 25)
    if not key then return nil, PROTOCOL end
    local each = cast(u64, p + at + 1)
    list[i] = { kind = KINDS[p[at]] or "unknown", key = key,
                number = tonumber(each[0]), version = tonumber(each[1]),
                length = tonumber(each[2]) }
    at = behind
  end
  return list
end

local COUNTERS = { "entries", "reserved", "held", "quota", "slabs", "used",
                   "values", "hard", "directory", "buckets", "leases",
                   "clients", "version", "hits", "misses", "sealed", "evicted",
                   "expired", "deleted", "copies", "huge",
                   "failed", "spilled", "spill_quota", "spill_slabs",
                   "spill_used", "spill_values", "spill_evicted" }

--- The counters of a store, by names, of 64-bit numbers at p.
function M.named_counters(p)
  local counters = {}
  for i, name in ipairs(COUNTERS) do
    counters[name] = tonumber(cast(u64, p)[i - 1])
  end
  return counters
end

--- Reads the answer to STAT of the whole store: a table of counters.
function M.counted(view)
  local p, n = open(view)
  if not p then return nil, n end
  if n < HEAD + 8 * #COUNTERS then return nil, PROTOCOL end
  return M.named_counters(cast(bytes, p + HEAD))
end

-- Bytes of a PUT's item between its key and its parent's, and behind that.
local PUT_MIDDLE, PUT_END = 18, 12

-- Returns what is behind the rest of a PUT's item at offset at, or nil.
local function behind_put(p, n, at)
  local parent
  parent, at = key_at(p, n, at + PUT_MIDDLE)
  if not parent or at + PUT_END > n then return nil end
  return at + PUT_END + cast(u32, p + at + 8)[0]
end

--- Returns the keys that a request puts or deletes: as far as it is one.
function M.asked(view)
  local p, n, list, at = view.pointer, view.length, {}, HEAD
  local count = math.min(cast(u32, p + 4)[0], C.PERIGEE_CACHE_MANY)
  for i = 1, count do
    list[i], at = key_at(p, n, at)
    if at and p[1] == C.PERIGEE_CACHE_PUT then at = behind_put(p, n, at) end
    if not at then break end
  end
  return list
end
jit.off(M.asked)

--- Has the answer to a PUT, of n bytes, been that item number i was put?
function M.has_put(reply, n, i)
  return HEAD + 12 * i <= n
    and cast(i32, reply.pointer + HEAD + 12 * (i - 1))[0] == 0
end

local own = { pointer = bytes_t(size), length = 0 }

-- Bytes of a request that is copied: as many as a loop copies in a millisecond,
-- and more than a request about keys has.
local COPIED = 2 ^ 23

--- Returns a copy of a request, which is good until the next one: a client may
-- write to its request while that is answered. Nil: it is too long for that.
function M.private(view)
  local n = view.length
  if view == own then return own end
  if n > COPIED then return nil end
  if n > size then
    local long = { pointer = bytes_t(n), length = n }
    copy(long.pointer, view.pointer, n)
    return long
  end
  copy(own.pointer, view.pointer, n)
  own.length = n
  return own
end

--- Makes a refusal of an inplace handler's reply; returns its length.
function M.refuse(reply, status)
  local p = reply.pointer
  p[0], p[1], p[2], p[3] = 1, 0, 0, 0
  cast(i32, p + 4)[0] = status
  return HEAD
end

return M
