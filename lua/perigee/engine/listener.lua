-- SPDX-License-Identifier: Apache-2.0
--- Listeners: addresses at which peers open sessions. Made by `Engine:listen`.
--
-- * `address`: with the actual port
-- @classmod Listener
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local sessions = require "perigee.engine.session"

local ffi = require "ffi"
local C = native.C

local M = {}

local Listener = {}
Listener.__index = Listener

--- engine:listen.
function M.new(engine, address)
  local out = ffi.new("struct perigee_listener *[1]")
  local gone = engine:gone("listening at " .. address)
  if gone then return nil, gone end
  local status = C.perigee_listen(engine.handle, address, out)
  if status < 0 then
    return nil, errors.from(status, "listening at " .. address, engine.handle)
  end
  address = ffi.string(C.perigee_listener_address(out[0]))
  local listener = setmetatable({ engine = engine, handle = out[0],
                                  address = address, arrived = {},
                                  waiting = {} }, Listener)
  engine.listeners[listener] = true
  log.note("info", engine, "listening at %s", address)
  if C.perigee_listener_insecure(out[0]) then
    log.write("warning", ("listening at %s without a secret: any host that "
      .. "reaches this one can connect and use what is served here")
      :format(address))
  end
  return listener
end

function Listener:__tostring()
  return ("listener at %s%s"):format(self.address,
                                     self.handle and "" or " (closed)")
end

local function closed(listener)
  return errors.new("closed", ("accepting at %s: the listener was closed")
    :format(listener.address))
end

local function forget(list, value)
  for i, each in ipairs(list) do
    if each == value then return table.remove(list, i) end
  end
end

--- The next session that a peer opened.
-- @function Listener:accept
-- @tparam[opt] number timeout seconds; default: no limit
-- @treturn Session the session; or nil and an error
-- @errors `timeout`; `closed`: the listener was closed, or the loop stopped
-- @waits yes
-- @usage
-- local mine = assert(engine:connect(listener.address))
-- local theirs = assert(listener:accept(5))
-- print(theirs.epoch == mine.epoch)                            --> true
function Listener:accept(timeout)
  if timeout ~= nil then
    check.value(timeout, check.seconds, "accept's timeout")
  end
  loop.check_wait(2)
  if not self.handle then return nil, closed(self) end
  while #self.arrived > 0 do
    local session = table.remove(self.arrived, 1)
    if session.handle then return session end
  end
  local future = futures.new(self)
  future.generation = loop.state.generation
  self.waiting[#self.waiting + 1] = future
  if loop.wait(future, loop.deadline(timeout)) then
    return futures.results(future)
  end
  forget(self.waiting, future)
  if loop.state.stopping then
    return nil, errors.new("closed", "accepting at " .. self.address
      .. ": the loop was stopped")
  end
  return nil, errors.new("timeout",
    ("accepting at %s: no peer came within %g s"):format(self.address, timeout))
end

--- Stops listening; sessions that were accepted stay. Idempotent.
-- @function Listener:close
-- @waits no
-- @usage
-- listener:close()
function Listener:close()
  local handle = self.handle
  if not handle then return end
  self.handle = false
  self.engine.listeners[self] = nil
  log.note("debug", self, "not listening at %s any more", self.address)
  C.perigee_listener_close(handle)
  for _, future in ipairs(self.waiting) do
    futures.settle(future, nil, closed(self))
  end
  for _, session in ipairs(self.arrived) do session:close() end
  self.waiting, self.arrived = {}, {}
end

local function give(listener, session)
  while #listener.waiting > 0 do
    local future = table.remove(listener.waiting, 1)
    -- A task that a stop has dropped takes no session.
    if future.generation == loop.state.generation then
      return futures.settle(future, session)
    end
  end
  listener.arrived[#listener.arrived + 1] = session
end

local function find(engine, address)
  for listener in pairs(engine.listeners) do
    if listener.address == address then return listener end
  end
end
jit.off(find)

loop.on[C.PERIGEE_EVENT_ACCEPTED] = function(engine, event)
  local session = sessions.adopt(engine, event.session, nil)
  if not session then return end
  session.accepted = true
  sessions.tell_opened(session)
  local listener = find(engine, session.address)
  if not listener then return session:close() end       -- closed meanwhile
  if listener.agent then return listener.agent.arrivals:tell(session) end
  session.known = true
  give(listener, session)
end

check.colons(Listener, "listener", "accept close")

return M
