-- SPDX-License-Identifier: Apache-2.0
--- One-sided and two-sided operations of sessions: read, write, write_imm,
-- recv_imm, send, recv, and prepared transfers. All return futures at once. A
-- transfer names slices of one length in all; their shapes may differ. From a
-- future's end on every byte that it named is the caller's again.
local check = require "perigee.check"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local native = require "perigee.native"
local sessions = require "perigee.session"
local slices = require "perigee.slice"

local C = native.C
local Session, Future = sessions.Session, futures.Future
local store_local, store_remote = slices.store_local, slices.store_remote
local is_count, nanoseconds = check.is_count, check.nanoseconds
local start, settle, SUCCESS = futures.start, futures.settle, futures.SUCCESS
local next, type = next, type

local READ, WRITE = C.PERIGEE_OP_READ, C.PERIGEE_OP_WRITE
local WRITE_IMM, INLINE = C.PERIGEE_OP_WRITE_IMM, C.PERIGEE_INLINE
local DEFAULT = 30e9                    -- an operation's timeout
local NAMES = { [READ] = "read", [WRITE] = "write", [WRITE_IMM] = "write_imm" }

local function doing(session, what)
  return ("%s with %s"):format(what, session:text())
end

local function gone(session, what)
  return futures.done(nil, session:gone(doing(session, what)))
end

local function refused(session, what, status)
  return futures.done(nil, errors.from(status, doing(session, what),
                                       session.engine.handle, false, 4))
end

-- ---- What a transfer is made of --------------------------------------------

local function misuse(kind, problem, level)
  error(("session:%s: %s"):format(NAMES[kind], problem), level + 1)
end

local function explain_spec(spec)
  for key in next, spec do
    if key ~= "from" and key ~= "to" and key ~= "timeout" then
      return ("a transfer has from and to (and timeout), no %s"):format(
        tostring(key))
    end
  end
  return "a transfer needs from and to, two slices"
end

-- Fills item; what is wrong, or nil.
local function fill(item, session, kind, from, to)
  local why
  if kind == READ then
    why = store_remote(item.remote, from, session)
      or store_local(item["local"], to, session.engine)
  else
    why = store_local(item["local"], from, session.engine)
      or store_remote(item.remote, to, session)
  end
  if why then return why end
  if from.length ~= to.length then
    return ("from has %d bytes and to has %d"):format(from.length, to.length)
  end
end

local function fill_list(session, kind, specs, level)
  local n = #specs
  if n == 0 then misuse(kind, explain_spec(specs), level + 1) end
  local list = native.transfers_t(n)
  for i = 1, n do
    local spec = specs[i]
    local why = type(spec) ~= "table" and "a transfer is a table"
      or not (spec.from and spec.to and not spec.timeout) and explain_spec(spec)
      or fill(list[i - 1], session, kind, spec.from, spec.to)
    if why then misuse(kind, ("number %d: %s"):format(i, why), level + 1) end
  end
  for key in next, specs do
    if type(key) ~= "number" and key ~= "timeout" then
      misuse(kind, explain_spec { [key] = true }, level + 1)
    end
  end
  return list, n
end

local function time_of(options, level)
  local timeout = options.timeout
  if timeout == nil then return DEFAULT end
  check.value(timeout, check.seconds, "a transfer's timeout", level + 1)
  return nanoseconds(timeout)
end

local TIMEOUT = { timeout = check.seconds }

local function timeout_of(options, what)
  if options == nil then return DEFAULT end
  check.options(options, TIMEOUT, what, 3)
  return time_of(options, 3)
end

-- ---- One-sided -------------------------------------------------------------

local function transferred(future, event)
  local session = future.owner
  if event.status == 0 then return settle(future, true) end
  settle(future, nil, errors.ended(event.status, doing(session, "a transfer")))
end

-- The list goes into the future's value: it has to stay until the end.
local function submit(session, kind, list, n, immediate, timeout, specs)
  local operation = C.perigee_transfer(session.handle, kind, list, n, immediate,
                                       timeout)
  if operation == INLINE then return SUCCESS end
  if operation < 0 then return refused(session, NAMES[kind], operation) end
  if list == session.scratch then session.scratch = native.transfers_t(1) end
  return start(session, operation, { list, specs }, transferred)
end

local function transfer(session, kind, spec, immediate)
  if type(spec) ~= "table" then misuse(kind, explain_spec {}, 3) end
  if not session.handle then return gone(session, NAMES[kind]) end
  local from, to = spec.from, spec.to
  if not from or not to then
    local list, n = fill_list(session, kind, spec, 3)
    return submit(session, kind, list, n, immediate, time_of(spec, 3), spec)
  end
  for key in next, spec do
    if key ~= "from" and key ~= "to" and key ~= "timeout" then
      misuse(kind, explain_spec(spec), 3)
    end
  end
  local list = session.scratch
  local why = fill(list[0], session, kind, from, to)
  if why then misuse(kind, why, 3) end
  return submit(session, kind, list, 1, immediate, time_of(spec, 3), spec)
end

--- Writes own memory to the peer's: { from = slice, to = remote slice } or a
-- list of such, which is one operation. timeout in the table (seconds, default
-- 30, math.huge for none). The future of true; kinds range, denied, stale, ...
function Session:write(spec)
  local future = transfer(self, WRITE, spec, 0)
  return future
end

--- Reads the peer's memory into own: { from = remote slice, to = slice }, or a
-- list. Otherwise as session:write.
function Session:read(spec)
  local future = transfer(self, READ, spec, 0)
  return future
end

local function check_immediate(immediate, level)
  if not is_count(immediate) then
    error("an immediate is an integer of 0 to 2^53", level + 1)
  end
end

--- As session:write; after all the data is there the peer's next recv_imm gets
-- immediate, an integer of 0 to 2^53.
function Session:write_imm(spec, immediate)
  check_immediate(immediate, 2)
  local future = transfer(self, WRITE_IMM, spec, immediate)
  return future
end

-- ---- Two-sided -------------------------------------------------------------

local function ended(what, value)
  return function(future, event)
    local session = future.owner
    if event.status == 0 then return settle(future, value(event)) end
    settle(future, nil, errors.ended(event.status, doing(session, what)))
  end
end

local imm_received = ended("recv_imm",
                           function(event) return tonumber(event.immediate) end)
local received = ended("recv",
                       function(event) return tonumber(event.length) end)
local sent = ended("send", function() return true end)

local function two_sided(session, what, slice, submit_it, timeout, finish)
  if not session.handle then return gone(session, what) end
  local message = native.slice_t()
  local why = store_local(message, slice, session.engine)
  if why then error(("session:%s: %s"):format(what, why), 3) end
  local operation = submit_it(session.handle, message, timeout)
  if operation == INLINE then return SUCCESS end
  if operation < 0 then return refused(session, what, operation) end
  return start(session, operation, { message, slice }, finish)
end

local core_send, core_recv = C.perigee_send, C.perigee_recv

--- Sends a slice to the peer's next recv; waits for it. options: timeout
-- (seconds, default 30). The future of true; too_large if that was too short.
function Session:send(slice, options)
  local timeout = timeout_of(options, "session:send")
  local future = two_sided(self, "send", slice, core_send, timeout, sent)
  return future
end

--- Receives the peer's next send into slice. options: timeout (seconds, default
-- 30). The future of the length; too_large if it was longer than slice.
function Session:recv(slice, options)
  local timeout = timeout_of(options, "session:recv")
  local future = two_sided(self, "recv", slice, core_recv, timeout, received)
  return future
end

--- Receives the immediate of the peer's next write_imm. options: timeout
-- (seconds, default 30). The future of the number.
function Session:recv_imm(options)
  local timeout = timeout_of(options, "session:recv_imm")
  if not self.handle then return gone(self, "recv_imm") end
  local operation = C.perigee_recv_imm(self.handle, timeout)
  if operation < 0 then return refused(self, "recv_imm", operation) end
  return start(self, operation, false, imm_received)
end

-- ---- Prepared --------------------------------------------------------------

-- A prepared transfer is its own future: posting allocates nothing. It is not
-- freed with its last reference, but with its session or by close().
local Prepared = {}
Prepared.__index = Prepared
Prepared.wait, Prepared.done = Future.wait, Future.done
Prepared.cancel = Future.cancel

local function posted(self, event)
  if event.status == 0 then return settle(self, true) end
  settle(self, nil, errors.ended(event.status,
                                 doing(self.owner, "a prepared transfer")))
end

local function not_posted(self, status)
  if status == C.PERIGEE_AGAIN then
    error("transfer:post: it is still posted; wait for it first", 3)
  end
  settle(self, nil, errors.from(status, doing(self.owner, "posting a transfer"),
                                self.owner.engine.handle, false, 3))
  return self
end

--- Starts the transfer once more; returns itself as the future of true: its
-- wait(), done() and cancel() are of this post until the next. Posting what is
-- still under way is misuse.
function Prepared:post()
  local session = self.owner
  if not session.handle or not self.handle then
    self.ended = false
    settle(self, nil, self.handle and session:gone("posting a transfer")
      or errors.new("closed", "posting a transfer: it was closed", false))
    return self
  end
  local operation = C.perigee_post(self.handle, self.timeout)
  if operation == INLINE then
    self.value, self.ended = true, 1
    return self
  end
  if operation ~= C.PERIGEE_AGAIN then self.ended = false end
  if operation < 0 then return not_posted(self, operation) end
  self.operation = operation
  session.engine.inflight[operation] = self
  return self
end

--- Frees it; what is posted is cancelled first and freed after. Idempotent.
function Prepared:close()
  local handle, session = self.handle, self.owner
  if not handle then return end
  self:cancel()
  self.handle = false
  local function free()
    if not session.handle then return true end -- freed with its session
    if not self.ended then return false end
    C.perigee_prepared_free(handle)
    return true
  end
  if not free() then session.engine:later(free) end
end

local prepared_out = require("ffi").typeof("struct perigee_prepared *[1]")

local function prepare(session, kind, spec, immediate)
  if type(spec) ~= "table" then misuse(kind, explain_spec {}, 3) end
  local specs = spec.from and { { from = spec.from, to = spec.to } } or spec
  local timeout = time_of(spec, 3)
  if not session.handle then
    return nil, session:gone(doing(session, "preparing a transfer"))
  end
  for key in next, spec do
    if type(key) ~= "number" and key ~= "from" and key ~= "to"
      and key ~= "timeout" then
      misuse(kind, explain_spec(spec), 3)
    end
  end
  local list, n = fill_list(session, kind, specs, 3)
  local out = prepared_out()
  local status = C.perigee_prepare(session.handle, kind, list, n, immediate,
                                   out)
  if status < 0 then
    return nil, errors.from(status, doing(session, "preparing a transfer"),
                            session.engine.handle, false, 3)
  end
  return setmetatable({
    owner = session, operation = false, ended = 1, value = true,
    finish = posted, waiter = false, handle = out[0], timeout = timeout,
    specs = specs,
  }, Prepared)
end

--- Prepares a write, read or write_imm that is posted again and again: checked
-- and resolved once. The arguments are those of session:write, read, write_imm.
-- The transfer, or nil and an error; it keeps its memory alive until close() or
-- the session's end.
function Session:prepare_write(spec)
  local prepared, err = prepare(self, WRITE, spec, 0)
  return prepared, err
end

function Session:prepare_read(spec)
  local prepared, err = prepare(self, READ, spec, 0)
  return prepared, err
end

function Session:prepare_write_imm(spec, immediate)
  check_immediate(immediate, 2)
  local prepared, err = prepare(self, WRITE_IMM, spec, immediate)
  return prepared, err
end

return Prepared
