-- SPDX-License-Identifier: Apache-2.0
-- Writes the reference table, bench/figures.md, and its two pictures: echoes of
-- every size beside the floor of the same run and the best of the other systems
-- that are here (bench/compare.lua --list), and calls and transfers.
--
--   luajit bench/figures.lua [--quick] [--only shm,tcp] [--resume]
local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local cjson = require "cjson"
local files = require "bench.lib.compare.files"
local figures = require "bench.lib.figures.rows"
local machine = require "bench.lib.machine"
local options = require "bench.lib.options"
local page = require "bench.lib.figures.page"
local peers = require "bench.lib.compare.peers"
local pictures = require "bench.lib.figures.pictures"
local plan = require "bench.lib.figures.plan"
local process = require "bench.lib.process"
local runs = require "bench.lib.figures.runs"
local text = require "perigee.bench.table"

-- ---- The command line ------------------------------------------------------

local QUICK = { sizes = "64,1K,8K,64K,512K,1M,16M", seconds = 0.1 }
local WHOLE = { sizes = plan.sizes(64, 2 ^ 26), seconds = 0.2 }

local function command_line()
  local parser = argparse("luajit bench/figures.lua",
    "Writes the reference table of this machine, and its two pictures.")
  parser:option("--sizes", "Sizes of echoes, comma-separated (two for each "
                .. "power of two, 64 to 64M).")
    :convert(options.sizes)
  parser:option("--seconds", "Time of each peer in each row (0.2).")
    :convert(options.positive)
  parser:option("--peers", "Other systems, as compare.lua has them.")
    :convert(options.words):default "ucx-*,libfabric-*"
  parser:option("--only", "Measure only these rows, comma-separated: "
                .. table.concat(plan.GROUPS, ", ") .. "; the others are of "
                .. "the same command before, if they are there.")
    :argname "ROWS":convert(options.modes_of(plan.GROUPS))
  parser:option("--line", "Measure echoes and calls only while a cache line "
                .. "takes so many ns from core to core and back, as in 0-250 "
                .. "(any).")
    :argname "NS"
  parser:flag("--resume", "Measure only what is not there from the same "
              .. "command, as after an interruption or a failure.")
  parser:flag("--draw", "Measure nothing: write what is there.")
  parser:flag("--quick", "A look in three minutes: seven sizes, 0.1 s; the "
              .. "page is among the results.")
  parser:option("--results", "Where documents go (bench/results/figures).")
    :argname "FOLDER"
  parser:option("--out", "The page (bench/figures.md); the pictures are beside "
                .. "it."):argname "FILE.md"
  parser:option("--json", "Write all rows to a file, too."):argname "FILE"
  return parser:parse()
end

-- Fills in what depends on --quick.
local function completed(given)
  local usual = given.quick and QUICK or WHOLE
  given.sizes = given.sizes or options.sizes(usual.sizes)
  given.seconds = given.seconds or usual.seconds
  given.results = given.results or here .. "results/figures"
                  .. (given.quick and "-quick" or "")
  given.out = given.out
    or given.quick and given.results .. "/figures.md" or here .. "figures.md"
  table.sort(given.sizes)
  return given
end

local function stop(format, ...)
  io.stderr:write("figures: ", format:format(...), "\n")
  os.exit(1)
end

local function say(line)
  io.stderr:write(process.is_terminal(2) and "\r\27[K" or "", line, "\n")
end

-- ---- What is measured ------------------------------------------------------

-- Returns the parts of the plan, and those of them that are to be run.
local function parts_of(given)
  local rivals, unknown = peers.chosen(peers.all(here .. "../"), given.peers)
  if not rivals then
    stop("there is no peer %q; see compare.lua --list", unknown)
  end
  given.rivals = rivals
  local parts, wanted, wished = plan.parts(given), {}, {}
  for _, group in ipairs(given.only or plan.GROUPS) do wished[group] = true end
  for _, part in ipairs(parts) do
    local there, failed = runs.stored(given.results, part)
    local done = given.resume and there and not failed
    if wished[part.group] and not done and not given.draw then
      wanted[#wanted + 1] = part
    end
  end
  return parts, wanted
end

-- Returns why peers are missing, each with its reason; and true if one of them
-- is Perigee.
local function missing(document)
  local words, ours = "", false
  for _, row in ipairs(document.rows) do
    if type(row.why) == "string" then
      words = ("%s\n  %s: %s"):format(words, row.peer, row.why)
      ours = ours or row.peer:find "^perigee" ~= nil
    end
  end
  return words, ours
end

local function over(value)
  return value and (" (%.2f x)"):format(value) or ""
end

local function found_of(one)
  return ("\n  %s: raw %s%s, in place %s%s, %s %s us"):format(
    text.size(one.size), text.number(one.raw), over(one.raw_ratio),
    text.number(one.inplace), over(one.inplace_ratio), one.name or "no rival",
    text.number(one.rival))
end

-- Returns in short what a part has found, for the lines of progress, and
-- whether something of ours is missing.
local function found(part, document)
  local why, ours = missing(document)
  if not part.path then return why, ours end
  local words = {}
  for i, one in ipairs(figures.echoes(document.rows, part.path, part.sizes)) do
    words[i] = found_of(one)
  end
  return why .. table.concat(words), ours
end

-- ---- What is written -------------------------------------------------------

-- Returns the keys of a set in order, in words.
local function listed(set, between)
  local list = {}
  for key in pairs(set) do list[#list + 1] = key end
  table.sort(list)
  return list[1] and table.concat(list, between) or "unknown"
end

-- Adds a document's rows, days, commits, and versions of the other systems.
local function add_document(measured, document)
  local what = document.machine
  measured.dates[what.date:sub(1, 10)] = true
  if what.commit then measured.commits[what.commit] = true end
  for _, row in ipairs(document.rows) do
    measured.rows[#measured.rows + 1] = row
    if row.mode == "echo" and type(row.version) == "string"
       and figures.is_rival(row) then
      measured.versions[row.version] = true
    end
  end
end

-- Returns what the parts that are there have in them, as page.lua takes it; nil
-- if there is nothing.
local function collected(given, parts)
  local measured = { seconds = given.seconds, rows = {}, dates = {},
                     commits = {}, versions = {} }
  for _, part in ipairs(parts) do
    local document = runs.stored(given.results, part)
    if document then add_document(measured, document) end
  end
  if #measured.rows == 0 then return nil end
  measured.machine = machine.describe { pin = { 0, 1 } }
  measured.days = ("on %s, commit %s"):format(listed(measured.dates, " and "),
                                              listed(measured.commits, " and "))
  measured.rivals = listed(measured.versions, ", ")
  for path in pairs(plan.OURS) do
    measured[path] = figures.echoes(measured.rows, path, given.sizes)
  end
  return measured
end

local function write(path, content)
  local file, why = io.open(path, "w")
  if not file then stop("%s", why) end
  file:write(content)
  assert(file:close())
end

local function write_all(given, measured)
  local base = given.out:gsub("%.md$", "")
  measured.name = base:match "[^/]*$"
  local time, ratio = pictures.draw(measured)
  write(given.out, page.text(measured))
  if time then write(base .. "-time.svg", time) end
  if ratio then write(base .. "-ratio.svg", ratio) end
  if given.json then
    write(given.json, cjson.encode { bench = "figures", rows = measured.rows,
                                     machine = measured.machine })
  end
end

local function tell(given, measured)
  for _, path in ipairs { "shm", "tcp" } do
    local short = page.short(measured[path])
    if short ~= "" then io.write(path, ":\n", short) end
  end
  print("Written: " .. given.out)
end

local given = completed(command_line())
local able, reason = files.prepare(given.results)
if not able then stop("no results can be written: %s", reason) end
local parts, wanted = parts_of(given)
say(("%d of %d parts to measure, about %.0f min"):format(#wanted, #parts,
  runs.left(wanted, 0, 0) / 60))
local failed = runs.all(wanted, here, given.results, say, found)
local measured = collected(given, parts)
if measured then
  write_all(given, measured)
  tell(given, measured)
end
if #failed > 0 then
  stop("failed: %s; --resume runs them again", table.concat(failed, ", "))
elseif not measured then
  stop "nothing was measured"
end
