-- SPDX-License-Identifier: Apache-2.0
--- The context of a call, for its handler: questions about the call, and
-- actions besides the reply. Made by `perigee.context`. It may be kept and
-- passed on: its fields stay valid after the call's end.
--
-- * `peer`: the caller: the name of its agent, if it has told one; otherwise
--   "process PID", or over TCP the caller's address
-- * `method`, `service`: the names of what was called
-- * `session`: the `Session` by which the call came; false if it had ended
--   before the handler asked for the context
-- @classmod Context
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"

local C = native.C
local state = loop.state

local M = {}

local Context = {}
Context.__index = Context

--- The call that the running raw or inplace handler, or landing, serves; a
-- worker has the same fields for typed handlers. served is false outside of
-- them. place: which argument of a landing's call is the slice.
M.raw = { engine = false, served = false, session = 0, method = false,
          context = false, trace = false, place = 1 }

--- True while a function runs that serves no call, though a handler may be
-- below it. (Set by landing.lua.)
M.apart = false

--- Returns the traceparent of a trace. (Set by trace.lua.)
M.traceparent = false

-- Returns what serves a call here: the record of raw handlers, or a worker; or
-- nil. Events are handled on top of any handler that waits meanwhile.
local function serving()
  if M.apart then return nil end
  if state.pinned and M.raw.served then return M.raw end
  local worker = state.current
  return not state.telling and worker.served and worker or nil
end

--- Returns the context of the call that is served here. Misuse outside of a
-- handler and its landing.
-- @function perigee.context
-- @treturn Context of the call
-- @waits no
-- @usage
-- agent:serve { name = "who", methods = {
--   am_i = function() return perigee.context().peer end,
-- } }
-- local who = assert(agent:proxy(agent.name, "who"))
-- print(who:am_i() == agent.name)                              --> true
function M.current()
  local record = serving()
  if not record then
    error("perigee.context is of a handler's call; no handler runs here", 2)
  end
  if record.context then return record.context end
  local session = record.engine.sessions[record.session]
  if session then session.known = true end
  local method = record.method
  local context = setmetatable({
    engine = record.engine, served = record.served, session = session or false,
    peer = session and session:text() or "a peer that is gone",
    method = method.name, service = method.service, worker = record,
    delivered = false, came = record.trace,
  }, Context)
  record.context, record.engine.contexts[context] = context, true
  if not record.engine.handle then M.lost(context, C.PERIGEE_CLOSED) end
  return context
end

--- Tells what is left of the call's timeout.
-- @function Context:remaining
-- @treturn number seconds; math.huge without a timeout, or with one of 71
-- minutes and more; 0 after the call's end
-- @waits no
-- @usage
-- agent:serve { name = "time", methods = {
--   left = function() return perigee.context():remaining() end,
-- } }
-- local time = assert(agent:proxy(agent.name, "time", { timeout = 60 }))
-- print(time:left() > 50)                                      --> true
function Context:remaining()
  if not self.served or not self.engine.handle then return 0 end
  local left = tonumber(C.perigee_served_remaining(self.engine.handle,
                                                   self.served))
  return left < 0 and math.huge or left * 1e-9
end

--- Tells whether the caller has given up or is gone. For handlers that work for
-- long.
-- @function Context:cancelled
-- @treturn boolean false once the reply is on its way
-- @waits no
-- @usage
-- local seen
-- agent:serve { name = "work", methods = { long = function()
--   while not perigee.context():cancelled() do perigee.sleep(0.001) end
--   seen = true
-- end } }
-- local work = assert(agent:proxy(agent.name, "work", { timeout = 0.02 }))
-- print(select(2, work:long()).kind)                           --> timeout
-- repeat perigee.sleep(0.001) until seen
-- print(seen)                                                  --> true
function Context:cancelled()
  if not self.served then return false end
  if not self.engine.handle then return true end
  return C.perigee_served_cancelled(self.engine.handle, self.served)
end

--- Tells which trace the call belongs to: the one that its caller gave to
-- `Proxy:with`, or that of the call which the caller was serving. Calls made
-- while this one is served, and in tasks that it spawns, carry the trace on by
-- themselves, each with a new span.
-- @function Context:trace
-- @treturn string a W3C traceparent; nil if the call came without one
-- @waits no
-- @usage
-- agent:serve { name = "traced", methods = {
--   by = function() return perigee.context():trace() end,
-- } }
-- local traced = assert(agent:proxy(agent.name, "traced"))
-- print(traced:by())                                           --> nil
-- local id = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
-- print(traced:with { trace = id }:by() == id)                 --> true
function Context:trace()
  return self.came and M.traceparent(self.came) or nil
end

local function replying(context)
  return ("replying to %s of %s"):format(context.method, context.peer)
end

--- Waits until the caller has the reply, so that the memory of a slice in it
-- may change again. Call it in a task that the handler spawned: the reply is
-- sent when the handler returns, so the handler itself would wait for ever,
-- which is misuse.
-- @function Context:sent
-- @tparam[opt] number timeout seconds; default: no limit
-- @treturn boolean true; or nil and an error if the caller will never have it
-- @errors `timeout`, `peer_lost`, `cancelled`
-- @waits yes
-- @usage
-- local page, free = engine:alloc(4096), nil
-- agent:serve { name = "pages", methods = { get = function()
--   local context = perigee.context()
--   perigee.spawn(function() free = context:sent() end)
--   return page:slice()
-- end } }
-- local pages = assert(agent:proxy(agent.name, "pages"))
-- print(pages:get().length)                                    --> 4096
-- repeat perigee.sleep(0.001) until free ~= nil
-- print(free)                                                  --> true
function Context:sent(timeout)
  if timeout ~= nil then
    check.value(timeout, check.seconds, "context:sent's timeout")
  end
  if self.served and self.worker == state.current then
    error("context:sent waits for the reply, which goes when the handler "
      .. "returns; wait in a task that it spawns", 2)
  end
  self.delivered = self.delivered or futures.new(false, replying(self))
  if not self.delivered.ended then loop.check_wait(2) end
  local ended, err = self.delivered:wait(timeout)
  return ended, err
end

--- Returns a proxy of a service of the caller, over the session by which the
-- call came, so that a handler can call back. The proxy ends with that session.
-- @function Context:proxy
-- @tparam string service the service's name
-- @tparam[opt] table options as for `Agent:proxy`
-- @treturn Proxy the proxy; or nil and an error
-- @errors `no_service`, `version`, `peer_lost`, `timeout`
-- @waits yes
-- @usage
-- agent:serve { name = "progress", methods = { note = print } }
-- agent:serve { name = "job", methods = { run = function()
--   local progress = assert(perigee.context():proxy "progress")
--   progress:note("half done")
--   return "done"
-- end } }
-- local job = assert(agent:proxy(agent.name, "job"))
-- print(job:run())                                             --> half done
-- --> done
function Context:proxy(service, options)
  local proxy, err = M.open_proxy(self.session, service, options, 3)
  return proxy, err
end

function Context:__tostring()
  return ("context (%s.%s for %s)"):format(self.service, self.method, self.peer)
end

--- Ends the context when the reply has been sent. delivered is true, an error,
-- or false if settle will tell later. (The server calls it.)
function M.replied(context, delivered)
  context.served = false
  if delivered then M.settle(context, delivered) end
end

function M.settle(context, delivered)
  context.engine.contexts[context] = nil
  context.delivered = context.delivered
    or futures.new(false, replying(context))
  if delivered == true then return futures.settle(context.delivered, true) end
  futures.settle(context.delivered, nil, delivered)
end

--- The error of a reply that the caller will never get.
function M.undelivered(context, status)
  return errors.ended(status, replying(context))
end

--- Ends a context, if there is one, whose call ended with status before its
-- handler replied.
function M.lost(context, status)
  if context then M.replied(context, M.undelivered(context, status)) end
end

-- Ends the contexts of an engine that which(context) is true of, with status
-- and why.
local function lose(engine, status, why, which)
  local list = {}
  for context in pairs(engine.contexts) do
    if which(context) then list[#list + 1] = context end
  end
  for _, context in ipairs(list) do
    M.replied(context, errors.ended(status, replying(context), why))
  end
end
jit.off(lose)

--- Ends those of an engine that was closed.
function M.closed(engine)
  lose(engine, C.PERIGEE_CLOSED, "the engine was closed",
       function() return true end)
end

-- Ends the contexts of handlers that will not be resumed after a stop.
loop.dropped[#loop.dropped + 1] = function()
  for _, engine in ipairs(state.engines) do
    lose(engine, C.PERIGEE_CLOSED, "the loop was stopped", function(context)
      local worker = context.worker
      return context.served and worker.co
        and worker.generation ~= state.generation
    end)
  end
end

check.colons(Context, "context", "cancelled proxy remaining sent trace")

return M
