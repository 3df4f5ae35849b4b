-- SPDX-License-Identifier: Apache-2.0
-- A cache and its client on two cores of one host, each figure beside a floor
-- of the same run. See bench/running.md.

local tree = (arg[0]:match ".*/" or "./") .. "tree.lua"
dofile(tree)
local argparse = require "argparse"
local crowd = require "bench.lib.cache.crowd"
local gets = require "bench.lib.cache.gets"
local hot = require "bench.lib.cache.hot"
local main = require "bench.lib.main"
local options = require "bench.lib.options"
local peers = require "bench.lib.cache.peers"
local process = require "bench.lib.process"
local puts = require "bench.lib.cache.puts"
local sides = require "bench.lib.cache.side"
local loops = require "bench.lib.cache.loops"

local MIB = 2 ^ 20

-- The modes: how each is measured, its sizes (0: it has its own), and its goals
-- for the ratio by size, or for all sizes. memory, keys: of the cache.
local MODES = {
  { "get", gets.get, { 4096, 2 ^ 18, 2 ^ 24 },
    { [4096] = { 1.3, 1.1 }, [2 ^ 18] = { 1.15, 1.05 },
      [2 ^ 24] = { 1.15, 1.05 } } },
  { "get_new", gets.get_new, { 4096, 2 ^ 18, 2 ^ 24 },
    { [4096] = { 1.5, 1.2 }, [2 ^ 24] = { 1.15, 1.05 } } },
  { "get_held", gets.get_held, { 4096, 2 ^ 18, 2 ^ 24 },
    { [4096] = { 1.3, 1.1 }, [2 ^ 18] = { 1.15, 1.05 },
      [2 ^ 24] = { 1.15, 1.05 } } },
  { "view", gets.view, { 2 ^ 24 }, { 1.3, 1.1 } },
  { "view_new", gets.view_new, { 2 ^ 24 }, { 1.3, 1.1 } },
  { "put", puts.put, { 4096, 65536, 2 ^ 22 }, { 1.3, 1.1 } },
  { "get_many", gets.get_many, { 0 }, { 1.2, 1.05 } },
  { "get_many_new", gets.get_many_new, { 0 }, { 1.2, 1.05 } },
  { "get_many_held", gets.get_many_held, { 0 }, { 1.2, 1.05 } },
  { "match", gets.match, { 0 }, { 4, 2 } },
  { "has", gets.has, { 0 }, { 10, 4 }, memory = 1024 * MIB, populate = false },
  { "prefix", gets.prefix, { 0 }, { 1.2, 1.05 } },
  { "prefix_new", gets.prefix_new, { 0 }, { 1.2, 1.05 } },
  { "clients", crowd.in_c, { 64, 4096 }, { 2, 1.25 }, memory = 64 * MIB },
  { "clients_lua", crowd.in_lua, { 64, 4096 }, { 2, 1.25 },
    memory = 64 * MIB },
  { "clients_map", crowd.by_map, { 64, 4096 }, { 2, 1.25 },
    memory = 64 * MIB },
  { "hot", hot.measure, { 4096 }, memory = 64 * MIB },
  { "memory", puts.memory, { 0 }, memory = 64 * MIB },
  { "peers", peers.measure, { 4096, 2 ^ 22 } },
}
local MEMORY = 512 * MIB
-- Bytes of sources of puts, and of what is got, at least.
local ROOM, INTO = 4 * MIB, 64 * MIB

local names, by_name, default = {}, {}, {}
for i, mode in ipairs(MODES) do
  names[i], names[mode[1]], by_name[mode[1]] = mode[1], true, mode
  if mode[1] ~= "peers" then default[#default + 1] = mode[1] end
end

local function command_line()
  local parser = argparse("luajit bench/cache.lua",
                          "A cache on this host, next to floors.")
  parser:option("--mode", "What to measure, comma-separated: "
                .. table.concat(names, ", ") .. " (all but peers).")
    :convert(options.modes_of(names)):default(table.concat(default, ","))
  parser:flag("--peers", "Also get and put of Redis, memcached and Mooncake "
              .. "Store, as far as they are here (mode peers).")
  parser:option("--sizes", "Bytes of values, comma-separated, as in 4K,1M, in "
                .. "place of a mode's own."):convert(options.sizes)
  parser:option("--seconds", "Time for each row (and as much for its floor).")
    :convert(options.positive):default "1"
  parser:option("--turns", "Turns that floor and program take in a row.")
    :convert(options.whole):default "8"
  parser:option("--clients", "Clients of mode clients.")
    :convert(options.whole):default "10"
  parser:option("--stir", "Seconds of mode memory.")
    :convert(options.positive):default "60"
  parser:option("--warm-up", "Seconds without samples at the head of a turn "
                .. "(an eighth of its time).")
    :convert(options.positive)
  parser:option("--pin", "Cores of the client and the cache.")
    :convert(options.cores):default(process.cores() > 1 and "0,1" or "0,0")
  parser:option("--csv", "Write the rows to a file."):argname "FILE"
  parser:flag("--json", "Print one JSON document in place of the table.")
  parser:flag("--no-floor", "Do not measure the floors.")
  parser:option("--child-of", "One mode for another bench (main.lua).")
    :hidden(true):convert(options.whole)
  parser:option("--role"):hidden(true)
  parser:option("--parent"):hidden(true):convert(options.whole)
  parser:option("--scope"):hidden(true)
  parser:option("--memory"):hidden(true):convert(tonumber)
  parser:option("--region"):hidden(true):convert(tonumber)
  parser:option("--populate"):hidden(true)
  parser:option("--evict"):hidden(true)
  local given = parser:parse()
  given.processes, given.spin = 1, sides.SPIN
  if given.peers and not given.child_of then
    given.mode[#given.mode + 1] = "peers"
  end
  return given
end

local given_here = command_line()
if given_here.role then
  given_here.populate = given_here.populate == "yes"
  return sides.serve(given_here)
end

local function goals(mode, row)
  local own = mode[4]
  own = own and (own[row.size] or own[1] and own)
  if own then row.reach, row.beyond = own[1], own[2] end
  return row
end

local function run_mode(given, out, mode)
  local sizes = mode[3][1] > 0 and given.sizes or mode[3]
  local largest = math.max(unpack(sizes))
  local bytes = mode.memory or MEMORY
  local side = sides.start(given, {
    memory = bytes, populate = mode.populate,
    region = math.max(loops.KEYS * largest, ROOM) })
  local room = math.max(largest, ROOM)
  local run = { given = given, side = side, report = out, room = room,
                cache_bytes = bytes,
                memory = side:private(room + math.max(largest, INTO)):slice() }
  out:carried_by "shm"
  for _, size in ipairs(sizes) do
    jit.flush() -- no row runs on traces of another
    out:progress(mode[1], size)
    local rows = mode[2](run, size)
    for _, row in ipairs(rows and (rows[1] and rows or { rows }) or {}) do
      out:row(goals(mode, row))
    end
    collectgarbage()
  end
end

main.run("cache", "mode", given_here, function(given, out)
  local turns = require "bench.lib.turns"
  local fine, message = pcall(function()
    for _, name in ipairs(given.mode) do
      run_mode(given, out, by_name[name])
      turns.stop()
    end
  end)
  turns.stop()
  if not fine then error(message, 0) end
end)
