-- SPDX-License-Identifier: Apache-2.0
-- Perigee beside others: the same echo, on the same cores, in the same run, in
-- turns. See bench/running.md and bench/peers/README.md.
--
--   luajit bench/compare.lua [--peers a,b] [--sizes 1K,16M] [--modes echo]
--   luajit bench/compare.lua --list

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local cores = require "bench.lib.compare.cores"
local distance = require "bench.lib.compare.distance"
local figures = require "bench.lib.compare.figures"
local files = require "bench.lib.compare.files"
local machine = require "bench.lib.machine"
local options = require "bench.lib.options"
local peers = require "bench.lib.compare.peers"
local process = require "bench.lib.process"
local report = require "bench.lib.compare.report"
local shapes = require "bench.lib.ranks.shape"
local turns = require "bench.lib.compare.turns"
local words = options.words

local ROOT = here .. "../"
local MODES = { "echo", "pipelined", "paced", "put", "get", "fanout", "loan",
                "put-pieces", "get-pieces" }
-- Options that tell how many calls are at once, or each second.
local UNDER = { pipelined = "under", paced = "rate", fanout = "fan" }
-- Other names of modes.
local SHORT = { oneside = { "put", "get" }, pages = { "put-pieces" } }
local SMALL = 64 -- bytes, of the modes that are about calls

-- "a=b,c=d" --> { a = "b", c = "d" }
local function titles(text)
  local all = {}
  for name, title in text:gmatch "([^,=]+)=([^,]+)" do all[name] = title end
  return all
end

local function modes(text)
  local all, known = {}, {}
  for _, mode in ipairs(MODES) do known[mode] = { mode } end
  for _, word in ipairs(words(text) or {}) do
    local meant = SHORT[word] or known[word]
    if not meant then
      return nil, ("there is no mode %s; there are: %s, oneside, "
                   .. "pages")
                  :format(word, table.concat(MODES, ", "))
    end
    for _, mode in ipairs(meant) do all[#all + 1] = mode end
  end
  return #all > 0 and all or nil, "no modes"
end

local function command_line()
  local parser = require "argparse"("luajit bench/compare.lua",
    "Perigee beside other systems: the same echo, in turns.")
  parser:option("--peers", "Peers, groups or paths of them, comma-separated "
                .. "(all); zero* are those whose names begin so.")
    :convert(words)
  parser:option("--sizes", "Payload sizes of echo, comma-separated.")
    :convert(options.sizes):default "1K,4K,16K,64K,256K,1M,4M,16M"
  parser:option("--modes", "echo, pipelined (64 B, many under way), paced "
                .. "(64 B, so many a second), oneside (put and get), fanout "
                .. "(one payload to many servers), loan (nothing is copied), "
                .. "pages (put-pieces: the blocks of --shape in one write).")
    :convert(modes):default "echo,pipelined,paced"
  parser:option("--seconds", "Time of each peer in each row.")
    :convert(options.positive):default "0.5"
  parser:option("--rounds", "Bursts that this time is divided into.")
    :convert(options.whole):default "8"
  parser:option("--attempts", "Times that a burst is made before one during "
                .. "which the cores moved is taken as it is.")
    :convert(options.whole):default "3"
  parser:option("--line", "Measure only while a cache line takes so many ns "
                .. "from core to core and back, as in 0-250; wait for that up "
                .. "to a minute (any).")
    :argname "NS":convert(distance.range)
  parser:option("--under", "Calls under way in mode pipelined.")
    :convert(options.whole):default "64"
  parser:option("--fan", "Servers in mode fanout.")
    :convert(options.whole):default "8"
  parser:option("--rate", "Calls each second in mode paced.")
    :convert(options.whole):default "1000"
  parser:option("--shape", "What put-pieces and get-pieces move.")
    :convert(function(text) return shapes.parse(text, options.size) end)
    :default "kv:layers=61,blocks=256,block=16K"
  parser:option("--pin", "Cores of clients and servers.")
    :convert(options.cores)
  parser:flag("--one-core", "Both sides on one core: every row is marked.")
  parser:option("--also", "A file with descriptions of further peers.")
    :argname "FILE.lua"
  parser:option("--results", "Where CSV, JSON and pictures go "
                .. "(bench/results/DATE).")
    :argname "FOLDER"
  parser:option("--titles", "Other titles of columns of ratios, as in "
                .. "ray-bytes=S/Ray.")
    :convert(titles)
  parser:flag("--json", "Print the JSON in place of tables.")
  parser:flag("--list", "Only tell which peers are there.")
  return parser:parse()
end

local given = command_line()
local terminal = process.is_terminal(2)

local function stop(format, ...)
  io.stderr:write("compare: ", format:format(...), "\n")
  os.exit(1)
end

local function clear()
  if terminal then io.stderr:write "\r\27[K" end
end

local function show(text)
  clear()
  if given.json then return end
  print(text)
  io.flush()
end

function given.progress(name, work)
  if not terminal then return end
  io.stderr:write(("\r\27[K%s: %s ..."):format(report.title(work), name))
  io.stderr:flush()
end

-- ---- Peers -----------------------------------------------------------------

local function choose()
  local all = peers.all(ROOT, given.also)
  local chosen, unknown = all, nil
  if given.peers then chosen, unknown = peers.chosen(all, given.peers) end
  if not chosen then stop("there is no peer %q; see --list", unknown) end
  for _, peer in ipairs(chosen) do
    peer.version, peer.why, peer.install = peers.there(peer)
  end
  return chosen
end

local function list(chosen)
  for _, peer in ipairs(chosen) do
    print(("%-18s %-12s %-5s %s"):format(peer.name, peer.group, peer.path,
      peer.version or ("- %s; to install: %s (%s)"):format(
        peer.why, peer.install, peer.fetches or "?")))
  end
end

-- ---- Rows ------------------------------------------------------------------

-- Returns the modes that any of these peers has, and tells the others.
local function modes_of(chosen)
  local known = {}
  for _, mode in ipairs(given.modes) do
    if #peers.with_mode(chosen, mode) > 0 then
      known[#known + 1] = mode
    else
      show(("No row of mode %s: none of these peers has it.\n"):format(mode))
    end
  end
  if #known == 0 then stop "none of these peers has any of these modes" end
  return known
end

-- Returns the sizes of a mode's rows, and the plan of blocks that it moves, of
-- which the size is the span in memory.
local function sizes_of(mode)
  if mode:find "%-pieces$" then
    local plan = shapes.paged(given.shape)
    return { plan.span }, plan
  end
  local calls = mode == "pipelined" or mode == "paced"
  return calls and { SMALL } or given.sizes
end

-- Returns what is measured, in the order of the tables.
local function works()
  local all = {}
  for _, mode in ipairs(given.modes) do
    local sizes, plan = sizes_of(mode)
    for _, size in ipairs(sizes) do
      all[#all + 1] = {
        mode = mode, size = size, seconds = given.seconds, plan = plan,
        shape = plan and given.shape, under = given[UNDER[mode]] or 1,
      }
    end
  end
  return all
end

local function commit()
  local git = io.popen(("git -C '%s.' rev-parse --short HEAD 2>/dev/null")
                       :format(ROOT))
  local text = git:read "*l"
  git:close()
  return text
end

local function head(versions)
  local what = machine.describe(given)
  what.commit = commit()
  what.versions = versions
  return { machine = what, options = {
    sizes = given.sizes, modes = given.modes, seconds = given.seconds,
    rounds = given.rounds, attempts = given.attempts, line = given.line,
    under = given.under,
    fan = given.fan, rate = given.rate, pin = given.pin, shape = given.shape,
    one_core = given.one_core or false,
  } }
end

local function versions_of(chosen)
  local all = {}
  for _, peer in ipairs(chosen) do
    all[peer.name] = peer.version or "not there"
  end
  return all
end

local function keep(chosen, rows)
  return files.write(given.results, head(versions_of(chosen)), rows)
end

local function measure(chosen, all)
  for _, work in ipairs(works()) do
    local rows, able = {}, peers.with_mode(chosen, work.mode)
    for i, entry in ipairs(turns.row(able, work, given)) do
      rows[i] = figures.row(entry, work, distance.fitting(given))
      rows[i].one_core = given.one_core
    end
    figures.compare(rows)
    show(report.header(work))
    for _, row in ipairs(rows) do
      show(report.line(row))
      all[#all + 1] = row
    end
    show ""
    keep(chosen, all) -- so that an interrupt loses no row that is whole
  end
end

-- ---- The run ---------------------------------------------------------------

local function choose_cores()
  local cpus, is_ours = process.allowed(), {}
  for _, core in ipairs(cpus) do is_ours[core] = true end
  given.pin = given.pin or { cpus[1], cpus[2] or cpus[1] }
  if given.one_core then given.pin[2] = given.pin[1] end
  if given.pin[1] == given.pin[2] and not given.one_core then
    stop "two cores are needed, one for each side; --one-core measures on one"
  end
  for i = 1, 2 do
    if not is_ours[given.pin[i]] then
      stop("there is no core %d for us", given.pin[i])
    end
  end
end

-- Tells what was measured, and writes the files.
local function finish(chosen, rows)
  for _, mode in ipairs(given.modes) do
    for _, line in ipairs(report.ratios(rows, mode, given.titles)) do
      show(line)
    end
    show ""
  end
  if given.json then
    io.write(files.document(head(versions_of(chosen)), rows))
  end
  local fine, why = keep(chosen, rows)
  if not fine then stop("%s", why) end
  show("Results: " .. given.results)
end

local function run()
  local chosen = choose()
  if given.list then return list(chosen) end
  choose_cores()
  given.modes = modes_of(chosen)
  given.largest = math.max(SMALL, unpack(given.sizes))
  given.results = given.results
                  or ROOT .. "bench/results/" .. os.date "!%Y-%m-%dT%H%M%SZ"
  local fine, why = files.prepare(given.results)
  if not fine then stop("no results can be written: %s", why) end
  fine, why = cores.take(given.pin)
  if not fine then stop("%s", why) end
  process.ignore_broken_pipes()
  local rows = {}
  local good, message = pcall(measure, chosen, rows)
  turns.stop(chosen)
  if #rows > 0 then finish(chosen, rows) end -- what there is, in any case
  if not good then stop("%s", tostring(message)) end
end

run()
