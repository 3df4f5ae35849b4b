-- SPDX-License-Identifier: Apache-2.0
--- `perigee serve FILE`: serves what a Lua file returns. The first SIGTERM or
-- SIGINT drains: calls under way end before the agent does.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"

local M = {
  name = "serve",
  summary = "Serve what a Lua file returns, until SIGTERM or Ctrl-C.",
  description = "Runs a Lua file and serves what it returns: a service, a list "
    .. "of services, the options of perigee.agent (name, services, listen, "
    .. "...), or an agent that it has made. A file that returns nothing and "
    .. "has called perigee.serve has served by itself. Options given here come "
    .. "before the file's. SIGTERM or Ctrl-C ends it once the calls that are "
    .. "under way have ended; a second signal ends it at once.",
  passes_on = true,
}

function M.configure(parser)
  parser:argument("file", "A Lua file."):argname "FILE"
  parser:argument("rest", "The arguments of the file (...).")
    :argname "ARGUMENT":args "*"
  parser:option("--name", "The agent's name."):argname "NAME"
  parser:option("--listen", "An address to listen at, as in "
    .. "tcp://0.0.0.0:7471. May be given again.")
    :argname "ADDRESS":count "*"
  parser:option("--advertise", "An address that others are told in place of "
    .. "those. May be given again."):argname "ADDRESS":count "*"
  parser:option("--drain", "How long calls under way may go on after SIGTERM; "
    .. "default: 10 s."):argname "TIME":convert(options.seconds):default(10)
  options.place(parser)
end

-- ---- The file --------------------------------------------------------------

-- A message and the traceback of the file's own functions.
local function traced(raised)
  local trace = debug.traceback(tostring(raised), 2)
  return (trace:gsub("\n\t%[C%]: in function 'xpcall'.*", ""))
end

-- Runs the file as luajit would; returns what it returns.
local function run_file(file, arguments)
  local chunk, why = loadfile(file)
  if not chunk and why:find "^cannot open " then failure.misuse("%s", why) end
  if not chunk then failure.failed("%s", why) end
  _G.arg = { [0] = file, unpack(arguments) }
  io.stdout:setvbuf "line"              -- a log has lines at once
  local fine, made = xpcall(chunk, traced, unpack(arguments))
  if not fine then failure.failed("%s failed: %s", file, made) end
  return made
end

local function is_agent(made)
  return type(made) == "table" and type(made.engine) == "table"
    and type(made.close) == "function"
end

-- The options of perigee.agent for what a file returned.
local function options_of(file, made)
  if type(made) ~= "table" then
    failure.misuse("%s returned a %s; it has to return a service, a list of "
      .. "services, the options of perigee.agent, or an agent", file,
      type(made))
  end
  if made.methods then return { services = { made } } end
  if made[1] ~= nil then return { services = made } end
  return made
end

-- ---- The command -----------------------------------------------------------

local function names(services)
  return require "perigee.serving.service".names(services or {})
end

local function announce(agent)
  local out = require "perigee.cli.out"
  local list = { agent.address, unpack(agent.addresses) }
  out.line("serving %s as %s in scope %s at %s; Ctrl-C ends it",
           names(agent.services), agent.name, agent.scope,
           table.concat(list, " "))
  out.finish()
end

local function announce_all(agents)
  for _, agent in ipairs(agents) do announce(agent) end
  require "perigee.runtime.notify".ready()
end

-- A service that is announced can be stopped in order, because it runs in the
-- loop. Returns the error of a name that another agent has taken, or nil.
local function serve(agents, given)
  local perigee = require "perigee"
  local forget = require "perigee.agent.drain".at_end(agents, given.drain,
    require "perigee.runtime.notify".stopping)
  perigee.spawn(announce_all, agents)
  perigee.run()
  for _, agent in ipairs(agents) do agent:close() end
  return forget()
end

local function agent_of(given, made)
  local chosen = {}
  for key, value in pairs(options_of(given.file, made)) do
    chosen[key] = value
  end
  chosen.name = given.name or chosen.name
  if given.listen[1] then chosen.listen = given.listen end
  if given.advertise[1] then chosen.advertise = given.advertise end
  given.registry = given.registry or chosen.registry
  given.scope = given.scope or chosen.scope
  return client.agent(given, chosen)
end

-- Engines that the file has opened and left open are served, too.
local function left_open()
  local agents = {}
  for _, engine in ipairs(require "perigee.runtime.loop".state.engines) do
    if engine.agent then agents[#agents + 1] = engine.agent end
  end
  return agents
end

-- Has the file served by itself, until a stop? Then that is all.
local function has_served()
  return require "perigee.runtime.loop".state.generation > 0
end

local function made_agents(given)
  local made = run_file(given.file, given.rest)
  local agents = left_open()
  if has_served() then
    for _, agent in ipairs(agents) do agent:close() end
    return {}
  elseif made ~= nil and not is_agent(made) then
    agents[#agents + 1] = agent_of(given, made)
  elseif not agents[1] then
    failure.misuse("%s returned nothing and serves nothing; it has to return "
      .. "a service, a list of services, the options of perigee.agent, or an "
      .. "agent", given.file)
  end
  return agents
end

function M.run(given)
  client.library()
  local agents = made_agents(given)
  if not agents[1] then return 0 end
  local taken = serve(agents, given)
  if taken then failure.by(taken, tostring(taken)) end
  return 0
end

return M
