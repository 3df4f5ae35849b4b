-- SPDX-License-Identifier: Apache-2.0
-- Agent:drain. The core tells the peers, and refuses their later calls unread
-- (native/session/drain.c). A peer of an old build does not understand that.
-- Its calls find no methods, because a draining engine has none but the
-- description. So an agent that does not drain pays nothing for it (reply.lua).
-- engine.draining has the methods that there were, or is false.
--
--   state     event                                       becomes
--   serving   drain                                       draining
--   draining  no call is under way                        idle
--   idle      all peers have answered that they know, or  drained
--             GRACE is over
--   draining, drain's timeout                             stays so
--   idle
--
-- The name may be taken by another agent from the first step on
-- (registry/init.lua), and is listed as draining until one has it.
--
-- An agent whose name may be another's is suspended (agent/tenure.lua): it
-- drains until it has the name again, and then serves in new sessions.
-- agent.leaving says that the program has had the agent drain, which is for
-- good; "last calls", that it still serves some methods (M.begin).
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"

local C = native.C

local M = {}

local NONE = {}
local AGAIN = "calls of the peer are served in new ones again"
local CLOSING = 20e6                    -- ns between looks at told sessions
local PAUSE = 1e6                       -- ns between looks at what is served
-- ns for peers that do not poll. Such a peer may be told later.
local GRACE = 1e9

local function is_idle(engine)
  return engine:stats().held_operations == 0
end

-- Waits until f(engine) is true or the engine is closed, at most until
-- deadline; returns whether it is.
local function wait(engine, f, deadline)
  while engine.handle and not f(engine) do
    local time = loop.now()
    if time >= deadline or loop.state.stopping then return false end
    loop.wait_signal(signals.new(1), math.min(time + PAUSE, deadline))
  end
  return true
end

local function is_quiet(engine)
  return C.perigee_drain_waits(engine.handle) == 0 and is_idle(engine)
end

-- Raises, at the line that called drain, in a handler of engine's calls.
local function check_caller(engine)
  local worker = loop.state.current
  if worker.served and worker.engine == engine then
    error("drain waits for all calls to end, also the one whose handler this "
      .. "is; wait in a task that it spawns", 3)
  end
end

-- Has an agent refuse calls but those of its description, and of these methods
-- of a service.
local function refuse(agent, service, last)
  local engine = agent.engine
  engine.draining = engine.draining or engine.methods
  engine.methods = { [0] = engine.draining[0] }
  for _, name in ipairs(last) do
    local method = agent.services[service].methods[name]
    engine.methods[method.id] = method
  end
end

--- Has an agent take no new calls.
function M.suspend(agent)
  refuse(agent, nil, NONE)
  C.perigee_drain(agent.engine.handle)
end

-- The sessions in which peers were told.
local function told(engine)
  local list = {}
  for _, session in pairs(engine.sessions) do
    if session.handle and C.perigee_session_drained(session.handle) ~= 0 then
      list[#list + 1] = session
    end
  end
  return list
end
jit.off(told)

-- Runs in a task: ends sessions as their calls have ended.
local function close_drained(list)
  while list[1] do
    for i = #list, 1, -1 do
      local session = list[i]
      local status = session.handle
        and C.perigee_session_drained(session.handle) or 0
      if status == 1 then session:leave("closed", AGAIN) end
      if status ~= C.PERIGEE_AGAIN then table.remove(list, i) end
    end
    loop.wait_signal(signals.new(1), loop.now() + CLOSING)
  end
end

--- Has it take calls again, unless its program has it drain. Peers that were
-- told are served in new sessions; those of before end when no call of either
-- side is under way in them.
function M.resume(agent)
  local engine = agent.engine
  if agent.leaving or not engine.draining then return end
  engine.methods, engine.draining = engine.draining, false
  C.perigee_resume(engine.handle)
  tasks.spawn(close_drained, told(engine))
end

local function note_begun(agent)
  log.note("info", agent, "%s drains: it takes no new calls", agent)
end

--- Has an agent begin to drain, but still serve some methods of a service (a
-- list of names): it refuses other calls by itself, as if its peers were of an
-- old build. Agent:drain ends that.
function M.begin(agent, service, last)
  if agent.leaving or not agent.engine.handle then return end
  agent.leaving = "last calls"
  note_begun(agent)
  refuse(agent, service, last)
  agent:changed()
end

local function begin(agent)
  local listed = agent.leaving
  if not listed then note_begun(agent) end
  agent.leaving = true
  M.suspend(agent)
  if not listed then agent:changed() end
end

-- Drains those agents that are open.
local function drain_all(agents, limit)
  local draining = {}
  for _, agent in ipairs(agents) do
    if agent.engine.handle then
      draining[#draining + 1] = tasks.spawn(agent.drain, agent, limit)
    end
  end
  tasks.wait_all(draining)
end
jit.off(drain_all)

--- Has the next signal drain agents before it stops the loop, limit seconds at
-- most; so does another agent that takes the name of one of them. begun, if
-- given, is called first. drain(agents, limit) drains them, by default as
-- Agent:drain does. Returns a function that ends that, and returns the error of
-- a name that was taken, or nil.
function M.at_end(agents, limit, begun, drain)
  local over, taken = false, nil
  local function finish()
    if over then return end
    over = true
    if begun then begun() end
    tasks.spawn(function()
      (drain or drain_all)(agents, limit)
      tasks.stop()
    end)
  end
  for _, agent in ipairs(agents) do
    signals.attach(agent.taken, signals.new(1, function()
      taken = select(2, futures.results(agent.taken))
      finish()
    end))
  end
  local before = loop.state.on_signal
  loop.state.on_signal = finish
  return function()
    over = true
    if loop.state.on_signal == finish then loop.state.on_signal = before end
    return taken
  end
end

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Takes no new calls from now on, for good; calls that are under way go on, as
-- do sessions, transfers and this agent's own calls. Its registry lists it as
-- "draining" until another agent takes its name, which one may do at once.
-- Close it when its calls are done: no call of another process fails by that,
-- whatever its method, while transfers end in `peer_lost`.
--
-- A call that comes too late is not made: its error is of kind `closed`, its
-- `code` is "draining" and `sent` is false. A proxy that was made by a name or
-- an address asks for the next holder of the name then, and calls that one. It
-- waits for it within the call's timeout; not at all if `reconnect` is 0.
--
-- Peers whose loop does not run cannot answer that they know. They are waited
-- for one second, and their calls are not lost either.
--
-- With a timeout it is not for a handler of this agent, whose own call would be
-- under way for as long as it waits: that is misuse. A method that ends its
-- server replies, and has a task that it spawned do the rest.
-- @function Agent:drain
-- @tparam[opt] number timeout seconds to wait until no call is under way, the
--   calls that peers wait for and their messages that nobody has received;
--   default: 0
-- @treturn boolean true; or nil and an error
-- @errors `timeout`: calls are still under way; it drains all the same;
--   `closed`
-- @waits no; with a timeout yes
-- @usage
-- local old = assert(perigee.agent { name = "old" })
-- old:serve { name = "sums", methods = { add = function(a) return a end } }
-- local sums = assert(agent:proxy("old", "sums", { reconnect = 0 }))
-- print(old:drain(5))                                          --> true
-- local sum, err = sums:add(1)
-- print(sum, err.kind, err.code, err.sent)        --> nil closed draining false
-- old:close()
-- agent:serve { name = "admin", methods = { shut_down = function()
--   perigee.spawn(function()
--     agent:drain(10)
--     agent:close()
--   end)
-- end } }
function Agent:drain(timeout)
  local engine = self.engine
  local gone = engine:gone("draining " .. tostring(self))
  if gone then return nil, gone end
  if timeout ~= nil then
    check.value(timeout, check.seconds, "drain's timeout")
    loop.check_wait(2)
    check_caller(engine)
  end
  if self.leaving ~= true then begin(self) end
  if not timeout then return true end
  local deadline = loop.deadline(timeout)
  if not wait(engine, is_idle, deadline) then
    local err = errors.new("timeout", ("draining %s: calls are under way after "
      .. "%g s"):format(tostring(self), timeout))
    log.note("info", self, "%s", err)
    return nil, err
  end
  wait(engine, is_quiet, math.min(deadline, loop.now() + GRACE))
  log.note("info", self, "%s has drained", self)
  return true
end

end

return M
