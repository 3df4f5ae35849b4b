-- SPDX-License-Identifier: Apache-2.0
--- Kept sessions: transfers and messages with an agent that go on in the next
-- session, as proxies do. Made by agent:session(peer, { keep = true }).
--
--   kept.epoch           names the life of the peer that the last session was
--                        with: a restart changes it, a broken wire does not
--   kept:region(name)    the peer's region, as session:region
--   kept:read(spec), :write(spec), :write_imm(spec, immediate),
--   kept:send(slice), :recv(slice), :recv_imm()
--                        as a session's, of the session that there is when they
--                        begin
--   kept:prepare_read(spec), :prepare_write(spec),
--   kept:prepare_write_imm(spec, immediate)
--                        as a session's; prepared anew in the next session
--                        (transfer/anew.lua)
--   kept:session(timeout)  the session that there is, or a new one
--   kept:explain(), kept:close()
--
--   the session is lost while    what becomes of it
--   an operation is under way    it ends once, in peer_lost
--   none is, and one begins      it waits for the peer `reconnect` seconds of
--                                its timeout, then ends in peer_lost, or
--                                timeout
--
-- Regions and their slices go on being good as long as they are of the same
-- memory: the peer lives (its epoch is the same) and has not closed the region.
-- Of any other life or region of that name they are `stale` from then on, and
-- nothing is read or written: look it up again by kept:region. Messages and
-- immediates of an earlier session are lost with it: what was not received is
-- not sent again.
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

local function operation(name, n)
  return function(self, ...)
    if self.closed then return futures.done(nil, self:gone()) end
    local session = self.current
    -- Tail calls: misuse is raised at the line that called us.
    if session.handle then return session[name](session, ...) end
    return later(self, name, n, ...)
  end
end

Kept.read, Kept.write = operation("read", 1), operation("write", 1)
Kept.write_imm = operation("write_imm", 1)
Kept.send, Kept.recv = operation("send", 2), operation("recv", 2)
Kept.recv_imm = operation("recv_imm", 1)

-- ---- Regions, and the rest -------------------------------------------------

--- The session that there is, or a new one within timeout seconds (default
-- 30, of which it waits `reconnect` for a peer that is away); nil and an error.
-- Blocks the task, or runs the loop.
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

--- As session:prepare_read, prepare_write and prepare_write_imm; connects again
-- if the session was lost (then it blocks the task, or runs the loop).
function Kept:prepare_read(spec)
  return prepare(self, "prepare_read", spec)
end

function Kept:prepare_write(spec)
  return prepare(self, "prepare_write", spec)
end

function Kept:prepare_write_imm(spec, immediate)
  return prepare(self, "prepare_write_imm", spec, immediate)
end

local REGION = { timeout = check.seconds }

--- As session:region; connects again if the session was lost.
function Kept:region(name, options)
  check.value(name, check.string, "a region's name")
  options = check.options(options, REGION, "region")
  loop.check_wait(2)
  local deadline = loop.deadline(options.timeout or TIMEOUT)
  local session, err = reach(self, options.timeout or TIMEOUT)
  if not session then return nil, err end
  local region, why = session:region(name, { timeout = loop.left(deadline) })
  if not region then return nil, why end
  local known = self.regions[name]
  if known and known.handle and known.identity == region.identity then
    return known
  end
  self.regions[name] = region
  return region
end

--- As session:explain, of the last session.
function Kept:explain() return self.current:explain() end

--- Ends this object, not the session, which others may use. Idempotent.
function Kept:close() self.closed = true end

function Kept:__tostring()
  return ("kept session with %s (%s)"):format(self:text(), self.closed
    and "closed" or self.current.handle and "open" or "away")
end

return M
