-- SPDX-License-Identifier: Apache-2.0
--- Kept sessions: transfers and messages with an agent that go on in the next
-- session, as proxies do. Made by `Agent:session` with option `keep`.
--
-- * `epoch`: names the life of the peer that the last session was with: a
--   restart changes it, a broken wire does not
--
-- When the session is lost while an operation is under way, that ends once, in
-- `peer_lost`. When none is and one begins, it waits for the peer `reconnect`
-- seconds of its timeout, then ends in `peer_lost`, or `timeout`.
--
-- Regions and their slices go on being good as long as they are of the same
-- memory: the peer lives (its epoch is the same) and has not closed the region.
-- Of any other life or region of that name they are `stale` from then on, and
-- nothing is read or written: look it up again by `Kept:region`. Messages and
-- immediates of an earlier session are lost with it: what was not received is
-- not sent again.
-- @classmod Kept
local anew = require "perigee.transfer.anew"
local check = require "perigee.check"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local links = require "perigee.link"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local M = {}

local Kept = {}
Kept.__index = Kept

local RECONNECT, TIMEOUT = 3, 30

--- A kept session over link, of which session is the present one. reconnect:
-- seconds, nil for the default.
function M.new(link, session, reconnect)
  return setmetatable({ link = link, engine = link.engine, current = session,
                        epoch = session.epoch, joining = false, regions = {},
                        reconnect = reconnect or RECONNECT }, Kept)
end

function Kept:text() return self.link.peer end

-- ---- Joining the next session ----------------------------------------------

-- Has a region of an earlier session be one of this, if it is the same.
local function carry_over(session, region, deadline)
  local found = session:region(region.name, { timeout = loop.left(deadline) })
  if not found or found.identity ~= region.identity then return end
  region:move_to(found)
  session.remotes[region] = region      -- ends with it, beside the one found
end

local function join(kept, session, deadline)
  local before, regions = kept.current, kept.regions
  if before.epoch ~= session.epoch then kept.regions, regions = {}, {} end
  for _, region in pairs(regions) do carry_over(session, region, deadline) end
  kept.current, kept.epoch = session, session.epoch
end
jit.off(join)

-- Joins it once, however many wait for that: true, if it lives still.
local function joined(kept, session, deadline)
  while kept.joining do
    if not loop.wait(kept.joining, deadline) then return false end
  end
  if kept.current ~= session then
    local joining = futures.new(kept, "joining a session")
    kept.joining = joining
    local fine, why = pcall(join, kept, session, deadline)
    kept.joining = false
    futures.settle(joining, true)
    if not fine then error(why, 0) end
  end
  return session.handle and true or false
end

local function not_reached(kept, err, deadline)
  local kind = err and err.kind or "timeout"
  if links.PASSING[kind] and kind ~= "closed" then
    kind = loop.now() < deadline and "peer_lost" or "timeout"
  end
  return errors.new(kind, err and err.message
    or ("connecting to %s: no answer in time"):format(kept:text()), false)
end

-- The session within timeout seconds, or nil and an error. Waits.
local function reach(kept, timeout, call)
  local deadline = loop.deadline(timeout)
  local patience = loop.deadline(math.min(timeout, kept.reconnect))
  repeat
    if kept.closed then return nil, kept:gone() end
    local session, err = kept.link:reach(patience, deadline, call)
    if not session then return nil, not_reached(kept, err, deadline) end
    if joined(kept, session, deadline) then return session end
  until loop.now() >= deadline
  return nil, not_reached(kept, nil, deadline)
end

function Kept:gone()
  return errors.new("closed", ("using the session with %s: it was closed")
    :format(self:text()), false)
end

-- ---- Operations ------------------------------------------------------------

local function go_on(kept, future, timeout, begin)
  local deadline = loop.deadline(timeout)
  loop.refresh(kept.engine)             -- the session may have ended unnoticed
  local session, err = reach(kept, timeout, future)
  if future.ended then return end
  if not session then return futures.settle(future, nil, err) end
  local fine, inner, why = pcall(begin, session, loop.left(deadline))
  if not fine then return futures.raise(future, inner) end
  if not inner then return futures.settle(future, nil, why) end
  future.inner = inner
  if loop.wait(inner, math.huge) then futures.follow(future, inner) end
end

--- The future of what begin(session, seconds left) starts, itself a future, as
-- soon as there is a session.
function Kept:later(name, timeout, begin)
  local future = futures.new(self, ("%s with %s"):format(name, self:text()))
  tasks.spawn(go_on, self, future, timeout, begin)
  return future
end

local function with_timeout(spec, seconds)
  local all = { timeout = seconds }
  for key, value in pairs(type(spec) == "table" and spec or {}) do
    if key ~= "timeout" then all[key] = value end
  end
  return all
end
jit.off(with_timeout)

-- The last of an operation's arguments, the n-th, tells its timeout.
local function later(kept, name, n, ...)
  local arguments = { ... }
  local last = arguments[n]
  local timeout = type(last) == "table" and last.timeout or TIMEOUT
  check.value(timeout, check.seconds, "a transfer's timeout")
  return kept:later(name, timeout, function(session, left)
    if last == nil or type(last) == "table" then
      arguments[n] = with_timeout(last, left)
    end
    return session[name](session, unpack(arguments, 1, 2))
  end)
end

-- The future of an operation of session; nil if that is over, though nobody has
-- been told. Misuse is raised at the line that called our caller.
local function begin(session, name, ...)
  local fine, future = pcall(session[name], session, ...)
  if not fine then error((tostring(future):gsub("^[^:]*:%d+: ", "")), 3) end
  return not futures.lost(future) and future
end

local function operation(name, n)
  return function(self, ...)
    if self.closed then return futures.done(nil, self:gone()) end
    local session = self.current
    local future = session.handle and begin(session, name, ...)
    if future then return future end
    -- A tail call: misuse is raised at the line that called us.
    return later(self, name, n, ...)
  end
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
-- session:close()
-- print(kept:read { from = kv:slice(0, 64),
--                   to = region:slice(0, 64) }:wait(5))        --> true

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
Kept.read, Kept.write = operation("read", 1), operation("write", 1)
Kept.write_imm = operation("write_imm", 1)
Kept.send, Kept.recv = operation("send", 2), operation("recv", 2)
Kept.recv_imm = operation("recv_imm", 1)

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
  local session, err = reach(self, timeout or TIMEOUT)
  return session, err
end

-- In the session that there is, or the next one.
local function prepare(self, name, spec, immediate)
  local session = self.current
  if self.closed then return nil, self:gone() end
  if not session.handle then
    loop.check_wait(2)
    local err
    session, err = reach(self, TIMEOUT)
    if not session then return nil, err end
  end
  return anew.new(self, session, name, spec, immediate)
end

--- As `Session:prepare_read`; in the next session it is prepared anew, when it
-- is posted there first. A post is `stale` if it names memory of an earlier
-- life of the peer.
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
-- session:close()
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

-- Asks again where the session is lost meanwhile.
local function look_up(kept, name, timeout)
  local deadline = loop.deadline(timeout)
  local session, region, err
  repeat
    session, err = reach(kept, loop.left(deadline))
    if not session then return nil, err end
    region, err = session:region(name, { timeout = loop.left(deadline) })
    if region or err.kind ~= "peer_lost" then return region, err end
    loop.refresh(kept.engine)           -- of the session's end
  until session.handle
  return nil, err
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
-- session:close()                                   -- it is made again
-- print(kept:region("kv").length)                              --> 1048576
function Kept:region(name, options)
  check.value(name, check.string, "a region's name")
  options = check.options(options, REGION, "region")
  loop.check_wait(2)
  local region, err = look_up(self, name, options.timeout or TIMEOUT)
  if not region then return nil, err end
  local known = self.regions[name]
  if known and known.handle and known.identity == region.identity then
    return known
  end
  self.regions[name] = region
  return region
end

--- As `Session:explain`, of the last session.
-- @function Kept:explain
-- @treturn Explanation the table
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- print(kept:explain().state)                                  --> open
function Kept:explain() return self.current:explain() end

--- Ends this object, not the session, which others may use. Idempotent.
-- @function Kept:close
-- @waits no
-- @usage
-- local kept = assert(agent:session("worker:0", { keep = true }))
-- kept:close()
-- print(select(2, kept:region "kv").kind)                      --> closed
function Kept:close() self.closed = true end

function Kept:__tostring()
  return ("kept session with %s (%s)"):format(self:text(), self.closed
    and "closed" or self.current.handle and "open" or "away")
end

return M
