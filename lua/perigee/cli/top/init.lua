-- SPDX-License-Identifier: Apache-2.0
--- `perigee top`: the agents of this host, live: who is there, in which state,
-- and what they did in the last interval. That is read from their stats files;
-- no agent is asked, and none pays for it.
--
-- On a terminal it is a screen that keys change; elsewhere, and where TERM is
-- dumb, a table after each interval.
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local M = {
  name = "top",
  summary = "Show what the agents of this host do, live.",
  description = "Shows the agents of a scope on this host: their states (dead: "
    .. "killed; stopped: by a signal; busy: the program has not polled for a "
    .. "second; asleep; running), sessions, calls, times, failures, bytes and "
    .. "memory, of the last interval. On a terminal it goes on until q is "
    .. "pressed, and h tells of other keys; elsewhere it prints a table after "
    .. "each interval. That is read from the agents' stats files: no agent is "
    .. "asked.",
}

local LEAST, MOST = 0.1, 86400          -- seconds of an interval

local function interval(text)
  local value, why = options.positive(text)
  if value and (value < LEAST or value > MOST) then
    return nil, ("%q is not from %g s to a day"):format(text, LEAST)
  end
  return value, why
end

function M.configure(parser)
  parser:argument("SCOPE", "The scope; default: that of --scope.")
    :target "where":argname "SCOPE":args "?"
  parser:flag("-a --all", "Show all scopes of this host.")
  parser:option("-d --delay", "The interval; default: 1s.")
    :argname "TIME":convert(interval):default(1)
  parser:flag("--once", "Print one table after one interval.")
  options.json(parser, "Print a JSON document after each interval.")
  options.place(parser)
end

-- ---- Tables, one after the other --------------------------------------------

local function rate(agent, value)
  return agent.seconds and ("%.4g"):format(value) or nil
end

local function speed(agent, value)
  return agent.seconds and units.format_size(value) .. "/s" or nil
end

local function time(ns) return ns and units.format_time(ns / 1e9) or nil end

local function row_of(a)
  return { a.name, a.scope, a.state, ("%d"):format(a.pid),
           ("%d"):format(a.sessions), table.concat(a.transports, ","),
           rate(a, a.calls), rate(a, a.failures), time(a.p50), time(a.p99),
           speed(a, a.sent), speed(a, a.received), rate(a, a.stalls),
           a.memory and units.format_size(a.memory) }
end

local HEADINGS = { "NAME", "SCOPE", "STATE", "PID", "SESSIONS", "VIA",
                   "CALLS/s", "ERRORS/s", "P50", "P99", "OUT", "IN", "STALLS/s",
                   "MEMORY" }

local function print_table(model, given)
  local out, rows = require "perigee.cli.out", {}
  if given.json then return out.json(model.agents:document()) end
  for i, agent in ipairs(require "perigee.cli.top.view".shown(model)) do
    rows[i] = row_of(agent)
  end
  if not given.once then out.line("%s", os.date "%Y-%m-%d %H:%M:%S") end
  if #rows > 0 then out.columns(HEADINGS, rows) end
  if #rows == 0 then
    io.stderr:write(given.path, ": ", model.scope and "scope " .. model.scope
      .. " has no agent here" or "no scope has an agent here", "\n")
  end
  if model.agents.rnr then
    out.line("receivers not ready: %.4g/s", model.agents.rnr)
  end
  if not given.once then out.line "" end
end

local function print_tables(model, given)
  local process, out = require "perigee.cli.process", require "perigee.cli.out"
  model.agents:look()
  repeat
    process.poll({}, model.interval)
    model.agents:look()
    print_table(model, given)
    out.finish()
  until given.once
end

-- ---- The screen -------------------------------------------------------------

local function draw(model, terminal)
  local columns, rows = terminal.size()
  terminal:draw(require "perigee.cli.top.view".lines(model, columns, rows),
                columns, rows)
end

-- Presses keys; returns true if the command ends.
local function press(model, terminal, list)
  local keys = require "perigee.cli.top.keys"
  for _, key in ipairs(list) do
    if key == "redraw" then terminal.drawn = {} end
    if keys.press(model, key) then return true end
  end
end

-- Returns the signal that ends it, or nil.
local function watch(model, terminal)
  local now = require "perigee.cli.process".now
  local next_look = now()
  while true do
    local left = next_look - now()
    if left <= 0 then
      model.agents:look()
      next_look, left = now() + model.interval, model.interval
    end
    draw(model, terminal)
    local list, signal = terminal:wait(left)
    if not list then return signal end
    if press(model, terminal, list) then return nil end
  end
end

local function show(model)
  local terminals = require "perigee.cli.top.terminal"
  local terminal = terminals.open(model.coloured)
  local fine, signal = xpcall(watch, failure.traced, model, terminal)
  terminal:leave()
  if not fine then error(signal, 0) end
  if signal then terminals.die(signal) end
end

-- ---- The command ------------------------------------------------------------

local function scope_of(given)
  if given.all then return nil end
  local scope = given.where or given.scope or os.getenv "PERIGEE_SCOPE" or ""
  if scope == "" then return "default" end
  local wrong = require "perigee.runtime.check".name(scope)
  if wrong then failure.misuse("a scope must be %s", wrong) end
  return scope
end

function M.run(given)
  require "perigee.cli.client".library()
  local scope = scope_of(given)
  local model = {
    scope = scope, interval = given.delay, sort = "c", reverse = false,
    filter = "", editing = false, top = 0, page = 1,
    coloured = (os.getenv "NO_COLOR" or "") == "",
    agents = require "perigee.cli.top.hosts".new(
      require "perigee.cli.client".registry(given), scope),
  }
  local is_live = not given.once and not given.json
    and require "perigee.cli.top.terminal".is_live()
  return (is_live and show or print_tables)(model, given)
end

return M
