-- SPDX-License-Identifier: Apache-2.0
--- Reads from a stats file the spans of sampled calls (struct
-- perigee_stats_span), which its process writes meanwhile.
local ffi = require "ffi"
local native = require "perigee.native"
local printable = require "perigee.runtime.printable"
local stats = require "perigee.stats"

local C, inside = native.C, stats.inside
local number = tonumber

local M = {}

local SIDES = { [number(C.PERIGEE_STATS_CALL)] = "caller",
                [number(C.PERIGEE_STATS_SERVED)] = "callee" }
local SPAN = "struct perigee_stats_span"

-- The digits of an id; nil for zeros.
local function id_of(bytes)
  local digits = printable.hex(ffi.string(bytes, ffi.sizeof(bytes)))
  return digits:find "[^0]" and digits or nil
end

local function time(ns) return ns ~= 0 and number(ns) or nil end

local function status_of(row)
  local status = number(row.status)
  return status ~= 0 and ffi.string(C.perigee_status_name(
    math.max(status, -2 ^ 31))) or nil
end

local function methods_of(file, head)
  local by_row = {}
  inside.each(file, head.methods, "struct perigee_stats_method",
    function(row, i)
      if i > 0 and row.used ~= 0 then
        by_row[i] = { service = inside.text(row.service),
                      method = inside.text(row.method) }
      end
    end)
  return by_row
end

-- Times and lengths from 2^61 on are of no process: a collector that gets one
-- refuses the spans of others with it, since a few of them make no int64.
local MOST = 2 ^ 61

local function is_sound(row)
  return row.start ~= 0 and row.start < MOST and row.sent < MOST
    and row.landing < MOST and row.service < MOST and row["end"] < MOST
    and row.bytes_out < MOST and row.bytes_in < MOST
end

-- ended: was the end there when the row was looked at first? Then so were the
-- words that are stored before it.
local function span_of(row, by_row, ended)
  local side = SIDES[bit.band(row.what, 0xffff)]
  local trace, span = id_of(row.trace), id_of(row.span)
  if not side or not trace or not span or not is_sound(row) then return nil end
  local method = by_row[bit.rshift(row.what, 16)] or {}
  return {
    side = side, trace = trace, span = span, parent = id_of(row.parent),
    wire = id_of(row.wire), number = number(row.sequence),
    session = row.session, peer = inside.text(row.peer),
    service = method.service, method = method.method,
    start = number(row.start), sent = time(row.sent),
    landing = time(row.landing), given = time(row.service),
    ended = ended and time(row["end"]) or nil,
    status = ended and status_of(row) or nil,
    bytes_out = number(row.bytes_out), bytes_in = number(row.bytes_in),
  }
end

-- What the rows' sequences were in these bytes, and which spans had ended.
local function look(bytes, at)
  local sequences, ended = {}, {}
  inside.each_of(bytes, at, SPAN, function(row, i)
    sequences[i], ended[i] = number(row.sequence), row["end"] ~= 0
  end)
  return sequences, ended
end

-- Rows that are used for another span while they are copied are left out: their
-- sequence differs before or after (native/core/spans.c). A busy process needs
-- a millisecond for all rows, so nothing is done between the copies.
local function spans_in(file, head)
  local at, list = head.spans, {}
  local first = inside.bytes_of(file, at)
  local copy = inside.bytes_of(file, at)
  local last = inside.bytes_of(file, at)
  local before, ended = look(first, at)
  local after, by_row = look(last, at), methods_of(file, head)
  inside.each_of(copy, at, SPAN, function(row, i)
    local sequence = number(row.sequence)
    if sequence ~= 0 and sequence == before[i] and sequence == after[i] then
      list[#list + 1] = span_of(row, by_row, ended[i])
    end
  end)
  table.sort(list, function(a, b) return a.number < b.number end)
  return list
end

--- Reads the spans of a stats file.
-- @treturn table what `perigee.stats.head` tells; `offset`: an int64, ns since
--   1970 when the agent's clock was 0; `epoch`: a text that no other life of
--   the name has; `given`: how many spans there were; and `spans`, a list in
--   the order in which they began. Each has `side` ("caller" or "callee"),
--   `trace`, `span`, `parent` and `wire` (digits, or nil), `number`, `session`,
--   `peer`, `service`, `method`, the times `start`, `sent`, `landing`, `given`
--   (to the program), `ended` in ns of the agent's clock, `status` (nil: fine,
--   or not ended), `bytes_out`, `bytes_in`. Or nil and a sentence
function M.read(path)
  local file, head = inside.open(path)
  if not file then return nil, head end
  file:setvbuf "no"                     -- what is looked at twice is read twice
  local told = inside.told_of(head)
  told.epoch = tostring(head.epoch):match "%d+"
  told.offset = ffi.cast("int64_t", head.began_at)
    - ffi.cast("int64_t", head.began)
  told.given = number(head.spans_given)
  local sound = told.offset >= 0 and told.offset < MOST
  told.spans = sound and told.given > 0 and spans_in(file, head) or {}
  file:close()
  return told
end

return M
