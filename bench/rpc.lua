-- SPDX-License-Identifier: Apache-2.0
-- Calls between two processes of one host, next to the floor that C programs
-- reach on the same cores in the same run. See bench/running.md.

local tree = dofile((arg[0]:match ".*/" or "./") .. "tree.lua")
local calls = require "bench.lib.calls"
local extras = require "bench.lib.extras"
local driver = require "bench.lib.driver"
local floor = require "bench.lib.floor"
local kinds = require "bench.lib.kinds"
local main = require "bench.lib.main"
local options = require "bench.lib.options"
local perftest = require "bench.lib.perftest"
local rounds = require "bench.lib.rounds"
local tcp = require "bench.lib.tcp"
local trouble = require "bench.lib.trouble"

local PIPELINED_SECONDS, PIPELINED_WINDOW = 5, 64
local PIPELINED_MOST = 2 ^ 26 -- bytes under way
local LOAN_LEAST, PAGE = 64, 4096
-- a long payload, and how many of them for a rate
local LONG, RATE_DEPTH = 2 ^ 16, 4

local function command_line()
  local parser = options.parser {
    name = "luajit bench/rpc.lua",
    description = "Latency and bandwidth of calls, next to their floor.",
    modes = { "typed", "raw", "inplace", "loan", "pipelined", "connect",
              "sleeping", "beside", "idle", "memory", "allocations", "loaded",
              "cut", "restart", "landings", "put" },
    default = { "typed", "raw", "inplace", "loan", "pipelined", "connect",
                "sleeping", "beside", "idle" },
  }
  parser:option("--window", "Calls under way at once (pipelined: 64).")
    :convert(options.whole)
  parser:option("--sessions", "Sessions between the two; all but one idle.")
    :convert(options.whole):default "1"
  parser:option("--landings", "Places in which a reply lands (landings).")
    :convert(options.whole):default "256"
  parser:option("--load", "Bytes of the transfer beside which loaded calls.")
    :convert(options.size):default "1G"
  parser:flag("--into", "Inplace calls with `into`: a third copy.")
  parser:flag("--memory", "Also the memory of an idle session, both sides.")
  parser:flag("--allocations", "Also the Lua allocation of each call.")
  local given = options.parse(parser)
  for _, extra in ipairs { "memory", "allocations" } do
    if given[extra] and not given.child_of then
      given.mode[#given.mode + 1] = extra
    end
  end
  return given
end

-- The way to make the calls of each mode, and their floor.
local MODES = {
  typed = { one = calls.typed, slots = calls.typed_slots, sizes = { 16 },
            floor = "floor_echo" },
  raw = { one = calls.raw, slots = calls.raw_slots, floor = "floor_pull" },
  inplace = { one = calls.inplace, slots = calls.inplace_slots,
              floor = "floor_echo" },
}

-- The floor over RDMA: a short call takes twice the time of one way. A long
-- one, or several under way, take the time at the rate of one way.
local function rdma_floor(run, size, window)
  local short = window == 1 and size < LONG
  local program = run.given.floor or short and "ib_write_lat" or "ib_write_bw"
  return perftest.of(run, { program = program, size = size,
                            depth = math.max(window, RATE_DEPTH),
                            scale = 2 * window })
end

local function echo_floor(run, program, size, window)
  local given = run.given
  if given.no_floor then return nil end
  local reads = program == "floor_echo" and not given.into -- in the time
  if given.floor == "ucx" then
    return floor.of("ucx_echo", given, { "--how", reads and "inplace" or "raw",
                                         "--window", window }, size)
  end
  if run.transport == "verbs" then return rdma_floor(run, size, window) end
  if tcp.concerns(run) then return tcp.echo(run, size, window) end
  local words = {}
  if program == "floor_echo" then
    words = { "--window", window, "--copies", given.into and 3 or 2 }
  end
  return floor.of(program, given, words, size)
end

-- The session of the proxy.
local function session_of(run)
  return run.side.session or assert(run.side.agent:session "worker")
end

local function measure_echo(run, mode, size)
  local given, window = run.given, run.given.window or 1
  local one = mode == "inplace" and given.into and calls.inplace_into
              or MODES[mode].one
  local step
  if window == 1 then
    step = one(run.proxy, size, run.engine, kinds.of(given)[1])
  elseif mode == "raw" and given.kind then
    error("raw calls with --window have host memory only", 0)
  else
    step = calls.windowed(window, MODES[mode].slots(run.proxy, size, window,
                                                    run.engine))
  end
  local row = { mode = mode, size = size, window = window,
                sessions = given.sessions }
  if given.kind and (mode == "raw" or one == calls.inplace_into) then
    rounds.measure(row, given, step, nil, "none for such memory")
    return kinds.mark(row, given, session_of(run))
  end
  return rounds.measure(row, given, step,
                        echo_floor(run, MODES[mode].floor, size, window))
end

local function measure_pipelined(run, size)
  local given, window = run.given, run.given.window or PIPELINED_WINDOW
  local step = calls.windowed(window, calls.pipelined_slots(run.proxy, size))
  local row = { mode = "pipelined", size = size, window = window,
                sessions = given.sessions,
                seconds = not given.seconds_given and PIPELINED_SECONDS }
  return rounds.measure(row, given, step,
                        echo_floor(run, "floor_echo", size, window))
end

-- The floor of a loan is a loan of 64 B, as Perigee moves none of its bytes.
local function measure_loan(run, size)
  local least = calls.loan(run.proxy, LOAN_LEAST)
  local row = { mode = "loan", size = size, window = 1,
                sessions = run.given.sessions }
  local function least_round(seconds)
    return { ["loan of 64 B"] = rounds.round(least, seconds).histogram }
  end
  return rounds.measure(row, run.given, calls.loan(run.proxy, size),
                        not run.given.no_floor and least_round or nil)
end

-- Its floor is the same reply in one place.
local function measure_landings(run, size)
  local given = run.given
  local kind = kinds.of(given)[1]
  local one = calls.landed(run.proxy, size, 1, run.engine, kind)
  local row = { mode = "landings", size = size, window = 1,
                places = given.landings, sessions = given.sessions }
  local function one_round(seconds)
    return { ["one landing"] = rounds.round(one, seconds).histogram }
  end
  rounds.measure(row, given, calls.landed(run.proxy, size, given.landings,
    run.engine, kind), not given.no_floor and one_round or nil)
  return kinds.mark(row, given, session_of(run))
end

-- Its floor is a write of as many bytes and a call of 64 B.
local function measure_put(run, size)
  local given, side = run.given, run.side
  local kind, session = kinds.of(given)[1], side.session
  if not session then
    run.transfers = run.transfers or side:connect "transfer.sock"
    session = run.transfers
  end
  local from = assert(run.engine:alloc(size, { kind = kind,
                                               share = true })):slice():fill(1)
  local to = assert(session:region "bench"):slice(0, size)
  local between = kinds.mirrored(given) and kinds.EVERY or 1
  local least = calls.write_and_echo(run.proxy, session, to, from, between)
  local row = { mode = "put", size = size, window = 1,
                sessions = given.sessions }
  local function one_round(seconds)
    return { ["write and echo"] = rounds.round(least, seconds).histogram }
  end
  rounds.measure(row, given,
                 calls.put(run.proxy, size, run.engine, kind, between),
                 not given.no_floor and one_round or nil)
  return kinds.mark(row, given, session_of(run))
end

local function fits(given, mode, size)
  if mode == "loan" then return size >= LOAN_LEAST end
  if mode == "landings" then return size % (given.landings * PAGE) == 0 end
  if mode ~= "pipelined" then return true end
  return size * (given.window or PIPELINED_WINDOW) <= PIPELINED_MOST
end

local function sizes_of(given, mode)
  if MODES[mode] and MODES[mode].sizes then return MODES[mode].sizes end
  if mode == "pipelined" and not given.sizes_given then return { 64 } end
  if mode == "landings" and not given.sizes_given then return { 2 ^ 22 } end
  return given.sizes
end

local function measure(run, mode, size)
  if mode == "pipelined" then return measure_pipelined(run, size) end
  if mode == "loan" then return measure_loan(run, size) end
  if mode == "landings" then return measure_landings(run, size) end
  if mode == "put" then return measure_put(run, size) end
  return measure_echo(run, mode, size)
end

local function run_mode(run, mode)
  if extras[mode] then return extras[mode](run) end
  if trouble[mode] then return trouble[mode](run) end
  for _, size in ipairs(sizes_of(run.given, mode)) do
    if fits(run.given, mode, size) then
      jit.flush() -- no row runs on traces of another
      run.report:progress(mode, size)
      run.report:row(measure(run, mode, size))
      collectgarbage()
    end
  end
end

main.run("rpc", "mode", command_line(), function(given, out)
  local bytes = given.mode[1] == "loaded" and given.load
                or given.mode[1] == "put" and given.largest or 0
  given.no_inbox = bytes > 0
  local side = driver.start(given, tree.worker, bytes)
  local fine, message = pcall(function()
    local run = { given = given, side = side, proxy = side.proxy,
                  engine = side.engine, report = out }
    run.transport = side:transport()
    out:carried_by(run.transport)
    side:set_idle(given.sessions - 1)
    for _, mode in ipairs(given.mode) do run_mode(run, mode) end
  end)
  side:stop()
  if not fine then error(message, 0) end
end)
