-- SPDX-License-Identifier: Apache-2.0
--- An agent is a named engine that other agents can find. It serves services of
-- its own and makes proxies of others' services. Made by `perigee.agent`.
--
-- * `name`, `scope`: other agents find it by these
-- * `address`: the address of its Unix socket; `addresses`: a list of the other
--   addresses at which it listens
-- * `engine`: its `Engine`, for memory and sessions
-- * `held`: true while the name is this agent's (`Agent:on_lost`); false once
--   the agent drains or is closed
-- @classmod Agent
local arrivals = require "perigee.agent.arrivals"
local check = require "perigee.runtime.check"
local deaths = require "perigee.agent.deaths"
local drains = require "perigee.agent.drain"
local engines = require "perigee.engine"
local fitting = require "perigee.agent.fitting"
local futures = require "perigee.runtime.future"
local known = require "perigee.agent.known"
local links = require "perigee.link"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local meetings = require "perigee.agent.meeting"
local memories = require "perigee.agent.memory"
local others = require "perigee.agent.others"
local place = require "perigee.agent.place"
local proxies = require "perigee.call.proxy"
local registries = require "perigee.registry"
local serving = require "perigee.agent.serving"
local sessions = require "perigee.agent.sessions"
local tenures = require "perigee.agent.tenure"
local settings = require "perigee.agent.options"
require "perigee.serving.server"

links.joined = proxies.joined

local M = {}

local Agent = {}
serving.add(Agent)
sessions.add(Agent)
others.add(Agent)
drains.add(Agent)
memories.add(Agent)
meetings.add(Agent)
tenures.add(Agent)

-- held is looked at when it is asked for, as time ends it.
function Agent.__index(agent, key)
  if key == "held" then return tenures.is_held(agent) end
  return Agent[key]
end

-- ---- Making ----------------------------------------------------------------

--- Makes an agent: an engine that listens under a name, with services of its
-- own and proxies of others'. Agents that use the same registry (by default:
-- those on the same host) find it by its name, and agents anywhere by its
-- addresses. It serves calls whenever the loop runs, and exists until
-- `Agent:close` or the program's end. No call is served before the name is its
-- own: callers that reach it by an address wait for that.
-- @function perigee.agent
-- @tparam[opt] table options
-- @tparam[opt] string|boolean options.name 1 to 64 letters, digits and
--   `. _ : -`; default: a unique one; false: a unique one that no registry but
--   a folder is told, for agents that only ask and call: a control server's
--   token needs the role read alone then
-- @tparam[opt] string options.scope the scope in which the name is unique;
--   default PERIGEE_SCOPE, or "default"
-- @tparam[opt] table options.services a list of definitions (`Service`)
-- @tparam[opt] string|table options.listen an address, or a list, as
--   `Engine:listen` takes them ("tcp://0.0.0.0:7471"); the agent's `addresses`
--   has them with the actual port in place of port 0
-- @tparam[opt] Registry|string options.registry the registry, or its address,
--   that holds the agent's name and in which it looks up others; default
--   PERIGEE_REGISTRY, or a folder on this host
-- @tparam[opt] string|table options.advertise an address, or a list, by which
--   other hosts reach it, if they cannot use those of `listen` (containers)
-- @tparam[opt="agent"] string options.kind the kind that the registry lists it
--   as; the same characters as in a name
-- @tparam[opt] table options.metadata what the registry lists with it, by
--   texts: such tables, lists, booleans, finite numbers and texts in UTF-8; 24
--   tables deep and 4 KiB long at most
-- @tparam[opt=1] number options.weight a number that the registry lists with it
-- @tparam[opt=true] boolean options.stats false: no file beside its socket from
--   which `perigee stats` and others read what it does, and has done
-- @tparam[opt=true] boolean options.topology false: does not connect to those
--   to whom a control server's topology joins it
-- @tparam[opt] string options.transport the transport of sessions that it
--   opens: "auto", "shm", "tcp" or "verbs"; default PERIGEE_TRANSPORT, or
--   "auto"
-- @tparam[opt] string|table options.secret the secret for sessions over TCP,
--   which each side proves to have: "file:PATH" or the secret itself, which
--   is in core dumps then (`perigee.engine`); or a table of such strings by
--   scope; default PERIGEE_SECRET
-- @tparam[opt=false] boolean options.insecure true: listens without a secret
--   even where other hosts can connect
-- @param[opt] options.encrypt true, "auth" or false; `perigee.engine` says what
--   they mean
-- @tparam[opt=3] number options.dead_after seconds of silence after which a
--   peer on another host is lost
-- @tparam[opt=1] number options.streams connections for payloads of a session
--   over TCP that it dials, at most 16
-- @tparam[opt="poll"] string options.progress "thread": serves one-sided access
--   and heartbeats while methods compute
-- @tparam[opt] table options.engine options of `perigee.engine`
-- @treturn Agent the agent, with `name`, `scope`, `address`, `addresses` and
--   `engine`; or nil and an error
-- @errors `name_taken`: a live agent has the name, or something else uses the
--   address; `denied`: a secret is needed, or other users may read its file;
--   `not_found`: there is no such file; `too_large`: the path of its socket has
--   more than 107 bytes, or its entry more than the registry takes;
--   `no_memory`; with option `registry` those of
--   `Registry:hold`, `peer_lost` (no server of it is there), `timeout`,
--   `protocol`
-- @waits no, except about 0.1 s when a secret is stretched for the first time,
--   and with option `registry` until the registry has answered, at most 30 s
-- @usage
-- local worker = assert(perigee.agent { name = "worker:1", scope = "demo" })
-- print(worker.name, worker.scope)                          --> worker:1 demo
-- print(select(2, perigee.agent { name = "worker:1", scope = "demo" }).kind)
-- --> name_taken
-- worker:close()
function M.new(options, level)
  level = level or 2
  local scope
  options, scope = settings.check(options, level)
  local registry = registries.chosen(options.registry, level)
  if not registries.has_places(registry) then loop.check_wait(level) end
  local engine, err = engines.new(settings.engine(options, scope, level))
  if not engine then return nil, err end
  local agent = setmetatable({
    engine = engine, scope = scope, services = {}, last_id = 0,
    peers = setmetatable({}, { __mode = "v" }), -- links, by name or address
    name = options.name or place.unique_name(engine), named = options.name,
    transport = options.transport,
    registry = registry, lease = false, since = loop.now(),
    watches = setmetatable({}, { __mode = "k" }), known = known.new(),
    doubted = {},                       -- lives of peers, agent/deaths.lua
    reached = {},                       -- what read and write have found
    meetings = {},                      -- places held in rendezvous, as keys
    claims = {},                        -- { registry, held } of names
    lost = false, on_lost_list = {}, leaving = false, -- agent/tenure.lua
    fitted = fitting.new(),             -- what its entry has
    addresses = {}, advertise = settings.list_of(options.advertise),
    kind = options.kind or "agent", metadata = options.metadata or {},
    weight = options.weight or 1,
    awaited = {},                       -- kept sessions whose end is awaited
    follows = options.topology ~= false, topology = false,
    stats = options.stats ~= false,
  }, Agent)
  agent.taken = futures.new(agent)      -- ends when another has the name
  agent.arrivals = arrivals.new(agent)
  engine.agent = agent
  engine.bereaved = function(session) deaths.note(agent, session) end
  serving.open(agent)
  local fine, misuse = true, nil
  for _, definition in ipairs(options.services or {}) do
    fine, err = agent:add(definition, level)
    if not fine then break end
  end
  if fine then fine, err, misuse = place.take(agent, options.listen) end
  if fine then return agent end
  agent:close()
  if misuse then error(tostring(misuse):gsub("^[^:]*:%d+: ", ""), level) end
  return nil, err
end

--- Does a registry tell of the agent, or will one? (Inner use.)
function Agent:is_told() return fitting.is_told(self) end

--- Nil if the agent may have one more named region; or an error. (Inner use.)
function Agent:has_no_room(name, told)
  return fitting.refusal(self, ("naming the region %q"):format(name), name,
                         told)
end

--- Tells the registry soon of a named region that is there now (1), or has gone
-- (-1). (Inner use.)
function Agent:listed(sign, name, told)
  fitting.count(self, sign, name, told)
  self:changed()
end

--- Tells the registry soon that the agent's entry has changed. (Inner use.)
function Agent:changed()
  if self.lease then self.lease:changed() end
end

-- Agent:cache is in cache/client.lua, which is loaded when it is first used.
function Agent:cache(which, options)
  local client, err = require "perigee.cache.client".new(self, which, options)
  return client, err
end

--- Closes the agent: its services, sessions, memory and engine; its name is
-- free again. Pending operations end with `closed`. Idempotent.
-- @function Agent:close
-- @waits no; over TCP up to 50 ms, until the peers' hosts have all that was
--   sent; up to 0.2 s until a registry that is not a folder has released the
--   name
-- @usage
-- agent:close()
-- print(select(2, calc:add(1, 2)).kind)                        --> closed
function Agent:close()
  if self.engine.handle then log.note("info", self, "%s closes", self) end
  if self.lease then self.lease:close() end
  if self.topology then self.topology:close() end
  for meeting in pairs(self.meetings) do meeting:leave() end
  place.resign(self)
  self.engine:close()
  for _, link in pairs(self.peers) do link:close() end
  for each in pairs(self.awaited) do each:over() end
  for watch in pairs(self.watches) do watch:close() end
  place.leave(self)
end

jit.off(Agent.close)

function Agent:__tostring()
  return ("agent %s in scope %s"):format(self.name, self.scope)
end

check.colons(Agent, "agent", "cache close drain list lookup mesh on_lost "
  .. "on_session proxy read regions rendezvous serve serve_once session "
  .. "sessions watch write")

return M
