-- SPDX-License-Identifier: Apache-2.0
-- first_write: the first write to a region of the peer's that was just made:
-- its look-up by name, what opens its memory, and the write.

local kinds = require "bench.lib.kinds"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"

local now, wrong, PAGE = process.now, payload.wrong, payload.PAGE

local M = {}

local function check(run, remote, size, round)
  local offset, count = payload.place(size, round)
  local to = run.check:slice(0, count)
  local fine, err = run.session:read {
    from = remote:slice(offset, 1, { count = count, stride = PAGE }), to = to,
  }:wait()
  if not fine or payload.check_each(to.pointer, 0, count, 1, round) ~= 0 then
    wrong("first write", err)
  end
end

local function compare(run, remote, size, view)
  local to = run.check:slice(0, size)
  local fine, err = run.session:read { from = remote:slice(0, size),
                                       to = to }:wait()
  if not fine or not payload.same(to.pointer, view.pointer, size) then
    wrong("first write", err)
  end
end

local function step_of(run, size)
  local here, round = run.memory:slice(0, size), 0
  local view = kinds.view(here)
  return function(samples, capacity, until_ns)
    local n, ended, remote = 0
    repeat
      round = round + 1
      payload.stamp(view.pointer, size, round)
      view.push()
      local name = assert(run.proxy:renew_region(size))
      local begin = now()
      remote = assert(run.session:region(name))
      local fine, err = run.session:write {
        from = here, to = remote:slice(0, size) }:wait()
      ended = now()
      if not fine then wrong("first write", err) end
      samples[n] = ended - begin
      n = n + 1
      check(run, remote, size, round)
    until n >= capacity or ended >= until_ns
    compare(run, remote, size, view)
    return n
  end
end

local function floor_of(run, size)
  local both = kinds.of(run.given)
  if run.given.no_floor then return nil end
  if not kinds.concerns(run) or both[1] == "host" or both[2] == "host" then
    return nil, "none for memory that is not a GPU's on both sides"
  end
  return kinds.cuda(run, "first", size)
end

function M.measure(run, size)
  local row = { operation = "first_write", size = size, window = 1 }
  return rounds.measure(row, run.given, step_of(run, size),
                        floor_of(run, size))
end

return M
