-- SPDX-License-Identifier: Apache-2.0
--- Writes metrics as text: each family's HELP and TYPE once, and then its
-- series, in the order of agents and methods that it is given.
local buffers = require "string.buffer"
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local partial = require "perigee.stats.partial"
local series = require "perigee.stats.series"
local version = require "perigee.version"

local M = {}

local AT, STATUSES, BINS = partial.at, partial.statuses, partial.bins
local ENDS, BIN = AT.ends, AT.bins

-- Counters and gauges of an agent: the name in its stats file, that of the
-- family, and its help.
local COUNTERS = {
  { "calls", "perigee_calls_submitted", "Calls that the agent has begun." },
  { "served", "perigee_requests", "Requests that the agent's program got." },
  { "failures", "perigee_operation_failures",
    "Operations that ended with an error." },
  { "timeouts", "perigee_operation_timeouts",
    "Operations that ended by their timeout." },
  { "transfers", "perigee_transfers", "One-sided reads and writes." },
  { "messages", "perigee_messages", "Sends, receives and immediates." },
  { "bytes_sent", "perigee_sent_bytes",
    "Payload of calls and messages, and of own writes." },
  { "bytes_received", "perigee_received_bytes",
    "Payload of calls and messages that came, and of own reads." },
  { "stalls", "perigee_stalls",
    "Operations and replies that waited for room at the peer." },
  { "wakes", "perigee_wakes", "Wake-ups sent to sleeping peers." },
  { "sleeps", "perigee_sleeps", "Own sleeps." },
  { "polls", "perigee_polls", "Polls of the engine." },
  { "refused", "perigee_hellos_refused", "Connections that were refused." },
  { "dropped", "perigee_events_dropped",
    "Events lost with their session: a fault of the program." },
}
local GAUGES = {
  { "regions", "perigee_regions", "Regions of memory at present." },
  { "operations", "perigee_operations", "Operations under way." },
  { "pooled", "perigee_pooled_bytes", "Pooled blocks in use." },
  { "kept", "perigee_kept_bytes", "Free blocks kept for later use." },
}
local STATES = { "asleep", "running", "busy", "stopped", "dead" }

--- The states of an agent's process.
M.STATES = STATES

--- The counters of an agent that are told, by their names in its file: a list;
-- and a set of those that only grow.
M.COUNTED, M.GROWING = {}, {}
for _, each in ipairs(COUNTERS) do
  table.insert(M.COUNTED, each[1])
  M.GROWING[each[1]] = true
end
for _, each in ipairs(GAUGES) do table.insert(M.COUNTED, each[1]) end

--- The series of an agent, but those of transports, and of a method, but those
-- of failures.
M.COSTS = {
  agent = 2 + #STATES + #COUNTERS + #GAUGES + 3, -- info, start; begun, oldest
  method = 4 + BINS + 2,                -- calls, bytes, longest; sum, count
}

--- The same of agents that report (`reported`): they have an age, too.
M.REPORTED = { agent = M.COSTS.agent + 1, method = M.COSTS.method }

-- ---- Lines ------------------------------------------------------------------

local out = buffers.new()
local EXACT = 1e14                      -- %.14g has all digits below

local function text_of(value)
  return value >= EXACT and ("%.0f"):format(value) or value
end

local function put(name, labels, value)
  out:put(name, "{", labels, "} ", text_of(value), "\n")
end

-- Begins a family. Returns the name of its series.
local function begin(name, kind, help, open)
  local total = kind == "counter" and name .. "_total" or name
  local info = kind == "info" and name .. "_info" or total
  local told = open and name or info
  if kind == "info" and not open then kind = "gauge" end
  out:put("# HELP ", told, " ", help, "\n# TYPE ", told, " ", kind, "\n")
  return info
end

-- ---- Agents -----------------------------------------------------------------

local function put_info(agents, open)
  local name = begin("perigee_agent", "info", "An agent: its host and process.",
                     open)
  for _, each in ipairs(agents) do
    local told = each.told
    if told then
      put(name, ('%s%s,pid="%.0f"'):format(each.labels,
        each.has_host and "" or ",host=" .. series.quoted(told.host),
        told.pid), 1)
    end
  end
  name = begin("perigee_start_time_seconds", "gauge",
               "When the agent's engine opened, since 1970.", open)
  for _, each in ipairs(agents) do
    if each.told then put(name, each.labels, each.told.began_at) end
  end
end

-- How old the reports are of those that report.
local function put_ages(agents, open)
  local name
  for _, each in ipairs(agents) do
    local at = each.told and each.told.reported
    if at then
      name = name or begin("perigee_report_age_seconds", "gauge",
        "How long ago the agent reported what is told of it.", open)
      put(name, each.labels, math.max((native.clock() - at) / 1e9, 0))
    end
  end
end

local function put_states(agents, open)
  local name = begin("perigee_up", "gauge", "1 for the state that the agent's "
    .. "process is in; of agent other: how many are.", open)
  for _, each in ipairs(agents) do
    for _, state in ipairs(STATES) do
      put(name, ('%s,state="%s"'):format(each.labels, state),
          each.states[state] or 0)
    end
  end
end

local function put_all(agents, list, kind, open)
  for _, family in ipairs(list) do
    local name = begin(family[2], kind, family[3], open)
    for _, each in ipairs(agents) do
      put(name, each.labels, each.counters[family[1]] or 0)
    end
  end
end

local function sorted_transports(agent)
  local list = {}
  for name in pairs(agent.transports) do list[#list + 1] = name end
  table.sort(list)
  return list
end
jit.off(sorted_transports)      -- its loop over pairs(), see check.lua

local function put_sessions(agents, open)
  local name = begin("perigee_sessions", "gauge", "Open sessions.", open)
  for _, each in ipairs(agents) do
    for _, transport in ipairs(sorted_transports(each)) do
      put(name, ("%s,transport=%s"):format(each.labels, transport),
          each.transports[transport])
    end
  end
  name = begin("perigee_sessions_begun", "counter", "Sessions that began.",
               open)
  for _, each in ipairs(agents) do put(name, each.labels, each.begun) end
end

local function put_oldest(agents, open)
  local name = begin("perigee_oldest_call_seconds", "gauge", "For how long the "
    .. "oldest call is under way, own (client) or a peer's (server).", open)
  for _, each in ipairs(agents) do
    put(name, each.labels .. ',side="client"', each.oldest_call / 1e9)
    put(name, each.labels .. ',side="server"', each.oldest_served / 1e9)
  end
end

-- ---- Methods ----------------------------------------------------------------

-- All methods, in the order of agents: lists of labels and of numbers.
local function methods_of(agents)
  local labels, numbers = {}, {}
  for _, agent in ipairs(agents) do
    for _, each in ipairs(agent.methods) do
      labels[#labels + 1], numbers[#numbers + 1] = each.labels, each.numbers
    end
    if agent.other then
      labels[#labels + 1] = agent.labels
        .. ',side="other",service="other",method="other"'
      numbers[#numbers + 1] = agent.other
    end
  end
  return labels, numbers
end

local function put_numbers(name, at, scale, labels, numbers)
  for i = 1, #labels do put(name, labels[i], numbers[i][at] * scale) end
end

-- Kinds of errors, each with the statuses that are of it.
local KINDS = {}
do
  local by = {}
  for status = 1, STATUSES - 1 do
    local name = errors.kind(-status)
    if not by[name] then
      by[name] = { label = (',kind="%s"'):format(name) }
      KINDS[#KINDS + 1] = by[name]
    end
    table.insert(by[name], status)
  end
end

local function failures_of(numbers, kind)
  local n = 0
  for i = 1, #kind do n = n + numbers[ENDS + kind[i]] end
  return n
end

local function put_failures(labels, numbers, open)
  local name = begin("perigee_call_failures", "counter",
                     "Calls of a method that failed, by the kind of error.",
                     open)
  for i = 1, #labels do
    for _, kind in ipairs(KINDS) do
      local n = failures_of(numbers[i], kind)
      if n > 0 then put(name, labels[i] .. kind.label, n) end
    end
  end
end

-- What stands behind the labels of each bin.
local LE = {}
for i = 1, BINS do
  LE[i] = (',le="%s"} '):format(partial.bounds[i]
    and ("%.12g"):format(partial.bounds[i]) or "+Inf")
end

local function put_bins(labels, numbers)
  local sum = 0
  for bin = 1, BINS do
    sum = sum + numbers[BIN + bin - 1]
    out:put("perigee_call_duration_seconds_bucket{", labels, LE[bin],
            text_of(sum), "\n")
  end
  put("perigee_call_duration_seconds_sum", labels, numbers[4] / 1e9)
  put("perigee_call_duration_seconds_count", labels, sum)
end

local function put_methods(agents, open)
  local labels, numbers = methods_of(agents)
  put_numbers(begin("perigee_calls", "counter", "Calls of a method that ended, "
    .. "own (client) or peers' (server).", open), AT.calls, 1, labels, numbers)
  put_failures(labels, numbers, open)
  put_numbers(begin("perigee_call_sent_bytes", "counter",
    "Bytes sent for calls of a method.", open), AT.out, 1, labels, numbers)
  put_numbers(begin("perigee_call_received_bytes", "counter",
    "Bytes that came for calls of a method.", open), AT.into, 1, labels,
    numbers)
  put_numbers(begin("perigee_call_longest_seconds", "gauge",
    "The longest measured call of a method.", open), AT.longest, 1e-9, labels,
    numbers)
  begin("perigee_call_duration_seconds", "histogram", "How long calls of a "
    .. "method took: one in 16 counts for 16, and each from 100 us on.", open)
  for i = 1, #labels do put_bins(labels[i], numbers[i]) end
end

-- ---- What prints these ------------------------------------------------------

-- The families of what reads stats files: how often, and what came of it.
local function files_of(found)
  return {
    { "perigee_exporter_reads", "counter", "How often stats files were read.",
      { { found.reads } } },
    { "perigee_exporter_read_duration_seconds", "gauge",
      "How long that took the last time.", { { found.took } } },
    { "perigee_exporter_files", "gauge", "Stats files: read, refused, or of an "
        .. "agent that has another one.",
      { { found.read - found.doubled, 'result="read"' },
        { found.refused, 'result="refused"' },
        { found.doubled, 'result="doubled"' } } },
  }
end

local function put_family(family, open)
  local name = begin(family[1], family[2], family[3], open)
  for _, sample in ipairs(family[4]) do
    local value, labels = sample[1], sample[2]
    if labels then
      put(name, labels, value)
    else
      out:put(name, " ", text_of(value), "\n")
    end
  end
end

local function put_families(found, open)
  put(begin("perigee_exporter", "info", "What prints these metrics.", open),
      ("version=%s"):format(series.quoted(version)), 1)
  for _, each in ipairs(found.families or files_of(found)) do
    put_family(each, open)
  end
  put_family({ "perigee_series_dropped", "gauge",
               "Series that are summed in other.", { { found.dropped } } },
             open)
end

--- The text of what was found (metrics.lua). open: as OpenMetrics. Its
-- `families`, if it has them, stand in place of those of the files: a list of
-- { name, kind, help, samples }, each sample { value, labels or nil }.
function M.text(found, open)
  local agents = found.agents
  out:reset()
  put_info(agents, open)
  put_ages(agents, open)
  put_states(agents, open)
  put_all(agents, COUNTERS, "counter", open)
  put_all(agents, GAUGES, "gauge", open)
  put_sessions(agents, open)
  put_oldest(agents, open)
  put_methods(agents, open)
  put_families(found, open)
  if open then out:put "# EOF\n" end
  return out:get()
end

return M
