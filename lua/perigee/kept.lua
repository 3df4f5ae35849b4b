-- SPDX-License-Identifier: Apache-2.0
--- Kept sessions: transfers and messages with an agent that go on in the next
-- session, as proxies do. Made by `Agent:session` with option `keep`.
--
-- * `epoch`: names the life of the peer that the last session was with: a
--   restart changes it, a broken wire does not
--
-- When the session is lost while an operation is under way, that ends once, in
-- `peer_lost`; a look-up of a region is made again. When none is and one
-- begins, it waits for the peer `reconnect` seconds of its timeout, then ends
-- in `peer_lost`, or `timeout`.
--
-- Regions and their slices go on being good as long as they are of the same
-- memory: the peer lives (its epoch is the same) and has not closed the region.
-- Of any other life or region of that name they are `stale` from then on, and
-- nothing is read or written: look it up again by `Kept:region`. Messages and
-- immediates of an earlier session are lost with it: what was not received is
-- not sent again.
-- @classmod Kept
local anew = require "perigee.transfer.anew"
local batch = require "perigee.transfer.batch"
local check = require "perigee.check"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local reaching = require "perigee.kept.reach"
local tasks = require "perigee.task"

local left, now, settle = loop.left, loop.now, futures.settle
local reach, enter = reaching.reach, reaching.enter
local waiter, is_over = reaching.waiter, reaching.is_over

local M = {}

local Kept = {}
Kept.__index = Kept

local RECONNECT, TIMEOUT = 3, 30

--- A kept session over link, of which session is the present one. reconnect:
-- seconds, nil for the default. Its waiting are futures of what waits for a
-- session; joining is the future of the task that joins one.
function M.new(link, session, reconnect)
  return setmetatable({ link = link, engine = link.engine, current = session,
                        epoch = session.epoch, joining = false, told = false,
                        regions = {}, reconnect = reconnect or RECONNECT,
                        waiting = setmetatable({}, { __mode = "k" }) }, Kept)
end

function Kept:text() return self.link.peer end

--- The error of using it once it, its session or its agent was closed on this
-- side; or nil.
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
  if not fine then futures.raise(future, check.blamed(raised, line)) end
end

--- The future of what begin(session, seconds left) starts, itself a future, as
-- soon as there is a session; again, if what it gives has ended since that
-- session is over. What only then turns out to be misuse is raised by who waits
-- for it, and blamed on line.
function Kept:later(name, timeout, begin, line)
  local future = waiter(self, ("%s with %s"):format(name, self:text()))
  tasks.drive(future, try, self, loop.deadline(timeout), begin, line)
  return future
end

-- The last of an operation's arguments, the n-th, tells its timeout.
local function later(kept, name, n, ...)
  local arguments = { ... }
  local own = batch.copy(arguments[n] or {})
  local timeout = own.timeout or TIMEOUT
  check.value(timeout, check.seconds, "a transfer's timeout", 3)
  arguments[n] = own
  return kept:later(name, timeout, function(session, seconds)
    own.timeout = seconds
    return session[name](session, unpack(arguments, 1, 2))
  end, check.line(3))
end

-- A session that is over checks what can be checked there. What has ended with
-- its peer here was not begun: the core knows that the session is over, and Lua
-- has not been told. Called in tail position: misuse is raised at our caller's
-- caller.
local function operate(self, name, n, first, second)
  local gone, session = self:gone(), self.current
  if gone then return futures.done(nil, gone) end
  local fine, future = pcall(session[name], session, first, second)
  if not fine then check.blame(future) end
  if session.handle and not futures.lost(future) then return future end
  future = later(self, name, n, first, second)
  return future
end

--- As `Session:read`, in the session that there is, or the next one.
-- @function Kept:read
-- @tparam table spec as for `Session:read`
-- @treturn Future of true
-- @errors `stale`: of another life of the peer; `peer_lost`, `timeout`; those
--   of `Session:write`
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- local kv = assert(kept:region "kv")
-- print(kept:read { from = kv:slice(0, 64),
--                   to = region:slice(0, 64) }:wait(5))        --> true
function Kept:read(spec) return operate(self, "read", 1, spec) end

--- As `Session:write`, in the session that there is, or the next one.
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

--- As `Session:write_imm`, in the session that there is, or the next one.
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

--- As `Session:send`, in the session that there is, or the next one.
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

--- As `Session:recv`, in the session that there is, or the next one.
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

--- As `Session:recv_imm`, in the session that there is, or the next one.
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

--- The session that there is, or a new one.
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

-- In the session that there is, or the next one.
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

--- As `Session:prepare_read`; in the next session it is prepared anew, when it
-- is posted there first. A post is `stale` if it names memory of an earlier
-- life of the peer. Lists of futures (`perigee.wait_all`) take what its `post`
-- returned, not itself.
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

-- The object that the region has had all along.
local function known(self, region)
  local before = self.regions[region.name]
  if before and before.handle and before.identity == region.identity then
    return before
  end
  self.regions[region.name] = region
  return region
end

--- As `Session:region`; connects again if the session was, or is, lost.
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
  check.value(name, check.string, "a region's name")
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

--- Tells when this object ends, which is when this side closes it, its session
-- or its agent. A peer that is lost ends the session only (`Session:ended`
-- tells), and this one goes on in the next. All who ask get the same future; to
-- cancel it does nothing.
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

--- Tells that it has ended, if somebody has asked. (Inner use.)
function Kept:over()
  local future = self.told
  if not future then return end
  self.link.agent.awaited[self] = nil
  settle(future, nil, self:gone())
end

--- Ends this object, not the session, which others may use: what waits for a
-- session ends in `closed`, what was begun in one goes on. To close the session
-- ends this object, too. Idempotent.
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

return M
