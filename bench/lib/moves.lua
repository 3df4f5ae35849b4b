-- SPDX-License-Identifier: Apache-2.0
-- The measured loops of bench/transfer.lua: one-sided transfers and messages
-- of one session. Short ones are posted `batch` times between two readings of
-- the clock, and a sample is their mean. One byte of each page, or block, is
-- changed before each sample and checked at its destination after it. At the
-- end of a step all bytes are compared. None of this is in the time.
--
-- A job says what moves:
--   session, from, to     the two slices
--   view                  of the local one (kinds.lua)
--   remote, check         the peer's region, and private memory as large
--   place(round)          offset and count of the round's stamps
--   source, target        how far apart they lie at the two ends
--   blocks                count and length of what moves, and how far apart its
--                         starts are in the view and at the peer
--   repeats               posts in one sample
--   every                 how many samples are between two checks
--   seldom                the bytes are changed for checks only
--   post()                one transfer's future
--   is_last(slice)        has the peer these bytes as its last message?

local calls = require "bench.lib.calls"
local ffi = require "ffi"
local payload = require "bench.lib.payload"
local perigee = require "perigee"
local process = require "bench.lib.process"

local stamp_each, check_each = payload.stamp_each, payload.check_each
local wrong, now = payload.wrong, process.now

local PATIENCE = 10e9 -- ns until a message has come to the peer's program

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

-- Is this a round whose bytes are checked?
local function is_checked(job, round) return (round - 1) % job.every == 0 end

local function stamp_local(job, round)
  local offset, count = job.place(round)
  stamp_each(job.view.pointer, offset, count, job.source, round)
  job.view.push()
end

local function check_local(job, round)
  local offset, count = job.place(round)
  job.view.pull()
  if check_each(job.view.pointer, offset, count, job.target, round) ~= 0 then
    wrong "transfer"
  end
end

-- Reads back all that has moved and compares it, whichever way it went.
local function compare(job)
  local blocks = job.blocks
  local span = (blocks.count - 1) * blocks.there + blocks.length
  local to = job.check:slice(0, span)
  local fine, err = job.session:read { from = job.remote:slice(0, span),
                                       to = to }:wait()
  if not fine then wrong("transfer", err) end
  job.view.pull()
  for i = 0, blocks.count - 1 do
    if not payload.same(job.view.pointer + i * blocks.here,
                        to.pointer + i * blocks.there, blocks.length) then
      wrong "transfer"
    end
  end
end

-- Compares the last message with what the peer's program has, to which it may
-- still be on its way.
local function compare_message(job)
  local length, deadline = job.blocks.length, now() + PATIENCE
  local bytes = job.check:slice(0, length)
  job.view.pull()
  ffi.copy(bytes.pointer, job.view.pointer, length)
  while not job.is_last(bytes) do
    if now() > deadline then wrong "message" end
    perigee.sleep(0.001)
  end
end

-- Measures transfers to the peer.
function M.write(job)
  local round, repeats, post = 0, job.repeats, job.post
  return function(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      round = round + 1
      local checked = is_checked(job, round)
      if checked or not job.seldom then stamp_local(job, round) end
      local begin = now()
      for _ = 1, repeats do
        local fine, err = post():wait()
        if not fine then wrong("transfer", err) end
      end
      ended = now()
      samples[n] = (ended - begin) / repeats
      n = n + 1
      if checked then read_back(job, round) end
    until n >= capacity or ended >= until_ns
    compare(job)
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
      local checked = is_checked(job, round)
      if checked then write_ahead(job, round) end
      local begin = now()
      for _ = 1, repeats do
        local fine, err = post():wait()
        if not fine then wrong("transfer", err) end
      end
      ended = now()
      samples[n] = (ended - begin) / repeats
      n = n + 1
      if checked then check_local(job, round) end
    until n >= capacity or ended >= until_ns
    compare(job)
    return n
  end
end

-- Message k carries the stamps of round k, which the worker checks. Where it
-- looks only at each so many, it is waited for (job.settle).
function M.send(job)
  local round, post = 0, job.post
  return function(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      round = round + 1
      local checked = is_checked(job, round)
      if checked or not job.seldom then stamp_local(job, round) end
      local begin = now()
      local fine, err = post():wait()
      ended = now()
      if not fine then wrong("message", err) end
      samples[n] = ended - begin
      n = n + 1
      if checked and job.settle then job.settle() end
    until n >= capacity or ended >= until_ns
    compare_message(job)
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
    return (reads and write_ahead or stamp_local)(job, round)
  end
  local function after(job)
    return (reads and check_local or read_back)(job, round)
  end
  return function(samples, capacity, until_ns)
    round = round + 1
    for i = 1, window do before(jobs[i]) end
    local n, ns = run(samples, capacity, until_ns)
    for i = 1, math.min(window, n) do
      after(jobs[i])
      compare(jobs[i])
    end
    return n, ns
  end
end

-- Keeps as many messages under way as there are jobs.
function M.many_sends(jobs)
  local round, job = 0, nil
  local function submit(i)
    job = jobs[i + 1]
    round = round + 1
    if is_checked(job, round) or not job.seldom then stamp_local(job, round) end
    return job.post()
  end
  local function settle(_, future)
    local fine, err = future:wait()
    if not fine then wrong("message", err) end
  end
  return calls.windowed(#jobs, submit, settle,
                        function() compare_message(job) end)
end

return M
