-- SPDX-License-Identifier: Apache-2.0
-- What bench/figures.lua runs: a list of parts, each a command that prints one
-- document. Four sizes of echoes are a part: a run which ends early has lost no
-- more, and each part asks for all versions, of which UCX's takes 0.4 s.

local text = require "perigee.bench.table"

local M = {}

-- Groups of rows, as --only names them, in the order of the run; their names
-- are keys, too.
M.GROUPS = { "shm", "tcp", "pipelined", "fanout", "paced", "put", "alone" }
for _, name in ipairs(M.GROUPS) do M.GROUPS[name] = true end

-- What is ours of an echo, and the peers of that by path.
M.WAYS = { "raw", "inplace", "floor", "floor_inplace" }
M.OURS = {
  shm = { raw = "perigee", inplace = "perigee-inplace",
          floor = "floor-raw", floor_inplace = "floor-inplace" },
  tcp = { raw = "perigee-tcp", inplace = "perigee-inplace-tcp",
          floor = "floor-raw-tcp", floor_inplace = "floor-inplace-tcp" },
}

-- Parts that are not of a size: the mode, sizes, own peers, whether the rivals
-- over shared memory take part, and how many times as long it takes as an echo.
local CALLS = {
  { "pipelined", { 64 }, "perigee,perigee-posted,perigee-batched,perigee-c,"
    .. "perigee-c-batched", true, 3 },
  { "fanout", { 64, 65536 }, "perigee,perigee-c", false, 3 },
  { "paced", { 64 }, "perigee,perigee-c,unix", false, 6 },
  { "put", { 64 }, "perigee-fresh,perigee-prepared", true, 2 },
}

-- Perigee beside floors alone.
local ALONE = {
  { "small", "rpc.lua", "--mode typed,connect,sleeping --sizes 64" },
  { "transfers", "transfer.lua",
    "--mode write,read,prepared_write,prepared_read --sizes 8,16M" },
}

local ROUNDS, ATTEMPTS, PATIENT = 4, 2, 8
local SIZES_OF_PART = 4
-- Seconds of a peer's row beyond its measured time, and for each MiB.
local START, EACH_MIB = 0.7, 0.035

-- Returns the sizes, two for each power of two, as --sizes takes them.
function M.sizes(from, to)
  local list, size = {}, from
  while size < to do
    list[#list + 1] = text.size(size)
    list[#list + 1] = text.size(1.5 * size)
    size = 2 * size
  end
  list[#list + 1] = text.size(to)
  return table.concat(list, ",")
end

-- Returns the names of those peers that have the mode and the path.
local function names_of(peers, mode, path)
  local names = {}
  for _, peer in ipairs(peers) do
    if peer.modes[mode] and peer.path == path then
      names[#names + 1] = peer.name
    end
  end
  return names
end

local function listed(own, rivals)
  return #rivals > 0 and own .. "," .. table.concat(rivals, ",") or own
end

-- Returns about the seconds that so many peers take for rows of these sizes.
local function weight_of(peers, sizes, seconds)
  local sum = 0
  for _, size in ipairs(sizes) do
    sum = sum + seconds * 1.3 + START + EACH_MIB * size / 2 ^ 20
  end
  return peers * sum
end

-- Returns a part that compare.lua measures. peers: as it takes them.
local function comparison(options, mode, sizes, peers, seconds)
  local words, _, commas = {}, peers:gsub(",", "")
  for i, size in ipairs(sizes) do words[i] = text.size(size) end
  return { group = mode, name = mode, command = { "compare.lua",
    "--modes", mode, "--sizes", table.concat(words, ","), "--peers", peers,
    "--seconds", seconds, "--rounds", ROUNDS, "--json",
    "--results", options.results .. "/compare", "--attempts",
    unpack(options.line and { PATIENT, "--line", options.line }
           or { ATTEMPTS }) },
    weight = weight_of(commas + 1, sizes, seconds) }
end

-- Returns the part of these echoes by a path.
local function part_of_echoes(options, path, sizes, peers)
  local part = comparison(options, "echo", sizes, peers, options.seconds)
  part.group, part.path, part.sizes = path, path, sizes
  part.name = path .. "-" .. text.size(sizes[1])
  return part
end

local function add_echoes(parts, options, path)
  local ours, sizes = {}, options.sizes
  for i, way in ipairs(M.WAYS) do ours[i] = M.OURS[path][way] end
  local peers = listed(table.concat(ours, ","),
                       names_of(options.rivals, "echo", path))
  for first = 1, #sizes, SIZES_OF_PART do
    local last = math.min(#sizes, first + SIZES_OF_PART - 1)
    parts[#parts + 1] = part_of_echoes(options, path,
                                       { unpack(sizes, first, last) }, peers)
  end
end

local function add_calls(parts, options)
  for _, each in ipairs(CALLS) do
    local mode, sizes, own, beside, times = unpack(each, 1, 5)
    local rivals = beside and names_of(options.rivals, mode, "shm") or {}
    parts[#parts + 1] = comparison(options, mode, sizes, listed(own, rivals),
                                   options.seconds * times)
  end
end

local function add_alone(parts, options)
  for _, each in ipairs(ALONE) do
    local command = { each[2] }
    for word in each[3]:gmatch "%S+" do command[#command + 1] = word end
    for _, word in ipairs { "--seconds", options.seconds, "--json" } do
      command[#command + 1] = word
    end
    parts[#parts + 1] = { name = each[1], group = "alone", command = command,
                          weight = 16 * options.seconds + 3 }
  end
end

-- Returns the parts: name, group, command (words behind the interpreter, the
-- first one a bench), weight (about its seconds), and of echoes path and sizes.
-- options: sizes (bytes), seconds (of each peer in each row), rivals (their
-- descriptions), results (a folder), line (as compare.lua takes it, or nil).
function M.parts(options)
  local parts = {}
  add_echoes(parts, options, "shm")
  add_echoes(parts, options, "tcp")
  add_calls(parts, options)
  add_alone(parts, options)
  return parts
end

return M
