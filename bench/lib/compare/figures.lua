-- SPDX-License-Identifier: Apache-2.0
-- The arithmetic of the table: from the bursts of each peer to its row, and
-- from the rows to ratios.

local distance = require "bench.lib.compare.distance"
local histogram = require "perigee.bench.histogram"
local statistics = require "bench.lib.statistics"

local M = {}

-- The fields of rows of CSV and JSON, in this order.
M.FIELDS = { "peer", "version", "path", "waits", "mode", "size", "under",
             "calls", "mean_us", "p50_us", "p99_us", "calls_per_s",
             "gb_per_s", "ratio", "least_us", "post_us", "caller_us",
             "post_ratio", "cpu_client_us", "cpu_server_us",
             "memory_mib", "bursts", "bursts_kept", "repeated", "line_ns",
             "others", "one_core", "floor", "checked", "why", "install" }

-- Returns the bursts that count; all, if none does.
local function kept_of(bursts, fitting)
  local kept = {}
  for _, one in ipairs(bursts) do
    if distance.fits(one, fitting) then kept[#kept + 1] = one end
  end
  if #kept > 0 then return kept, #kept end
  return bursts, 0
end

local function sums(bursts, names)
  local all = {}
  for _, name in ipairs(names) do
    all[name] = 0
    for _, one in ipairs(bursts) do all[name] = all[name] + one[name] end
  end
  return all
end

-- Returns the median of the cores' distance before and after bursts.
local function line_of(bursts)
  local all = {}
  for _, one in ipairs(bursts) do
    all[#all + 1], all[#all + 2] = one.before, one.after
  end
  return statistics.median(all)
end

-- Returns the bytes that a call moves: an echo there and back, from and to each
-- server; a put or a get one way; a loaned call none.
local function moved(work)
  if work.mode == "loan" then return 0 end
  if work.plan then return work.plan.bytes end
  if work.mode == "put" or work.mode == "get" then return work.size end
  return 2 * work.size * (work.mode == "fanout" and work.under or 1)
end

-- Returns how a peer waits in that mode, nil if its description does not say.
local function waits_of(peer, mode)
  local waits = peer.waits
  return type(waits) == "table" and (waits[mode] or waits[1]) or waits
end

-- Returns the least of a field of these bursts, in us; nil if none has it.
local function least_us(bursts, name)
  local least
  for _, one in ipairs(bursts) do
    least = one[name] and math.min(one[name], least or math.huge) or least
  end
  return least and least * 1e6
end

-- What is told of pieces: processor time of the calling thread, until a call is
-- posted and until it has ended. That of both sides is left out, for it is
-- mostly of making and comparing bytes.
local function add_pieces(row, bursts, pool)
  row.least_us = pool:quantile(0) / 1e3
  row.post_us = least_us(bursts, "post")
  row.caller_us = least_us(bursts, "caller")
  row.cpu_client_us, row.cpu_server_us = nil, nil
end

-- Returns the row of an entry of turns.lua. fitting: as distance.lua has it.
function M.row(entry, work, fitting)
  local peer = entry.peer
  local row = { peer = peer.name, version = peer.version, path = peer.path,
                waits = waits_of(peer, work.mode), mode = work.mode,
                size = work.plan and work.plan.bytes or work.size,
                under = work.under,
                why = entry.why, install = peer.install, floor = peer.floor }
  if entry.why or #entry.bursts == 0 then
    row.why = row.why or "no burst"
    return row
  end
  local kept, count = entry.bursts, #entry.bursts
  if not work.plan then kept, count = kept_of(entry.bursts, fitting) end
  local pool = histogram.new()
  for _, one in ipairs(kept) do pool:merge(one.histogram) end
  local all = sums(kept, { "calls", "seconds", "cpu_client", "cpu_server",
                           "busy", "elapsed", "checked" })
  row.calls, row.checked = all.calls, all.checked
  row.mean_us = pool:mean() / 1e3
  row.p50_us = pool:quantile(0.5) / 1e3
  row.p99_us = pool:quantile(0.99) / 1e3
  row.calls_per_s = all.calls / all.seconds
  row.gb_per_s = moved(work) * row.calls_per_s / 1e9
  row.cpu_client_us = all.cpu_client / all.calls * 1e6
  row.cpu_server_us = all.cpu_server / all.calls * 1e6
  row.memory_mib = entry.memory / 2 ^ 20
  row.bursts, row.bursts_kept = #entry.bursts, count
  row.repeated = entry.repeated
  row.line_ns = line_of(kept)
  row.others = math.max(0, all.busy - all.cpu_client - all.cpu_server)
               / all.elapsed
  if work.plan then add_pieces(row, kept, pool) end
  return row
end

-- The compared value of each mode: less is better.
local COSTS = {
  echo = function(row) return row.mean_us end,
  pipelined = function(row) return 1e6 / row.calls_per_s end,
  paced = function(row) return row.cpu_client_us + row.cpu_server_us end,
  ["put-pieces"] = function(row) return row.least_us end,
  ["get-pieces"] = function(row) return row.least_us end,
}

-- The same in words: "... over that of the first peer".
M.MEANINGS = {
  echo = "mean",
  pipelined = "time for each call, with all under way,",
  paced = "processor time of both sides",
  ["put-pieces"] = "least time",
  ["get-pieces"] = "least time",
}

-- Gives each row of one mode and size its ratio: what a call costs by that peer
-- over what it costs by the first row; above 1 the first row's peer wins.
function M.compare(rows)
  local cost = COSTS[rows[1].mode] or COSTS.echo
  local ours = not rows[1].why and cost(rows[1])
  for _, row in ipairs(rows) do
    row.ratio = ours and not row.why and cost(row) / ours or nil
    row.post_ratio = row.post_us and rows[1].post_us
                     and row.post_us / rows[1].post_us
  end
end

return M
