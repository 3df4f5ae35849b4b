-- SPDX-License-Identifier: Apache-2.0
-- The soak's verdict: one line, and one JSON document.

local cjson = require "cjson"
local machine = require "bench.lib.machine"

local M = {}

local function total(counts)
  local all, fine = 0, 0
  for _, ends in pairs(counts) do
    for how, n in pairs(ends) do
      all = all + n
      if how == "ok" then fine = fine + n end
    end
  end
  return all, fine
end

-- A kind of operations of which not one in so many has succeeded proves
-- nothing, and neither does a soak without any.
local ENOUGH = 50

local function idle(judge)
  local _, succeeded = total(judge.counts)
  for _, kind in ipairs(judge.given.kinds) do
    local ends = judge.counts[kind] or {}
    local all, fine = total { ends }
    if fine == 0 and (all >= ENOUGH or succeeded == 0) then
      judge:fault("nothing done", "no operation (%s) has succeeded", kind)
    end
  end
end

local function words(faults)
  local list = {}
  for kind, n in pairs(faults) do
    list[#list + 1] = ("%d x %s"):format(n, kind)
  end
  table.sort(list)
  return table.concat(list, ", ")
end

-- The state of each peer's present life at its rests.
local function figures(judge)
  local list = {}
  for who = 0, judge.given.peers - 1 do
    list[#list + 1] = judge.peers[who] and judge.peers[who].figures or {}
  end
  return list
end

--- Returns whether all is well, the line, and the document. judge: after its
-- run; seconds: that it took; giant: what became of the large message.
function M.of(judge, seconds, giant)
  if judge.count == 0 then idle(judge) end
  local given, done = judge.given, judge.done
  local all, ok = total(judge.counts)
  local fine = judge.count == 0
  local line = ("soak over %s, %d peers, %.0f s, SEED=%d: %d operations, %d "
    .. "of them succeeded; %d kills, %d stops, %d slow, %d rests; large "
    .. "message: %s: %s"):format(given.transport, given.peers, seconds,
    given.seed, all, ok, done.kills, done.stops, done.slow, done.rests, giant,
    fine and "FINE" or "FAILED: " .. words(judge.faults))
  return fine, line, cjson.encode {
    bench = "soak", transport = given.transport, peers = given.peers,
    seconds = seconds, seed = given.seed, faults_on_purpose = given.faults,
    fine = fine, faults = judge.faults, operations = judge.counts,
    done = done, giant = giant, machine = machine.describe { pin = {} },
    at_rests = figures(judge) }
end

return M
