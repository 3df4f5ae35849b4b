-- SPDX-License-Identifier: Apache-2.0
--- What a server counts of itself, for GET /metrics (perigee.stats.emit).
--
--   answered   answers, by the collection that was asked for ("none": the
--              server itself, or a path that is not there), by method ("other":
--              one that the path does not know) and by status
--   rounds     rounds that had requests, and the seconds that they took
--   commits    writes to the store: `kept`; `failed`; `disturbed`: another
--              server was quicker, and the round was handled again
--   ended      leases that were over
local sorted = require "perigee.runtime.sorted"

local M = {}

local Counts = {}
Counts.__index = Counts

function M.new()
  return setmetatable({ answers = {}, rounds = 0, seconds = 0, ended = 0,
                        commits = { kept = 0, failed = 0, disturbed = 0 } },
                      Counts)
end

local function inner(of, key)
  local found = of[key]
  if not found then
    found = {}
    of[key] = found
  end
  return found
end

--- Counts the answer that a call has. What it is counted by are the server's
-- own words, so there are few of them.
function Counts:answered(call)
  local of = inner(inner(self.answers, call.kind or "none"),
                   call.method or "other")
  of[call.status] = (of[call.status] or 0) + 1
end

--- Counts a round that took so many nanoseconds.
function Counts:round(nanoseconds)
  self.rounds = self.rounds + 1
  self.seconds = self.seconds + nanoseconds * 1e-9
end

--- Counts a commit. result: as above.
function Counts:commit(result)
  self.commits[result] = self.commits[result] + 1
end

-- ---- Telling ----------------------------------------------------------------

local LABELS = 'collection="%s",method="%s",status="%s"'

local function answers_of(counts)
  local list = {}
  for _, kind in ipairs(sorted(counts.answers)) do
    local methods = counts.answers[kind]
    for _, method in ipairs(sorted(methods)) do
      for _, status in ipairs(sorted(methods[method])) do
        list[#list + 1] = { methods[method][tonumber(status)],
                            LABELS:format(kind, method, status) }
      end
    end
  end
  return list
end

local function commits_of(counts)
  local list = {}
  for i, result in ipairs(sorted(counts.commits)) do
    list[i] = { counts.commits[result], ('result="%s"'):format(result) }
  end
  return list
end

-- Samples of what is counted in all scopes: by collection, n of each.
local function by_collection(scopes, n)
  local sums, list = {}, {}
  for _, of in pairs(scopes) do
    for kind, collection in pairs(of) do
      sums[kind] = (sums[kind] or 0) + n(collection)
    end
  end
  for i, kind in ipairs(sorted(sums)) do
    list[i] = { sums[kind], ('collection="%s"'):format(kind) }
  end
  return list
end

local function records_in(collection) return #collection.names end
local function watchers_of(collection) return #collection.watchers end

-- The bytes of this process that are in memory; nil: the system does not tell.
local function resident()
  local file = io.open("/proc/self/status", "r")
  local text = file and file:read "*a"
  if file then file:close() end
  local kib = text and text:match "VmRSS:%s*(%d+) kB"
  return kib and tonumber(kib) * 1024
end

local function gauge(name, help, value)
  return { "perigee_ctrl_" .. name, "gauge", help, value and { { value } }
           or {} }
end

local function counter(name, help, samples)
  return { "perigee_ctrl_" .. name, "counter", help, samples }
end

-- What is counted of requests and of the store.
local function work_of(server)
  local counts = server.counts
  return
    counter("answers", "Requests that were answered.", answers_of(counts)),
    counter("rounds", "Rounds, each of which handles what has come.",
            { { counts.rounds } }),
    counter("round_seconds", "How long rounds took.", { { counts.seconds } }),
    counter("commits", "Writes to the store, by what became of them.",
            commits_of(counts)),
    gauge("ready", "1 if the store answers, and has kept the last write.",
          server.failed and 0 or 1)
end

-- What is there now. records: are they all in memory?
local function present(server, records)
  local connections, streams = server.web:count()
  local scopes = server.state.scopes
  return
    { "perigee_ctrl_records", "gauge", "Names that are held, if the server has "
        .. "a file of its own.",
      records and by_collection(scopes, records_in) or {} },
    counter("leases_ended", "Names that were not renewed in time, if the "
      .. "server has a file of its own.",
      records and { { server.counts.ended } } or {}),
    { "perigee_ctrl_watchers", "gauge", "Streams of events.",
      by_collection(scopes, watchers_of) },
    gauge("connections", "Connections.", connections),
    gauge("streams", "Those of them that are streams.", streams),
    gauge("waiting", "Requests that wait for their turn, or for room.",
          server.lines.waiting),
    gauge("heap_bytes", "Lua's heap.", collectgarbage "count" * 1024),
    gauge("resident_bytes", "The process in memory.", resident())
end

--- The families of a server. has_records: it has a file of its own.
function M.families(server, has_records)
  local list = { work_of(server) }
  for _, each in ipairs { present(server, has_records) } do
    list[#list + 1] = each
  end
  return list
end

jit.off(by_collection)          -- its loops over pairs(), see check.lua

return M
