-- SPDX-License-Identifier: Apache-2.0
-- Measures whether MSG_ZEROCOPY is worth it. Bare sockets carry SIZE bytes one
-- way and one back, sent plainly and with MSG_ZEROCOPY (until the kernel has
-- given the buffer back), in turns, over loopback and (as root) over a veth
-- pair.
--
--   luajit bench/zerocopy.lua [SIZE...]

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
require "bench.lib.help".asked()
local cables = require "bench.lib.cable"
local floor = require "bench.lib.floor"
local options = require "bench.lib.options"
local process = require "bench.lib.process"
local text = require "perigee.bench.table"

local TURNS, SECONDS = 7, 0.3
local SIZES = #arg > 0 and arg or { "64K", "256K", "1M", "4M", "16M" }

local function burst(place, how, size)
  local words = { unpack(place.before) }
  for _, word in ipairs {
    floor.folder .. "/floor_tcp", "--how", how, "--at", place.at, "--seconds",
    SECONDS,
  } do
    words[#words + 1] = word
  end
  if place.far then
    words[#words + 1], words[#words + 2] = "--netns", place.far
  end
  words[#words + 1] = ("%d"):format(size)
  local child = assert(process.spawn(words))
  local ns = child:rest():match "p50%s+([%d.]+)"
  if child:wait() ~= 0 then error("floor_tcp has failed", 0) end
  return tonumber(ns)
end

local function median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)] / 1e3
end

local function measure(place)
  for _, word in ipairs(SIZES) do
    local size, plain, lent = assert(options.size(word)), {}, {}
    for turn = 1, TURNS do
      plain[turn] = burst(place, "write", size)
      lent[turn] = burst(place, "zerocopy", size)
    end
    local a, b = median(plain), median(lent)
    print(("| %s | %s | %s | %s | %.2f |"):format(
      place.name, text.size(size), text.number(a), text.number(b), b / a))
    io.flush()
  end
end

print "| where | size | send, us | MSG_ZEROCOPY, us | times |"
print "|---|---|---|---|---|"
measure { name = "loopback", before = {}, at = "127.0.0.1" }
local cable, why = cables.new()
if not cable then
  io.stderr:write("zerocopy: no network namespaces: ", why, "\n")
  return
end
local fine, message = pcall(measure, {
  name = "veth", before = { "nsenter", "--net=" .. cable.near },
  at = cable.at, far = cable.far,
})
cable:remove()
if not fine then error(message, 0) end
