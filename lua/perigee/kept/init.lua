-- SPDX-License-Identifier: Apache-2.0
--- A kept session connects again after its session was lost, as proxies do, so
-- that transfers and messages with an agent go on in the next session. Made by
-- `Agent:session` with option `keep`.
--
-- * `epoch`: identifies the life of the peer in the last session: a restart of
--   the peer changes it, a broken connection does not
--
-- An operation that is pending when the session is lost ends once, with
-- `peer_lost`; only the look-up of a region is made again. An operation that
-- begins while there is no session waits for the peer for `reconnect` seconds
-- of its timeout, then ends with `peer_lost`, or with `timeout` if its timeout
-- is over.
--
-- Regions and their slices stay valid as long as they are of the same memory:
-- the peer lives (its epoch is the same) and has not closed the region. They
-- are `stale` from then on if the peer is in another life, or has another
-- region of that name. Then nothing is read or written: look the region up
-- again by `Kept:region`. Messages of an earlier session are lost with it:
-- those that were not received are not sent again. So are its immediates, but
-- those that had come before can be received until there is a new session.
-- @classmod Kept
local anew = require "perigee.transfer.anew"
local batch = require "perigee.transfer.batch"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local reaching = require "perigee.kept.reach"
local regions = require "perigee.memory.region"
local slices = require "perigee.memory.slice"
local tasks = require "perigee.runtime.task"

local left, now, settle = loop.left, loop.now, futures.settle
local reach, enter = reaching.reach, reaching.enter
local waiter, is_over = reaching.waiter, reaching.is_over

local M = {}

local Kept = {}
Kept.__index = Kept

local RECONNECT, TIMEOUT = 3, 30

--- Returns a kept session over link, with session as its present one.
-- reconnect: seconds, nil for the default. Field waiting has the futures of
-- operations that wait for a session; joining is the future of the task that
-- joins one.
function M.new(link, session, reconnect)
  return setmetatable({ link = link, engine = link.engine, current = session,
                        epoch = session.epoch, joining = false, told = false,
                        regions = {}, reconnect = reconnect or RECONNECT,
                        waiting = setmetatable({}, { __mode = "k" }) }, Kept)
end

function Kept:text() return self.link.peer end

--- Returns the error of using a kept session that this side has closed, or
-- whose session or agent this side has closed; else nil.
function Kept:gone()
  if self.engine.handle and not (self.closed or self.current.closed) then
    return nil
  end
  return errors.new("closed", ("using the session with %s: it was closed")
    :format(self:text()), false)
end

-- ---- Operations ------------------------------------------------------------

local function go_on(kept, future, deadline, begin)
  local session, err = reach(kept, deadline, future)
  if future.ended then return end
  if not session then return settle(future, nil, err) end
  local inner, why = begin(session, left(deadline))
  why = why or inner and futures.lost(inner)
  if why and now() < deadline and is_over(kept, session, why) then
    return go_on(kept, future, deadline, begin)
  end
  if future.ended then return end
  if not inner then return settle(future, nil, why) end
  kept.waiting[future] = nil
  futures.follow(future, inner)
end

local function try(future, kept, deadline, begin, line)
  local fine, raised = pcall(go_on, kept, future, deadline, begin)
  if fine then return end
  errors.pass(raised)
  futures.raise(future, check.blamed(raised, line))
end

--- Calls begin(session, seconds left), which returns a future, as soon as there
-- is a session, and again if that future has ended because the session is over.
-- Returns a future that ends with the same results. Misuse that begin finds
-- only then is raised by waiting for the future, with line as its position.
function Kept:later(name, timeout, begin, line)
  local future = waiter(self, ("%s with %s"):format(name, self:text()))
  tasks.drive(future, try, self, loop.deadline(timeout), begin, line)
  return future
end

-- Begins an operation later. Its n-th and last argument, a table, has its
-- timeout.
local function later(kept, name, n, ...)
  local arguments = { ... }
  local own = batch.copy(arguments[n] or {})
  local timeout = own.timeout or TIMEOUT
  check.value(timeout, check.seconds, "a transfer's timeout", 3)
  arguments[n] = own
  local first = arguments[1]            -- of a message: a slice, or a list
  arguments[1] = slices.stands(first) and slices.place(first) or first
  return kept:later(name, timeout, function(session, seconds)
    own.timeout = seconds
    return session[name](session, unpack(arguments, 1, 2))
  end, check.line(3))
end

-- Begins an operation in the present session; one that is over still checks the
-- arguments. A future that has ended with `peer_lost` at once tells that the
-- operation was not begun: the core knows that the session is over, and Lua has
-- not been told yet. Then it is begun in the next session. Called in tail
-- position: misuse is raised at our caller's caller.
local function operate(self, name, n, first, second)
  local gone, session = self:gone(), self.current
  if gone then return futures.done(nil, gone) end
  local fine, future = pcall(session[name], session, first, second)
  if not fine then
    errors.pass(future)
    check.blame(future)
  end
  -- Of a session that is over, only an immediate that had come is a result.
  if session.handle and not futures.lost(future) or future.ended == 1 then
    return future
  end
  future = later(self, name, n, first, second)
  return future
end

--- As `Session:read`, in the present session or the next one.
-- @function Kept:read
-- @tparam table spec as for `Session:read`
-- @treturn Future of true
-- @errors `stale`: the memory is of another life of the peer; `peer_lost`,
--   `timeout`; those of `Session:write`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local kv = assert(kept:region "kv")
-- print(kept:read { from = kv:slice(0, 64),
--                   to = region:slice(0, 64) }:wait(5))        --> true
function Kept:read(spec) return operate(self, "read", 1, spec) end

--- As `Session:write`, in the present session or the next one.
-- @function Kept:write
-- @tparam table spec as for `Session:write`
-- @treturn Future of true
-- @errors as of `Kept:read`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local kv = assert(kept:region "kv")
-- print(kept:write { from = region:slice(0, 64),
--                    to = kv:slice(0, 64) }:wait(5))           --> true
function Kept:write(spec) return operate(self, "write", 1, spec) end

--- As `Session:write_imm`, in the present session or the next one.
-- @function Kept:write_imm
-- @tparam table spec as for `Session:write`
-- @tparam number immediate an integer of 0 to 2^53
-- @treturn Future of true
-- @errors as of `Kept:read`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local kv = assert(kept:region "kv")
-- print(kept:write_imm({ from = region:slice(0, 64),
--                        to = kv:slice(0, 64) }, 1):wait(5))   --> true
function Kept:write_imm(spec, immediate)
  return operate(self, "write_imm", 1, spec, immediate)
end

--- As `Session:send`, in the present session or the next one.
-- @function Kept:send
-- @tparam Slice slice own memory
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Future of true
-- @errors those of `Session:send`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local sent = kept:send(region:slice(0, 8), { timeout = 0.01 })
-- print(select(2, sent:wait()).kind)       -- nobody receives  --> timeout
function Kept:send(slice, options)
  return operate(self, "send", 2, slice, options)
end

--- As `Session:recv`, in the present session or the next one.
-- @function Kept:recv
-- @tparam Slice slice own memory, as long as the message or longer
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Future of the length that came
-- @errors those of `Session:recv`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local received = kept:recv(region:slice(0, 8), { timeout = 0.01 })
-- print(select(2, received:wait()).kind)   -- nobody sends     --> timeout
function Kept:recv(slice, options)
  return operate(self, "recv", 2, slice, options)
end

--- As `Session:recv_imm`, in the present session or the next one.
-- @function Kept:recv_imm
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Future of the number
-- @errors those of `Session:recv_imm`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local future = kept:recv_imm { timeout = 0.01 }
-- print(select(2, future:wait()).kind)                         --> timeout
function Kept:recv_imm(options)
  return operate(self, "recv_imm", 1, options)
end

-- ---- Regions, and the rest -------------------------------------------------

--- Returns the present session, or a new one.
-- @function Kept:session
-- @tparam[opt=30] number timeout seconds, of which it waits `reconnect` for a
--   peer that is away
-- @treturn Session the session; or nil and an error
-- @errors `peer_lost`, `timeout`; those of `Agent:session`
-- @waits yes
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- print(kept:session(5):explain().transport)                   --> shm
function Kept:session(timeout)
  check.value(timeout or TIMEOUT, check.seconds, "session's timeout")
  loop.check_wait(2)
  local session, err = enter(self, loop.deadline(timeout or TIMEOUT))
  return session, err
end

-- Prepares a transfer in the present session, or in the next one if that is
-- over.
local function prepare(self, name, spec, immediate)
  local session, deadline = self.current, loop.deadline(TIMEOUT)
  if self:gone() then return nil, self:gone() end
  while true do
    local transfer, err = anew.new(self, session, name, spec, immediate, 2)
    if transfer then return transfer end
    if session.handle and (err.kind ~= "peer_lost" or now() >= deadline) then
      return nil, err
    end
    loop.check_wait(2)
    if session.handle and not is_over(self, session, err) then
      return nil, err
    end
    session, err = enter(self, deadline)
    if not session then return nil, err end
  end
end

--- As `Session:prepare_read`. In a later session the transfer is prepared again
-- when it is first posted there. A post is `stale` if it names memory of an
-- earlier life of the peer. Lists of futures (`perigee.wait_all`) take the
-- future that `post` returned, not the transfer itself.
-- @function Kept:prepare_read
-- @tparam table spec as for `Session:read`
-- @treturn Prepared the transfer; or nil and an error
-- @errors as of `Session:prepare_write`; `timeout`
-- @waits no; yes if the session was lost
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local kv = assert(kept:region "kv")
-- local transfer = assert(kept:prepare_read {
--   from = kv:slice(0, 64), to = region:slice(0, 64) })
-- print(transfer:post():wait(5))                               --> true
function Kept:prepare_read(spec)
  return prepare(self, "prepare_read", spec)
end

--- As `Session:prepare_write`; otherwise as `Kept:prepare_read`.
-- @function Kept:prepare_write
-- @tparam table spec as for `Session:write`
-- @treturn Prepared the transfer; or nil and an error
-- @errors as of `Kept:prepare_read`
-- @waits no; yes if the session was lost
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local kv = assert(kept:region "kv")
-- local transfer = assert(kept:prepare_write {
--   from = region:slice(0, 64), to = kv:slice(0, 64) })
-- print(transfer:post():wait(5))                               --> true
function Kept:prepare_write(spec)
  return prepare(self, "prepare_write", spec)
end

--- As `Session:prepare_write_imm`; otherwise as `Kept:prepare_read`.
-- @function Kept:prepare_write_imm
-- @tparam table spec as for `Session:write`
-- @tparam number immediate an integer of 0 to 2^53
-- @treturn Prepared the transfer; or nil and an error
-- @errors as of `Kept:prepare_read`
-- @waits no; yes if the session was lost
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local kv = assert(kept:region "kv")
-- local transfer = assert(kept:prepare_write_imm({
--   from = region:slice(0, 64), to = kv:slice(0, 64) }, 1))
-- print(transfer:post():wait(5))                               --> true
function Kept:prepare_write_imm(spec, immediate)
  return prepare(self, "prepare_write_imm", spec, immediate)
end

local REGION = { timeout = check.seconds }

-- Returns the object that the program has for this region already, else region.
local function known(self, region)
  local before = self.regions[region.name]
  if before and before.handle and before.identity == region.identity then
    return before
  end
  self.regions[region.name] = region
  return region
end

--- As `Session:region`; connects again if the session is lost, before or
-- meanwhile.
-- @function Kept:region
-- @tparam string name the region's
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Remote the region; or nil and an error
-- @errors `not_found`, `peer_lost`, `timeout`
-- @waits yes
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- print(kept:region("kv").length)                              --> 1048576
function Kept:region(name, options)
  check.value(name, regions.check_name, "a region's name")
  options = check.options(options, REGION, "region")
  loop.check_wait(2)
  local deadline = loop.deadline(options.timeout or TIMEOUT)
  local session, region, err
  repeat
    session, err = enter(self, deadline)
    if not session then return nil, err end
    region, err = session:region(name, { timeout = left(deadline) })
    if self:gone() then return nil, self:gone() end
    if region and session.handle then return known(self, region) end
    err = err or session:gone("looking up a region")
  until now() >= deadline or not is_over(self, session, err)
  return nil, err
end

--- As `Session:explain`, of the last session.
-- @function Kept:explain
-- @treturn Explanation the table
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- print(kept:explain().state)                                  --> open
function Kept:explain() return self.current:explain() end

--- Returns a future that ends when this side closes this object, its session or
-- its agent. Only the session ends when the peer is lost (`Session:ended`
-- tells), and this object goes on in the next one. All callers get the same
-- future; cancelling it does nothing.
-- @function Kept:ended
-- @treturn Future of nil and the error that explains the end
-- @errors `closed`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local ended = kept:ended()
-- session:close()                       -- the one that kept is over now
-- print(ended:done(), select(2, ended:wait()).kind)            --> true closed
function Kept:ended()
  local future = self.told
  if not future then
    future = futures.shared(self, ("waiting for the end of the kept session "
      .. "with %s"):format(self:text()))
    self.told, self.link.agent.awaited[self] = future, true
    if self:gone() then self:over() end
  end
  return future
end

--- Ends the future of `ended`, if there is one. (Inner use.)
function Kept:over()
  local future = self.told
  if not future then return end
  self.link.agent.awaited[self] = nil
  settle(future, nil, self:gone())
end

--- Closes this object, not the session, which others may use. Operations that
-- wait for a session end with `closed`; operations that were begun in one go
-- on. Closing the session closes this object, too. Idempotent.
-- @function Kept:close
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- kept:close()
-- print(select(2, kept:region "kv").kind)                      --> closed
function Kept:close()
  self.closed = true
  for future in pairs(self.waiting) do settle(future, nil, self:gone()) end
  self:over()
end
jit.off(Kept.close)

function Kept:__tostring()
  return ("kept session with %s (%s)"):format(self:text(), self:gone()
    and "closed" or self.current.handle and "open" or "away")
end

check.colons(Kept, "session", "close ended explain prepare_read prepare_write "
  .. "prepare_write_imm read recv recv_imm region send session write write_imm")

return M
