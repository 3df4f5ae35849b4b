-- SPDX-License-Identifier: Apache-2.0
--- Futures: what has been started and will end once, with the results that
-- waiting for it gives.
-- @classmod Future

--   owner      what it belongs to: has `engine`, and is or has a session
--   operation  the core's number of it while pending, or false
--   ended      false, then how many results there are
--   value      while pending whatever must stay alive for the core; then the
--              one result, or a table of them
--   finish     function (future, event): settles it with the event's results
--   waiter     signals to tell (loop.lua)
--   doing      nil, or what to say of it: "running a task"
--   again, inner  nil but for calls that go on in another session
--              (call/again.lua): what to go on with, the future of what goes on
--
-- A future is made for every asynchronous operation, so it stays this small.
local errors = require "perigee.errors"
local loop = require "perigee.loop"
local native = require "perigee.native"
local signals = require "perigee.signal"

local C = native.C
local await, told, state = loop.await, loop.event, loop.state
local huge = math.huge

local M = {}

local Future = {}
Future.__index = Future
M.Future = Future

--- Has future, which is pending, end by M.finish with the operation's event.
local function expect(engine, operation, future)
  engine.inflight[operation] = future
  engine.flying = engine.flying + 1
end
M.expect = expect

--- A pending future of a started operation, known to the loop by its number.
function M.start(owner, operation, value, finish)
  local future = setmetatable({ owner = owner, operation = operation,
                                ended = false, value = value, finish = finish,
                                waiter = false }, Future)
  expect(owner.engine, operation, future)
  return future
end

--- Makes a pending future that was none yet that of a started operation.
function M.begin(future, operation, value, finish)
  future.operation, future.value, future.finish = operation, value, finish
  expect(future.owner.engine, operation, future)
end

--- A pending future of something else than an operation of the core; doing is
-- what to say of it, if others get to see it.
function M.new(owner, doing)
  return setmetatable({ owner = owner or false, operation = false,
                        ended = false, value = false, finish = false,
                        waiter = false, doing = doing }, Future)
end

-- In place of what a future waits for: nobody's to end.
local NOBODYS = { cancel = function() end }

--- The same of one that is handed to many: none of them can cancel it.
function M.shared(owner, doing)
  local future = M.new(owner, doing)
  future.inner = NOBODYS
  return future
end

--- Ends future with results; no more than once.
function M.settle(future, ...)
  if future.ended then return end
  local n = select("#", ...)
  if n == 1 then future.value = (...) else future.value = { ... } end
  future.operation = false
  future.ended = n
  if future.waiter then signals.wake(future) end
end

--- A future that has ended with results.
function M.done(...)
  local future = M.new()
  M.settle(future, ...)
  return future
end

--- The future of what ended in success while it was submitted: shared by all.
M.SUCCESS = M.done(true)

--- Ends the operation that event tells about.
function M.finish(engine, event)
  local operation = event.operation
  local future = engine.inflight[operation]
  if future then
    engine.inflight[operation] = nil
    engine.flying = engine.flying - 1
    future.finish(future, event)
  end
end

--- Ends it in what a function raised: waiting for it raises that.
function M.raise(future, raised)
  if future.ended then return end
  future.value, future.ended, future.operation = raised, -1, false
  if future.waiter then signals.wake(future) end
end

local function end_as(future, other)
  if other.ended == -1 then return M.raise(future, other.value) end
  M.settle(future, M.results(other))
end

--- Ends it as other ends, and when; to cancel it cancels other.
function M.follow(future, other)
  future.inner = other
  if other.ended then return end_as(future, other) end
  signals.attach(other, signals.new(1, function() end_as(future, other) end))
end

--- How it failed, or nil: an error, not a handler's own `nil, x`. Raises what
-- waiting for it would raise.
function M.failure(future)
  if future.ended == -1 then error(future.value, 0) end
  if future.ended ~= 2 then return nil end
  local results = future.value
  return results[1] == nil and errors.is_error(results[2]) and results[2]
    or nil
end

--- The results of what has ended.
function M.results(future)
  local n = future.ended
  if n == 1 then return future.value end
  if n == -1 then error(future.value, 0) end
  return unpack(future.value, 1, n)
end
local results = M.results

--- The error of what has ended, if it ended with its peer; or nil.
-- Never raises.
function M.lost(future)
  if future.ended ~= 2 then return nil end
  local got, err = future.value[1], future.value[2]
  return got == nil and errors.is_error(err) and err.kind == "peer_lost"
    and err or nil
end

--- What is being done, and to whom.
function M.doing(future)
  local owner, what = future.owner, "an operation with "
  if future.doing then return future.doing end
  if owner and owner.session then owner, what = owner.session, "a call of " end
  if not (owner and owner.text) then return "waiting for a future" end
  return "waiting for " .. what .. owner:text()
end

-- What a wait gives that ended before its future did.
function M.unfinished(what)
  if loop.state.stopping then
    return nil, errors.new("closed", what .. ": the loop was stopped")
  end
  return nil, errors.new("timeout", what .. ": the time to wait is over, the "
    .. "operation goes on")
end

-- Called in tail position: its caller is future:wait's.
local function wait(future, seconds)
  if seconds ~= nil and not (type(seconds) == "number" and seconds >= 0) then
    error("future:wait takes seconds, a number of at least 0, or nothing", 2)
  end
  local deadline = huge
  if seconds then deadline = loop.deadline(seconds) end
  if loop.wait(future, deadline) then return results(future) end
  return M.unfinished(M.doing(future))
end

-- Of an operation of the core, without a limit: mostly it ends soon. Its event
-- may not be its end: a large reply is yet to be decoded, a call made again.
-- Where it is not alone the loop finds many ends by one poll.
local function short(future)
  local engine = future.owner.engine
  if engine.flying == 1 and not state.pinned and engine.handle
    and await(engine, future.operation) then
    M.finish(engine, told)
    if future.ended then return results(future) end
  end
  return wait(future)
end

--- Waits, and returns the operation's results, or nil and an error. Waiting
-- again gives the same again.
--
-- There are two timeouts. The operation's own ends the operation; this one
-- bounds only the waiting: when it is over first, the operation goes on, and
-- `Future:done` is still false.
-- @function Future:wait
-- @tparam[opt] number seconds default: as long as the operation takes
-- @return the results; or nil and an error
-- @errors `timeout`: the time is over, the operation goes on; else the
--   operation's
-- @waits yes
-- @usage
-- local future = calc.async:slow(1)
-- print(select(2, future:wait(0)).kind, future:done())      --> timeout false
-- print(future:wait())                                         --> done
function Future:wait(seconds)
  if self.ended == 1 then return self.value end
  if self.ended then return results(self) end
  if not seconds and self.operation then return short(self) end
  return wait(self, seconds)
end

--- Has it ended, with whatever results?
-- @function Future:done
-- @treturn boolean
-- @waits no
-- @usage
-- local future = calc.async:add(1, 2)
-- future:wait()
-- print(future:done())                                         --> true
function Future:done()
  return self.ended and true or false
end

--- Asks for the operation's end. It then ends once: in `cancelled`, or as it
-- would have if that came first. The handler of a cancelled call sees
-- `Context:cancelled`. No-op on what has ended, and on what tells of an end
-- (`Session:ended`).
-- @function Future:cancel
-- @waits no
-- @usage
-- local future = calc.async:slow(5)
-- future:cancel()
-- print(select(2, future:wait()).kind)                         --> cancelled
function Future:cancel()
  if self.ended then return end
  local operation, inner = self.operation, self.inner
  if operation then
    local handle = self.owner.engine.handle
    if handle then C.perigee_cancel(handle, operation) end
  elseif inner then
    inner:cancel()
  else
    M.settle(self, nil, errors.new("cancelled", M.doing(self)
      .. ": it was cancelled"))
  end
end

--- Is x a future (or something that can be waited for as one)?
function M.is_future(x)
  return type(x) == "table" and (getmetatable(x) == Future
    or x.wait == Future.wait)
end

return M
