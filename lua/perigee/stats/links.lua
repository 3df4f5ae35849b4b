-- SPDX-License-Identifier: Apache-2.0
--- Which agents of a host are linked with which: the sessions of all of them,
-- joined from both ends. An end knows the other one by its engine's epoch. So a
-- link has the name of an agent that is here, and else what its peer calls
-- itself.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local printable = require "perigee.runtime.printable"
local reasons = require "perigee.stats.why"

local M = {}

--- As many links are told, those with the most bytes.
M.MOST = 4096

local COUNTERS = { "calls", "served", "sent", "received" }

-- ---- Ends -------------------------------------------------------------------

-- An end of a link: an agent of the list, or what is known of another one.
local function here(agent)
  return { key = tostring(agent.epoch), name = printable.line(agent.name),
           scope = printable.line(agent.scope), here = true }
end

local function elsewhere(session)
  local name = session.peer ~= "" and session.peer or session.address
  name = name ~= "" and printable.line(name) or "unknown"
  return { key = "?" .. name, name = name, here = false }
end

-- An agent that reports is none: its epoch is what it says, which may be that
-- of an agent whose file was read.
local function ends_by_epoch(list)
  local ends = {}
  for _, agent in ipairs(list) do
    if agent.state ~= "dead" and not agent.reported then
      ends[tostring(agent.epoch)] = here(agent)
    end
  end
  return ends
end

-- ---- Links ------------------------------------------------------------------

local function new_side()
  return { sessions = 0, lanes = 0, calls = 0, served = 0, sent = 0,
           received = 0, not_shm = 0, not_verbs = 0 }
end

-- The link that a session of an end belongs to, and its side of it.
local function find(links, own, other, session)
  local from, to = own, other
  if not session.dialed then from, to = other, own end
  local key = ("%s>%s %s"):format(from.key, to.key, session.transport)
  local link = links[key]
  if not link then
    link = { from = from, to = to, transport = session.transport,
             dialer = new_side(), listener = new_side() }
    links[key], links[#links + 1] = link, link
  end
  return session.dialed and link.dialer or link.listener
end

local function add(side, session, was, seconds)
  side.sessions = side.sessions + 1
  side.lanes = math.max(side.lanes, session.lanes)
  if session.not_shm ~= 0 then side.not_shm = session.not_shm end
  if session.not_verbs ~= 0 then side.not_verbs = session.not_verbs end
  for _, name in ipairs(seconds and COUNTERS or {}) do
    local grown = math.max(session[name] - (was and was[name] or 0), 0)
    side[name] = side[name] + grown / seconds
  end
end

-- Both ends count what goes over a link, but a one-sided access is counted by
-- the end that asks alone: so the larger number is nearer to the truth.
local function told(link)
  local a, b = link.dialer, link.listener
  local known = a.sessions > 0 and a or b
  return { from = link.from.name, from_scope = link.from.scope,
           to = link.to.name, to_scope = link.to.scope,
           from_here = link.from.here, to_here = link.to.here,
           transport = printable.line(link.transport),
           sessions = math.max(a.sessions, b.sessions),
           lanes = math.max(a.lanes, b.lanes),
           calls = math.max(a.calls, b.served),
           answered = math.max(a.served, b.calls),
           sent = math.max(a.sent, b.received),
           received = math.max(a.received, b.sent),
           why = reasons.sentence(known) }
end

local function busier(a, b)
  local first, second = a.sent + a.received, b.sent + b.received
  if first ~= second then return first > second end
  if a.from ~= b.from then return a.from < b.from end
  if a.to ~= b.to then return a.to < b.to end
  return a.transport < b.transport
end

--- Joins the sessions of agents.
-- @tparam table list what perigee.stats.partial has read, with sessions
-- @tparam table before sessions by the agents' epochs (texts), at a look before
-- @tparam[opt] number seconds since then
-- @treturn table a list of { `from` (who dialed), `to`, and of each that is
--   here (`from_here`, `to_here`) `from_scope`, `to_scope`; `transport`,
--   `sessions`, `lanes` (beside the first), `why`: a sentence, "" if no
--   transport is better; and numbers a second: `calls` from the dialer,
--   `answered` by it, bytes `sent` and `received` by it }, the busiest first
-- @treturn number how many more there are
-- @treturn number how many agents do not tell of sessions, as they report
function M.of(list, before, seconds)
  local ends, links = ends_by_epoch(list), {}
  for _, agent in ipairs(list) do
    local own = ends[tostring(agent.epoch)]
    local was = before[tostring(agent.epoch)]
    for id, session in pairs(own and agent.sessions or {}) do
      local other = ends[session.epoch] or elsewhere(session)
      add(find(links, own, other, session), session, was and was[id],
          was and seconds)
    end
  end
  local all, silent = {}, 0
  for _, agent in ipairs(list) do
    if agent.reported then silent = silent + 1 end
  end
  for i, link in ipairs(links) do all[i] = told(link) end
  table.sort(all, busier)
  local more = math.max(#all - M.MOST, 0)
  for i = #all, M.MOST + 1, -1 do all[i] = nil end
  return all, more, silent
end

return M
