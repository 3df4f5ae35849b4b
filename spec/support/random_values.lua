-- SPDX-License-Identifier: Apache-2.0
-- Random values of all kinds that travel, for specs of typed data: lists with
-- holes and slot 0, maps, nested tables, numbers and lengths on both sides of
-- every limit. And random damage of their bytes. All of it follows math.random,
-- so a seed repeats it.
local buffer = require "string.buffer"
local ffi = require "ffi"

local random = math.random

local M = {}

-- ---- Values -----------------------------------------------------------------

local lengths = { 0, 1, 2, 7, 190, 191, 192, 193, 500, 8127, 8128, 9000 }
local numbers = { 0, -0.0, 1, -1, 1.5, 1 / 0, -1 / 0, 0 / 0, 2 ^ 31, -2 ^ 31,
  2 ^ 53, 1e-300 }

local function text()
  local length = random(8) == 1 and lengths[random(#lengths)] or random(0, 9)
  local bytes = {}
  for i = 1, length do bytes[i] = string.char(random(0, 255)) end
  return table.concat(bytes)
end

local function key()
  local kind = random(6)
  if kind == 1 then return random() end
  if kind == 2 then return random(-3, 12) end
  if kind == 3 then return random(2) == 1 end
  if kind == 4 then return ffi.new("int64_t", random(99)) end
  return text()
end

local value

local function list(depth)
  local made = {}
  for i = 1, random(0, 5) do
    if random(5) > 1 then made[i] = value(depth - 1) end
  end
  if random(6) == 1 then made[0] = value(depth - 1) end
  return made
end

local function map(depth)
  local made = random(2) == 1 and list(depth) or {}
  for _ = 1, random(0, 5) do made[key()] = value(depth - 1) end
  return made
end

local simple = {
  function() return nil end,
  function() return true end,
  function() return false end,
  function() return numbers[random(#numbers)] end,
  function() return random(-1000, 1000) end,
  function() return random() end,
  function() return ffi.new("int64_t", random(-99, 99)) end,
  function() return ffi.new("uint64_t", random(99)) end,
  text, text,
}

--- A value in which tables are at most so many deep.
function value(depth)
  if depth > 0 and random(3) == 1 then
    return random(2) == 1 and list(depth) or map(depth)
  end
  return simple[random(#simple)]()
end

--- Up to four values: a list with its length as n.
function M.values()
  local made = { n = random(0, 4) }
  for i = 1, made.n do made[i] = value(random(0, 4)) end
  return made
end

--- Encodes values one after another, as arguments are sent.
function M.encode(values)
  local out = buffer.new()
  for i = 1, values.n do out:encode(values[i]) end
  return out:tostring()
end

--- So many tables, each in the one before.
function M.nested(depth)
  local made = {}
  for _ = 2, depth do made = { made } end
  return made
end

-- ---- Damage -----------------------------------------------------------------

local function byte(largest)
  return string.char(random(0, largest))
end

local function replace(bytes, at, piece)
  return bytes:sub(1, at - 1) .. piece .. bytes:sub(at + #piece)
end

local damages = {
  function(bytes, at) return replace(bytes, at, byte(255)) end,
  function(bytes, at) return replace(bytes, at, byte(18)) end,
  function(bytes, at) return replace(bytes, at, "\255\255\255\255\127") end,
  function(bytes, at) return bytes:sub(1, at - 1) .. bytes:sub(at + 1) end,
  function(bytes, at)
    return bytes:sub(1, at) .. bytes:sub(random(at), -1)
  end,
}

--- Changes some bytes, drops or repeats some.
function M.damage(bytes)
  for _ = 1, random(3) do
    if #bytes == 0 then break end
    bytes = damages[random(#damages)](bytes, random(#bytes))
  end
  return bytes
end

--- Up to 20 bytes of any kind, many of them tags.
function M.noise()
  local bytes = {}
  for i = 1, random(20) do bytes[i] = byte(random(2) == 1 and 34 or 255) end
  return table.concat(bytes)
end

return M
