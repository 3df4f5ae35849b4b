-- SPDX-License-Identifier: Apache-2.0
--- What `perigee top` shows on a terminal of a given size, as lines of { text,
-- sgr }: the agents, one of them with its methods and sessions, or help.
-- Nothing here knows of the terminal.
--
-- The model, which keys change (keys.lua):
--
-- * `agents`: hosts.lua's; `scope`: the scope, or nil: all; `interval`: seconds
-- * `sort`: a key of M.sorts; `reverse`: whether the other way round
-- * `filter`: a text; `editing`: whether it is being typed
-- * `selected`: the path of an agent; nil: none yet
-- * `top`: lines above the first one that is shown; `page`: how many are shown
-- * `detail`: the agent that is shown alone, or nil; `help`: whether help is
-- * `coloured`: whether lines look as their sgr says
local layout = require "perigee.cli.top.layout"

local M = {}

local plain, count, size, time = layout.plain, layout.count, layout.size,
  layout.time
local TITLE, HEADINGS, CHOSEN, DEAD, ODD = "1", "7", "7", "31", "33"
local COLOURS = { dead = DEAD, stopped = ODD, busy = ODD }

-- ---- Which agents, and in which order ---------------------------------------

--- By their keys: `label`, and of(agent), a number; or, of names, a text.
M.sorts = {
  c = { label = "calls", of = function(a) return a.calls end },
  b = { label = "bytes", of = function(a) return a.sent + a.received end },
  e = { label = "errors", of = function(a) return a.failures end },
  l = { label = "p99", of = function(a) return a.p99 or -1 end },
  m = { label = "memory", of = function(a) return a.memory or -1 end },
  s = { label = "sessions", of = function(a) return a.sessions end },
  t = { label = "stalls", of = function(a) return a.stalls end },
  n = { label = "name" },
}

local function full_name(a) return a.scope .. "/" .. a.name end

local function is_before(model)
  local of, reverse = M.sorts[model.sort].of, model.reverse
  return function(a, b)
    if reverse then a, b = b, a end
    local first, second = of and of(a), of and of(b)
    if first ~= second then return first > second end
    first, second = full_name(a), full_name(b)
    if first ~= second then return first < second end
    return a.path < b.path
  end
end

local function fits(agent, filter)
  for _, field in ipairs { "name", "scope", "state", "program" } do
    if agent[field]:lower():find(filter, 1, true) then return true end
  end
  return false
end

--- The agents that pass the filter, sorted.
function M.shown(model)
  local list, filter = {}, model.filter:lower()
  for _, agent in ipairs(model.agents.list) do
    if fits(agent, filter) then list[#list + 1] = agent end
  end
  table.sort(list, is_before(model))
  return list
end

-- ---- Columns ----------------------------------------------------------------

local function rate(format, field)
  return function(a) return format(a.seconds and a[field] or nil) end
end

local function transports_of(a)
  local list = a.transports
  if #list < 2 then return plain(list[1] or "-") end
  return ("%s+%d"):format(plain(list[1]), #list - 1)
end

-- The columns of agents; name(agent) is the first one.
local function agent_columns(name)
  local function column(label, width, rank, of)
    return { label = label, width = width, rank = rank, of = of,
             additional = rank > 11 }
  end
  return {
    { label = "NAME", least = 5, left = true, of = name },
    { label = "STATE", width = 7, rank = 1, left = true,
      of = function(a) return a.state end },
    column("SESS", 4, 7, function(a) return count(a.sessions) end),
    { label = "VIA", width = 5, rank = 10, left = true, of = transports_of },
    column("CALLS", 5, 2, rate(count, "calls")),
    column("ERR", 5, 4, rate(count, "failures")),
    column("P50", 5, 9, rate(time, "p50")),
    column("P99", 5, 3, rate(time, "p99")),
    column("OUT", 5, 5, rate(size, "sent")),
    column("IN", 5, 6, rate(size, "received")),
    column("STALL", 5, 11, rate(count, "stalls")),
    column("MEM", 5, 8, function(a) return size(a.memory) end),
    column("TIMEO", 5, 13, rate(count, "timeouts")),
    column("CALLED", 6, 14, rate(count, "called")),
    column("P99", 5, 15, rate(time, "called_p99")),
    column("SERVED", 6, 16, rate(count, "served")),
    column("P99", 5, 17, rate(time, "served_p99")),
    column("PID", 7, 12, function(a) return ("%d"):format(a.pid) end),
    { label = "PROGRAM", width = 40, rank = 18, left = true, additional = true,
      of = function(a) return plain(a.program) end },
  }
end

local METHODS = {
  { label = "METHOD", least = 8, left = true, of = function(m)
    if m.service == "" and m.method == "" then return "(others)" end
    return plain(m.service .. "." .. m.method)
  end },
  { label = "WHOSE", width = 5, rank = 2, left = true,
    of = function(m) return m.whose or "?" end },
  { label = "CALLS", width = 5, rank = 1,
    of = function(m) return count(m.calls) end },
  { label = "ERR", width = 5, rank = 4,
    of = function(m) return count(m.failures) end },
  { label = "P50", width = 5, rank = 6,
    of = function(m) return time(m.p50) end },
  { label = "P99", width = 5, rank = 3,
    of = function(m) return time(m.p99) end },
  { label = "OUT", width = 5, rank = 7,
    of = function(m) return size(m.sent) end },
  { label = "IN", width = 5, rank = 8,
    of = function(m) return size(m.received) end },
  { label = "TOTAL", width = 5, rank = 5,
    of = function(m) return count(m.total) end },
}

local SESSIONS = {
  { label = "PEER", least = 8, left = true, of = function(s)
    return plain(s.peer ~= "" and s.peer or s.address ~= "" and s.address
                 or ("session %d"):format(s.id))
  end },
  { label = "STATE", width = 10, rank = 1, left = true,
    of = function(s) return s.status or s.state end },
  { label = "VIA", width = 5, rank = 2, left = true,
    of = function(s) return plain(s.transport) end },
  { label = "AGE", width = 5, rank = 7,
    of = function(s) return layout.seconds(s.ended or s.age) end },
  { label = "CALLS", width = 5, rank = 3,
    of = function(s) return count(s.calls) end },
  { label = "SERVD", width = 5, rank = 4,
    of = function(s) return count(s.served) end },
  { label = "ERR", width = 5, rank = 5,
    of = function(s) return count(s.failures) end },
  { label = "STALL", width = 5, rank = 9,
    of = function(s) return count(s.stalls) end },
  { label = "OUT", width = 5, rank = 6,
    of = function(s) return size(s.sent) end },
  { label = "IN", width = 5, rank = 8,
    of = function(s) return size(s.received) end },
  { label = "WHY", width = 40, rank = 10, left = true, additional = true,
    of = function(s)
      return plain(s.ended and s.reason or s.not_better)
    end },
}

-- ---- The lines around -------------------------------------------------------

local STATES = { "dead", "stopped", "busy", "running", "asleep" }

local function states_of(list)
  local of, parts = {}, {}
  for _, a in ipairs(list) do of[a.state] = (of[a.state] or 0) + 1 end
  for _, state in ipairs(STATES) do
    if of[state] then parts[#parts + 1] = ("%d %s"):format(of[state], state) end
  end
  return parts[1] and ("%d: %s"):format(#list, table.concat(parts, ", "))
    or "none"
end

local function title(model, width)
  return { sgr = TITLE, text = layout.beside({
    "perigee top", model.scope and "scope " .. model.scope or "all scopes",
    os.date "%H:%M:%S", "agents " .. states_of(model.agents.list) }, width) }
end

local function totals(model, width)
  local sum = { sessions = 0, called = 0, served = 0, failures = 0, sent = 0,
                received = 0, stalls = 0 }
  for _, a in ipairs(model.agents.list) do
    for _, name in ipairs { "sessions", "called", "served", "failures", "sent",
                            "received", "stalls" } do
      sum[name] = sum[name] + a[name]
    end
  end
  local rnr = model.agents.rnr
  return { text = layout.beside({
    "called " .. count(sum.called) .. "/s", "served " .. count(sum.served)
      .. "/s", "errors " .. count(sum.failures) .. "/s", "out "
      .. size(sum.sent) .. "/s", "in " .. size(sum.received) .. "/s",
    "sessions " .. count(sum.sessions),
    rnr and "RNR " .. count(rnr) .. "/s" }, width) }
end

local function footer(model, width)
  if model.editing then
    return { text = layout.cut("filter: " .. plain(model.filter) .. "_",
                               width) }
  end
  if model.help then return { text = ("any other key: back"):sub(1, width) } end
  if model.detail then
    return { text = layout.beside({ "q quit", "Esc back", "h help" }, width) }
  end
  local parts = { "q quit", "h help", "/ filter", "Enter more",
                  "by " .. M.sorts[model.sort].label
                    .. (model.reverse and ", reversed" or "") }
  if model.filter ~= "" then
    table.insert(parts, 1, "filter: " .. plain(model.filter))
  end
  return { text = layout.beside(parts, width) }
end

-- ---- Scrolling --------------------------------------------------------------

-- Keeps as many lines as there is room for, from model.top on, which is moved
-- so that there are no lines beyond the last one, and line `at` is seen.
local function scrolled(model, list, room, at)
  model.page = math.max(1, room)
  if at and at <= model.top then model.top = at - 1 end
  if at and at > model.top + room then model.top = at - room end
  model.top = math.max(0, math.min(model.top, #list - room))
  local shown = {}
  for i = 1, math.min(room, #list) do shown[i] = list[model.top + i] end
  return shown
end

local function add(lines, more)
  for _, line in ipairs(more) do lines[#lines + 1] = line end
end

-- Head, as many lines of the list as there is room for, and the footer.
local function framed(model, columns, rows, head, list, at)
  local foot = rows > #head + 1 and 1 or 0
  local lines = {}
  for i = math.max(1, #head - rows + 1), #head do
    lines[#lines + 1] = head[i]
  end
  local room = math.max(0, rows - #head - foot)
  add(lines, scrolled(model, list, room, at))
  if foot == 1 then
    while #lines < rows - 1 do lines[#lines + 1] = { text = "" } end
    lines[#lines + 1] = footer(model, columns)
  end
  return lines
end

-- ---- The screens ------------------------------------------------------------

local function name_of(model)
  return function(a)
    local name = plain(model.scope and a.name or full_name(a))
    if model.coloured then return name end
    return (a.path == model.selected and ">" or " ") .. name
  end
end

local function agents_screen(model, columns, rows)
  local list, lines, at = M.shown(model), {}, nil
  local headings, line = layout.table(agent_columns(name_of(model)), list,
                                      columns)
  for i, agent in ipairs(list) do
    if agent.path == model.selected then at = i end
    lines[i] = { text = line(agent), sgr = at == i and CHOSEN
                   or COLOURS[agent.state] }
  end
  local head = { { text = headings, sgr = HEADINGS } }
  if rows >= 5 then table.insert(head, 1, title(model, columns)) end
  if rows >= 8 then table.insert(head, 2, totals(model, columns)) end
  return framed(model, columns, rows, head, lines, at)
end

local function table_lines(what, columns, list, width)
  if #list == 0 then return { { text = ("no " .. what):sub(1, width) } } end
  local headings, line = layout.table(columns, list, width)
  local lines = { { text = headings, sgr = HEADINGS } }
  for i, each in ipairs(list) do lines[i + 1] = { text = line(each) } end
  return lines
end

-- Live ones before those that have ended, the busiest first.
local function by_state(a, b)
  if (a.ended == nil) ~= (b.ended == nil) then return a.ended == nil end
  local first, second = a.calls + a.served, b.calls + b.served
  if first ~= second then return first > second end
  return a.id < b.id
end

local function by_calls(a, b)
  if a.calls ~= b.calls then return a.calls > b.calls end
  if a.total ~= b.total then return a.total > b.total end
  return a.service .. "." .. a.method < b.service .. "." .. b.method
end

local function detail_screen(model, columns, rows)
  local agent = model.detail
  local methods, sessions = agent:methods_now(), agent:sessions_now()
  table.sort(methods, by_calls)
  table.sort(sessions, by_state)
  local lines = table_lines("methods", METHODS, methods, columns)
  lines[#lines + 1] = { text = "" }
  add(lines, table_lines("sessions", SESSIONS, sessions, columns))
  -- It has ended in order, or is another one's by now.
  local gone = model.agents.by_path[agent.path] ~= agent
  local head = {
    { sgr = TITLE, text = layout.beside({ plain(full_name(agent)),
      gone and "gone, as it was:" or agent.state,
      ("process %d"):format(agent.pid), size(agent.memory) }, columns) },
    { text = layout.cut(plain(agent.program), columns) },
  }
  if rows < 8 then head[2] = nil end
  return framed(model, columns, rows, head, lines)
end

local HELP = {
  "Keys that sort: c calls, b bytes, e errors, l p99, m memory, n name, "
    .. "s sessions, t stalls; the same key again turns it round.",
  "Arrows, PgUp, PgDn, Home, End, j, k: move.",
  "Enter: the methods and sessions of an agent.",
  "/: show what has this text in its name, state or program. Esc: show all.",
  "q, Ctrl-C: quit.",
  "",
  "STATE: dead, killed, and its file is left; stopped by a signal; busy: its "
    .. "program does not poll; asleep: it waits for events; running.",
  "SESS: open sessions. VIA: what carries them. MEM: of its process.",
  "The rest is of the last interval, numbers a second: CALLS that it made "
    .. "(CALLED) or served (SERVED), ERR: what of these and other operations "
    .. "failed, TIMEO: what ended by its timeout, STALL: what waited for room "
    .. "at the peer, OUT and IN: bytes. P50 and P99: of these calls, as far as "
    .. "they were measured.",
}

-- A text in lines of so many columns, broken at blanks.
local function wrapped(text, width)
  local lines, line = {}, ""
  for word in text:gmatch "%S+" do
    if line ~= "" and #line + 1 + #word > width then
      lines[#lines + 1], line = { text = line }, ""
    end
    line = line == "" and word:sub(1, width) or line .. " " .. word
  end
  lines[#lines + 1] = { text = line }
  return lines
end

local function help_screen(model, columns, rows)
  local lines = {}
  for _, text in ipairs(HELP) do add(lines, wrapped(text, columns)) end
  return framed(model, columns, rows, { { text = ("help"):sub(1, columns),
                                          sgr = TITLE } }, lines)
end

--- The lines of a screen of so many columns and rows: at most as many, none
-- longer. It moves model.top so that it is in range.
function M.lines(model, columns, rows)
  local screen = model.help and help_screen or model.detail and detail_screen
    or agents_screen
  return screen(model, columns, rows)
end

return M
