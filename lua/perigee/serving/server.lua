-- SPDX-License-Identifier: Apache-2.0
--- Serves the calls of peers. The loop's leader calls typed handlers, which may
-- park. Raw and inplace handlers run on the loop, get views and must not wait.
--
--   event       what is done
--   LANDING     the method's landing is called, then the core is told where the
--               slice goes, or the call is refused (landing.lua)
--   REQUEST     the request is decoded, the handler called, the reply sent;
--               what the handler raises is logged, too (failures.lua)
--   ABANDONED   the method's abandoned is called, once (landing.lua)
--   SENT        the data that the reply referred to is released
local codec = require "perigee.typed.codec"
local contexts = require "perigee.serving.context"
local errors = require "perigee.runtime.errors"
local landings = require "perigee.serving.landing"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local portions = require "perigee.typed.portions"
local reply = require "perigee.serving.reply"
local traces = require "perigee.serving.trace"
local views = require "perigee.typed.view"

local C = native.C
local band, tonumber, xpcall = bit.band, tonumber, xpcall
local unpack_values, unpack_slice = codec.unpack, codec.unpack_slice
local state, raw = loop.state, contexts.raw
local is_view, open, close = views.is_view, views.open, views.close
local is_error = errors.is_error
local lend, take_back = views.lend, views.take_back
local trace_of = traces.came

local TYPED, SLICE = C.PERIGEE_TYPED, C.PERIGEE_SLICE
local PROTOCOL = C.PERIGEE_PROTOCOL
local TOO_LARGE, RANGE = C.PERIGEE_TOO_LARGE, C.PERIGEE_RANGE
local CANCELLED, HELD = C.PERIGEE_CANCELLED, C.PERIGEE_HELD

local RAW, INPLACE = "a raw handler", "an inplace handler"

local caught = reply.caught
local refuse, answer = reply.refuse, reply.answer

-- ---- Typed -----------------------------------------------------------------

local function no_place(engine, served, slice)
  refuse(engine, served, PROTOCOL, "a slice came without its place")
  landings.give_up(engine, served, slice)
end

local function serve_slice(engine, event, served, method, worker)
  local values = unpack_slice(event.pointer, event.length)
  local slice = landings.slice_of(engine, event, served)
  if not values then return no_place(engine, served, slice) end
  landings.taken(engine, served, worker)
  values[values.place] = slice
  return answer(engine, served, worker,
                xpcall(method.handler, caught, unpack(values, 1, values.n)))
end

local function call(worker, ...)
  worker.decoded = true
  return worker.method.handler(...)
end

-- Runs under xpcall, as decoding can fail on errors that the scan does not find
-- (a key given twice).
local function decode_and_call(worker, pointer, length)
  return call(worker, unpack_values(pointer, length))
end

local function answer_decoded(engine, served, worker, fine, ...)
  if fine or worker.decoded or not engine.handle then
    return answer(engine, served, worker, fine, ...)
  end
  local failure = ...
  if failure.interrupt then
    return reply.failed(engine, served, worker, failure, true)
  end
  return refuse(engine, served, PROTOCOL, "the arguments cannot be decoded: "
    .. reply.failure_of(failure).message)
end

-- Refuses a large call whose arguments were not decoded. why: what is wrong
-- with them; nil if the caller gave up. The engine may have been closed, also
-- after they were decoded.
local function undecoded(engine, served, worker, why)
  if not engine.handle then
    worker.served = false
  elseif why then
    refuse(engine, served, PROTOCOL, "the arguments cannot be decoded: " .. why)
  else
    refuse(engine, served, CANCELLED, "the caller has given up")
  end
end

-- Serves a large call, which is decoded in portions while the worker is parked.
-- The event is no longer valid then.
local function serve_held(engine, event, served, method, worker)
  local slice = band(event.flags, SLICE) ~= 0
    and landings.slice_of(engine, event, served)
  local values, n = portions.decode(engine, event)
  if not values or not engine.handle then
    undecoded(engine, served, worker, n)
    if slice then landings.give_up(engine, served, slice) end
    return
  end
  C.perigee_started(engine.handle, served)
  if slice then
    values = codec.placed(values, n)
    if not values then return no_place(engine, served, slice) end
    landings.taken(engine, served, worker)
    values[values.place], n = slice, values.n
  end
  return answer(engine, served, worker,
                xpcall(method.handler, caught, unpack(values, 1, n)))
end

-- The method of a call that has none in engine.methods: a call with a slice is
-- not new to an agent that drains, which has given it a landing.
local function landed_before(engine, event)
  local methods = band(event.flags, SLICE) ~= 0 and engine.draining
  return methods and methods[event.method]
end

function loop.serve(engine, event, worker)
  local method, served = engine.methods[event.method], event.operation
  if not method or method.kind ~= "typed" then
    method = landed_before(engine, event)
    if not method then
      return reply.no_method(engine, served, "no typed method has this id")
    end
  end
  worker.method, worker.context = method, false
  worker.trace = trace_of(engine, event)
  if band(event.flags, HELD) ~= 0 then
    return serve_held(engine, event, served, method, worker)
  end
  if band(event.flags, SLICE) ~= 0 then
    return serve_slice(engine, event, served, method, worker)
  end
  worker.decoded = false
  return answer_decoded(engine, served, worker,
                        xpcall(decode_and_call, caught, worker, event.pointer,
                               tonumber(event.length)))
end

-- ---- Raw -------------------------------------------------------------------

local function pin(engine, event, served, method, what)
  state.pinned = what
  raw.engine, raw.served, raw.method = engine, served, method
  raw.session, raw.context = event.session, false
  raw.trace = trace_of(engine, event)
end

-- Returns the failure of a handler that has yielded, else nil. The trace stays,
-- for messages about the call.
local function unpin(method, what)
  state.pinned, raw.served = false, false
  local why = state.strayed and loop.strayed(what)
  return why and { message = method.text .. ": " .. why } or nil
end

local function serve_raw(engine, event, served, method)
  local request = open(event.pointer, tonumber(event.length))
  pin(engine, event, served, method, RAW)
  local fine, result, err = xpcall(method.handler, caught, request)
  local failure = unpin(method, RAW)
  if failure then fine, result = false, failure end
  local own = fine and is_view(result) and result == request
  close(request)
  if not fine then return reply.failed(engine, served, raw, result) end
  if own then
    return reply.bytes(engine, served, raw, event.pointer, event.length)
  end
  if result == nil and is_error(err) then
    return reply.returned(engine, served, raw, err)
  end
  return reply.raw(engine, served, raw, result)
end

-- ---- Inplace ---------------------------------------------------------------

local loan = native.loan_t()

local function filled(n, capacity)
  return type(n) == "number" and n >= 0 and n <= capacity and n % 1 == 0
end

local function not_filled(method, n, capacity)
  return { message = ("%s: an inplace handler returns how many bytes it "
    .. "filled, an integer of 0 to %d, not %s"):format(method.text, capacity,
                                                      errors.shown(n)) }
end

local function beyond(engine, method, capacity)
  local text = ("%s wrote more than the %d bytes of its reply; reply:write "
    .. "does not"):format(method.text, capacity)
  log.write("error", text, { engine = engine, trace = raw.trace })
  return { message = text, logged = true }
end

-- Returns xpcall's results, and whether a write did not fit into the reply.
local function run_inplace(engine, event, served, method, capacity)
  local request = open(event.pointer, tonumber(event.length))
  local room = lend(loan.pointer, capacity)
  pin(engine, event, served, method, INPLACE)
  local fine, n = xpcall(method.handler, caught, request, room)
  local failure = unpin(method, INPLACE)
  if failure then fine, n = false, failure end
  close(request)
  if fine and not filled(n, capacity) then
    return false, not_filled(method, n, capacity), take_back(room)
  end
  return fine, n, take_back(room)
end

-- Aborts the reply of a handler that failed or wrote more than fits, and
-- replies with an error.
local function undo(engine, served, method, capacity, failure, short)
  local status = C.perigee_reply_abort(engine.handle, served)
  if type(failure) == "table" and failure.interrupt then
    return reply.failed(engine, served, raw, failure)
  end
  if status == RANGE then failure = beyond(engine, method, capacity) end
  if short and status ~= RANGE then
    return reply.too_large(engine, served, raw, capacity)
  end
  return reply.failed(engine, served, raw, failure)
end

local function serve_inplace(engine, event, served, method)
  local capacity = tonumber(event.capacity)
  if capacity < method.capacity then
    return refuse(engine, served, TOO_LARGE, ("%s needs a capacity of %d bytes "
      .. "at least, and is offered %d"):format(method.text, method.capacity,
                                               capacity))
  end
  local status = C.perigee_reply_begin(engine.handle, served, event.capacity,
                                       loan)
  if status < 0 then
    return refuse(engine, served, status, native.detail(engine.handle))
  end
  local fine, n, short = run_inplace(engine, event, served, method, capacity)
  if not engine.handle then
    if not fine and type(n) == "table" and n.interrupt then
      return reply.failed(engine, served, raw, n)
    end
    return
  end
  if not fine or short then
    return undo(engine, served, method, capacity, n, short)
  end
  status = C.perigee_reply_commit(engine.handle, served, n)
  if status == RANGE then
    return reply.failed(engine, served, raw,
                        beyond(engine, method, capacity))
  end
  return reply.commit(engine, served, raw, status)
end

-- ---- Events ----------------------------------------------------------------

loop.on[C.PERIGEE_EVENT_REQUEST] = function(engine, event)
  local method, served = engine.methods[event.method], event.operation
  local kind = method and band(event.flags, TYPED) == 0 and method.kind
  if kind == "raw" then return serve_raw(engine, event, served, method) end
  if kind == "inplace" then
    return serve_inplace(engine, event, served, method)
  end
  return reply.no_method(engine, served, "no raw method has this id")
end

loop.on[C.PERIGEE_EVENT_SENT] = function(engine, event)
  local served = event.operation
  local sending = engine.replying[served]
  if not sending then return end
  engine.replying[served] = nil
  if sending.buffer then codec.release(sending.buffer) end
  local context = sending.context
  if not context then return end
  if event.status == 0 then return contexts.settle(context, true) end
  contexts.settle(context, contexts.undelivered(context, event.status))
end
