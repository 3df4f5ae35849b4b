-- SPDX-License-Identifier: Apache-2.0
-- What one operation takes, counted instruction by instruction (steps.c): from
-- the Lua call to the post, in the device's library, and from the completion to
-- the result in Lua. Exact, whatever else the machine does; polls that found
-- nothing are left out. See bench/README.md.

local tree = dofile((arg[0]:match ".*/" or "./") .. "tree.lua")
local driver = require "perigee.bench.driver"
local ffi = require "ffi"
local floor = require "perigee.bench.floor"
local payload = require "perigee.bench.payload"
local process = require "perigee.bench.process"

ffi.cdef "int raise(int signal);"
local C = ffi.C
local SIGUSR1 = 10
local WARM, COUNTED, STEPPED = 400, 400, 15 -- operations
local PROVIDER, PROVIDER_ELSE = "rdmav%d+%.so", "/libmlx[45]%.so" -- rdma-core's
local COUNTS = "(%d+) posts, (%d+) polls"

-- ---- Operations -------------------------------------------------------------

local STEPS = {}
local MODES = { "inplace", "typed", "write", "prepared_write", "read",
                "prepared_read" }

local function cores() return { 0, process.cores() > 1 and 1 or 0 } end

function STEPS.inplace(side)
  local buffer = payload.private(64)
  local fast = side.proxy:with {
    capacity = 64,
    reader = function(reply) return reply.pointer[0] end,
  }
  local function writer(loan)
    ffi.copy(loan.pointer, buffer, 64)
    return 64
  end
  return function() return fast:copy(writer) end
end

function STEPS.typed(side)
  local proxy = side.proxy
  return function() return proxy:add(1, 2) end
end

local function ends(side)
  local session = side:connect "transfer.sock"
  local here = assert(side.engine:alloc(8, { access = "" })):slice()
  return session, here:fill(1), assert(session:region "bench"):slice(0, 8)
end

function STEPS.write(side)
  local session, here, there = ends(side)
  return function() return session:write { from = here, to = there }:wait() end
end

function STEPS.read(side)
  local session, here, there = ends(side)
  return function() return session:read { from = there, to = here }:wait() end
end

function STEPS.prepared_write(side)
  local session, here, there = ends(side)
  local transfer = session:prepare_write { from = here, to = there }
  return function() return transfer:post():wait() end
end

function STEPS.prepared_read(side)
  local session, here, there = ends(side)
  local transfer = session:prepare_read { from = there, to = here }
  return function() return transfer:post():wait() end
end

-- Between two system calls that do nothing, in a loop that was compiled.
local function operate(step, count)
  for _ = 1, count do
    C.getppid()
    local fine, err = step()
    C.getppid()
    if fine == nil then error(tostring(err), 0) end
  end
end

-- Posts, and polls that found something: ours and the worker's.
local function verbs(side)
  local posts, found = 0, 0
  for _, session in pairs(side.engine.sessions) do
    local p, f = session:explain().carrier:match(COUNTS)
    posts, found = posts + (p or 0), f or 0
  end
  local there = assert(side.proxy:posts(COUNTS))
  return { posts, tonumber(found), unpack(there) }
end

local function child(mode, transport)
  local side = driver.start({ mode = { mode }, transport = transport,
                              pin = cores() }, tree.worker, 4096)
  local step = STEPS[mode](side)
  operate(step, WARM)
  local before = verbs(side)
  operate(step, COUNTED)
  for i, after in ipairs(verbs(side)) do
    io.write(("%.2f "):format((after - before[i]) / COUNTED))
  end
  io.write "\n"
  io.flush()
  C.raise(SIGUSR1)
  operate(step, STEPPED)
  os.exit(0) -- the worker ends with us
end

-- ---- What was written down --------------------------------------------------

-- What an instruction is part of; nil: of what called it.
local function part_of(object)
  if object:find(PROVIDER) or object:find(PROVIDER_ELSE) then
    return "device"
  end
  if object:find "core%.so$" then return "core" end
  if object == "compiled" or object:find "/luajit[^/]*$" then return "lua" end
end

-- Instructions in runs: { part, count, systems, offsets }.
local function add(runs, part, offset)
  local run = runs[#runs]
  if not run or part and part ~= run.part then
    run = { part = part or "lua", count = 0, systems = 0, offsets = {} }
    runs[#runs + 1] = run
  end
  run.count = run.count + 1
  if offset and part == "core" then
    run.offsets[#run.offsets + 1] = offset
  elseif not offset then
    run.systems = run.systems + 1
  end
end

local function stretches(path)
  local all, runs = {}, {}
  for line in io.lines(path) do
    local offset, object = line:match "^(%x+) (%S+)$"
    if line == "end" then
      all[#all + 1], runs = runs, {}
    elseif offset then
      add(runs, part_of(object), tonumber(offset, 16))
    else
      add(runs, part_of(line:match "(%S+)$"))
    end
  end
  return all
end

-- First and last visit of the device's library, and how many there were.
local function visits(runs)
  local first, last, count = nil, nil, 0
  for i, run in ipairs(runs) do
    if run.part == "device" then
      first, last, count = first or i, i, count + 1
    end
  end
  return first, last, count
end

local function sum(runs, from, to, part, what)
  local total = 0
  for i = from, to do
    if runs[i].part == part then total = total + runs[i][what or "count"] end
  end
  return total
end

-- Of those with the fewest visits (a post, and one poll, which found something)
-- the median: others looked in vain, or had receives to post again.
local function typical(all)
  for _, runs in ipairs(all) do
    runs.total = 0
    for _, run in ipairs(runs) do runs.total = runs.total + run.count end
    runs.first, runs.last, runs.visits = visits(runs)
  end
  table.sort(all, function(a, b)
    if a.visits ~= b.visits then return a.visits < b.visits end
    return a.total < b.total
  end)
  local same = 0
  while all[same + 1] and all[same + 1].visits == all[1].visits do
    same = same + 1
  end
  return all[math.ceil(same / 2)]
end

local function row(cells) return "| " .. table.concat(cells, " | ") .. " |" end
local function head(cells)
  return row(cells) .. "\n|" .. ("---|"):rep(#cells)
end

local HEAD = head { "operation", "Lua, to the post", "core, to the post",
                    "library: post", "library: poll", "between",
                    "core, to the result", "Lua, to the result",
                    "system calls: library", "ours" }
local CALLS = head { "operation", "posts, driver", "polls that found",
                     "posts, worker", "polls that found" }

local function line(mode, runs)
  local a, b, n = runs.first, runs.last, #runs
  if not a then -- no device; all of it
    return row { mode, sum(runs, 1, n, "lua"), sum(runs, 1, n, "core") }
  end
  return row {
    mode, sum(runs, 1, a, "lua"), sum(runs, 1, a, "core"), runs[a].count,
    sum(runs, a + 1, b, "device"),
    sum(runs, a + 1, b, "core") + sum(runs, a + 1, b, "lua"),
    sum(runs, b + 1, n, "core"), sum(runs, b + 1, n, "lua"),
    sum(runs, 1, n, "device", "systems"),
    sum(runs, 1, n, "lua", "systems") + sum(runs, 1, n, "core", "systems"),
  }
end

-- ---- By function ------------------------------------------------------------

local function symbols()
  local list = {}
  local core = package.searchpath("perigee.core", package.cpath)
  local nm = assert(process.spawn { "nm", "-S", "--defined-only", core })
  for text in nm:rest():gmatch "[^\n]+" do
    local at, size, name = text:match "^(%x+) (%x+) [tT] ([^.%s]+)"
    if at then
      list[#list + 1] = { tonumber(at, 16), tonumber(size, 16), name }
    end
  end
  nm:wait()
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

local function name_of(list, offset)
  local low, high = 1, #list
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if list[middle][1] <= offset then low = middle else high = middle - 1 end
  end
  local one = list[low]
  return one and offset < one[1] + one[2] and one[3] or "?"
end

local function tell_functions(list, what, runs, from, to)
  local counts, order = {}, {}
  for i = from, to do
    for _, offset in ipairs(runs[i].offsets) do
      local name = name_of(list, offset)
      if not counts[name] then order[#order + 1] = name end
      counts[name] = (counts[name] or 0) + 1
    end
  end
  table.sort(order, function(a, b) return counts[a] > counts[b] end)
  print("  " .. what)
  for _, name in ipairs(order) do
    print(("%8d %s"):format(counts[name], name))
  end
end

local function functions(runs)
  local list = symbols()
  local a, b = runs.first or #runs, runs.last or #runs
  tell_functions(list, "to the post", runs, 1, a)
  tell_functions(list, "between", runs, a + 1, b)
  tell_functions(list, "to the result", runs, b + 1, #runs)
end

-- ---- The command line -------------------------------------------------------

local function counted(mode, transport)
  local path = os.tmpname()
  local command = { floor.folder .. "/steps", path }
  for _, word in ipairs(process.interpreter()) do
    command[#command + 1] = word
  end
  for _, word in ipairs { arg[0], "--mode", mode, "--transport", transport,
                          "--child" } do
    command[#command + 1] = word
  end
  local stepper = assert(process.spawn(command))
  local told = stepper:line()
  stepper:rest()
  local status, all = stepper:wait(), stretches(path)
  os.remove(path)
  if status ~= 0 or #all == 0 then
    error(("%s was not counted (status %d)"):format(mode, status), 0)
  end
  return typical(all), told
end

local function main(given)
  process.pin(0, cores()[1]) -- and with us who steps, and whom
  local calls = {}
  print(HEAD)
  for _, mode in ipairs(given.mode) do
    local runs, told = counted(mode, given.transport)
    print(line(mode, runs))
    if given.functions then functions(runs) end
    calls[#calls + 1] = row { mode, told:match "(%S+) (%S+) (%S+) (%S+)" }
    io.flush()
  end
  print("\n" .. CALLS)
  print(table.concat(calls, "\n"))
end

local function modes(text)
  local list = {}
  for word in text:gmatch "[%w_]+" do
    if not STEPS[word] then return nil, "there is no mode " .. word end
    list[#list + 1] = word
  end
  return list
end

local parser = require "argparse"("luajit bench/count.lua",
                                  "Instructions of one operation.")
parser:option("--mode", "Which, comma-separated: "
              .. table.concat(MODES, ", ") .. ".")
  :default(table.concat(MODES, ",")):convert(modes)
parser:option("--transport", "What carries the session."):default "verbs"
parser:flag("--functions", "Also by function of the core.")
parser:flag("--child"):hidden(true)
local given = parser:parse()
if given.child then
  child(given.mode[1], given.transport)
else
  main(given)
end
