-- SPDX-License-Identifier: Apache-2.0
--- JSON that other processes have written. A scan in C (native/control/json.c)
-- bounds the memory that it may take. Its values are made token by token, so
-- long ones can be decoded in portions.
--
--   local json = require "perigee.net.json"
--   print(json.decode '{"a":[1,null]}'.a[2] == json.null)          --> true
--   print(json.encode(json.decode '{"n":1732567890123456}'))
--   --> {"n":1732567890123456}
--
-- Lists and objects are tables; null is `null`. The last one of two equal keys
-- counts. Text that cannot be decoded gives nil, a kind and why: `protocol`,
-- `too_large` or `no_memory`. A decoded value is encoded as it was: numbers
-- keep all their digits, and empty lists stay lists.
local buffers = require "string.buffer"
local cjson = require "cjson.safe"
local control = require "perigee.net.native"
local errors = require "perigee.runtime.errors"
local turns = require "perigee.runtime.turn"

local ffi = require "ffi"
local C = control.C
local bytes_t = ffi.typeof "const char *"

local M = { null = cjson.null }

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

local List = {}                         -- the metatable of lists

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
  local t, depth = count == 0 and setmetatable({}, List) or {}, d.depth + 1
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

-- ---- Encoding --------------------------------------------------------------

local DIGITS = 1e14                     -- integers below have at most 14
local DEEPEST = 64                      -- tables in each other

-- Does lua-cjson lose nothing of a value? It writes 14 digits of a number, and
-- an empty table as an object.
local function is_plain(value, depth)
  if type(value) == "number" then
    return value % 1 == 0 and value < DIGITS and value > -DIGITS
  elseif type(value) ~= "table" then
    return true
  elseif depth == DEEPEST then
    return false
  end
  local key, each = next(value)
  if key == nil then return getmetatable(value) ~= List end
  while key ~= nil do
    if not is_plain(each, depth + 1) then return false end
    key, each = next(value, key)
  end
  return true
end
jit.off(is_plain)

-- The shortest of these that is the same number; nil of what JSON has not.
local function number(value)
  if value ~= value or value - value ~= 0 then return nil end
  local text = ("%.14g"):format(value)
  if tonumber(text) == value then return text end
  return ("%.17g"):format(value)
end

-- The length of a table if it is a list, as lua-cjson would write it.
local function length_of(value)
  local n = #value
  if n == 0 then return getmetatable(value) == List and 0 or nil end
  for key in pairs(value) do
    if type(key) ~= "number" or key < 1 or key > n or key % 1 ~= 0 then
      return nil
    end
  end
  return n
end
jit.off(length_of)

local write                             -- (out, value, depth), below

local function write_list(out, value, n, depth)
  out:put "["
  for i = 1, n do
    if i > 1 then out:put "," end
    if not write(out, value[i], depth + 1) then return false end
  end
  out:put "]"
  return true
end

local function write_object(out, value, depth)
  out:put "{"
  local first = true
  for key, each in pairs(value) do
    local name = type(key) == "string" and cjson.encode(key)
      or type(key) == "number" and '"' .. key .. '"'
    if not name then return false end
    out:put(first and "" or ",", name, ":")
    first = false
    if not write(out, each, depth + 1) then return false end
  end
  out:put "}"
  return true
end
jit.off(write_object)

write = function(out, value, depth)
  local text
  if type(value) == "table" then
    if depth == DEEPEST then return false end
    local n = length_of(value)
    if n then return write_list(out, value, n, depth) end
    return write_object(out, value, depth)
  elseif type(value) == "number" then
    text = number(value)
  else
    text = cjson.encode(value)
  end
  if text then out:put(text) end
  return text ~= nil
end

--- A value as JSON; nil and why if it has none, or nests too deep.
function M.encode(value)
  if is_plain(value, 0) then return cjson.encode(value) end
  local out = buffers.new()
  if write(out, value, 0) then return out:tostring() end
  return nil, "it has a value that JSON has not, or is nested too deep"
end

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
