-- SPDX-License-Identifier: Apache-2.0
-- Random records that the core lets pass: any method, kind and capacity, any
-- typed values that its scanner accepts, with or without a slice, and with the
-- values that stand for a slice's place.
local values = require "spec.hostile.values"

local SPECIAL = { 0, -1, 0.5, 1e308, -1e308, 2 ^ 31, 2 ^ 53, 2 ^ 63, 1 / 0 }
local CAPACITIES = { 0, 1, 7, 8192, 8193, 2 ^ 20, 2 ^ 32, 2 ^ 40, 2 ^ 63 }
local WORDS = { "calc", "store", "", "__index", "with", ("w"):rep(300), "\0" }

local value

local function list(attack, depth)
  local n = attack:random(4)
  local parts = {}
  for i = 1, n do parts[i] = value(attack, depth + 1) end
  return n == 0 and values.EMPTY
    or string.char(8 + 2) .. values.number(n) .. table.concat(parts)
end

-- Keys are all different, or some occur twice, which the scan does not check.
local function map(attack, depth)
  local n = attack:random(4) + 1
  local parts = {}
  for i = 1, n do
    parts[i] = values.encode(WORDS[attack:random(#WORDS) + 1])
      .. value(attack, depth + 1)
  end
  return values.pairs(n, table.concat(parts))
end

function value(attack, depth)
  local kind = attack:random(depth > 20 and 5 or 7)
  if kind == 0 then return values.NIL end
  if kind == 1 then return values.TRUE end
  if kind == 2 then
    return values.encode(SPECIAL[attack:random(#SPECIAL) + 1])
  end
  if kind == 3 then return values.encode(WORDS[attack:random(#WORDS) + 1]) end
  if kind == 4 then return values.double(attack:random(2 ^ 32), 0) end
  return (kind == 5 and list or map)(attack, depth)
end

local function some_bytes(attack)
  local parts = {}
  for i = 1, attack:random(6) do parts[i] = value(attack, 0) end
  local n = attack:random(40) == 0 and 200 + attack:random(9000) or 0
  return table.concat(parts) .. values.NIL:rep(n)
end

return function(attack)
  local peer = attack:peer()
  local session, last = attack:dial(peer), 0
  for _, id in pairs(attack.methods) do last = math.max(last, id) end
  local slices = { peer:memory(1), peer:memory(3000), peer:memory(100000) }
  while not attack:over() do
    for _ = 1, 20 do
      local typed = attack:random(3) > 0
      peer:call(session, {
        method = attack:random(last + 3), typed = typed,
        bytes = typed and some_bytes(attack) or ("r"):rep(attack:random(20000)),
        slice = slices[attack:random(6) + 1], timeout = 0.2,
        capacity = CAPACITIES[attack:random(#CAPACITIES) + 1],
        code = attack:random(2 ^ 31) })
    end
    peer:attend(0.005)
    attack:done()
    session = attack:keep(peer, session)
  end
  peer:close()
end
