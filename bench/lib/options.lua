-- SPDX-License-Identifier: Apache-2.0
-- The command line of both benches.

local kinds = require "bench.lib.kinds"
local process = require "bench.lib.process"

local M = {}

local UNITS = { [""] = 1, b = 1, k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30 }

local SIZES = "64,256,1K,4K,16K,64K,256K,1M,4M,16M"

local function list(text)
  local words = {}
  for word in text:gmatch "[^,%s]+" do words[#words + 1] = word end
  return words
end

-- The same, of a command line: nil and a message if nothing is there.
local function words(text)
  local all = list(text)
  return #all > 0 and all or nil, "nothing is named"
end

-- "64K" --> 65536; "64KiB" and "64k" too.
function M.size(text)
  local digits, unit = text:match "^(%d+)(%a*)$"
  local short = unit and unit:lower():gsub("ib$", ""):gsub("^(%a)b$", "%1")
  local scale = short and UNITS[short]
  if not scale then return nil, ("'%s' is not a size"):format(text) end
  return tonumber(digits) * scale
end

local function sizes(text)
  local all = {}
  for i, word in ipairs(list(text)) do
    local size, message = M.size(word)
    if not size or size < 1 then
      return nil, message or "a size is at least 1"
    end
    all[i] = size
  end
  if #all == 0 then return nil, "no sizes" end
  return all
end

local function positive(text)
  local number = tonumber(text)
  if not number or number <= 0 then
    return nil, ("'%s' is not a positive number"):format(text)
  end
  return number
end

local function not_negative(text)
  local number = tonumber(text)
  if not number or number < 0 then
    return nil, ("'%s' is not a number from 0"):format(text)
  end
  return number
end

local function whole(text)
  local number = positive(text)
  if not number or number % 1 ~= 0 then
    return nil, ("'%s' is not a positive whole number"):format(text)
  end
  return number
end

local function cores(text)
  local a, b = text:match "^(%d+),(%d+)$"
  if not a then return nil, "--pin takes two cores, as in 0,1" end
  return { tonumber(a), tonumber(b) }
end

-- Converts a list of modes; known: a list of all, which are keys of it, too.
local function modes_of(known)
  return function(text)
    local chosen = {}
    for i, mode in ipairs(list(text)) do
      if not known[mode] then
        return nil, ("unknown mode '%s'; there are: %s")
                    :format(mode, table.concat(known, ", "))
      end
      chosen[i] = mode
    end
    return #chosen > 0 and chosen or nil, "no modes"
  end
end

-- Options over TCP that driver and worker both get.
local function tcp_options(parser)
  parser:option("--streams", "Over TCP: sockets of a session for bulk.")
    :convert(whole)
  parser:option("--dead-after", "Over TCP: seconds until the silent are dead.")
    :convert(positive)
  parser:flag("--encrypt", "Over TCP: what is sent is sealed.")
  parser:flag("--auth", "Over TCP: what is sent has MACs, and is not sealed.")
end

local function tcp_places(parser)
  parser:option("--at", "The worker listens there, and all goes through that "
                .. "one address: unix:PATH or tcp://ADDRESS:PORT (0: any).")
    :argname "ADDRESS"
  parser:option("--netns", "The worker, and the floors' servers, are in that "
                .. "network namespace, as in /run/netns/NAME (needs --at).")
    :argname "FILE"
  parser:option("--cable", "The network device that mode cut takes down.")
    :argname "DEVICE"
end

-- Returns a parser with the options that both benches have. `spec` has name,
-- description, modes (a list of all) and default (the modes that run if none
-- is given).
function M.parser(spec)
  local argparse = require "argparse"
  local known = {}
  for i, mode in ipairs(spec.modes) do known[i], known[mode] = mode, true end
  local parser = argparse(spec.name, spec.description)
  parser:option("--mode --opcode", "What to measure, comma-separated: "
                .. table.concat(spec.modes, ", ") .. ".")
    :convert(modes_of(known)):default(table.concat(spec.default, ","))
  parser:option("--sizes", "Payload sizes, comma-separated, as in 64,1M.")
    :convert(sizes)
  parser:option("--seconds", "Time for each row (and as much for its floor).")
    :convert(positive)
  parser:option("--turns", "Turns that floor and program take in a row.")
    :convert(whole):default "8"
  parser:option("--pin", "Cores of driver and worker.")
    :convert(cores):default(process.cores() > 1 and "0,1" or "0,0")
  parser:option("--processes", "So many pairs of driver and worker at once.")
    :convert(whole):default "1"
  parser:option("--transport", "What carries the sessions: shm, verbs, tcp, "
                .. "auto.")
  parser:option("--kind", "Kind of memory of this side and of the peer, as in "
                .. "cuda:0 (both) or cuda:0,host (host).")
    :argname "KIND[,KIND]":convert(kinds.parse)
  parser:flag("--stranger", "With transfer.lua --kind host,cuda:0: this side "
              .. "does not use the GPU, so the peer copies.")
  parser:option("--rdma", "Option `rdma` of both engines, as in "
                .. "\"qps=4 gid=1\".")
  parser:option("--worker-rdma", "The worker's, where it has another.")
  parser:option("--connect", "Use the worker that was started apart and "
                .. "listens there.")
    :argname "ADDRESS"
  parser:option("--spin", "Seconds that a side without events polls before it "
                .. "sleeps (0.02; where sleeping is measured Perigee's own).")
    :convert(not_negative)
  tcp_places(parser)
  tcp_options(parser)
  parser:option("--warm-up", "Seconds without samples at the head of a turn "
                .. "(an eighth of its time).")
    :convert(positive)
  parser:option("--csv", "Write the rows to a file."):argname "FILE"
  parser:option("--plot", "Draw p50 and floor over size, as SVG.")
    :argname "FILE.svg"
  parser:flag("--json", "Print one JSON document in place of the table.")
  parser:option("--floor", "Compare over RDMA with this program of perftest, "
                .. "over TCP with spin, copy, epoll, block, write, rivals, "
                .. "iperf3 or seal; over shared memory with ucx "
                .. "(bench/ucx.lua).")
    :argname "NAME"
  parser:flag("--no-floor", "Do not measure the floor.")
  parser:option("--child-of", "One mode for another bench (main.lua).")
    :hidden(true):convert(whole)
  parser:option("--part", "Of a region that several processes share.")
    :hidden(true):convert(tonumber):default "0"
  return parser
end

-- Parses the command line and fills in what depends on other options.
function M.parse(parser, default_sizes)
  local options = parser:parse()
  options.sizes_given = options.sizes ~= nil
  options.sizes = options.sizes or sizes(default_sizes or SIZES)
  options.seconds_given = options.seconds ~= nil
  options.seconds = options.seconds or 0.5
  options.largest = math.max(unpack(options.sizes))
  options.worker_rdma = options.worker_rdma or options.rdma
  return options
end

local function spin(text) return text == "own" and -1 or not_negative(text) end

-- The command line of bench/worker.lua.
function M.worker()
  local parser = require "argparse"("luajit bench/worker.lua",
                                    "The other side of the benches.")
  parser:option("--listen", "Serve benches with --connect ADDRESS there.")
    :argname "ADDRESS"
  parser:option("--bytes", "Size of the region for transfers; 0: none.")
    :convert(M.size):default "64M"
  parser:option("--window", "Most messages under way at once.")
    :convert(whole):default "1"
  parser:option("--core", "The core to run on."):convert(tonumber):default "1"
  parser:option("--spin", "Seconds without events before it sleeps; own: "
                .. "Perigee's."):convert(spin):default "0.02"
  parser:flag("--no-inbox", "Receives no messages.")
  parser:option("--kind", "Kind of the memory for transfers, as in cuda:0.")
    :default "host"
  parser:option("--every", "Each N-th message is checked (16 if a bench has "
                .. "--kind).")
    :argname "N":convert(whole):default "1"
  tcp_options(parser)
  parser:option("--rdma", "Option `rdma` of its engines."):default ""
  parser:option("--scope"):hidden(true)
  parser:option("--folder"):hidden(true)
  parser:option("--parent"):hidden(true):convert(whole)
  local given = parser:parse()
  if not given.listen and not given.parent then
    parser:error("--listen ADDRESS is needed")
  end
  return given
end

-- The options of a bench's engine, of either side.
function M.engine(given, rdma)
  return {
    spin = given.spin, advanced = { rdma = rdma ~= "" and rdma or nil },
    streams = given.streams, dead_after = given.dead_after,
    encrypt = given.auth and "auth" or given.encrypt or false,
  }
end

M.whole, M.positive, M.sizes, M.cores = whole, positive, sizes, cores
M.modes_of, M.words = modes_of, words

return M
