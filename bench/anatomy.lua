-- SPDX-License-Identifier: Apache-2.0
-- Splits a call by the time stamps of a build made for it (make anatomy,
-- native/base/stamp.h): from the program to the core, until the record is
-- seen, through the handler, and back. Turns with stamps and turns of the
-- normal build alternate; the table is of the stamped turn with the median
-- time. See bench/running.md.

local tree = dofile((arg[0]:match ".*/" or "./") .. "tree.lua")
local here = arg[0]:match ".*/" or "./"
local anatomy = require "bench.lib.anatomy"
local calls = require "bench.lib.calls"
local cjson = require "cjson"
local driver = require "bench.lib.driver"
local ffi = require "ffi"
local floor = require "bench.lib.floor"
local folders = require "bench.lib.folders"
local histogram = require "perigee.bench.histogram"
local options = require "bench.lib.options"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local stamps = require "bench.lib.stamps"

local now = process.now
local BUILD = here .. "../build/anatomy/"
local MOST = 300000 -- calls of a turn: the file of stamps has room for them

-- ---- Calls from Lua ---------------------------------------------------------

local WAYS, SLOTS = {}, {}

function WAYS.inplace(proxy, size)
  local buffer = payload.private(size)
  local fast = proxy:with {
    capacity = size,
    reader = function(reply) return reply.pointer[0] end,
  }
  local function writer(loan)
    ffi.copy(loan.pointer, buffer, size)
    return size
  end
  return function() return fast:copy(writer) end
end

function WAYS.raw(proxy, size, engine)
  local region = assert(engine:alloc(2 * size, { access = "" }))
  local from = region:slice(0, size):fill(1)
  local fast = proxy:with { into = region:slice(size, size) }
  return function() return fast:echo(from) end
end

function WAYS.typed(proxy)
  return function() return proxy:add(1, 2) end
end

SLOTS.inplace, SLOTS.raw = calls.inplace_slots, calls.raw_slots
SLOTS.pipelined, SLOTS.typed = calls.pipelined_slots, calls.typed_slots

-- Makes one call after another; returns how many.
local function alone(call, samples, until_ns)
  local asked = stamps.stamper(stamps.ASKED)
  local done = stamps.stamper(stamps.DONE)
  local n, ended = 0
  repeat
    local begin = now()
    asked()
    local result, err = call()
    done()
    ended = now()
    if result == nil then error(tostring(err), 0) end
    samples[n] = ended - begin
    n = n + 1
  until n >= MOST or ended >= until_ns
  return n
end

local function windowed(mode, side, given)
  local asked = stamps.stamper(stamps.ASKED)
  local submitted = stamps.stamper(stamps.SUBMITTED)
  local done = stamps.stamper(stamps.DONE)
  local submit, settle, finish =
    SLOTS[mode](side.proxy, given.size, given.window, side.engine)
  if mode == "pipelined" or mode == "typed" then
    submit, settle = SLOTS[mode](side.proxy, given.size)
  end
  return calls.windowed(given.window, function(i)
    asked()
    local future = submit(i)
    submitted()
    return future
  end, function(i, future)
    settle(i, future)
    done()
  end, finish)
end

local function start(given)
  local tcp = given.transport == "tcp"
  return driver.start({
    mode = { given.mode }, transport = given.transport, pin = given.pin,
    at = tcp and "tcp://127.0.0.1:0" or nil, window = given.window,
  }, tree.worker, 0)
end

-- One turn: prints p50 and mean of a call in ns, and calls a second.
local function child(given)
  local side = start(given)
  local samples = ffi.new("double[?]", MOST)
  local until_ns, n, spent = now() + given.seconds * 1e9
  if given.window > 1 then
    n, spent = windowed(given.mode, side, given)(samples, MOST, until_ns)
  else
    local began = now()
    n = alone(WAYS[given.mode](side.proxy, given.size, side.engine), samples,
              until_ns)
    spent = now() - began
  end
  local told = histogram.new()
  told:add_all(samples, n)
  print(("p50 %.1f mean %.1f each %.1f"):format(told:quantile(0.5),
                                                told:mean(), spent / n))
  side:stop()
end

-- ---- Turns ------------------------------------------------------------------

local port = 20000 + process.pid() % 20000

-- Ends of C: mode "inplace-c" is bench/echo.c.
local function in_c(given, stamped)
  local how = given.mode:match "^(%w+)-c$"
  local command = { (stamped and BUILD .. "bench" or floor.folder) .. "/echo",
                    "--pin", table.concat(given.pin, ","), "--seconds",
                    given.seconds, "--how", how, "--window", given.window }
  if given.transport == "tcp" then
    port = port + 1
    command[#command + 1] = "--at"
    command[#command + 1] = "tcp://127.0.0.1:" .. port
  end
  command[#command + 1] = given.size
  return command
end

local function in_lua(given)
  local command = process.interpreter()
  for _, word in ipairs {
    arg[0], "--child", "--mode", given.mode, "--transport", given.transport,
    "--sizes", given.size, "--window", given.window, "--seconds",
    given.seconds, "--pin", table.concat(given.pin, ","),
  } do
    command[#command + 1] = word
  end
  return command
end

-- Returns p50, mean and time for each call, in ns. folder: that of the stamps,
-- or nil for a turn of the normal build.
local function turn(given, folder)
  local command = { "env", folder and "PERIGEE_ANATOMY=" .. folder
                           or "--unset=PERIGEE_ANATOMY" }
  local work = given.mode:find "-c$" and in_c(given, folder) or in_lua(given)
  for _, word in ipairs(work) do command[#command + 1] = tostring(word) end
  local program = assert(process.spawn(command))
  local text = program:rest()
  local p50, mean = text:match "p50%s+([%d.]+)%s+mean%s+([%d.]+)"
  if program:wait() ~= 0 or not p50 then
    error("a turn failed: " .. table.concat(command, " "), 0)
  end
  mean = tonumber(mean)
  return { p50 = tonumber(p50), mean = mean,
           each = tonumber(text:match "each ([%d.]+)") or mean / given.window }
end

-- The clock of the stamps: ns of a tick, and the ns that reading either clock
-- takes.
local function clock(library)
  local begin, first = now(), library.perigee_ticks()
  return {
    base = first,
    finish = function()
      return (now() - begin) / tonumber(library.perigee_ticks() - first)
    end,
  }
end

-- Returns the ns that f takes, at the least.
local function cost(f)
  local least = math.huge
  for _ = 1, 50 do
    local begin = now()
    for _ = 1, 2000 do f() end
    least = math.min(least, (now() - begin) / 2000)
  end
  return least
end

-- Adds the parts of a call to what a turn told.
local function split(told, given, folder, ticks)
  local paths, ns = {}, ticks.finish()
  for _, name in ipairs(folders.entries(folder)) do
    if name:match "^%d+$" then paths[#paths + 1] = folder .. "/" .. name end
  end
  local caller, server = anatomy.read(paths, ticks.base)
  if given.window == 1 then
    for name, value in pairs(anatomy.split(caller, server, ns)) do
      told[name] = value
    end
  else
    told.calls = anatomy.ended(caller)
    told.caller = anatomy.shares(caller, ns, told.calls)
    told.server = anatomy.shares(server, ns, told.calls)
  end
  return told
end

local function stamped_turn(given, library)
  local folder = folders.new "/dev/shm"
  local ticks = clock(library)
  local fine, told = pcall(turn, given, folder)
  if fine then fine, told = pcall(split, told, given, folder, ticks) end
  folders.remove(folder)
  if not fine then error(told, 0) end
  return told
end

local function middle(list, field)
  table.sort(list, function(a, b) return a[field] < b[field] end)
  return list[math.ceil(#list / 2)]
end

-- Adds parts up, and with them what the measured time has outside of the first
-- and the last stamp.
local function sum_of(told, field)
  local sum = told.clock_ns + told.stamp_ns
  for _, part in ipairs(told.parts) do sum = sum + part[field] end
  return sum
end

-- Returns the median turn with stamps, with p50, mean and each of the normal
-- build's.
local function measured(given, library)
  local stamped, plain = {}, {}
  for i = 1, given.turns do
    plain[i] = turn(given)
    stamped[i] = stamped_turn(given, library)
  end
  local field = given.window > 1 and "each" or "p50"
  local told = middle(stamped, field)
  told.plain = middle(plain, field)
  told.mode, told.size, told.window = given.mode, given.size, given.window
  told.transport = given.transport
  told.clock_ns, told.stamp_ns = cost(now), cost(library.perigee_ticks)
  if told.parts then told.sum_ns = sum_of(told, "middling") end
  return told
end

-- ---- Tables -----------------------------------------------------------------

local function line(...)
  print(("| %s |"):format(table.concat({ ... }, " | ")))
end
local function number(value) return ("%.0f"):format(value) end

local function tell_one(told)
  line("part", "from, to", "p50, ns", "middling calls, ns")
  line("---", "---", "---", "---")
  for _, part in ipairs(told.parts) do
    line(part.meaning, part.name, number(part.p50), number(part.middling))
  end
  line("clock and stamp around it", "", number(told.clock_ns + told.stamp_ns),
       number(told.clock_ns + told.stamp_ns))
  line("sum", "", number(sum_of(told, "p50")), number(told.sum_ns))
  line("measured by the clock", "", number(told.p50),
       ("the sum is %.3f x"):format(told.sum_ns / told.p50))
  line("the same without stamps", "", number(told.plain.p50), "")
  print(("\n%d calls went this way, %.1f %% of all; each part has one stamp in "
         .. "it, some %.0f ns."):format(told.calls, 100 * told.share,
                                       told.stamp_ns))
  if told.sends.caller > 0 then
    print(("Of the parts in the kernel the sender's send() took %.0f ns there "
           .. "and %.0f ns back."):format(told.sends.caller,
                                         told.sends.server))
  end
end

local function tell_many(told)
  for _, side in ipairs { "caller", "server" } do
    local sum, small = 0, 0
    line(side .. ": from, to", "ns for each call")
    line("---", "---")
    for _, part in ipairs(told[side]) do
      sum = sum + part.mean
      if part.mean >= 3 then
        line(part.name, number(part.mean))
      else
        small = small + part.mean
      end
    end
    line("others", number(small))
    line("sum", number(sum))
    print ""
  end
  print(("measured: %.0f ns for each call, without stamps %.0f; a stamp takes "
         .. "some %.0f ns"):format(told.each, told.plain.each, told.stamp_ns))
end

local function tell(told)
  print(("\n%s, %d B, %s, %d under way\n"):format(
    told.mode, told.size, told.transport, told.window))
  if told.window > 1 then tell_many(told) else tell_one(told) end
  io.flush()
end

-- ---- The command line -------------------------------------------------------

local MODES = { "inplace", "raw", "typed", "pipelined", "inplace-c", "raw-c" }

local function words(known)
  return function(text)
    local list = {}
    for word in text:gmatch "[^,%s]+" do
      if not known[word] then return nil, "there is no " .. word end
      list[#list + 1] = word
    end
    return #list > 0 and list or nil, "nothing was named"
  end
end

local function set(list)
  local known = {}
  for _, word in ipairs(list) do known[word] = true end
  return known
end

local function has(list, pattern)
  return table.concat(list, " "):find(pattern) ~= nil
end

local function command_line()
  local two = process.cores() > 1
  local p = require "argparse"("luajit bench/anatomy.lua",
                               "Where the time of a call goes.")
  p:option("--mode", "Calls, comma-separated: " .. table.concat(MODES, ", ")
           .. "; -c: between two C programs, which know no verbs. pipelined "
           .. "needs --window.")
    :convert(words(set(MODES))):default "inplace,raw"
  p:option("--transport", "shm, tcp, verbs, comma-separated.")
    :convert(words(set { "shm", "tcp", "verbs" })):default "shm,tcp"
  p:option("--sizes", "Payload sizes, as in 64,64K."):convert(options.sizes)
    :default "64"
  p:option("--window", "Calls under way; above 1, the time of each side is "
           .. "split."):convert(options.whole):default "1"
  p:option("--turns", "Turns with stamps, and without."):convert(options.whole)
    :default "3"
  p:option("--seconds", "Time for each turn."):convert(options.positive)
    :default "0.2"
  p:option("--pin", "Cores of both sides."):convert(options.cores)
    :default(two and "0,1" or "0,0")
  p:flag("--json", "Print one JSON document in place of the tables.")
  p:flag("--child"):hidden(true)
  local given = p:parse()
  if has(given.mode, "%-c") and has(given.transport, "verbs") then
    p:error "modes between C programs go over shm and tcp"
  end
  return given
end

local function one_of(given, mode, transport, size)
  return setmetatable({ mode = mode, transport = transport, size = size },
                      { __index = given })
end

local function main(given)
  local all = {}
  local fine, library = pcall(ffi.load, BUILD .. "perigee/core.so")
  if not fine then error("make anatomy builds what is needed", 0) end
  for _, transport in ipairs(given.transport) do
    for _, mode in ipairs(given.mode) do
      for _, size in ipairs(given.sizes) do
        local told = measured(one_of(given, mode, transport, size), library)
        if not given.json then tell(told) end
        all[#all + 1] = told
      end
    end
  end
  if given.json then print(cjson.encode { rows = all }) end
end

local given = command_line()
if given.child then
  child(one_of(given, given.mode[1], given.transport[1], given.sizes[1]))
else
  local fine, why = pcall(main, given)
  if not fine then io.stderr:write("anatomy: ", tostring(why), "\n") end
  os.exit(fine and 0 or 1)
end
