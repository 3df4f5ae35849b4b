-- SPDX-License-Identifier: Apache-2.0
--- Sessions: connections to one peer each. Made by `Agent:session`,
-- `Engine:connect`, `Listener:accept` and `Endpoint:connect`;
-- `perigee.session` tells by which one a proxy goes.
--
-- * `peer`: the name of the agent at the other end, if it is known
-- * `epoch`: a text that names the life of the peer's engine: the same in each
--   session with it, and another after a restart
-- * `address`: what was dialed, or the listener's; `from`: over TCP, where the
--   peer is
-- @classmod Session

--   state    event                           becomes
--   open     close(), its engine's close()   closed   handle false, lost set
--   open     the core's LOST                 lost     the same
--   both     no operation is left of it      freed    the core's memory is back
--
-- A session that is over keeps its explanation, and says why to whoever still
-- uses it.
local check = require "perigee.check"
local trim = require "perigee.trim"
local errors = require "perigee.errors"
local explain = require "perigee.explain"
local futures = require "perigee.future"
local log = require "perigee.log"
local loop = require "perigee.loop"
local native = require "perigee.native"
local regions = require "perigee.region"

local ffi = require "ffi"
local C = native.C

local M = {}

local Session = {}
Session.__index = Session
M.Session = Session
M.counters = explain.counters
M.shares = explain.shares

-- What most of thousands that idle never have; each has its own once it needs
-- one. known: may a program have it? Then it is asked what it was.
Session.peer, Session.lost, Session.ending = false, false, false
Session.link, Session.forced, Session.closed = false, false, false
Session.last, Session.known, Session.spare = false, false, false
Session.remotes, Session.proxies, Session.scratch = false, false, false
Session.told = false                    -- the future that ended() gives
Session.writers = false                 -- who waits for a block (call/room.lua)

--- The session object of an id that an event named; nil if it is gone already.
-- peer is its name, if known.
function M.adopt(engine, id, peer)
  local handle = C.perigee_session(engine.handle, id)
  if handle == nil then return nil end
  local address, from, pid, epoch = explain.peer(handle)
  local session = setmetatable({
    engine = engine, handle = handle, id = id, accepted = false,
    address = address, from = from, pid = pid, epoch = epoch }, Session)
  if peer then session.peer = peer end
  engine.sessions[id] = session
  return session
end

-- session.epoch is a text that names the life of the peer's engine: it is the
-- same in each session with it, and another after a restart.

--- Who the peer is, for messages.
function Session:text()
  if self.peer then return self.peer end
  if self.accepted and self.pid then
    return ("process %d"):format(self.pid)
  end
  if self.accepted and self.from ~= "" then return self.from end
  return self.address
end

-- ---- Connecting ------------------------------------------------------------

-- The value of the future tells to whom, and the peer's name if it has one.
local function connected(future, event)
  local engine, asked = future.owner, future.value
  if event.status ~= 0 then
    return futures.settle(future, nil, errors.ended(event.status,
      "connecting to " .. asked.to, errors.why(event), false))
  end
  local session = M.adopt(engine, event.session, asked.peer)
  if not session then
    return futures.settle(future, nil, errors.new("peer_lost",
      "connecting to " .. asked.to .. ": it hung up at once", false))
  end
  session.forced = asked.forced or false
  session.known = true
  if asked.link then asked.link:arrived(session) end
  futures.settle(future, session)
end

M.connected = connected

local told = false

-- A transport that only the environment asked for and this machine has not is
-- done without, and that is said once. (In its place comes what auto chooses.)
local function instead(engine)
  if not told then
    log.write("warning", native.detail(engine.handle) .. "; PERIGEE_TRANSPORT "
      .. "is ignored and shared memory or TCP used instead")
  end
  told = true
  return "auto"
end

-- Who asks for the transport, which may be "auto".
local function asker(options)
  local name = options.transport
  if name then return name, "option transport" end
  local named = os.getenv("PERIGEE_TRANSPORT")
  return named ~= "" and named or "auto", "PERIGEE_TRANSPORT"
end

local function dial(engine, address, options)
  local timeout = check.nanoseconds(options.timeout or 30)
  local name, by = asker(options)
  local operation = C.perigee_connect_to(engine.handle, address,
                                         options.expect, name, timeout)
  if operation == C.PERIGEE_UNSUPPORTED and not options.transport
    and name == "verbs" then
    name = instead(engine)
    operation = C.perigee_connect_to(engine.handle, address, options.expect,
                                     name, timeout)
  end
  return operation, name ~= "auto" and by
end

--- Dials address; the future of a session. options: timeout, transport, expect
-- (the name that the other side has to go by), peer (a name for it), link
-- (which is told of its making and its end).
function M.connect(engine, address, options)
  local to = options.peer or address
  local operation, by = dial(engine, address, options)
  if operation < 0 then
    return futures.done(nil, errors.from(operation, "connecting to " .. to,
                                         engine.handle, false))
  end
  local future = futures.start(engine, operation, {
    to = to, peer = options.peer, link = options.link, forced = by }, connected)
  future.doing = "connecting to " .. to
  return future
end

-- ---- Ending ----------------------------------------------------------------

local function in_use(session)
  for _, future in pairs(session.engine.inflight) do
    local owner = future.owner
    if owner == session or owner.session == session then return true end
  end
  return false
end
jit.off(in_use)

-- Frees the core's part once every operation has had its event.
local function free(session)
  local engine, handle = session.engine, session.ending
  if not handle then return true end
  if engine.i < engine.n or in_use(session) then return false end
  session.ending = false
  engine.sessions[session.id] = nil
  C.perigee_session_free(handle)
  return true
end

local function finish(session, err)
  if session.known then session.last = explain.session(session) end
  session.lost = err
  session.ending, session.handle = session.handle, false
  for _, remote in pairs(session.remotes or {}) do remote:ended() end
  session.remotes, session.proxies = false, false
  if session.told then futures.settle(session.told, nil, err) end
  if session.link then session.link:left(session) end
  session.engine:later(function() return free(session) end)
  trim.note(session.engine)
end
jit.off(finish)

--- Closes it. What is pending here ends in `closed`, at the peer in
-- `peer_lost`. Idempotent.
-- @function Session:close
-- @waits no; over TCP up to 50 ms, until the peer's host has the last word
-- @usage
-- near:close()
-- print(select(2, near:region "any").kind)                     --> closed
function Session:close()
  local handle = self.handle
  self.closed = true
  if not handle then return end
  C.perigee_session_close(handle)
  finish(self, errors.new("closed", ("the session with %s was closed")
    :format(self:text()), false))
end

--- Tells when the session ends, and why. All who ask get the same future; to
-- cancel it does nothing. It settles whenever the loop learns of the end, which
-- takes as long as `Session:explain` says under `liveness`; of a session that
-- has ended it has settled.
-- @function Session:ended
-- @treturn Future of nil and the error that explains the end
-- @errors `closed`: it was closed on this side, by itself or with its engine;
--   `peer_lost`: the peer closed it, died, or fell silent; `protocol`: it was
--   ended since the peer did not keep to the protocol
-- @waits no
-- @usage
-- local ended = near:ended()
-- print(ended:done())                                          --> false
-- far:close()
-- local _, err = ended:wait(5)
-- print(err.kind)                                              --> peer_lost
function Session:ended()
  if not self.told then
    self.told = futures.shared(self, ("waiting for the end of the session "
      .. "with %s"):format(self:text()))
    if self.lost then futures.settle(self.told, nil, self.lost) end
  end
  return self.told
end

--- Ends it, since the peer does not keep to the protocol: its own calls end in
-- peer_lost, those to it in closed.
function Session:refuse(why)
  local handle = self.handle
  if not handle then return end
  C.perigee_session_close(handle)
  finish(self, errors.new("protocol", ("the session with %s was ended: %s")
    :format(self:text(), why), false))
end

local refusal = native.message_t()
refusal.status = C.PERIGEE_PROTOCOL

local function end_broken(engine, id, served)
  if served then C.perigee_reply(engine.handle, served, refusal) end
  local session = engine.sessions[id]
  if session then session:refuse("what it sent could not be handled") end
end

function loop.broken(engine, id, served, failure)
  log.write("error", ("what came by session %d could not be handled, and ends "
    .. "it: %s"):format(id, failure))
  if not engine.handle then return end
  local fine, why = pcall(end_broken, engine, id, served)
  if not fine then log.write("error", "nor could that: " .. tostring(why)) end
end

--- Forgets it without the core, which is about to close it. (The engine's.)
function Session:forget()
  if not self.handle then self.ending = false return end
  self.closed = true
  finish(self, errors.new("closed", ("the engine of the session with %s was "
    .. "closed"):format(self:text()), false))
  self.ending = false
end

loop.on[C.PERIGEE_EVENT_LOST] = function(engine, event)
  local session = engine.sessions[event.session]
  if not session or not session.handle then return end
  local kind = errors.kind(event.status)
  local text = errors.why(event) or errors.text(event.status)
  finish(session, errors.new(kind == "closed" and kind or "peer_lost",
    ("the session with %s is lost: %s"):format(session:text(), text), false))
end

--- The error of using it after its end; doing says for what.
function Session:gone(doing)
  local lost = self.lost
  return errors.new(lost.kind, doing .. ": " .. lost.message, false)
end

-- ---- Regions ---------------------------------------------------------------

local function looked_up(future, event)
  local session, name = future.owner, future.value
  if event.status ~= 0 then
    return futures.settle(future, nil, errors.ended(event.status,
      ("looking up region %q of %s"):format(name, session:text()),
      errors.why(event)))
  end
  local handle = ffi.cast("struct perigee_remote *", event.pointer)
  local remotes = session.remotes or {}
  local known = remotes[name]
  if not (known and known.handle == handle) then
    known = regions.remote(session, name, handle)
    session.remotes, remotes[name] = remotes, known
  end
  futures.settle(future, known)
end

local REGION = { timeout = check.seconds }

--- Finds the peer's memory by its name.
-- @function Session:region
-- @tparam string name as the peer gave it to `Engine:alloc` or
--   `Engine:register`
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Remote the region; or nil and an error
-- @errors `not_found`: it has none of that name; `timeout`, `peer_lost`
-- @waits yes
-- @usage
-- local kv = assert(session:region("kv", { timeout = 5 }))
-- print(kv.length, kv.access)                                  --> 1048576 rw
-- print(select(2, session:region "nothing").kind)              --> not_found
function Session:region(name, options)
  check.value(name, check.string, "session:region's name")
  options = check.options(options, REGION, "session:region")
  loop.check_wait(2)
  local doing = ("looking up region %q of %s"):format(name, self:text())
  if not self.handle then return nil, self:gone(doing) end
  local operation = C.perigee_lookup(self.handle, name,
    check.nanoseconds(options.timeout or 30))
  if operation < 0 then
    return nil, errors.from(operation, doing, self.engine.handle, false)
  end
  local future = futures.start(self, operation, name, looked_up)
  future.doing = doing
  return future:wait()
end

-- ---- Telling ---------------------------------------------------------------

--- What carries the session, what does not and why, who the peer has proven to
-- be, limits and counters: a table of plain values that prints as text, the
-- first thing to look at when something is slow. Works after its end, too.
-- @function Session:explain
-- @treturn Explanation the table
-- @waits no
-- @usage
-- local told = session:explain()
-- print(told.transport, told.same_host)                        --> shm true
-- assert(tostring(told):find "carried by shm")
function Session:explain()
  return self.last or explain.session(self)
end

function Session:__tostring()
  return ("session with %s (%s)"):format(self:text(),
    self.handle and "open" or self.lost.kind)
end

local DONE = C.PERIGEE_EVENT_DONE
loop.on[DONE] = futures.finish
loop.on[C.PERIGEE_EVENT_CONNECTED] = futures.finish
loop.on[C.PERIGEE_EVENT_REPLY] = futures.finish

return M
