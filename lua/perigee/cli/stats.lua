-- SPDX-License-Identifier: Apache-2.0
--- `perigee stats NAME`, `perigee sessions NAME` and `perigee autopsy NAME`:
-- what an agent of this host counts, whom it has sessions with, and what it
-- does or did last, from its stats file. The agent is not asked, so it may be
-- busy, stopped or dead.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local M = {}

-- ---- Finding the file -------------------------------------------------------

--- The scope that a command is to look at; one that is none is misuse, as it
-- is a part of paths.
function M.scope(given)
  local scope = given.scope or os.getenv "PERIGEE_SCOPE" or ""
  if scope == "" and not given.scope then return "default" end
  local wrong = require "perigee.runtime.check".name(scope)
  if wrong then
    failure.misuse("%s must be %s", given.scope and "--scope"
      or "the environment's PERIGEE_SCOPE", wrong)
  end
  return scope
end

--- Returns what an agent's file tells, read by `look` (`perigee.stats.head`,
-- or `read`, the default), and the file's path; or nil, and a sentence that
-- says that there is none.
function M.find(given, look)
  local wrong = require "perigee.runtime.check".name(given.name)
  if wrong then
    failure.misuse("%q is no agent's name: it has %s", given.name, wrong)
  end
  local registry = require "perigee.cli.client".registry(given)
  local told, why = require "perigee.stats.host".read(
    registry, M.scope(given), given.name, given.last, look)
  if told then return told, why end
  return nil, ("%s has no stats here: %s (perigee agents lists who is there, "
    .. "--scope and --registry look elsewhere)"):format(given.name, why)
end

local function read(given)
  local told, why = M.find(given)
  if told then return told end
  failure.failed("%s", why)
end

-- Its lists are lists in JSON, too, if they are empty.
local function listed(told)
  local list = require "perigee.cli.json".list
  for _, name in ipairs { "sessions", "methods", "under_way", "events" } do
    list(told[name])
  end
  return told
end

-- ---- Words ------------------------------------------------------------------

local STATES = {
  dead = "dead", stopped = "stopped (by a signal, or a debugger)",
  asleep = "waiting for events", busy = "busy: its program does not poll",
  running = "running",
}

local function time(ns)
  return ns and units.format_time(ns / 1e9) or nil
end

local function ago(told, at) return time(math.max(told.now - at, 0)) end

-- How long a session has lived, or lived: at least 0, whatever the file says.
local function lived(told, session)
  local last = told.state == "dead" and told.looked or told.now
  return time(math.max((session.ended or last) - session.opened, 0))
end

local function called(one)
  if not one.method or one.method == "" then return nil end
  return ("%s.%s"):format(one.service, one.method)
end

-- os.date raises for years that there are not: of files with any bytes.
local function wall(told, at)
  local seconds = told.began_at + (at - told.began) / 1e9
  local fine, text = pcall(os.date, "%Y-%m-%d %H:%M:%S", seconds)
  return fine and text or "?"
end

local function head(told, out)
  out.line("%s in scope %s: %s", told.name, told.scope,
           STATES[told.state] or told.state)
  out.line("  process %d on %s: %s", told.pid, told.host, told.program)
  out.line("  began %s; last looked at its clock %s ago (%s)",
           wall(told, told.began), ago(told, told.looked),
           wall(told, told.looked))
end

local function columns(out, title, headings, rows)
  if #rows == 0 then return end
  out.line("%s", title)
  out.columns(headings, rows)
end

-- ---- perigee stats ----------------------------------------------------------

local function methods(told, out)
  local rows = {}
  for _, each in ipairs(told.methods) do
    if each.calls > 0 then
      rows[#rows + 1] = {
        each.whose, called(each) or "(others)", ("%d"):format(each.calls),
        ("%d"):format(each.failures), time(each.p50), time(each.p99),
        time(each.longest > 0 and each.longest or nil),
        units.format_size(each.bytes_out), units.format_size(each.bytes_in),
      }
    end
  end
  columns(out, "methods (own: served here; peer: called here)",
          { "whose", "method", "calls", "failed", "p50", "p99", "longest",
            "out", "in" }, rows)
end

local function sessions(told, out)
  local rows = {}
  for _, each in ipairs(told.sessions) do
    local c = each.counters
    rows[#rows + 1] = {
      ("%d"):format(each.id), each.peer ~= "" and each.peer or nil,
      each.transport, each.status or each.state,
      each.ended and ago(told, each.ended) or lived(told, each),
      ("%d"):format(c.calls or 0), ("%d"):format(c.served or 0),
      ("%d"):format(c.failures or 0), ("%d"):format(c.stalls or 0),
      units.format_size(c.bytes_sent or 0),
      units.format_size(c.bytes_received or 0),
    }
  end
  columns(out, "sessions", { "id", "peer", "transport", "state", "for", "calls",
                             "served", "failed", "stalls", "sent", "received" },
          rows)
end

local function counters(told, out)
  local rows, names = {}, {}
  for name in pairs(told.counters) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    rows[i] = { name, ("%.0f"):format(told.counters[name]) }
  end
  columns(out, "counters", { "what", "number" }, rows)
end

local function configure(parser)
  parser:argument("name", "The agent's name."):argname "NAME"
  parser:flag("--last", "Of the former owner of the name, if it was killed.")
  options.json(parser)
  options.place(parser)
end

M.stats = {
  name = "stats",
  summary = "Tell what an agent of this host counts, without asking it.",
  description = "Tells what an agent of this host counts: its methods with "
    .. "times and failures, its sessions, its counters. That is read from its "
    .. "stats file, so the agent may be busy, stopped or dead.",
  configure = configure,
  run = function(given)
    local out, told = require "perigee.cli.out", read(given)
    if given.json then return out.json(listed(told)) end
    head(told, out)
    methods(told, out)
    sessions(told, out)
    counters(told, out)
  end,
}

-- ---- perigee sessions -------------------------------------------------------

local function live_sessions(told, out)
  local rows = {}
  for _, each in ipairs(told.sessions) do
    if not each.ended then
      local c = each.counters
      rows[#rows + 1] = {
        ("%d"):format(each.id), each.peer ~= "" and each.peer or nil,
        each.transport, each.state, lived(told, each),
        ("%.0f"):format(c.calls or 0), ("%.0f"):format(c.served or 0),
        ("%.0f"):format((c.transfers or 0) + (c.messages or 0)),
        ("%.0f"):format(c.failures or 0), ("%.0f"):format(c.timeouts or 0),
        ("%.0f"):format(c.stalls or 0), units.format_size(c.bytes_sent or 0),
        units.format_size(c.bytes_received or 0),
        each.address ~= "" and each.address or nil,
        each.not_better ~= "" and each.not_better or nil,
      }
    end
  end
  if #rows == 0 then return out.line("no session is open") end
  local title = told.state == "dead" and "sessions when it died" or "sessions"
  columns(out, title, { "id", "peer", "transport", "state", "for", "calls",
                        "served", "others", "failed", "timeouts", "stalls",
                        "sent", "received", "address", "why not better" }, rows)
end

local function ended_sessions(told, out)
  local rows = {}
  for _, each in ipairs(told.sessions) do
    if each.ended then
      local c = each.counters
      rows[#rows + 1] = {
        ("%d"):format(each.id), each.peer ~= "" and each.peer or nil,
        each.transport, ago(told, each.ended), lived(told, each),
        ("%.0f"):format(c.calls or 0), ("%.0f"):format(c.served or 0),
        ("%.0f"):format(c.failures or 0), units.format_size(c.bytes_sent or 0),
        units.format_size(c.bytes_received or 0), each.status,
        each.reason ~= "" and each.reason or nil,
      }
    end
  end
  columns(out, "ended", { "id", "peer", "transport", "ago", "lived", "calls",
                          "served", "failed", "sent", "received", "status",
                          "reason" }, rows)
end

M.sessions = {
  name = "sessions",
  summary = "Tell whom an agent of this host has sessions with.",
  description = "Tells of each session of an agent of this host who the peer "
    .. "is, what carries it and why nothing better does, how old it is and "
    .. "what it counts, and of those that have ended why. That is read from "
    .. "its stats file; the agent is not asked.",
  configure = configure,
  run = function(given)
    local out, told = require "perigee.cli.out", read(given)
    if given.json then
      local list = require "perigee.cli.json".list(told.sessions)
      return out.json { name = told.name, scope = told.scope,
                        state = told.state, now = told.now, sessions = list }
    end
    head(told, out)
    live_sessions(told, out)
    ended_sessions(told, out)
  end,
}

-- ---- perigee autopsy --------------------------------------------------------

-- The name of a session's peer, or its number.
local function peers_of(told)
  local names = {}
  for _, each in ipairs(told.sessions) do
    names[each.id] = each.peer ~= "" and each.peer or each.address
  end
  return function(id)
    return names[id] ~= "" and names[id] or ("session %d"):format(id)
  end
end

local function under_way(told, out, peer)
  local rows = {}
  for i, each in ipairs(told.under_way) do
    rows[i] = { each.kind, called(each), peer(each.session),
                time(math.max((told.state == "dead" and told.looked or told.now)
                              - each.began, 0)) }
  end
  if #rows == 0 then return out.line("nothing was under way") end
  columns(out, "under way", { "what", "method", "with", "for" }, rows)
end

local function events(told, out, peer, most)
  local rows, all = {}, told.events
  for i = math.max(#all - most + 1, 1), #all do
    local each = all[i]
    rows[#rows + 1] = { ago(told, each.time), each.kind, called(each),
                        peer(each.session), each.status,
                        units.format_size(each.bytes) }
  end
  columns(out, ("the last %d events"):format(#rows),
          { "ago", "event", "method", "with", "status", "bytes" }, rows)
end

-- The sessions that their peers have closed in order, as keys: none was lost.
local function closed_of(told)
  local closed = {}
  for _, each in ipairs(told.sessions) do
    closed[each.id] = each.reason == "the peer closed the session"
  end
  return closed
end

local function failures(told, out, peer)
  local rows, closed = {}, closed_of(told)
  for _, each in ipairs(told.events) do
    if each.status and not (each.kind == "lost" and closed[each.session]) then
      rows[#rows + 1] = { ago(told, each.time), each.kind, called(each),
                          peer(each.session), each.status }
    end
  end
  while #rows > 10 do table.remove(rows, 1) end
  columns(out, "the last failures among them",
          { "ago", "event", "method", "with", "status" }, rows)
end

M.autopsy = {
  name = "autopsy",
  summary = "Tell what an agent that died, or hangs, did last.",
  description = "Tells what an agent of this host, dead or alive, did last: "
    .. "what is under way, for how long and with whom, its last events and "
    .. "failures. That is read from its stats file; the agent is not asked.",
  configure = function(parser)
    configure(parser)
    parser:option("-n --number", "So many events; default: 20.")
      :argname "NUMBER":convert(options.count):default(20)
  end,
  run = function(given)
    local out, told = require "perigee.cli.out", read(given)
    if given.json then return out.json(listed(told)) end
    local peer = peers_of(told)
    head(told, out)
    under_way(told, out, peer)
    sessions(told, out)
    events(told, out, peer, given.number)
    failures(told, out, peer)
  end,
}

return M
