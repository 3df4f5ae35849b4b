-- SPDX-License-Identifier: Apache-2.0
-- Counts the instructions of an operation over shared memory or TCP: callgrind
-- runs bench/counted.c, both ends in one thread. What is counted depends on
-- neither time nor load, so two runs of one build give the same numbers.

local floor = require "bench.lib.floor"
local process = require "bench.lib.process"

local M = {}

local CALLER, SERVER = { "asks", "takes" }, { "serves" }

-- The operations: { name, counted.c's word, transport, bytes, how many }. Long
-- ones are fewer, as each of their instructions is like the others.
M.OPERATIONS = {}
for _, transport in ipairs { "shm", "tcp" } do
  for _, one in ipairs {
    { "inplace", 64, 1000 }, { "raw", 64, 1000 }, { "inplace", 65536, 250 },
    { "raw", 65536, 250 }, { "write", 8, 1000 },
  } do
    M.OPERATIONS[#M.OPERATIONS + 1] = {
      name = ("%s %d %s"):format(one[1], one[2], transport),
      word = one[1], transport = transport, size = one[2], count = one[3],
    }
  end
end

-- GCC's names for parts of a function are that function's.
local function plain(name, object)
  if name:match "^0x" then return (object:match "[^/]*$") end
  return (name:gsub("'%d+$", ""):gsub("%.[%w_.]*$", ""))
end

-- Reads a file of callgrind's (uncompressed names and lines). Returns by
-- function the instructions of itself, and those of what it called.
function M.parse(lines)
  local own, below, name, object, call = {}, {}, nil, "?", false
  for line in lines do
    local key, value = line:match "^(%l+)=(.*)$"
    if key == "ob" then
      object = value
    elseif key == "fn" then
      name = plain(value, object)
    elseif key == "calls" then
      call = true
    elseif name and not key then
      local cost = tonumber(line:match "^[%d+*-]+ (%d+)$")
      local into = call and below or own
      if cost then into[name] = (into[name] or 0) + cost end
      call = false
    end
  end
  return own, below
end

local function side(own, below, names, count)
  local sum = 0
  for _, name in ipairs(names) do
    sum = sum + (own[name] or 0) + (below[name] or 0)
  end
  return math.floor(sum / count + 0.5)
end

-- Returns caller, server (instructions of one operation) and functions, those
-- of each function, of at least one.
function M.counts(lines, count)
  local own, below = M.parse(lines)
  local functions = {}
  for name, sum in pairs(own) do
    local each = math.floor(sum / count + 0.5)
    if each > 0 then functions[name] = each end
  end
  return { caller = side(own, below, CALLER, count),
           server = side(own, below, SERVER, count), functions = functions }
end

local function start(one, path)
  local command = { "valgrind", "-q", "--tool=callgrind",
                    "--callgrind-out-file=" .. path, "--compress-strings=no",
                    "--compress-pos=no", "--collect-atstart=no",
                    "--zero-before=counted" }
  for _, names in ipairs { CALLER, SERVER } do
    for _, name in ipairs(names) do
      command[#command + 1] = "--toggle-collect=" .. name
    end
  end
  for _, word in ipairs { floor.folder .. "/counted", one.word, one.transport,
                          one.size, one.count } do
    command[#command + 1] = tostring(word)
  end
  return assert(process.spawn(command))
end

local function finish(one, path, child)
  child:rest()
  local status = child:wait()
  local file = io.open(path)
  os.remove(path)
  if status ~= 0 or not file then
    error(("%s was not counted (status %d)"):format(one.name, status), 0)
  end
  local counts = M.counts(file:lines(), one.count)
  file:close()
  return counts
end

-- Counts the operations, on as many cores as there are; returns counts by name.
-- The files go to `folder`.
function M.run(operations, folder)
  local counts, running, cores = {}, {}, process.cores()
  local function collect()
    local one, path, child = unpack(table.remove(running, 1))
    counts[one.name] = finish(one, path, child)
  end
  for i, one in ipairs(operations) do
    if #running == cores then collect() end
    local path = ("%s/%d"):format(folder, i)
    running[#running + 1] = { one, path, start(one, path) }
  end
  while #running > 0 do collect() end
  return counts
end

-- ---- What the counts depend on ----------------------------------------------

local function output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe:read "*a"
  pipe:close()
  return text
end

-- Returns what has to be the same for counts to be comparable; nil and what is
-- missing. `core`: the library's path. The processor counts by the instructions
-- that valgrind offers, as the C library's copies differ by them.
function M.setting(core)
  local valgrind = output "valgrind --version":match "%S+"
  local compiler = output(("readelf -p .comment '%s'"):format(core))
  local flags = " " .. (output "cat /proc/cpuinfo":match "flags%s*:([^\n]*)"
                        or "") .. " "
  if not valgrind then return nil, "valgrind is not installed" end
  return {
    compiler = compiler:match "%]%s+(GCC: [^\n]*)" or "unknown",
    libc = output "getconf GNU_LIBC_VERSION":match "[^\n]+" or "unknown",
    valgrind = valgrind,
    machine = output "uname -m":match "%S+"
              .. (flags:find " avx2 " and " avx2" or ""),
  }
end

return M
