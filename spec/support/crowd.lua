-- SPDX-License-Identifier: Apache-2.0
-- A crowd of callers of "worker", in processes of their own, and workers that
-- take its place one after another: for specs about replacing it. No call may
-- fail, and each is made once. A quarter of the callers wait for each call, the
-- others have some under way; one process runs no loop between its calls.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

local M = {}

M.PROCESSES, M.TASKS = 4, 8             -- 32 callers; and one that dawdles

-- The service of a worker: each method counts its calls, which are not
-- idempotent. Made by this file in each worker, so that there is one of it.
function M.service(perigee, counted)
  local function count(...)
    counted.calls = counted.calls + 1
    return ...
  end
  return { name = "x", methods = {
    same = function(value) return count(value) end,
    slow = function(value)
      perigee.sleep(0.005)
      return count(value)
    end,
    slice = function(slice, value) return count(slice.length + value) end,
    raw = { raw = true, function(request) return count(request) end },
    inplace = { raw = true, inplace = true, function(request, reply)
      return count(reply:write(request))
    end },
  } }
end

-- ---- Callers ---------------------------------------------------------------

-- Runs in each process of callers until it hears a line. Says how many calls
-- were made, how many have failed, and of some why, and the longest's ms.
local function callers(child, perigee, ffi, tasks, dawdles)
  local agent = assert(child.cases.agent())
  local proxy
  repeat
    proxy = agent:proxy("worker", "x")
    if not proxy then perigee.sleep(0.01) end
  until proxy
  local room = assert(agent.engine:alloc(2 ^ 16)):slice(0, 40000)
  local long, over = ("x"):rep(20000), false
  local made, failed, longest = 0, 0, 0
  local process_ = require "spec.support.process"

  local function check(began, what, wanted, got, err)
    made = made + 1
    longest = math.max(longest, process_.now() - began)
    if got == wanted then return end
    failed = failed + 1
    if failed < 4 then
      child.say(("failed %s: %s"):format(what, tostring(err or got)))
    end
  end

  local function write(loan)
    ffi.fill(loan.pointer, 20000, 120)
    return 20000
  end

  local ways = {
    function(n) return "typed", n, proxy:same(n) end,
    function(n) return "slow", n, proxy:slow(n) end,
    function() return "raw", "bytes", proxy:raw "bytes" end,
    function() return "raw, long", long, proxy:raw(long) end,
    function() return "inplace", long, proxy:inplace(long) end,
    function()
      local large = proxy:with { request_capacity = 20000, capacity = 20000 }
      return "a writer", long, large:inplace(write)
    end,
    function(n) return "a slice", 40000 + n, proxy:slice(room, n) end,
  }
  local starts = {
    function(n) return "async", n, proxy.async:same(n) end,
    function(n) return "async, slow", n, proxy.async:slow(n) end,
    function() return "async, raw", "bytes", proxy.async:raw "bytes" end,
    function() return "async, long", long, proxy.async:raw(long) end,
    function() return "async, inplace", long, proxy.async:inplace(long) end,
    function()
      local large = proxy:with { request_capacity = 20000, capacity = 20000 }
      return "async, a writer", long, large.async:inplace(write)
    end,
    function(n) return "async, a slice", 40000 + n,
                       proxy.async:slice(room, n) end,
  }

  local function one_by_one(task)
    for n = task, math.huge do
      if over then return end
      check(process_.now(), ways[n % #ways + 1](n))
    end
  end

  local function several(task)
    for n = task, math.huge do
      if over then return end
      local flying, began = {}, process_.now()
      for i = 1, 4 do
        flying[i] = { starts[(n + i) % #starts + 1](n) }
      end
      for i = 1, 4 do
        check(began, flying[i][1], flying[i][2], flying[i][3]:wait())
      end
    end
  end

  local running = {}
  for i = 1, tonumber(tasks) do
    running[i] = perigee.spawn(i % 4 == 0 and one_by_one or several, i)
  end
  child.say("ready")
  if dawdles == "dawdles" then
    local entry = ffi.new("struct spec_poll", 0, 1, 0)
    local n = 0
    while ffi.C.spec_poll(entry, 1, 30) == 0 do -- no loop runs meanwhile
      n = n + 1
      check(process_.now(), ways[n % #ways + 1](n))
    end
  end
  child.attend()
  over = true
  perigee.wait_all(running)
  child.say(("%d %d %d"):format(made, failed, longest * 1e3))
  agent:close()
end

-- Says lines of failures that have come since.
local function failures(one, seconds)
  local line = one:read(seconds, cases.pump)
  while line and line:find "^failed" do
    M.told[#M.told + 1] = line
    line = one:read(seconds, cases.pump)
  end
  return line
end

--- Starts the crowd. Workers may come later.
function M.begin()
  M.told = {}
  M.all = { process.start(callers, 0, "dawdles") }
  for _ = 1, M.PROCESSES do
    M.all[#M.all + 1] = process.start(callers, M.TASKS, "works")
  end
end

--- Waits until all have found a worker.
function M.ready()
  for _, one in ipairs(M.all) do
    assert(failures(one, 60 * cases.slow) == "ready")
  end
end

--- Ends it. Returns how many calls were made, how many failed, what was told of
-- those, and how many ms the longest took.
function M.finish()
  local made, failed, longest = 0, 0, 0
  for _, one in ipairs(M.all) do one:tell "over" end
  for _, one in ipairs(M.all) do
    local line = assert(failures(one, 60 * cases.slow))
    local n, bad, ms = line:match "^(%d+) (%d+) (%d+)$"
    made, failed = made + tonumber(n), failed + tonumber(bad)
    longest = math.max(longest, tonumber(ms))
    one:wait()
  end
  return made, failed, table.concat(M.told, "\n"), longest
end

return M
