-- SPDX-License-Identifier: Apache-2.0
-- A driver: calls each kind of method of examples/serve.lua, and moves 1 GiB
-- each way through 64 MiB by one-sided writes and reads, with every byte
-- checked. It prints the times beside the floor, the least that this hardware
-- lets any program do, measured in the same run (if make has built bench/). It
-- starts a worker of its own if none is running.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

ffi.cdef "int memcmp(const void *, const void *, size_t);"

local MIB, MEMORY, ROUNDS, SECONDS = 2 ^ 20, 2 ^ 26, 16, 0.3
local u32 = ffi.typeof("const uint32_t *")
local floors = os.getenv("PERIGEE_FLOORS") or common.here .. "../build/bench"
local name = arg[1] or "worker:0"
local scope = os.getenv("PERIGEE_SCOPE") or "demo"

-- Returns the p50 in ns that build/bench/PROGRAM prints for a size; nil
-- without that program.
local function floor(program, size, options)
  local path = floors .. "/" .. program
  local file = io.open(path)
  if not file then return nil end
  file:close()
  local pipe = io.popen(("'%s' %s --seconds %g %d"):format(path, options or "",
                                                          SECONDS, size))
  local text = pipe:read("*a")
  pipe:close()
  return tonumber(text:match("p50%s+(%d+)"))
end

-- Returns the median and the 99th percentile of calls of f, in seconds.
local function measure(f)
  local took, started = {}, common.now()
  repeat
    local before = common.now()
    f()
    local after = common.now()
    took[#took + 1] = after - before
  until after - started > SECONDS and #took >= 20
  table.sort(took)
  return took[math.ceil(#took / 2)], took[math.ceil(#took * 0.99)]
end

local function row(what, p50, p99, least)
  local beside = least and ("%9.2f us %6.2f x"):format(least / 1e3,
                                                      p50 * 1e9 / least) or ""
  print(("  %-32s %9.2f us %9.2f us %s"):format(what, p50 * 1e6, p99 * 1e6,
                                               beside))
end

local function call_typed(calc)
  local n = 0
  local p50, p99 = measure(function()
    n = n + 1
    if assert(calc:add(n, 0.5)) ~= n + 0.5 then error("a wrong sum") end
  end)
  row("typed add(a, b)", p50, p99)
end

local function call_raw(calc, engine, size, label)
  local region = engine:alloc(2 * size)
  local out, into = region:slice(0, size), region:slice(size, size)
  local fast, n = calc:with { into = into }, 0
  local p50, p99 = measure(function()
    n = (n + 1) % 256
    ffi.fill(out.pointer, math.min(size, 64), n)
    local got = assert(fast:echo(out))
    if got.length ~= size or into.pointer[0] ~= n then error("wrong bytes") end
  end)
  assert(into:string() == out:string(), "wrong bytes")
  row("raw echo, " .. label, p50, p99, floor("floor_echo", size, "--copies 3"))
end

local function call_inplace(calc, size, label)
  local n, last = 0, size - 1
  local function writer(loan)
    ffi.fill(loan.pointer, size, n)
    return size
  end
  local function reader(reply)
    return reply.pointer[0] + reply.pointer[last]
  end
  local fast = calc:with { capacity = size, reader = reader }
  local p50, p99 = measure(function()
    n = (n + 1) % 128
    if assert(fast:copy(writer)) ~= 2 * n then error("wrong bytes") end
  end)
  row("inplace copy, " .. label, p50, p99, floor("floor_echo", size))
end

-- Returns a bit more than 1 MiB of numbers that do not repeat.
local function pattern()
  local words = ffi.new("uint32_t[?]", MIB / 4 + 64 * ROUNDS)
  for i = 0, MIB / 4 + 64 * ROUNDS - 1 do words[i] = i * 2654435761 % 2 ^ 32 end
  return words
end

-- Fills the memory with bytes that only this round has, different in each MiB.
-- Returns the sum of one word of each page.
local function fill(pointer, words, round)
  local sum, filled = 0, ffi.cast(u32, pointer)
  for i = 0, MEMORY / MIB - 1 do
    ffi.copy(pointer + i * MIB, words + 64 * (round - 1) + i, MIB)
  end
  for i = 0, MEMORY / 4 - 1, 1024 do sum = sum + filled[i] end
  return sum
end

local function transfers(session, memory, engine)
  local out, back = engine:alloc(MEMORY), engine:alloc(MEMORY)
  local from, to = out:slice(0, MEMORY), back:slice(0, MEMORY)
  local remote = assert(session:region("memory")):slice(0, MEMORY)
  local words = pattern()
  local writing, reading = 0, 0
  -- The first call is untimed, so that every page has been touched.
  assert(session:write { from = from, to = remote }:wait(10))
  assert(session:read { from = remote, to = to }:wait(10))
  for round = 1, ROUNDS do
    local sum = fill(from.pointer, words, round)
    ffi.fill(to.pointer, MEMORY, round)
    local t0 = common.now()
    assert(session:write { from = from, to = remote }:wait(10))
    local t1 = common.now()
    if assert(memory:sum()) ~= sum then error("the worker has other bytes") end
    local t2 = common.now()
    assert(session:read { from = remote, to = to }:wait(10))
    local t3 = common.now()
    if ffi.C.memcmp(from.pointer, to.pointer, MEMORY) ~= 0 then
      error("other bytes came back")
    end
    writing, reading = writing + t1 - t0, reading + t3 - t2
  end
  return writing / ROUNDS, reading / ROUNDS
end

local function report_transfers(session, memory, engine)
  local writing, reading = transfers(session, memory, engine)
  local least = floor("floor_memcpy", MEMORY)
  local function line(what, seconds)
    local beside = least and ("%9.2f GB/s %6.2f x"):format(MEMORY / least,
      least / (seconds * 1e9)) or ""
    print(("  %-32s %9.2f GB/s %s"):format(what, MEMORY / seconds / 1e9,
                                           beside))
  end
  print("\n  one-sided, every byte checked      bandwidth       memcpy    part")
  line(("write, %d x 64 MiB"):format(ROUNDS), writing)
  line(("read, %d x 64 MiB"):format(ROUNDS), reading)
end

local function drive(agent)
  local calc = assert(agent:proxy(name, "calc", { timeout = 5 }))
  local memory = assert(agent:proxy(name, "memory", { timeout = 5 }))
  local session = assert(agent:session(name))
  print(tostring(session:explain()))
  print("\n  call                                   p50          p99"
    .. "        floor   ratio")
  call_typed(calc)
  call_raw(calc, agent.engine, 64, "64 B")
  call_raw(calc, agent.engine, 2 ^ 20, "1 MiB")
  call_inplace(calc, 64, "64 B")
  call_inplace(calc, 2 ^ 20, "1 MiB")
  report_transfers(session, memory, agent.engine)
end

-- Uses the running worker, or starts one in a scope of its own.
local agent = assert(perigee.agent { scope = scope })
local worker
if not agent:proxy(name, "calc", { timeout = 1 }) then
  agent:close()
  scope = common.scope
  worker = common.start(common.here .. "serve.lua", name, scope)
  agent = assert(perigee.agent { scope = scope })
end
local fine, message = xpcall(drive, debug.traceback, agent)
agent:close()
if worker then common.stop(worker) end
if not fine then
  io.stderr:write(tostring(message), "\n")
  os.exit(1)
end
print("ok")
