-- SPDX-License-Identifier: Apache-2.0
-- The services of an agent, the built-in method that describes them, and the
-- sessions that peers open to the agent.
local check = require "perigee.runtime.check"
local contexts = require "perigee.serving.context"
local fitting = require "perigee.agent.fitting"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local services = require "perigee.serving.service"

local M = {}

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
      if agent.topology then agent.topology:named(session) end
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

-- Makes method 0 of a new agent.
function M.open(agent)
  agent.engine.methods[0] = {
    service = "", name = "describe", text = "describe", kind = "typed",
    handler = describe(agent), landing = no_slice, abandoned = false,
  }
end

-- ---- Serving ---------------------------------------------------------------

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Checks a definition and adds its service, for serve and new. True; or nil
-- and an error.
function Agent:add(definition, level)
  local service = services.new(definition, level + 1)
  if self.services[service.name] then
    error(("the agent %s serves %s already"):format(self.name, service.name),
          level + 1)
  end
  local full = fitting.refusal(self, "adding the service " .. service.name,
                               service.name, service.version)
  if full then return nil, full end
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
    native.C.perigee_stats_method(self.engine.handle, nil, self.last_id,
                                  service.name, name)
  end
  self.services[service.name] = service
  fitting.count(self, 1, service.name, service.version)
  return true
end
jit.off(Agent.add)

--- Adds a service; its calls are served whenever the loop runs. A wrong
-- definition is misuse, and so is a second service of the same name.
-- @function Agent:serve
-- @tparam table definition what `Service` describes
-- @treturn Agent the agent itself; or nil and an error
-- @errors `too_large`: the registry takes no entry that tells of it, too
-- @waits no
-- @usage
-- agent:serve { name = "clock", version = 2,
--               methods = { now = function() return os.time() end } }
-- local clock = assert(agent:proxy(agent.name, "clock", { version = 2 }))
-- print(clock:now() > 0)                                       --> true
function Agent:serve(definition)
  self.engine:use(2)
  local fine, err = self:add(definition, 2)
  if not fine then return nil, err end
  self:changed()
  return self
end

--- Runs the loop until the reply of one call has been committed. For programs
-- that do something else between calls.
-- @function Agent:serve_once
-- @tparam[opt] number timeout seconds; default: no limit
-- @treturn boolean true; or nil and an error
-- @errors `timeout`, `closed`
-- @waits yes
-- @usage
-- local ok, err = agent:serve_once(0.01)                       -- nobody calls
-- print(ok, err.kind)                                          --> nil timeout
function Agent:serve_once(timeout)
  local engine = self.engine
  if timeout ~= nil then
    check.value(timeout, check.seconds, "serve_once's timeout")
  end
  loop.check_wait(2)
  local gone = engine:gone "serving one call"
  if gone then return nil, gone end
  local future = futures.new(self)
  local before = engine.once
  engine.once = function(err)
    engine.once = before
    if err then return futures.settle(future, nil, err) end
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

end

return M
