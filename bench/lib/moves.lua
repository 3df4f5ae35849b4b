-- SPDX-License-Identifier: Apache-2.0
-- The measured loops of bench/transfer.lua: one-sided transfers and messages
-- of one session. Short ones are posted `batch` times between two readings of
-- the clock, and a sample is their mean. The bytes are changed before each
-- sample and checked at their destination after it.
--
-- A job says what moves:
--   session, from, to     the two slices
--   pointer               of the local one
--   remote, check         the peer's region, and private memory as large
--   place(round)          offset and count of the round's stamps
--   source, target        how far apart they lie at the two ends
--   repeats               posts in one sample
--   every                 how many samples are between two checks
--   post()                one transfer's future

local calls = require "bench.lib.calls"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"

local stamp_each, check_each = payload.stamp_each, payload.check_each
local wrong, now = payload.wrong, process.now

local M = {}

function M.repeats(length)
  return length <= 4096 and 64 or length <= 65536 and 8 or 1
end

local function shape(region, offset, count, step)
  return region:slice(offset, 1, { count = count, stride = step })
end

-- Reads back what should have arrived at the peer.
local function read_back(job, round)
  local offset, count = job.place(round)
  local to = job.check:slice(0, count)
  local fine, err = job.session:read {
    from = shape(job.remote, offset, count, job.target), to = to,
  }:wait()
  if not fine or check_each(to.pointer, 0, count, 1, round) ~= 0 then
    wrong("transfer", err)
  end
end

-- Changes the bytes at the peer that are read next.
local function write_ahead(job, round)
  local offset, count = job.place(round)
  local from = job.check:slice(0, count)
  stamp_each(from.pointer, 0, count, 1, round)
  local fine, err = job.session:write {
    from = from, to = shape(job.remote, offset, count, job.source),
  }:wait()
  if not fine then wrong("transfer", err) end
end

-- Measures transfers to the peer.
function M.write(job)
  local round, repeats, post = 0, job.repeats, job.post
  return function(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      round = round + 1
      local offset, count = job.place(round)
      stamp_each(job.pointer, offset, count, job.source, round)
      local begin = now()
      for _ = 1, repeats do
        local fine, err = post():wait()
        if not fine then wrong("transfer", err) end
      end
      ended = now()
      samples[n] = (ended - begin) / repeats
      n = n + 1
      if round % job.every == 0 then read_back(job, round) end
    until n >= capacity or ended >= until_ns
    return n
  end
end

-- Measures transfers from the peer.
function M.read(job)
  local round, repeats, post = 0, job.repeats, job.post
  return function(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      round = round + 1
      local fresh = round % job.every == 0
      if fresh then write_ahead(job, round) end
      local begin = now()
      for _ = 1, repeats do
        local fine, err = post():wait()
        if not fine then wrong("transfer", err) end
      end
      ended = now()
      samples[n] = (ended - begin) / repeats
      n = n + 1
      local offset, count = job.place(round)
      if fresh and check_each(job.pointer, offset, count, job.target,
                              round) ~= 0 then
        wrong "transfer"
      end
    until n >= capacity or ended >= until_ns
    return n
  end
end

-- Message k carries the stamps of round k, which the worker checks.
function M.send(job)
  local round, post = 0, job.post
  return function(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      round = round + 1
      local offset, count = job.place(round)
      stamp_each(job.pointer, offset, count, job.source, round)
      local begin = now()
      local fine, err = post():wait()
      ended = now()
      if not fine then wrong("message", err) end
      samples[n] = ended - begin
      n = n + 1
    until n >= capacity or ended >= until_ns
    return n
  end
end

-- Keeps as many transfers under way as there are jobs, each with its own
-- bytes: written or read, and checked when all have ended.
function M.many(jobs, reads)
  local window, round = #jobs, 0
  local function submit(i) return jobs[i + 1].post() end
  local function settle(_, future)
    local fine, err = future:wait()
    if not fine then wrong("transfer", err) end
  end
  local run = calls.windowed(window, submit, settle)
  local function before(job)
    if reads then return write_ahead(job, round) end
    local offset, count = job.place(round)
    stamp_each(job.pointer, offset, count, job.source, round)
  end
  local function after(job)
    if not reads then return read_back(job, round) end
    local offset, count = job.place(round)
    if check_each(job.pointer, offset, count, job.target, round) ~= 0 then
      wrong "transfer"
    end
  end
  return function(samples, capacity, until_ns)
    round = round + 1
    for i = 1, window do before(jobs[i]) end
    local n, ns = run(samples, capacity, until_ns)
    for i = 1, math.min(window, n) do after(jobs[i]) end
    return n, ns
  end
end

-- Keeps as many messages under way as there are jobs.
function M.many_sends(jobs)
  local round = 0
  local function submit(i)
    local job = jobs[i + 1]
    round = round + 1
    local offset, count = job.place(round)
    stamp_each(job.pointer, offset, count, job.source, round)
    return job.post()
  end
  local function settle(_, future)
    local fine, err = future:wait()
    if not fine then wrong("message", err) end
  end
  return calls.windowed(#jobs, submit, settle)
end

return M
