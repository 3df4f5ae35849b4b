-- SPDX-License-Identifier: Apache-2.0
--- Sessions: connections to one peer each. Made by `Agent:session`,
-- `Engine:connect`, `Listener:accept` and `Endpoint:connect`;
-- `perigee.session` returns the one that a proxy uses.
--
-- * `peer`: the name of the agent at the other end, if it is known
-- * `epoch`: a text that identifies the life of the peer's engine: the same in
--   each session with it, and a new one after a restart
-- * `address`: the address that was dialed, or the listener's; `from`: over
--   TCP, the peer's address
-- @classmod Session

--   state    event                           becomes
--   open     close(), its engine's close()   closed   handle false, lost set
--   open     the core's LOST                 lost     the same
--   both     the core has told all of it     freed    the core's memory is back
--
-- A session that has ended keeps its explanation, and operations on it fail
-- with the reason of its end.
local check = require "perigee.runtime.check"
local trim = require "perigee.engine.trim"
local errors = require "perigee.runtime.errors"
local explain = require "perigee.engine.explain"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local regions = require "perigee.memory.region"

local ffi = require "ffi"
local C = native.C

local M = {}

local Session = {}
Session.__index = Session
M.Session = Session
M.counters = explain.counters
M.shares = explain.shares

-- Defaults of fields that most idle sessions never set: kept here, they take no
-- memory in each of thousands of sessions. known: may a program hold the
-- session? If so, its explanation is kept at its end.
Session.peer, Session.lost, Session.ending = false, false, false
Session.link, Session.forced, Session.closed = false, false, false
Session.last, Session.known, Session.spare = false, false, false
Session.remotes, Session.proxies, Session.scratch = false, false, false
Session.term = false                    -- of the entry that it was dialled by
Session.immediates = false              -- that came before its loss, and next
Session.told = false                    -- the future that ended() gives
Session.writers = false                 -- waits for a block (call/room.lua)

--- Makes the object of the session with this id, which an event gave; nil if
-- the core has ended it already. peer: the peer's name, if known.
function M.adopt(engine, id, peer)
  local handle = C.perigee_session(engine.handle, id)
  if handle == nil then return nil end
  local address, from, pid, epoch, eager = explain.peer(handle)
  local session = setmetatable({
    engine = engine, handle = handle, id = id, accepted = false,
    address = address, from = from, pid = pid, epoch = epoch,
    eager = eager }, Session)
  if peer then session.peer = peer end
  engine.sessions[id] = session
  return session
end

-- session.epoch is a text that identifies the life of the peer's engine: it is
-- the same in each session with it, and a new one after a restart.

--- The peer's name for messages, or what else is known of it.
function Session:text()
  if self.peer then return self.peer end
  if self.accepted and self.pid then
    return ("process %d"):format(self.pid)
  end
  if self.accepted and self.from ~= "" then return self.from end
  return self.address
end

-- ---- Telling of it ---------------------------------------------------------

-- The transports that are tried, the best first.
local BEST = { "shm", "verbs", "tcp" }

-- Why no better transport carries a session: ", not shm (...)".
local function not_better(told)
  local list = {}
  for _, name in ipairs(BEST) do
    if name == told.transport then break end
    if told.considered[name] then
      list[#list + 1] = (", not %s (%s)"):format(name, told.considered[name])
    end
  end
  return table.concat(list)
end

--- Logs, if that is asked for, that a session has opened.
function M.tell_opened(session)
  if not log.wants("info", session) then return end
  local told = explain.info(session.handle)
  local from = session.accepted and session.from ~= "" and session.from
  log.note("info", session, "session %d with %s is open, %s %s: over %s%s",
    session.id, session:text(), from and "accepted from"
      or session.accepted and "accepted at" or "dialed at",
    from or session.address, told.transport, not_better(told))
end

-- ---- Connecting ------------------------------------------------------------

-- Finishes connect's future, whose value has the fields that M.connect set.
local function connected(future, event)
  local engine, asked = future.owner, future.value
  if event.status ~= 0 then
    local err = errors.ended(event.status, "connecting to " .. asked.to,
                             errors.why(event), false)
    log.note("debug", engine, "%s", err)
    return futures.settle(future, nil, err)
  end
  local session = M.adopt(engine, event.session, asked.peer)
  if not session then
    return futures.settle(future, nil, errors.new("peer_lost",
      "connecting to " .. asked.to .. ": it hung up at once", false))
  end
  session.forced = asked.forced or false
  session.known = true
  M.tell_opened(session)
  if asked.link then asked.link:arrived(session) end
  futures.settle(future, session)
end

M.connected = connected

local told = false

-- Replaces a transport that only the environment asked for and this machine
-- lacks by the choice of "auto". Warns once.
local function instead(engine)
  if not told then
    log.write("warning", native.detail(engine.handle) .. "; PERIGEE_TRANSPORT "
      .. "is ignored and shared memory or TCP used instead")
  end
  told = true
  return "auto"
end

-- The transport to use, which may be "auto", and which setting it comes from.
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

--- Connects to address; returns the future of a session. options: timeout,
-- transport, expect (the name that the other side must have), peer (its name
-- here), link (which is told when the session is made and when it ends).
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

-- Frees the core's session once all polled events are handled and the core has
-- no more to tell of it: each end, SENT and ABANDONED comes before. Returns
-- whether it is freed.
local function free(session)
  local engine, handle = session.engine, session.ending
  if not handle then return true end
  if engine.i < engine.n or C.perigee_session_settled(handle) == 0 then
    return false
  end
  session.ending = false
  engine.sessions[session.id] = nil
  C.perigee_session_free(handle)
  return true
end

local function finish(session, err)
  log.note(err.kind == "closed" and "debug" or "info", session, "%s", err)
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

--- Closes it. Pending operations end in `closed` here and in `peer_lost` at the
-- peer. Idempotent.
-- @function Session:close
-- @waits no; over TCP up to 50 ms, until the peer has been told
-- @usage
-- near:close()
-- print(select(2, near:region "any").kind)                     --> closed
function Session:close()
  local handle = self.handle
  self.closed, self.immediates = true, false
  if not handle then return end
  C.perigee_session_close(handle)
  finish(self, errors.new("closed", ("the session with %s was closed")
    :format(self:text()), false))
end

--- Returns a future that settles when the session ends, with the reason. All
-- callers get the same future; cancelling it does nothing. It settles when the
-- loop learns of the end; `Session:explain` says under `liveness` how long that
-- takes. The future has settled if the session has ended already.
-- @function Session:ended
-- @treturn Future of nil and the error that explains the end
-- @errors `closed`: it was closed on this side, by itself or with its engine;
--   `peer_lost`: the peer closed it, died, or became silent; `protocol`: it was
--   ended because the peer violated the protocol
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

--- Ends it for a reason of this side's, and not the program's: links and kept
-- sessions go on with another. The peer's operations end in peer_lost, own ones
-- in closed.
function Session:leave(kind, why)
  local handle = self.handle
  if not handle then return end
  C.perigee_session_close(handle)
  finish(self, errors.new(kind, ("the session with %s was ended: %s")
    :format(self:text(), why), false))
end

--- Ends it because the peer violated the protocol.
function Session:refuse(why) self:leave("protocol", why) end

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

--- Ends it without a call to the core, since its engine is being closed.
function Session:forget()
  if not self.handle then self.ending = false return end
  self.closed = true
  finish(self, errors.new("closed", ("the engine of the session with %s was "
    .. "closed"):format(self:text()), false))
  self.ending = false
end

-- The immediates that came before the end, for later receives: the core's
-- session is freed soon. next: the number of the first one that is left.
local function immediates_left(handle)
  local left, value = { next = 1 }, native.immediate_t()
  while C.perigee_take_imm(handle, value) == 0 do
    left[#left + 1] = tonumber(value[0])
  end
  return left[1] and left or false
end

--- Takes the next immediate that came before the session was lost; or nil.
function Session:immediate_left()
  local left = self.immediates
  if not left then return nil end
  local value = left[left.next]
  left[left.next], left.next = nil, left.next + 1
  return value
end

loop.on[C.PERIGEE_EVENT_LOST] = function(engine, event)
  local session = engine.sessions[event.session]
  if not session or not session.handle then return end
  session.immediates = immediates_left(session.handle)
  local kind = errors.kind(event.status)
  local text = errors.why(event) or errors.text(event.status)
  finish(session, errors.new(kind == "closed" and kind or "peer_lost",
    ("the session with %s is lost: %s"):format(session:text(), text), false))
  if engine.bereaved then engine.bereaved(session) end
end

--- The error of an operation after the session's end; doing names the
-- operation.
function Session:gone(doing)
  local lost = self.lost
  return errors.new(lost.kind, doing .. ": " .. lost.message, false)
end

-- ---- Regions ---------------------------------------------------------------

-- The handle that a look-up has given; or nil, and the future has ended. The
-- session may have been closed since the event was polled.
local function found(future, event)
  local session = future.owner
  if event.status == 0 and session.handle then
    return ffi.cast("struct perigee_remote *", event.pointer)
  end
  local doing = ("looking up region %q of %s"):format(future.value,
                                                      session:text())
  futures.settle(future, nil, event.status == 0 and session:gone(doing)
    or errors.ended(event.status, doing, errors.why(event)))
end

-- Makes the object of a handle. The session has it, by `key`, until it closes.
local function adopt(session, name, handle, key)
  local remote = regions.remote(session, name, handle)
  session.remotes = session.remotes or {}
  session.remotes[key or remote] = remote
  return remote
end

local function looked_up(future, event)
  local handle = found(future, event)
  if not handle then return end
  local session, name = future.owner, future.value
  local known = session.remotes and session.remotes[name]
  if known and known.handle == handle then
    C.perigee_remote_close(handle)      -- the object undoes one look-up only
  else
    if known then known:leave() end     -- the peer has closed that one
    known = adopt(session, name, handle, name)
  end
  futures.settle(future, known)
end

local function looked_up_apart(future, event)
  local handle = found(future, event)
  if not handle then return end
  futures.settle(future, adopt(future.owner, future.value, handle))
end

-- Waits for a look-up, which ends by a function.
local function look_up(session, name, timeout, finished)
  local doing = ("looking up region %q of %s"):format(name, session:text())
  if not session.handle then return nil, session:gone(doing) end
  local operation = C.perigee_lookup(session.handle, name,
    check.nanoseconds(timeout or 30))
  if operation < 0 then
    return nil, errors.from(operation, doing, session.engine.handle, false)
  end
  local future = futures.start(session, operation, name, finished)
  future.doing = doing
  return future:wait()
end

--- As region, for use inside the library: the object is the caller's alone, so
-- nobody else closes it.
function Session:region_apart(name, timeout)
  return look_up(self, name, timeout, looked_up_apart)
end

local REGION = { timeout = check.seconds }

--- Finds a region of the peer's by its name. Who asks for the same name again
-- gets the same object, until it is closed.
-- @function Session:region
-- @tparam string name the one that the peer gave to `Engine:alloc` or
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
  check.value(name, regions.check_name, "session:region's name")
  options = check.options(options, REGION, "session:region")
  loop.check_wait(2)
  return look_up(self, name, options.timeout, looked_up)
end

-- ---- Telling ---------------------------------------------------------------

--- Describes the session: which transport carries it, why others do not, which
-- identity the peer has proven, limits and counters. The result is a table of
-- plain values that prints as text; look at it first when something is slow. It
-- also works after the session's end.
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
loop.on[C.PERIGEE_EVENT_REPLY_LANDING] = futures.finish -- call/landing.lua

check.colons(Session, "session", "close ended explain region")

return M
