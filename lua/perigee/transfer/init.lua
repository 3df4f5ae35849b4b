-- SPDX-License-Identifier: Apache-2.0
--- One-sided and two-sided operations of sessions: read, write, write_imm,
-- recv_imm, send, recv. All return futures at once. The two slices of a
-- transfer have the same total length; their blocks may differ. The caller may
-- use all memory of an operation again once its future has ended.
-- Either side may be a list of slices; the peer's may be of several of its
-- regions.
local batch = require "perigee.transfer.batch"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local native = require "perigee.native"
local sessions = require "perigee.engine.session"
local slices = require "perigee.memory.slice"
local units = require "perigee.runtime.units"

local M = {}

local C = native.C
local Session = sessions.Session
local misuse, explain = batch.misuse, batch.explain
local sides, has_unknown = batch.sides, batch.has_unknown
local timeout_of, only_timeout = batch.timeout, batch.only_timeout
local store_local, is_count = slices.store_local, check.is_count
local start, settle, SUCCESS = futures.start, futures.settle, futures.SUCCESS
local OWNER, VALUE = futures.OWNER, futures.VALUE
local type = type

local READ, WRITE = C.PERIGEE_OP_READ, C.PERIGEE_OP_WRITE
local WRITE_IMM, INLINE = C.PERIGEE_OP_WRITE_IMM, C.PERIGEE_INLINE
local NAMES = batch.NAMES

local function doing(session, what)
  return ("%s with %s"):format(what, session:text())
end

local function gone(session, what)
  return futures.done(nil, session:gone(doing(session, what)))
end

local function refused(session, what, status)
  return futures.done(nil, errors.from(status, doing(session, what),
                                       session.engine.handle, false))
end

-- ---- One-sided -------------------------------------------------------------

local function transferred(future, event)
  local session, kept = future[OWNER], future[VALUE]
  if kept[3] then session.spare = kept[1] end -- a list of one is reused
  if event.status == 0 then return settle(future, true) end
  settle(future, nil, batch.ended(event, batch.doing(kept[4], kept[2], kept[3]),
                                  kept[5]))
end

-- The future's value keeps the list and its slices alive until the end. a, b:
-- from and to; or a list of such pairs.
local function submit(session, kind, list, n, immediate, timeout, a, b)
  local operation = C.perigee_transfer(session.handle, kind, list, n, immediate,
                                       timeout)
  if operation == INLINE then return SUCCESS end
  if operation < 0 then return refused(session, NAMES[kind], operation) end
  if list == session.scratch then
    session.scratch = session.spare or native.transfers_t(1)
    session.spare = false
  end
  return start(session, operation, { list, a, b or false, kind, timeout },
               transferred)
end

-- One transfer between two sides.
local function move(session, kind, from, to, immediate, timeout)
  local list = session.scratch or native.transfers_t(1)
  session.scratch = list
  local why, a, b = sides(list[0], session, kind, from, to)
  if why then
    local err = batch.stale(session, kind, from, to)
    if err then return futures.done(nil, err) end
    misuse(kind, why, 3)
  end
  return submit(session, kind, list, 1, immediate, timeout, a, b)
end

local function transfer(session, kind, spec, immediate)
  if type(spec) ~= "table" then misuse(kind, explain {}, 3) end
  if not session.handle then return gone(session, NAMES[kind]) end
  local from, to, timeout = spec.from, spec.to, timeout_of(spec, 3)
  if not from or not to then
    local list, n, kept = batch.list(session, kind, spec, 3)
    if not list then return futures.done(nil, n) end
    return submit(session, kind, list, n, immediate, timeout, kept)
  end
  if has_unknown(spec) then misuse(kind, explain(spec), 3) end
  return move(session, kind, from, to, immediate, timeout)
end

-- For use inside the library: reads as `Session:read` does, without a spec that
-- would be checked. timeout is in nanoseconds.

--- Reads from one side into another.
function M.read(session, from, to, timeout)
  if not session.handle then return gone(session, "read") end
  return move(session, READ, from, to, 0, timeout)
end

--- Reads several at once. both: a list of the first one's from and to, the
-- second one's, and so on, which has to stay as it is until the end.
function M.read_all(session, both, timeout)
  if not session.handle then return gone(session, "read") end
  local n = #both / 2
  local list = native.transfers_t(n)
  for i = 1, n do
    local why, from, to = sides(list[i - 1], session, READ, both[2 * i - 1],
                                both[2 * i])
    if why then
      local err = batch.stale(session, READ, both[2 * i - 1], both[2 * i])
      if err then return futures.done(nil, err) end
      misuse(READ, why, 2)
    end
    both[2 * i - 1], both[2 * i] = from, to
  end
  return submit(session, READ, list, n, 0, timeout, both)
end

--- Writes own memory to the peer's. Both slices have the same total length;
-- their blocks may differ. Several transfers in a list are one operation, which
-- ends as a whole. Once the future has ended, with any result, the caller may
-- use all memory of the operation again.
-- @function Session:write
-- @tparam table spec one transfer, or a list of transfers (with the timeout
--   beside them)
-- @tparam Slice spec.from own memory, or a list of slices
-- @tparam Slice spec.to the peer's, of the same length, or a list of slices, of
--   one or several regions. Pairs are made by bytes, not by numbers
-- @tparam[opt=30] number spec.timeout seconds; math.huge for none
-- @treturn Future of true
-- @errors `range`, `denied`, `stale`: the memory does not exist, is not
--   granted, or was closed. That memory was not touched; what lists name before
--   it may have been moved. `timeout`, `peer_lost`, `cancelled`
-- @waits no
-- @usage
-- region:slice(0, 5):write "12345"
-- print(session:write { from = region:slice(0, 5),
--                       to = remote:slice(100, 5) }:wait(5))   --> true
-- local batch = session:write {
--   { from = region:slice(0, 8), to = remote:slice(0, 8) },
--   { from = region:slice(8, 8), to = remote:slice(512, 8) }, timeout = 5 }
-- print(batch:wait())                                          --> true
-- print(session:write {
--   from = { region:slice(64, 4), region:slice(0, 8) },
--   to = { remote:slice(0, 6), remote:slice(64, 6) } }:wait(5)) --> true
function Session:write(spec)
  local future = transfer(self, WRITE, spec, 0)
  return future
end

--- Reads the peer's memory into own; otherwise as `Session:write`.
-- @function Session:read
-- @tparam table spec one transfer, or a list of transfers
-- @tparam Slice spec.from the peer's memory, or a list of slices
-- @tparam Slice spec.to own, of the same length, or a list of slices
-- @tparam[opt=30] number spec.timeout seconds; math.huge for none
-- @treturn Future of true
-- @errors as of `Session:write`
-- @waits no
-- @usage
-- -- Every fourth block of 64 bytes, side by side.
-- print(session:read {
--   from = remote:slice(0, 64, { count = 16, stride = 256 }),
--   to = region:slice(0, 1024) }:wait(5))                      --> true
function Session:read(spec)
  local future = transfer(self, READ, spec, 0)
  return future
end

local function check_immediate(immediate, level)
  if not is_count(immediate) then
    error("an immediate is an integer of 0 to 2^53", level + 1)
  end
end

--- Writes as `Session:write` does. The peer's next `Session:recv_imm` gets the
-- number immediate after all the data has arrived.
-- @function Session:write_imm
-- @tparam table spec as for `Session:write`
-- @tparam number immediate an integer of 0 to 2^53
-- @treturn Future of true
-- @errors as of `Session:write`
-- @waits no
-- @usage
-- local block = assert(engine:alloc(4096, { name = "block", access = "w" }))
-- local theirs = assert(near:region "block")
-- near:write_imm({ from = region:slice(0, 64), to = theirs:slice(0, 64) }, 7)
-- print(far:recv_imm():wait(5))                                --> 7
function Session:write_imm(spec, immediate)
  check_immediate(immediate, 2)
  local future = transfer(self, WRITE_IMM, spec, immediate)
  return future
end

-- ---- Two-sided -------------------------------------------------------------

-- A future's value is { timeout, the bytes of the slice, what is kept }.
local function ended(what, value)
  return function(future, event)
    local session, given = future.owner, future.value
    if event.status == 0 then return settle(future, value(event)) end
    local bytes = given[2] and " of " .. units.format_size(given[2]) or ""
    settle(future, nil, batch.ended(event, doing(session, what .. bytes),
                                    given[1]))
  end
end

local imm_received = ended("recv_imm",
                           function(event) return tonumber(event.immediate) end)
local received = ended("recv",
                       function(event) return tonumber(event.length) end)
local sent = ended("send", function() return true end)
futures.may_stay[received], futures.may_stay[imm_received] = true, true

local function two_sided(session, what, given, submit_it, timeout, finish)
  if not session.handle then return gone(session, what) end
  local message = native.slice_t()
  local slice, why = slices.place(given)
  why = why or store_local(message, slice, session.engine)
  if why then error(("session:%s: %s"):format(what, why), 3) end
  local operation = submit_it(session.handle, message, timeout)
  if operation == INLINE then return SUCCESS end
  if operation < 0 then return refused(session, what, operation) end
  return start(session, operation, { timeout, slice.length, message, slice },
               finish)
end

local core_send, core_recv = C.perigee_send, C.perigee_recv

--- Sends a slice to the peer's next `Session:recv`, and ends when the message
-- has been received. Messages match receives in order; a send waits until a
-- receive for it is posted.
-- @function Session:send
-- @tparam Slice slice own memory, or a list of slices
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Future of true
-- @errors `too_large`: the receive's slice was shorter; the receive ends in it
--   too; `timeout`, `peer_lost`, `cancelled`; `no_memory`: the peer holds too
--   many messages that it has not received
-- @waits no
-- @usage
-- local sent = near:send(region:slice(0, 10))
-- print(far:recv(region:slice(4096, 64)):wait(5))              --> 10
-- print(sent:wait(5))                                          --> true
function Session:send(slice, options)
  local timeout = only_timeout(options, "session:send")
  local future = two_sided(self, "send", slice, core_send, timeout, sent)
  return future
end

--- Receives the peer's next `Session:send`. If the peer gives a message up that
-- is on its way, the receive is for the next one, as before.
-- @function Session:recv
-- @tparam Slice slice own memory, or a list of slices, as long as the message
--   or longer
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Future of the message's length
-- @errors `too_large`: the message was longer; `cancelled`: also if the peer
--   gave its message up, and a later receive has had the next one already;
--   `timeout`, `peer_lost`
-- @waits no
-- @usage
-- local received = far:recv(region:slice(0, 4))
-- near:send(region:slice(64, 8))
-- print(select(2, received:wait(5)).kind)                      --> too_large
function Session:recv(slice, options)
  local timeout = only_timeout(options, "session:recv")
  local future = two_sided(self, "recv", slice, core_recv, timeout, received)
  return future
end

--- Receives the immediate of the peer's next `Session:write_imm`, after its
-- data has arrived. What arrived before the session was lost can be received
-- after that, until `Session:close`.
-- @function Session:recv_imm
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Future of the number
-- @errors `timeout`, `peer_lost`, `cancelled`
-- @waits no
-- @usage
-- local future = far:recv_imm { timeout = 0.01 }               -- none comes
-- print(select(2, future:wait()).kind)                         --> timeout
function Session:recv_imm(options)
  local timeout = only_timeout(options, "session:recv_imm")
  if not self.handle then
    local value = self:immediate_left()
    if value then return futures.done(value) end
    return gone(self, "recv_imm")
  end
  local operation = C.perigee_recv_imm(self.handle, timeout)
  if operation < 0 then return refused(self, "recv_imm", operation) end
  return start(self, operation, { timeout, false }, imm_received)
end

check.colons(Session, "session", "read recv recv_imm send write write_imm")

return M
