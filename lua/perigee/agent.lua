-- SPDX-License-Identifier: Apache-2.0
--- An agent is a named engine that other agents can find. It serves services of
-- its own and makes proxies of others' services. Made by `perigee.agent`.
--
-- * `name`, `scope`: other agents find it by these
-- * `address`: the address of its Unix socket; `addresses`: a list of the other
--   addresses at which it listens
-- * `engine`: its `Engine`, for memory and sessions
-- @classmod Agent
local arrivals = require "perigee.agent.arrivals"
local others = require "perigee.agent.others"
local peers = require "perigee.agent.peers"
local place = require "perigee.agent.place"
local buffer = require "string.buffer"
local check = require "perigee.check"
local contexts = require "perigee.context"
local drains = require "perigee.agent.drain"
local engines = require "perigee.engine"
local entries = require "perigee.registry.entry"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local kept = require "perigee.kept"
local known = require "perigee.agent.known"
local links = require "perigee.link"
local loop = require "perigee.loop"
local meetings = require "perigee.agent.meeting"
local memories = require "perigee.agent.memory"
local proxies = require "perigee.proxy"
local registries = require "perigee.registry"
local services = require "perigee.service"
local sessions = require "perigee.session"
require "perigee.server"

links.joined = proxies.joined

local M = {}

local Agent = {}
Agent.__index = Agent
others.add(Agent)
drains.add(Agent)
memories.add(Agent)
meetings.add(Agent)

local function is_list(value)
  local n = 0
  for _, each in pairs(value) do
    if type(each) ~= "string" then return false end
    n = n + 1
  end
  return n == #value
end

local function addresses(value)
  local kind = type(value)
  if kind == "string" or kind == "table" and is_list(value) then return end
  return "an address or a list of addresses"
end
jit.off(is_list)

local function list_of(given)
  return type(given) == "string" and { given } or given
end

local function advertised(value)
  local wrong = addresses(value)
  for _, each in ipairs(not wrong and list_of(value) or {}) do
    if not each:find "^tcp://[^/@%s]+:%d+$" then
      wrong = "an address as tcp://HOST:PORT, or a list of those"
    end
  end
  return wrong
end

-- The most bytes that an entry's metadata may have, encoded.
local METADATA = 4096

local function metadata(value)
  if type(value) == "table" then
    local out = buffer.new()
    if not entries.encode(out, value) and #out <= METADATA then return end
  end
  return ("a table of values that can travel, in %d bytes"):format(METADATA)
end

local function weight(value)
  if type(value) ~= "number" or not (value >= 0 and value < math.huge) then
    return "a number of at least 0"
  end
end

local function secret(value)
  if type(value) == "string" or type(value) == "table" then return end
  return "a string, or a table of strings by scope"
end

-- Options of the engine that `perigee.agent` takes directly, too.
local OF_ENGINE = { "insecure", "encrypt", "dead_after", "streams",
                    "progress" }

local function name_or_none(value)
  if value == false then return end
  return check.name(value)
end

local OPTIONS = { name = name_or_none, scope = check.name,
                  services = check.table, transport = check.string,
                  engine = check.table, listen = addresses,
                  advertise = advertised, secret = secret,
                  registry = registries.check, kind = check.name,
                  metadata = metadata, weight = weight }
for _, name in ipairs(OF_ENGINE) do OPTIONS[name] = engines.OPTIONS[name] end

local function default_scope()
  local scope = os.getenv("PERIGEE_SCOPE")
  if not scope or scope == "" then return "default" end
  check.value(scope, check.name, "the environment's PERIGEE_SCOPE", 4)
  return scope
end

-- ---- Describing ------------------------------------------------------------

-- Method 0 refuses a slice among its arguments, because the slice's bytes would
-- stay in the pool until Lua collects them.
local function no_slice() return nil, "describe takes no slice" end

-- The built-in method 0 describes a service by its name. It returns nil and a
-- text if this agent does not have the service.
local function describe(agent)
  return function(name, caller)
    local context = contexts.current()
    local session = context.session
    if session and session.accepted and not check.name(caller) then
      session.peer = caller
    end
    local service = type(name) == "string" and agent.services[name]
    if service then return services.describe(service) end
    -- A peer may send any value as the name. Only the type of a value that is
    -- no string is told: tostring would show the peer an address.
    return nil, ("there is no service %s here; there is %s"):format(
      type(name) == "string" and name:sub(1, 255)
        or "named by a " .. type(name),
      services.names(agent.services))
  end
end

-- ---- Making ----------------------------------------------------------------

-- Raises for a wrong definition. This runs before a name is held, so that
-- nothing is left half made.
local function check_services(list, level)
  local seen = {}
  for i = 1, #list do
    local service = services.new(list[i], level + 1)
    if seen[service.name] then
      error(("option services of perigee.agent has service %s twice"):format(
        service.name), level + 1)
    end
    seen[service.name] = true
  end
  for key in pairs(list) do
    if type(key) ~= "number" or key < 1 or key > #list then
      error(("option services of perigee.agent is a list of services, it has "
        .. "no %s"):format(tostring(key)), level + 1)
    end
  end
end

-- Returns the secret for scope if option secret is a table by scope.
local function secret_of(options, scope, level)
  local given = options.secret
  if type(given) ~= "table" then return given end
  local one = given[scope]
  if type(one) ~= "string" then
    error(("option secret of perigee.agent has %s for scope %s; it needs a "
      .. "string, as for every scope in which it is used"):format(
        one == nil and "none" or "a " .. type(one), scope), level + 1)
  end
  return one
end

-- Returns the options of the agent's engine: those in option engine, and those
-- that the agent takes directly.
local function engine_options(options, scope, level)
  local all = {}
  for name, value in pairs(options.engine or {}) do all[name] = value end
  for _, name in ipairs(OF_ENGINE) do
    if options[name] ~= nil then all[name] = options[name] end
  end
  all.secret = secret_of(options, scope, level + 1) or all.secret
  all.scope = all.scope or scope
  return all
end
jit.off(engine_options)

--- Makes an agent: an engine that listens under a name, with services of its
-- own and proxies of others'. Agents that use the same registry (by default:
-- those on the same host) find it by its name, and agents anywhere by its
-- addresses. It serves calls whenever the loop runs, and exists until
-- `Agent:close` or the program's end.
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
-- @tparam[opt] table options.metadata values that the registry lists with it,
--   at most 4 KiB
-- @tparam[opt=1] number options.weight a number that the registry lists with it
-- @tparam[opt] string options.transport the transport of sessions that it
--   opens: "auto", "shm", "tcp" or "verbs"; default PERIGEE_TRANSPORT, or
--   "auto"
-- @tparam[opt] string|table options.secret the secret for sessions over TCP,
--   which each side proves to have: "file:PATH" or the secret itself; or a
--   table of such strings by scope; default PERIGEE_SECRET
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
--   more than 107 bytes; `no_memory`; with option `registry` those of
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
  options = check.options(options, OPTIONS, "perigee.agent", level)
  local scope = options.scope or default_scope()
  check.options(options.engine, engines.OPTIONS, "option engine", level)
  check_services(options.services or {}, level)
  local registry = registries.chosen(options.registry, level)
  if not registries.has_places(registry) then loop.check_wait(level) end
  local engine, err = engines.new(engine_options(options, scope, level))
  if not engine then return nil, err end
  local agent = setmetatable({
    engine = engine, scope = scope, services = {}, last_id = 0,
    peers = setmetatable({}, { __mode = "v" }), -- links, by name or address
    name = options.name or place.unique_name(engine), named = options.name,
    transport = options.transport,
    registry = registry, lease = false, since = loop.now(),
    watches = setmetatable({}, { __mode = "k" }), known = known.new(),
    reached = {},                       -- what read and write have found
    meetings = {},                      -- places held in rendezvous, as keys
    held = {}, addresses = {}, advertise = list_of(options.advertise),
    kind = options.kind or "agent", metadata = options.metadata or {},
    weight = options.weight or 1,
    awaited = {},                       -- kept sessions whose end is awaited
  }, Agent)
  agent.arrivals = arrivals.new(agent)
  engine.agent = agent
  engine.methods[0] = { service = "", name = "describe", text = "describe",
                        kind = "typed", handler = describe(agent),
                        landing = no_slice, abandoned = false }
  for _, definition in ipairs(options.services or {}) do
    agent:add(definition, level)
  end
  local fine, misuse
  fine, err, misuse = place.take(agent, options.listen)
  if fine then return agent end
  agent:close()
  if misuse then error(tostring(misuse):gsub("^[^:]*:%d+: ", ""), level) end
  return nil, err
end

-- ---- Serving ---------------------------------------------------------------

--- Checks a definition and adds its service, for serve and new.
function Agent:add(definition, level)
  local service = services.new(definition, level + 1)
  if self.services[service.name] then
    error(("the agent %s serves %s already"):format(self.name, service.name),
          level + 1)
  end
  local names = {}
  for name in pairs(service.methods) do names[#names + 1] = name end
  table.sort(names)
  if self.last_id + #names > 65534 then
    error("an agent serves at most 65534 methods", level + 1)
  end
  local methods = self.engine.draining or self.engine.methods
  for _, name in ipairs(names) do
    self.last_id = self.last_id + 1
    service.methods[name].id = self.last_id
    methods[self.last_id] = service.methods[name]
  end
  self.services[service.name] = service
end
jit.off(Agent.add)

--- Adds a service; its calls are served whenever the loop runs. A wrong
-- definition is misuse, and so is a second service of the same name.
-- @function Agent:serve
-- @tparam table definition what `Service` describes
-- @treturn Agent the agent itself
-- @waits no
-- @usage
-- agent:serve { name = "clock", version = 2,
--               methods = { now = function() return os.time() end } }
-- local clock = assert(agent:proxy(agent.name, "clock", { version = 2 }))
-- print(clock:now() > 0)                                       --> true
function Agent:serve(definition)
  self.engine:use(2)
  self:add(definition, 2)
  self:changed()
  return self
end

--- Runs the loop until the reply of one call has been committed. For programs
-- that do something else between calls.
-- @function Agent:serve_once
-- @tparam[opt] number timeout seconds; default: no limit
-- @treturn boolean true; or nil and an error
-- @errors `timeout`
-- @waits yes
-- @usage
-- local ok, err = agent:serve_once(0.01)                       -- nobody calls
-- print(ok, err.kind)                                          --> nil timeout
function Agent:serve_once(timeout)
  local engine = self.engine
  engine:use(2)
  if timeout ~= nil then
    check.value(timeout, check.seconds, "serve_once's timeout")
  end
  loop.check_wait(2)
  local future = futures.new(self)
  local before = engine.once
  engine.once = function()
    engine.once = before
    futures.settle(future, true)
  end
  local mine = engine.once
  if loop.wait(future, loop.deadline(timeout)) then
    return futures.results(future)
  end
  if engine.once == mine then engine.once = before end
  return futures.unfinished("serving one call")
end

--- Has a function called for each session that a peer opens to this agent from
-- now on, as soon as the session exists and before the peer's first call.
-- Functions are called in the order in which they were given. They run on the
-- loop and must not wait (use `perigee.spawn` for what has to wait). An error
-- that one raises is logged and ends nothing. The peer's name (`session.peer`)
-- is not known yet; `Session:explain` tells its process or address.
-- `Session:ended` tells when the session ends. Sessions that this agent opens
-- are not included.
-- @function Agent:on_session
-- @tparam function f is given the `Session`
-- @treturn table an object whose `close()`, which is idempotent, ends the calls
--   of f
-- @waits no
-- @usage
-- local ended
-- local told = agent:on_session(function(new) ended = new:ended() end)
-- local other = assert(perigee.agent {})
-- assert(other:session(agent.name)):close()
-- repeat perigee.sleep(0.001) until ended
-- print(select(2, ended:wait(5)).kind)                         --> peer_lost
-- told:close()
-- other:close()
function Agent:on_session(f)
  self.engine:use(2)
  check.value(f, check.callable, "what on_session tells")
  return self.arrivals:add(f)
end

-- ---- Peers -----------------------------------------------------------------

-- Returns the session with peer and its link, and connects if there is none; or
-- nil and an error.
local function session_with(self, peer, timeout, level)
  local link, err = peers.link(self, peer, level + 1)
  if not link then return nil, err end
  if link:live() then loop.refresh(self.engine) end -- may have ended unseen
  local session = link:live()
  if session then return session, link end
  session, err = link:open(timeout)
  if not session then return nil, err end
  return session, link
end

local SESSION = { timeout = check.seconds, keep = check.boolean,
                  reconnect = check.seconds }

--- Returns the session with a peer: the existing one, or a new one. It finds,
-- reads and writes the peer's memory; `Session:explain` tells which transport
-- carries it.
-- @function Agent:session
-- @tparam string peer the name of an agent in this agent's scope, or an address
--   ("tcp://HOST:PORT", "unix:/PATH")
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @tparam[opt=false] boolean options.keep true: returns a `Kept` session, which
--   connects again after the peer was lost
-- @tparam[opt=3] number options.reconnect seconds that transfers of a kept
--   session wait for a peer that is away
-- @treturn Session|Kept the session; or nil and an error
-- @errors `not_found`: nobody has that name, or listens there; `timeout`;
--   `denied`: the peer is another user's, or has another secret; `version`;
--   `unsupported`: the transport that was asked for; `peer_lost`; `no_memory`;
--   with a registry other than the folder those of `Registry:lookup`, and
--   `protocol`
-- @waits yes
-- @usage
-- local same = assert(agent:session "worker:0")
-- print(same == session)                                       --> true
-- print(select(2, agent:session "nobody").kind)             --> not_found
function Agent:session(peer, options)
  options = check.options(options, SESSION, "session")
  local session, link = session_with(self, peer, options.timeout, 2)
  if not session then return nil, link end
  if not options.keep then return session end
  return kept.new(link, session, options.reconnect)
end

--- Returns a proxy of a peer's service. A second proxy to the same peer uses
-- the same session.
--
-- The proxy outlives the session. When the peer is lost, each pending call ends
-- once, with `peer_lost`; only calls of methods marked `idempotent` are made
-- again, within their timeout. The next call connects again, asks for the
-- service's description, and is then made. A call that is made while the peer
-- is away waits for it for `reconnect` seconds of its timeout, or, if its
-- method is idempotent, for the whole timeout. Then it ends with `peer_lost`,
-- or with `timeout` if its timeout is over, and `err.sent == false`. Once this
-- side has closed the session, the proxy or the agent, the proxy does not
-- connect again.
-- @function Agent:proxy
-- @tparam string peer as for `Agent:session`
-- @tparam string service the service's name
-- @tparam[opt] table options those of `Proxy:with`, and
-- @tparam[opt=30] number options.timeout seconds, for this function and as the
--   default of calls
-- @tparam[opt] number|table options.version the version wanted, or `{ lowest,
--   highest }`; default: any
-- @treturn Proxy the proxy; or nil and an error
-- @errors `no_service`, `version`: of the service; those of `Agent:session`
-- @waits yes
-- @usage
-- local sums = assert(agent:proxy("worker:0", "calc", { version = { 1, 2 } }))
-- print(sums:add(1, 2))                                        --> 3
-- print(select(2, agent:proxy("worker:0", "abacus")).kind)     --> no_service
function Agent:proxy(peer, service, options)
  options = proxies.check(service, options, 2)
  local deadline = loop.deadline(options.timeout or 30)
  local session, link = session_with(self, peer, options.timeout, 2)
  if not session then return nil, link end
  local proxy, err = proxies.open(session, service, options, 2, link, deadline)
  return proxy, err
end

--- Returns a proxy of a service of this session's peer. It is for sessions that
-- no agent has made, as those of endpoints. The proxy ends with the session.
-- @function Session:proxy
-- @tparam string service the service's name
-- @tparam[opt] table options as for `Agent:proxy`
-- @treturn Proxy the proxy; or nil and an error
-- @errors `no_service`, `version`, `peer_lost`, `timeout`
-- @waits yes
-- @usage
-- local sums = assert(session:proxy "calc")
-- print(sums:add(20, 3))                                       --> 23
function sessions.Session:proxy(service, options)
  options = proxies.check(service, options, 2)
  loop.check_wait(2)
  if not self.handle then
    return nil, self:gone(("opening service %s of %s"):format(service,
      self:text()))
  end
  local proxy, err = proxies.open(self, service, options, 2)
  return proxy, err
end

function contexts.open_proxy(session, service, options, level)
  proxies.check(service, options, level + 1)
  if not session or not session.handle then
    return nil, errors.new("peer_lost", ("opening service %s of the caller: it "
      .. "is gone"):format(service), false)
  end
  return proxies.open(session, service, options, level + 1)
end

--- Tells the registry soon that the agent's entry has changed. (Inner use.)
function Agent:changed()
  if self.lease then self.lease:changed() end
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
  if self.lease then self.lease:close() end
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

return M
