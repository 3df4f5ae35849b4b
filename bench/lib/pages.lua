-- SPDX-License-Identifier: Apache-2.0
-- Blocks of a KV cache to pages: they lie one after the other in this side's
-- memory, and one prepared transfer, posted by numbers, brings them to pages of
-- the peer's, in no order, the same in each layer. The shape is that of ranks
-- (--shape, 61 layers of 256 blocks of 16 KiB unless told).

local floor = require "bench.lib.floor"
local kinds = require "bench.lib.kinds"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"
local shapes = require "bench.lib.ranks.shape"

local now, spent = process.now, process.spent

local M = {}

local function shape_of(given)
  return given.shape or assert(shapes.parse "kv:")
end

local function bytes_of(kv) return kv.layers * kv.blocks * kv.block end

--- The bytes of both sides' memory that these modes need; 0 without them.
function M.span(given)
  local kv, wanted = shape_of(given), false
  for _, mode in ipairs(given.mode) do
    wanted = wanted or mode:find "^pages" ~= nil
  end
  return wanted and kv.layers * kv.blocks * kv.stride or 0
end

-- ---- What moves ------------------------------------------------------------

local function laid_out(base, kv, apart)
  return require "perigee".layout {
    base = base, block = kv.block,
    dims = { { kv.layers, kv.blocks * apart }, { kv.blocks, apart } } }
end

-- Returns a job: view (of this side's bytes), post(), and the numbers of pages.
local function job_of(run)
  local kv = shape_of(run.given)
  if kv.blocks > shapes.MOST_NUMBERS then
    error(("pages are at most %d blocks"):format(shapes.MOST_NUMBERS), 0)
  end
  local here = run.memory:slice(0, bytes_of(kv))
  local span = kv.layers * kv.blocks * kv.stride
  local there = run.remote:slice(0, span)
  local transfer = run.session:prepare_write {
    from = laid_out(here, kv, kv.block), to = laid_out(there, kv, kv.stride) }
  local numbers = { from = {}, to = shapes.shuffled(kv.blocks) }
  for i = 1, kv.blocks do numbers.from[i] = i - 1 end
  return { run = run, kv = kv, view = kinds.view(here), to = numbers.to,
           there = there, span = span,
           post = function() return transfer:post(numbers) end }
end

local function stamp(job, round)
  payload.stamp(job.view.pointer, bytes_of(job.kv), round)
  job.view.push()
end

-- Where block `i` of this side's has to be at the peer.
local function place_of(job, i)
  local kv = job.kv
  local layer, number = math.floor(i / kv.blocks), i % kv.blocks
  return (layer * kv.blocks + job.to[number + 1]) * kv.stride
end

-- Reads all pages back as they lie, and compares each block.
local function check(job)
  local kv, there = job.kv, job.run.check:slice(0, job.span)
  local fine, err = job.run.session:read { from = job.there, to = there }:wait()
  if not fine then payload.wrong("pages", err) end
  for i = 0, kv.layers * kv.blocks - 1 do
    if not payload.same(job.view.pointer + i * kv.block,
                        there.pointer + place_of(job, i), kv.block) then
      payload.wrong "pages"
    end
  end
end

-- Makes the loop of transfers whose samples one(job) returns, in ns.
local function loop_of(job, one)
  local round = 0
  return function(samples, capacity, until_ns)
    local n = 0
    repeat
      round = round + 1
      local checked = round % kinds.EVERY == 1
      if checked then stamp(job, round) end
      samples[n] = one(job)
      n = n + 1
      if checked then check(job) end
    until n >= capacity or now() >= until_ns
    return n
  end
end

local function await(future)
  local fine, err = future:wait()
  if not fine then payload.wrong("pages", err) end
end

-- ---- What is measured ------------------------------------------------------

local function row_of(job, mode)
  local kv = job.kv
  return { operation = mode, size = bytes_of(kv), window = 1,
           layers = kv.layers, blocks = kv.blocks, block = kv.block,
           apart = kv.stride }
end

local function words_of(kv)
  return "--count", kv.layers * kv.blocks, "--stride", kv.stride
end

local function floor_of(job, how)
  local run, kv = job.run, job.kv
  if run.given.no_floor then return nil end
  local both = kinds.of(run.given)
  if kinds.concerns(run) and both[1] == both[2] then
    return kinds.cuda(run, how, kv.block, words_of(kv))
  elseif how == "pages" and run.transport == "shm" and not run.given.kind then
    return floor.of("floor_memcpy", run.given, { words_of(kv) }, kv.block)
  end
  return nil, "none for pages there"
end

--- pages: the time until all blocks are there. cpu_us of the row: processor
-- time of the calling thread for one transfer.
function M.measure(run)
  local job = job_of(run)
  local cpu, count = 0, 0
  local row = row_of(job, "pages")
  local step = loop_of(job, function()
    local before, begin = spent(), now()
    await(job.post())
    local ended = now()
    cpu, count = cpu + spent() - before, count + 1
    return ended - begin
  end)
  row = rounds.measure(row, run.given, step, floor_of(job, "pages"))
  row.cpu_us = cpu / count / 1e3
  return row
end

--- pages_post: the processor time of the calling thread until the post returns.
function M.measure_post(run)
  local job = job_of(run)
  local step = loop_of(job, function()
    local before = spent()
    local future = job.post()
    local taken = spent() - before
    await(future)
    return taken
  end)
  return rounds.measure(row_of(job, "pages_post"), run.given, step,
                        floor_of(job, "pages-post"))
end

return M
