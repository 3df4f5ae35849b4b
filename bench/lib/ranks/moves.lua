-- SPDX-License-Identifier: Apache-2.0
-- What an initiating rank does for a row: it moves a plan's lists (shape.lua),
-- `window` of them under way, and compares every byte that has moved.

local bit = require "bit"
local calls = require "bench.lib.calls"
local ffi = require "ffi"
local kinds = require "bench.lib.kinds"
local payload = require "bench.lib.payload"
local perigee = require "perigee"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"
local statistics = require "bench.lib.statistics"

local M = {}

local LONG = 600 -- seconds that one operation may take
local now = process.now
local words_t = ffi.typeof "int32_t *"

-- Fills memory with words that follow from the seed and where they are.
local function pattern(pointer, length, seed)
  local words = ffi.cast(words_t, pointer)
  for i = 0, length / 4 - 1 do words[i] = bit.bxor(i, seed) end
end

local function laid_out(region, span, layout)
  return perigee.layout { base = region:slice(0, span), block = layout.block,
                          dims = layout.dims }
end

-- The operation's list k: the same places here and there.
local function specs(self, plan, reads, k)
  local list = { timeout = LONG }
  if plan.layout then
    local here = laid_out(self.here, plan.span, plan.layout)
    local there = laid_out(self.remote, plan.span, plan.layout)
    list.from, list.to = reads and there or here, reads and here or there
    return list
  end
  for i, piece in ipairs(plan.of(k)) do
    local shape = piece[3] and { count = piece[3], stride = piece[4] } or nil
    local here = self.here:slice(piece[1], piece[2], shape)
    local there = self.remote:slice(piece[1], piece[2], shape)
    list[i] = { from = reads and there or here, to = reads and here or there }
  end
  return list
end

-- Returns a function that submits list after list.
local function submitter(self, plan, mode)
  local reads, posts = mode:find "read" ~= nil, {}
  local prepared = mode:match "^prepared_(.*)$"
  for k = 0, plan.lists - 1 do
    local list = specs(self, plan, reads, k)
    if prepared or plan.numbers then
      local way = "prepare_" .. (prepared or mode)
      local transfer = assert(self.session[way](self.session, list))
      local blocks = plan.numbers and { from = plan.numbers, to = plan.numbers }
      posts[k] = function() return transfer:post(blocks) end
    else
      local submit = self.session[mode]
      posts[k] = function() return submit(self.session, list) end
    end
  end
  local k = -1
  return function()
    k = (k + 1) % plan.lists
    self.moved = math.max(self.moved, k + 1)
    return posts[k]()
  end
end

local function wait(future)
  local fine, err = future:wait()
  if not fine then payload.wrong("transfer", err) end
end

-- The step of rows that measure how long a post takes.
local function post_by_post(submit)
  return function(samples, capacity, until_ns)
    local first, n, at = now(), 0
    repeat
      at = now()
      local future = submit()
      samples[n] = now() - at
      wait(future)
      n, at = n + 1, now()
    until n >= capacity or at >= until_ns
    return n, at - first
  end
end

local function whole(self, kind, span)
  local other, remote = self.check:slice(0, span), self.remote:slice(0, span)
  local spec = { from = other, to = remote, timeout = LONG }
  if kind == "read" then spec.from, spec.to = remote, other end
  wait(self.session[kind](self.session, spec))
end

-- Compares the pieces of the lists that have moved. here: the view of this
-- rank's memory.
local function compare(self, plan, here)
  here.pull()
  for k = 0, self.moved - 1 do
    for _, piece in ipairs(plan.of(k)) do
      for i = 0, (piece[3] or 1) - 1 do
        local at = piece[1] + i * (piece[4] or 0)
        if not payload.same(here.pointer + at, self.check.pointer + at,
                            piece[2]) then
          payload.wrong("transfer")
        end
      end
    end
  end
end

-- Runs it for --seconds, or --num-iteration times.
local function timed(given, step)
  local one
  if given.num_iteration then
    local samples = ffi.new("double[?]", given.num_iteration)
    local pool = require "perigee.bench.histogram".new()
    local n, ns = step(samples, given.num_iteration, math.huge)
    pool:add_all(samples, n)
    one = { histogram = pool, calls = n, seconds = ns / 1e9 }
  else
    one = rounds.round(step, given.seconds)
  end
  return one
end

--- Measures one row. self: session, remote (the partner's region), here and
-- check (own slices of as many bytes, the latter of host memory), seed. ready()
-- is called when all is prepared, so that all ranks begin together.
function M.measure(self, plan, mode, given, ready)
  local reads = mode:find "read" ~= nil
  local here = kinds.view(self.here:slice(0, plan.span))
  self.moved, self.seed = 0, self.seed + 1
  if reads then
    pattern(self.check.pointer, plan.span, self.seed)
    whole(self, "write", plan.span)
    ffi.fill(here.pointer, plan.span)
  else
    pattern(here.pointer, plan.span, self.seed)
  end
  here.push()
  local submit = submitter(self, plan, mode)
  local step = plan.posts and post_by_post(submit)
    or calls.windowed(given.window, submit, function(_, future)
      wait(future)
    end)
  ready()
  local one = timed(given, step)
  if not reads then whole(self, "read", plan.span) end
  compare(self, plan, here)
  local row = statistics.row({
    operation = plan.name and mode .. " " .. plan.name or mode,
    size = plan.bytes, window = given.window, batch = plan.batch,
    qps = given.qps, offsets = given.offsets, seconds = one.seconds,
    prepared = mode:find "^prepared" ~= nil }, { one })
  return kinds.mark(row, given, self.session)
end

return M
