-- SPDX-License-Identifier: Apache-2.0
-- From the stamps of two processes (native/base/stamp.h) to the parts of a
-- call. With one call at a time the stamps of both sides, by time, are the way
-- of a call, and its parts add up to its time. With several under way, a side's
-- time is split by what it stamped last.

local bit = require "bit"
local ffi = require "ffi"

local M = {}

local NAMES = { "asked", "called", "published", "wrote", "read", "seen",
                "given", "handler", "handled", "done", "submitted" }
local ASKED, PUBLISHED, WROTE, DONE = 1, 3, 4, 10
local words_t = ffi.typeof "const uint64_t *"

-- The name of each part, by "SIDE POINT > SIDE POINT".
M.MEANINGS = {
  ["caller asked > caller called"] = "program, to the core",
  ["caller called > caller published"] = "core (and writer), to the record",
  ["caller published > server seen"] = "seen by the peer",
  ["caller published > server read"] = "kernel: sent, delivered, received",
  ["server read > server seen"] = "from bytes to a record",
  ["server seen > server given"] = "core, to the event",
  ["server seen > server read"] = "kernel: the rest of the payload",
  ["server given > server read"] = "kernel: the rest of the payload",
  ["server read > server given"] = "core, to the event",
  ["server given > server handler"] = "program, to the handler",
  ["server handler > server handled"] = "handler",
  ["server handled > server published"] = "program and core, to the reply",
  ["server handler > server published"] = "handler and core, to the reply",
  ["server published > caller seen"] = "reply seen",
  ["server published > caller read"] = "kernel: sent, delivered, received",
  ["caller read > caller seen"] = "from bytes to a record",
  ["caller seen > caller given"] = "core, to the event",
  ["caller seen > caller read"] = "kernel: the rest of the payload",
  ["caller read > caller given"] = "core, to the event",
  ["caller given > caller done"] = "program, to the result",
}

-- Reads a file of stamps: { count, points, ticks (above `base`), asked }.
local function read(path, base)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  local words, most, n, asked = ffi.cast(words_t, text), #text / 8, 0, false
  while n < most and words[n] ~= 0 do n = n + 1 end
  local points, ticks = ffi.new("uint8_t[?]", n), ffi.new("double[?]", n)
  for i = 0, n - 1 do
    points[i] = tonumber(bit.band(words[i], 31))
    ticks[i] = tonumber(bit.rshift(words[i], 5) - base)
    asked = asked or points[i] == ASKED
  end
  return { count = n, points = points, ticks = ticks, asked = asked,
           side = asked and "caller" or "server" }
end

-- Reads the files of both processes; returns the caller's and the server's.
function M.read(paths, base)
  if #paths ~= 2 then error("there are not two files of stamps", 0) end
  local one, other = read(paths[1], base), read(paths[2], base)
  if one.asked == other.asked then error("one side was to ask", 0) end
  if one.asked then return one, other end
  return other, one
end

local function named(side, point) return side .. " " .. NAMES[point] end

-- Iterates over the stamps of both by time: side, point, tick.
local function merged(caller, server)
  local i, j = 0, 0
  return function()
    local left, right = i < caller.count, j < server.count
    if left and (not right or caller.ticks[i] <= server.ticks[j]) then
      i = i + 1
      return "caller", caller.points[i - 1], caller.ticks[i - 1]
    elseif right then
      j = j + 1
      return "server", server.points[j - 1], server.ticks[j - 1]
    end
  end
end

-- Returns the calls as { way, ticks }: way has the stamps' names in order. A
-- point that is passed several times on end counts the last time; when a send
-- returns is no point of the way, as the peer may have the bytes before.
local function calls(caller, server)
  local list, way, ticks = {}, nil, nil
  for side, point, tick in merged(caller, server) do
    if point == ASKED then way, ticks = {}, {} end
    if way and point ~= WROTE then
      local name = named(side, point)
      if way[#way] ~= name then way[#way + 1] = name end
      ticks[#way] = tick
      if point == DONE then
        list[#list + 1] = { way = table.concat(way, " > "), names = way,
                            ticks = ticks }
        way = nil
      end
    end
  end
  return list
end

-- Returns the way that most calls take, and how many do.
local function usual(list)
  local counts, best = {}, nil
  for _, call in ipairs(list) do
    counts[call.way] = (counts[call.way] or 0) + 1
    if not best or counts[call.way] > counts[best] then best = call.way end
  end
  return best, best and counts[best] or 0
end

local function median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

-- Ticks that a side's sends take, or 0 where there are none.
local function sends(side)
  local list = {}
  for i = 1, side.count - 1 do
    if side.points[i] == WROTE and side.points[i - 1] == PUBLISHED then
      list[#list + 1] = side.ticks[i] - side.ticks[i - 1]
    end
  end
  return #list > 0 and median(list) or 0
end

-- Returns the calls that took the middle fifth of times.
local function middling(list)
  table.sort(list, function(a, b) return a.total < b.total end)
  local chosen = {}
  for i = math.floor(#list * 0.4) + 1, math.ceil(#list * 0.6) do
    chosen[#chosen + 1] = list[i]
  end
  return chosen
end

-- Returns a part's ticks in each of the calls, and their mean.
local function part_of(list, i)
  local values, sum = {}, 0
  for k, call in ipairs(list) do
    values[k] = call.ticks[i] - call.ticks[i - 1]
    sum = sum + values[k]
  end
  return values, sum / #list
end

local function parts_of(list, ns)
  local names, parts, middle = list[1].names, {}, middling(list)
  for i = 2, #names do
    local name = names[i - 1] .. " > " .. names[i]
    local _, mean = part_of(middle, i)
    parts[i - 1] = { name = name, meaning = M.MEANINGS[name] or "",
                     p50 = median(part_of(list, i)) * ns, middling = mean * ns }
  end
  return parts
end

-- Splits calls of which one is under way at a time. ns: of a tick. Returns
-- parts, a list of { name, meaning, p50, middling } in ns: medians, which add
-- up roughly, and means of the calls that took the middle fifth of times, which
-- add up to the median call's time. Also calls, share (of calls that take the
-- usual way) and sends (p50 by side, or 0). The first eighth is left out.
function M.split(caller, server, ns)
  local all, list, same = calls(caller, server), {}, {}
  for i = math.floor(#all / 8) + 1, #all do list[#list + 1] = all[i] end
  local way, count = usual(list)
  for _, call in ipairs(list) do
    if call.way == way then
      call.total = call.ticks[#call.ticks] - call.ticks[1]
      same[#same + 1] = call
    end
  end
  if count == 0 then error("no call was stamped from end to end", 0) end
  return { parts = parts_of(same, ns), calls = count, share = count / #list,
           sends = { caller = sends(caller) * ns,
                     server = sends(server) * ns } }
end

-- Splits a side's time with many calls under way, by what it stamped last and
-- next: a list of { name, mean } in ns for each of `count` calls, longest
-- first.
function M.shares(side, ns, count)
  local sums, list = {}, {}
  local begin = math.floor(side.count / 8)
  local part = (side.count - 1 - begin) / side.count
  for i = begin + 1, side.count - 1 do
    local key = side.points[i - 1] * 32 + side.points[i]
    sums[key] = (sums[key] or 0) + side.ticks[i] - side.ticks[i - 1]
  end
  for key, sum in pairs(sums) do
    list[#list + 1] = {
      name = named(side.side, bit.rshift(key, 5)) .. " > "
             .. named(side.side, bit.band(key, 31)),
      mean = sum * ns / (count * part),
    }
  end
  table.sort(list, function(a, b) return a.mean > b.mean end)
  return list
end

-- Returns how many calls of a side ended.
function M.ended(side)
  local count = 0
  for i = 0, side.count - 1 do
    if side.points[i] == DONE then count = count + 1 end
  end
  return count
end

return M
