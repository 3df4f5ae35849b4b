-- SPDX-License-Identifier: Apache-2.0
--- JSON that other processes have written. A scan in C (native/control/json.c)
-- bounds the memory that it may take. Its values are made token by token, so
-- long ones can be decoded in portions.
--
--   local json = require "perigee.control.json"
--   print(json.decode '{"a":[1,null]}'.a[2] == json.null)          --> true
--
-- Lists and objects are tables; null is `null`. Of keys that are there twice
-- the last one counts. What cannot be decoded is nil, a kind and why:
-- `protocol`, `too_large` or `no_memory`.
local cjson = require "cjson.safe"
local control = require "perigee.control.native"
local errors = require "perigee.errors"
local turns = require "perigee.turn"

local ffi = require "ffi"
local C = control.C
local bytes_t = ffi.typeof "const char *"

local M = { null = cjson.null, encode = cjson.encode }

local PIECE = 2 ^ 16                    -- bytes that are scanned at once
local TOKENS = 128                      -- that are taken between looks at time
local TIMES = 16                        -- memory of values, by the bytes
local LEAST = 2 ^ 16                    -- bytes of memory that any may take

local NULL, FALSE, TRUE = C.PERIGEE_JSON_NULL, C.PERIGEE_JSON_FALSE,
                          C.PERIGEE_JSON_TRUE
local NUMBER, TEXT, KEY = C.PERIGEE_JSON_NUMBER, C.PERIGEE_JSON_TEXT,
                          C.PERIGEE_JSON_KEY
local LIST, OBJECT = C.PERIGEE_JSON_LIST, C.PERIGEE_JSON_OBJECT

local token = control.json_token_t()

local Decoder = {}
Decoder.__index = Decoder

-- ---- Values ----------------------------------------------------------------

--- A decoder of one value that comes piece by piece. longest: bytes that it may
-- have; memory: bytes that it may take (default: by the longest).
--
-- By depth, for each table that is being filled: counts is the number of values
-- in a list, and -1 for an object, whose next value is under the key of `keys`.
function M.new(longest, memory)
  local scan = C.perigee_json_open(memory or longest * TIMES + LEAST)
  return setmetatable({
    scan = scan ~= nil and ffi.gc(scan, C.perigee_json_close),
    longest = longest, came = 0, kind = false, why = false, depth = 0,
    tables = { [0] = {} }, counts = { [0] = 0 }, keys = {},
  }, Decoder)
end

local function place(d, value)
  local depth = d.depth
  local t, n = d.tables[depth], d.counts[depth]
  if n < 0 then
    t[d.keys[depth]] = value
  else
    t[n + 1] = value
    d.counts[depth] = n + 1
  end
end

local function enter(d, count)
  local t, depth = {}, d.depth + 1
  place(d, t)
  d.depth, d.tables[depth], d.counts[depth] = depth, t, count
end

local function leave(d)
  d.tables[d.depth] = nil
  d.depth = d.depth - 1
end

local function take(d)
  local kind = token.kind
  if kind == TEXT then
    place(d, ffi.string(token.text, token.length))
  elseif kind == KEY then
    d.keys[d.depth] = ffi.string(token.text, token.length)
  elseif kind == NUMBER then
    place(d, token.number)
  elseif kind == LIST then
    enter(d, 0)
  elseif kind == OBJECT then
    enter(d, -1)
  elseif kind == NULL then
    place(d, M.null)
  elseif kind == TRUE or kind == FALSE then
    place(d, kind == TRUE)
  else
    leave(d)
  end
end

-- ---- Pieces ----------------------------------------------------------------

local function fail(d, kind, why)
  d.kind, d.why = kind, why
  return nil, kind, why
end

-- Takes some tokens of the piece. Returns whether there are more; or nil, a
-- kind and why.
local function step(d)
  local scan = d.scan
  for _ = 1, TOKENS do
    local status = C.perigee_json_next(scan, token)
    if status == 0 then return false end
    if status < 0 then
      return fail(d, errors.kind(status),
                  ffi.string(C.perigee_json_why(scan)))
    end
    take(d)
  end
  return true
end

-- Takes all tokens of a piece. True; or nil, a kind and why.
local function take_piece(d, pointer, length, pause)
  C.perigee_json_feed(d.scan, pointer, length)
  local more, kind, why
  repeat
    more, kind, why = step(d)
    pause()
  until not more
  if more == nil then return nil, kind, why end
  return true
end

local function nothing() end

local function feed(d, text, pause)
  if d.kind then return nil, d.kind, d.why end
  if not d.scan then return fail(d, "no_memory", "there is no memory") end
  d.came = d.came + #text
  if d.came > d.longest then return fail(d, "too_large", "it is too long") end
  local pointer = ffi.cast(bytes_t, text)
  for at = 0, #text - 1, PIECE do
    local fine, kind, why = take_piece(d, pointer + at,
                                       math.min(PIECE, #text - at), pause)
    if not fine then return nil, kind, why end
  end
  return true
end

-- The value, which has ended; or nil, a kind and why.
local function value_of(d)
  d.longest = d.longest + 1
  local fine, kind, why = feed(d, " ", nothing)
  local scan = d.scan
  if fine and C.perigee_json_ended(scan) == 0 then
    kind, why = "protocol", "it is not whole"
  end
  if scan then C.perigee_json_close(ffi.gc(scan, nil)) end
  d.scan = false
  if kind then return fail(d, kind, why) end
  return d.tables[0][1]
end

--- Decodes the next piece. Waits, in a task, as often as it takes long. True;
-- or nil, a kind and why.
function Decoder:feed(text) return feed(self, text, turns.give) end

--- The value, after its last piece; or nil, a kind and why.
function Decoder:value() return value_of(self) end

-- ---- Texts -----------------------------------------------------------------

--- Decodes a text at once.
function M.decode(text)
  local d = M.new(#text)
  feed(d, text, nothing)
  return value_of(d)
end

--- Does the same in portions, in a task: waits.
function M.decode_long(text)
  local d = M.new(#text)
  feed(d, text, turns.give)
  return value_of(d)
end

return M
