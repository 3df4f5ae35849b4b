-- SPDX-License-Identifier: Apache-2.0
-- What bench/rpc.lua measures under load and failures: calls beside a large
-- transfer on the same session, a cable that is cut, and a worker that is
-- killed and started again.

local calls = require "bench.lib.calls"
local kinds = require "bench.lib.kinds"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"

local now = process.now

local M = {}

local ECHO = 64
local LONG = 60    -- seconds that the operations would take uncut
local RESTARTS = 5
local SIGKILL = 9
local PATIENCE = 20e9 -- ns until a restarted worker's call counts as lost

-- ---- Beside a transfer -----------------------------------------------------

-- Runs `step` while a transfer of --load bytes is always under way. The
-- transfers have a count, and the ns that they took.
local function beside(run, step)
  local bytes = run.given.load
  local session = run.side.session
  local remote = assert(session:region "bench"):slice(0, bytes)
  local here = assert(run.engine:alloc(bytes, {
    access = "", kind = kinds.of(run.given)[1], share = true })):slice():fill(1)
  local transfers, begin = { count = 0, ns = 0 }, nil
  local function start()
    transfers.count, begin = transfers.count + 1, now()
    transfers.last = session:write { from = here, to = remote }
  end
  local function ended()
    local fine, err = transfers.last:wait()
    if not fine then payload.wrong("transfer", err) end
    transfers.ns = transfers.ns + now() - begin
  end
  local function loaded(samples, capacity, until_ns)
    local n, most = 0, until_ns
    start()
    repeat
      if transfers.last:done() then
        ended()
        start()
      end
      n = n + step(samples + n, 1, 0)
    until n >= capacity or now() >= most
    ended()
    return n
  end
  return loaded, transfers
end

-- loaded: an inplace call of 64 B while a transfer of 1 GiB runs on the same
-- session; its floor is the same call without it.
function M.loaded(run)
  if not run.side.session then
    error("mode loaded needs --at or --connect: one session for both", 0)
  end
  local step = calls.inplace(run.proxy, ECHO)
  local loaded, transfers = beside(run, step)
  local row = rounds.measure(
    { mode = "loaded", size = ECHO, window = 1, sessions = 1 }, run.given,
    loaded, function(seconds)
      return { ["no transfer"] = rounds.round(step, seconds).histogram }
    end)
  row.p99_ratio = row.p99_us / row.floor_p50_us
  row.transfers, row.load = transfers.count, run.given.load
  row.load_gb_per_s = transfers.count * run.given.load / transfers.ns
  run.report:row(kinds.mark(row, run.given, run.side.session))
end

-- ---- A cut cable -----------------------------------------------------------

local function link(device, state)
  local child = assert(process.spawn { "ip", "link", "set", device, state })
  if child:wait() ~= 0 then error("the cable cannot be set " .. state, 0) end
end

-- cut: the time from when this end of the cable goes down to the end of the
-- last operation that waits: a call that is being served, a call of 16 MiB,
-- and a receive whose message is never sent.
function M.cut(run)
  local device = run.given.cable
  if not device then error("mode cut needs --cable DEVICE", 0) end
  local perigee = require "perigee"
  local session = run.side.session
  local async, big = run.proxy:with { timeout = LONG }.async, ("x"):rep(2 ^ 24)
  local inbox = assert(run.engine:alloc(ECHO)):slice()
  local waiting = { call = async:nap(LONG), echo = async:echo(big),
                    message = session:recv(inbox, { timeout = LONG }) }
  perigee.sleep(0.0005)
  local ends, begin = {}, now()
  link(device, "down")
  for what, future in pairs(waiting) do
    local _, err = future:wait()
    ends[#ends + 1] = what .. " " .. (err and err.kind or "came through")
  end
  local seconds = (now() - begin) / 1e9
  link(device, "up")
  table.sort(ends)
  run.report:figure("cut_seconds", seconds, "a cut cable: the last of what "
    .. "waited ended after %.3f s (" .. table.concat(ends, ", ") .. ")")
end

-- ---- A worker that comes back ----------------------------------------------

-- Calls until one succeeds; returns the time of that, in ns.
local function first_good(proxy)
  local limit = now() + PATIENCE
  repeat
    local sum = proxy:add(1, 2)
    if sum == 3 then return now() end
    require "perigee".sleep(0.0005)
  until now() > limit
  error("the worker came back, but no call succeeded", 0)
end

-- restart: the time from when a killed worker listens again to the end of the
-- first call that succeeds. The driver calls all the time through a proxy that
-- was opened once, by the worker's name or address.
function M.restart(run)
  local side, times = run.side, {}
  local peer = side.options.at and side.options.at:find "^tcp:"
               and side.options.at or "worker"
  local proxy = assert(side.agent:proxy(peer, "bench", { timeout = 5 }))
  for i = 1, RESTARTS do
    first_good(proxy)
    side.worker:signal(SIGKILL)
    side.worker:wait()
    proxy:add(1, 2)
    side:launch()
    local good = first_good(proxy)
    times[i] = math.max(good - side:ready(), 0) / 1e6
  end
  table.sort(times)
  run.report:figure("restart_ms", times[math.ceil(#times / 2)],
    "a worker killed and started again: first good call %.1f ms after it "
    .. "listens (median of " .. RESTARTS .. ")")
  run.report:figure("restart_most_ms", times[#times],
                    "  the longest of them: %.1f ms")
end

return M
