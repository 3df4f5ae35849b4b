-- SPDX-License-Identifier: Apache-2.0
--- Raw and inplace calls. The payload is a string, a slice, nothing, or a
-- writer: a function that fills a loan of the peer's memory and returns how
-- many bytes it filled. The reply is a Lua string, the filled part of `into`,
-- or what `reader` makes of it in place.
local again = require "perigee.call.again"
local bindings = require "perigee.call.binding"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local landings = require "perigee.call.landing"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local outcome = require "perigee.call.outcome"
local room = require "perigee.call.room"
local slices = require "perigee.memory.slice"
local tasks = require "perigee.runtime.task"
local traces = require "perigee.serving.trace"
local views = require "perigee.typed.view"

local ffi = require "ffi"
local C = native.C
local await, event = outcome.await, outcome.event
local settle, settle_by = futures.settle, futures.settle_by
local binding_of = outcome.binding
local band, bor = bit.band, bit.bor
local open, close, state = views.open, views.close, loop.state
local string, tonumber, type = ffi.string, tonumber, type
local pcall, xpcall, marked = pcall, xpcall, errors.marked
local now, started, put_trace = loop.now, again.started, traces.put
local is_slice, store_own, first = slices.is_slice, slices.store_own,
                                   slices.first
local OWNER, PROXY, ARGUMENTS = futures.OWNER, futures.PROXY, futures.ARGUMENTS
local SESSION, ENGINE, MESSAGE = bindings.SESSION, bindings.ENGINE,
                                 bindings.MESSAGE
local PLACED, LANDING, INTO = bindings.PLACED, bindings.LANDING, bindings.INTO
local HOME, ROOM, READER = bindings.HOME, bindings.ROOM, bindings.READER
local CAPACITY, REQUEST = bindings.CAPACITY, bindings.REQUEST
local TRACE = bindings.TRACE

local M = { TYPED = false }

local PEER_LOST, RANGE = C.PERIGEE_PEER_LOST, C.PERIGEE_RANGE
local CLOSED, DRAINING = C.PERIGEE_CLOSED, C.PERIGEE_DRAINING
local TYPED, HELD, ASKS = C.PERIGEE_TYPED, C.PERIGEE_HELD, C.PERIGEE_ASKS
local SMALL = 8192                      -- least default capacity
local LONG = 2 ^ 20                     -- longer strings may not fit in memory
local loan = native.loan_t()

local function misuse(method, problem, level)
  error(("%s: %s"):format(method.text, problem), level + 1)
end

local function too_many(method, level)
  misuse(method, "a raw method takes one argument, a string, a slice or a "
    .. "writer; a second one would not be sent", level + 1)
end

-- ---- Replies ---------------------------------------------------------------

-- Closes a reader's view; returns the rest of its arguments, unless the reader
-- has yielded.
local function leave(view, before, ...)
  close(view)
  state.pinned = before
  local why = state.strayed and loop.strayed "a reader"
  if why then return false, why end
  return ...
end

-- Calls a reader with a view of its reply. Returns what xpcall returns.
local function read(reader, told)
  local view = open(told.pointer, tonumber(told.length))
  local before = state.pinned
  state.pinned = "a reader"
  return leave(view, before, xpcall(reader, marked, view))
end

local function unless_raised(fine, ...)
  if fine then return ... end
  errors.raise((...))
end

local function long_text(binding, method, told, length)
  if length <= views.LONGEST then
    local fine, text = pcall(string, told.pointer, length)
    if fine then return text end
    errors.pass(text)
  end
  return nil, outcome.no_reply(binding, method, "too_large",
    ("the reply has %.0f bytes, more than there is room for in a Lua string; "
      .. "into and reader take it"):format(length))
end

local function results(binding, method, told)
  if told.status ~= 0 then
    return nil, outcome.failure(binding, method, told)
  end
  if band(told.flags, TYPED) ~= 0 then
    outcome.discard(binding, told)
    if band(told.flags, HELD) ~= 0 then outcome.release(binding, told) end
    return nil, outcome.no_reply(binding, method, "protocol",
                                 "the reply is not raw")
  end
  local reader, into = binding[READER], binding[INTO]
  if reader then return unless_raised(read(reader, told)) end
  if into then
    local filled = tonumber(told.slice)
    return filled == binding[ROOM] and into or first(into, filled)
  end
  local length = tonumber(told.length)
  if length < LONG then return string(told.pointer, length) end
  return long_text(binding, method, told, length)
end

-- ---- Payloads --------------------------------------------------------------

-- A binding's message has the same `into` in each call, as long as its owner is
-- attached to the core. Returns what is wrong with `into`, if something is.
local function store_into(binding)
  local owner = binding[HOME]
  local handle = owner and owner.handle
  if handle and handle == binding[MESSAGE].into.region then return end
  local why = store_own(binding[MESSAGE].into, binding[INTO], binding[ENGINE])
  return why and "into: " .. why
end

local function fill_into(binding, method, level)
  local why = store_into(binding)
  if why then misuse(method, why, level + 1) end
end

-- The capacity of a method's reply, 0 if it is raw. Default: that of into, else
-- the request's length, but at least SMALL.
local function capacity_of(binding, method, length)
  if not method.inplace then return 0 end
  local given, into = binding[CAPACITY], binding[INTO]
  if given then return given end
  if into then return into.length end
  return length > SMALL and length or SMALL
end

-- Returns the message, and the function that it asks for a landing, if it does.
local function prepare(binding, method, length)
  local message, asks = binding[MESSAGE], nil
  message.method, message.flags = method.id, 0
  message.slice.region = nil
  put_trace(message, binding[TRACE], binding[ENGINE])
  if binding[PLACED] then
    asks = binding[LANDING]
    if asks then
      message.flags = bor(message.flags, ASKS)
    else
      fill_into(binding, method, 4)
    end
  end
  message.capacity = capacity_of(binding, method, length)
  return message, asks
end

local function submit_bytes(binding, method, handle, bytes, length)
  local message, asks = prepare(binding, method, length)
  message.head, message.length = bytes, length
  local operation = C.perigee_call(handle, message)
  if operation < 0 then
    return nil, outcome.refused(binding, method, operation, 4)
  end
  return operation, bytes, asks
end

local function submit_slice(binding, method, handle, slice)
  local message, asks = prepare(binding, method, slice.length)
  message.head, message.length = nil, 0
  local why = store_own(message.slice, slice, binding[ENGINE])
  if why then misuse(method, why, 3) end
  local operation = C.perigee_call(handle, message)
  if operation < 0 then
    return nil, outcome.refused(binding, method, operation, 4)
  end
  return operation, slice, asks
end

-- ---- Writers ---------------------------------------------------------------

-- Calls a writer with a view of its loan. Returns what xpcall returns, and
-- whether a write did not fit into the loan.
local function write(writer, pointer, length)
  local view = views.lend(pointer, length)
  local before = state.pinned
  state.pinned = "a writer"
  local fine, n = xpcall(writer, marked, view)
  state.pinned = before
  local why = state.strayed and loop.strayed "a writer"
  if why then fine, n = false, why end
  return fine, n, views.take_back(view)
end

local function bad_count(method, n, length)
  misuse(method, ("a writer returns how many bytes it filled, an integer of 0 "
    .. "to %d, not %s"):format(length, tostring(n)), 4)
end

local function beyond(method, length)
  misuse(method, ("a writer wrote more than the %d bytes of its loan"):format(
    length), 4)
end

local function does_not_fit(binding, method, length)
  return nil, errors.new("too_large", ("%s: what its writer writes does not "
    .. "fit into the %d bytes of its loan (option request_capacity)"):format(
    outcome.doing(binding, method), length), false)
end

local function is_filled(n, length)
  return type(n) == "number" and n >= 0 and n <= length and n % 1 == 0
end

-- Gives a loan back of which nothing is sent. Returns false if more was written
-- than it has. An engine that the writer has closed takes its loans with it.
local function give_back(binding, handle)
  return not binding.engine.handle or C.perigee_call_abort(handle) ~= RANGE
end

-- Commits n bytes of a loan, which is over then, however that ends. A call that
-- has waited for room has a deadline: its timeout is what is left until then.
local function commit(handle, message, n, deadline)
  if not deadline then return C.perigee_call_commit(handle, message, n) end
  local timeout = message.timeout
  message.timeout = check.nanoseconds(loop.left(deadline))
  local operation = C.perigee_call_commit(handle, message, n)
  message.timeout = timeout
  return operation
end

local function submit_writer(binding, method, handle, writer, deadline)
  local length = binding[REQUEST] or binding[CAPACITY] or SMALL
  if binding[INTO] then fill_into(binding, method, 3) end
  if not deadline and room.crowded(binding, length) then
    return nil, errors.new("no_memory", outcome.doing(binding, method)
      .. ": calls before it wait for a block (option pool)",
      binding.sent or false)
  end
  local status = C.perigee_call_begin(handle, length, loan)
  if status < 0 then
    return nil, outcome.refused(binding, method, status, 4)
  end
  local fine, n, short = write(writer, loan.pointer, length)
  -- It may close what it is in, and `into`.
  local there = binding[SESSION].handle == handle
  local why = there and binding[INTO] and store_into(binding)
  if not there or why or not fine or short or not is_filled(n, length) then
    local whole = give_back(binding, handle)
    if errors.is_marked(n) then errors.raise(n) end
    if not whole then beyond(method, length) end
    if short then return does_not_fit(binding, method, length) end
    if not fine then errors.raise(n) end
    if not is_filled(n, length) then bad_count(method, n, length) end
    if why then misuse(method, why, 3) end
    return nil, outcome.gone(binding, method)
  end
  local message, asks = prepare(binding, method, n)
  local operation = commit(handle, message, n, deadline)
  if operation < 0 then
    if operation == RANGE then beyond(method, length) end
    return nil, outcome.refused(binding, method, operation, 4), true
  end
  return operation, writer, asks
end

-- Submits a call. Returns the operation, what must stay alive for it, and the
-- function that it asks for a landing, if any; or nil, an error, and true if
-- the writer has filled a loan already. A writer fills one loan for each
-- session. deadline is that of a call that has waited for room, else nil.
local function submit(binding, method, payload, deadline)
  local handle = binding[SESSION].handle
  if not handle then return nil, outcome.gone(binding, method) end
  local kind = type(payload)
  if kind == "function" then
    return submit_writer(binding, method, handle, payload, deadline)
  elseif kind == "string" then
    return submit_bytes(binding, method, handle, payload, #payload)
  elseif payload == nil then
    return submit_bytes(binding, method, handle, nil, 0)
  elseif is_slice(payload) then
    return submit_slice(binding, method, handle, payload)
  elseif slices.stands(payload) then
    local list, why = slices.place(payload)
    why = why or slices.beside(payload)
    if why then misuse(method, why, 3) end
    return submit_slice(binding, method, handle, list)
  end
  misuse(method, ("a raw payload is a string, a slice, a writer (a function) "
    .. "or nothing, not %s"):format(slices.named(payload)), 3)
end

-- ---- Room ------------------------------------------------------------------

-- Tells whether a failed call may wait: no block is free for its writer's loan,
-- or calls before it wait for one, and nothing else is wrong. place: where it
-- waits, nil before that; written: has its writer filled a loan?
local function waits(payload, place, operation, err, written)
  return not operation and err.kind == "no_memory" and not written
    and type(payload) == "function" and not (place and room.over(place))
end

-- Tries until the call is submitted, cannot be, or its future has ended because
-- the caller gave up.
local function submit_in_time(binding, method, payload, place, future)
  local operation, kept, written
  repeat
    local turn = room.wait(place)
    if future.ended then return nil end
    if turn then
      operation, kept, written = submit(binding, method, payload,
                                        place.deadline)
    end
  until turn and not waits(payload, place, operation, kept, written)
  return operation, kept
end

-- Runs in a task: submits an asynchronous call that had to wait for room.
local function go_on(future, self, method, payload, place)
  local binding, began = self[1], place.began
  local fine, operation, kept = xpcall(submit_in_time, marked, binding, method,
                                       payload, place, future)
  if future.ended then
    if fine and operation then
      C.perigee_cancel(binding.engine.handle, operation)
    end
    return
  end
  if not fine then return futures.raise_caught(future, operation) end
  if not operation then
    return again.go_on(future, { proxy = self, session = binding.session,
                                 began = began, trace = traces.here(),
                                 n = 1, payload },
                       method, kept)
  end
  futures.begin(future, operation, kept,
                binding.landing and M.asked(method) or M.finish(method))
  if method.idempotent then
    again.guard(future, self, payload).again.began = began
  else
    outcome.note(future)
  end
end

local function later(self, method, payload)
  local binding = self[1]
  local future = futures.new(binding, outcome.doing(binding, method))
  tasks.drive(future, go_on, self, method, payload, room.enter(binding))
  return future
end

-- ---- Calls -----------------------------------------------------------------

-- The argument that a call was sent with, of what its future keeps.
local function arguments(kept)
  return { n = 1, kept }
end

-- A proxy's functions and the finish of its futures are made for each method.
-- LuaJIT's code for three or more functions of one source line loads each value
-- that they share, and checks it, in every call. So these only call on, with
-- their method.
local function finish_of(method, future, told)
  local binding = future[OWNER]
  local status = told.status
  if (status == PEER_LOST or status == CLOSED or status == DRAINING)
    and again.resume(future, method, told, arguments) then
    return
  end
  local reader = binding[READER]
  -- Not by `results`: LuaJIT cannot compile a function with varargs that
  -- returns right to a pcall.
  if reader and status == 0 and band(told.flags, TYPED) == 0 then
    return settle_by(future, read(reader, told))
  end
  settle(future, results(binding, method, told))
end

local function finish_by(method)
  return function(future, told) return finish_of(method, future, told) end
end

M.finish = finish_by

local function free() end

-- The finish of a call that asks for a landing.
function M.asked(method)
  return landings.finish_by(method, finish_by(method), free)
end

local function call_of(method, finish, asked, self, payload)
  local binding = binding_of(self, method)
  if state.pinned then loop.check_wait(2) end
  local began, session = method.idempotent and now(), binding[SESSION]
  local operation, kept, more = submit(binding, method, payload)
  local err, place, due
  while waits(payload, place, operation, kept, more) do
    place = place or room.enter(binding)
    if room.wait(place) then
      session = binding.session
      operation, kept, more = submit(binding, method, payload, place.deadline)
    end
  end
  if not operation then
    err = kept
  elseif not more and await(binding[ENGINE], operation) then
    local status = event.status
    if status == 0 or status ~= CLOSED and status ~= DRAINING
      and (not began or status ~= PEER_LOST) then
      return results(binding, method, event)
    end
    err, due = outcome.failure(binding, method, event), outcome.deadline(event)
  else
    local future
    future, err = outcome.wait(binding, operation, kept,
                               more and asked or finish)
    if not future then return nil, err end
    err = began and futures.lost(future)
    if not err then return futures.results(future) end
  end
  local call, proxy = again.renew(self, method, err, {
    session = session, began = operation and began or place and place.began,
    due = due })
  if call then return call(proxy, payload) end
  return nil, proxy
end

--- Returns a proxy's function for a method: it calls and waits.
function M.call(method)
  local finish, asked = finish_by(method), M.asked(method)
  return function(self, payload, more, other)
    if more ~= nil or other ~= nil then too_many(method, 2) end
    return call_of(method, finish, asked, self, payload)
  end
end

local function start_of(method, finish, asked, ended, self, payload)
  local binding = binding_of(self, method)
  local operation, kept, more = submit(binding, method, payload)
  local future
  if operation and not more then
    return started(method, finish, ended, self, operation, kept, payload)
  elseif operation then
    future = started(method, asked, nil, self, operation, kept, payload)
  elseif waits(payload, nil, nil, kept, more) then
    future = later(self, method, payload)
  else
    future = again.later(self, method, kept, payload)
  end
  return ended and futures.renew(ended, future) or future
end

--- Returns the function of a proxy's async for a method: it calls, and returns
-- the future of the results.
function M.start(method)
  local finish, asked = finish_by(method), M.asked(method)
  return function(self, payload, more, other)
    if more ~= nil or other ~= nil then too_many(method, 2) end
    return start_of(method, finish, asked, nil, self, payload)
  end
end

-- ---- Prepared calls --------------------------------------------------------

--- Returns what a prepared call (prepared.lua) keeps of its arguments.
function M.arguments(method, payload, more, other)
  if more ~= nil or other ~= nil then too_many(method, 3) end
  return payload
end

-- Submits a slice once more, by a message that nobody else fills. Returns the
-- operation; or nil if more of the message has to be filled, or the call fails.
local function submit_again(binding, method, slice)
  local handle, message = binding[SESSION].handle, binding[MESSAGE]
  if not handle or slice.owner.handle ~= message.slice.region
    or binding[LANDING] then
    return nil
  end
  message.method, message.flags = method.id, 0
  message.capacity = capacity_of(binding, method, slice.length)
  put_trace(message, binding[TRACE], binding[ENGINE])
  if binding[INTO] then fill_into(binding, method, 3) end
  local operation = C.perigee_call(handle, message)
  return operation >= 0 and operation or nil
end

--- Returns the function that makes a prepared call of a method once more.
function M.post(method)
  local finish, asked = outcome.posted(finish_by(method)), M.asked(method)
  return function(ended)
    local self, payload = ended[PROXY], ended[ARGUMENTS]
    local operation = is_slice(payload)
      and submit_again(self[1], method, payload)
    if operation then
      return started(method, finish, ended, self, operation, payload, payload)
    end
    return start_of(method, finish, asked, ended, self, payload)
  end
end

return M
