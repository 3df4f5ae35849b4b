-- SPDX-License-Identifier: Apache-2.0
--- Serving: what is done with the calls that peers make, for engines that have
-- methods. Typed handlers are called by the loop's leader and may park; raw and
-- inplace ones run on the loop, on views.
--
--   event       what is done
--   LANDING     the method's landing is asked; the core told, or the call
--               refused (landing.lua)
--   REQUEST     decoded, the handler called, the reply committed
--   ABANDONED   the method's abandoned is called, once (landing.lua)
--   SENT        what the reply referred to is let go
--
-- An inplace reply that finds no room in the peer's memory is made in memory of
-- our own, and waits in the core as any other reply.
local codec = require "perigee.codec"
local contexts = require "perigee.context"
local landings = require "perigee.landing"
local loop = require "perigee.loop"
local native = require "perigee.native"
local reply = require "perigee.reply"
local views = require "perigee.view"

local C = native.C
local band, tonumber, xpcall = bit.band, tonumber, xpcall
local unpack_values, unpack_slice = codec.unpack, codec.unpack_slice
local state, raw = loop.state, contexts.raw
local is_view, open, close = views.is_view, views.open, views.close

local TYPED, SLICE = C.PERIGEE_TYPED, C.PERIGEE_SLICE
local NO_METHOD, PROTOCOL = C.PERIGEE_NO_METHOD, C.PERIGEE_PROTOCOL
local NO_MEMORY, AGAIN = C.PERIGEE_NO_MEMORY, C.PERIGEE_AGAIN
local SCRATCH = 2 ^ 28                  -- at most, for replies without room

local caught = reply.caught
local refuse, answer = reply.refuse, reply.answer

-- ---- Typed -----------------------------------------------------------------

local function serve_slice(engine, event, served, method, worker)
  local values = unpack_slice(event.pointer, event.length)
  local slice = landings.take(engine, event, served)
  if not values then
    landings.give_up(slice)
    return refuse(engine, served, PROTOCOL, "a slice came without its place")
  end
  values[values.place] = slice
  return answer(engine, served, worker,
                xpcall(method.handler, caught, unpack(values, 1, values.n)))
end

-- Under xpcall, as decoding can fail on what no scan sees (a key given twice).
local function decode_and_call(handler, pointer, length)
  return handler(unpack_values(pointer, length))
end

function loop.serve(engine, event, worker)
  local method, served = engine.methods[event.method], event.operation
  if not method or method.kind ~= "typed" then
    return refuse(engine, served, NO_METHOD, "no typed method has this id")
  end
  worker.engine, worker.served, worker.method = engine, served, method
  worker.session, worker.context = event.session, false
  if band(event.flags, SLICE) ~= 0 then
    return serve_slice(engine, event, served, method, worker)
  end
  return answer(engine, served, worker,
                xpcall(decode_and_call, caught, method.handler,
                       event.pointer, tonumber(event.length)))
end

-- ---- Raw -------------------------------------------------------------------

local function pin(engine, event, served, method, what)
  state.pinned = what
  raw.engine, raw.served, raw.method = engine, served, method
  raw.session, raw.context = event.session, false
end

local function unpin()
  state.pinned, raw.served = false, false
end

local function serve_raw(engine, event, served, method)
  local request = open(event.pointer, tonumber(event.length))
  pin(engine, event, served, method, "a raw handler")
  local fine, result = xpcall(method.handler, caught, request)
  unpin()
  local own = fine and is_view(result) and result == request
  close(request)
  if not fine then return reply.failed(engine, served, raw, result) end
  if own then
    return reply.bytes(engine, served, raw, event.pointer, event.length)
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
                                                      tostring(n)) }
end

local function run_inplace(engine, event, served, method, to, capacity)
  local request = open(event.pointer, tonumber(event.length))
  local room = open(to, capacity)
  pin(engine, event, served, method, "an inplace handler")
  local fine, n = xpcall(method.handler, caught, request, room)
  unpin()
  close(request)
  close(room)
  if fine and not filled(n, capacity) then
    return false, not_filled(method, n, capacity)
  end
  return fine, n
end

-- Without room at the peer: into memory of our own, as a plain reply.
local function serve_scratch(engine, event, served, method, capacity)
  if engine.scratch + capacity > SCRATCH then
    return refuse(engine, served, NO_MEMORY, "too many replies wait already")
  end
  local bytes = native.bytes_t(capacity)
  local fine, n = run_inplace(engine, event, served, method, bytes, capacity)
  if not engine.handle then return end
  if not fine then return reply.failed(engine, served, raw, n) end
  return reply.scratch(engine, served, raw, bytes, n, capacity)
end

local function serve_inplace(engine, event, served, method)
  local capacity = tonumber(event.capacity)
  local status = C.perigee_reply_begin(engine.handle, served, capacity, loan)
  if status == AGAIN then
    return serve_scratch(engine, event, served, method, capacity)
  elseif status < 0 then
    return refuse(engine, served, status, native.detail(engine.handle))
  end
  local fine, n = run_inplace(engine, event, served, method, loan.pointer,
                              capacity)
  if not engine.handle then return end
  if not fine then
    C.perigee_reply_abort(engine.handle, served)
    return reply.failed(engine, served, raw, n)
  end
  return reply.commit(engine, served, raw,
                      C.perigee_reply_commit(engine.handle, served, n))
end

-- ---- Events ----------------------------------------------------------------

local serve = { raw = serve_raw, inplace = serve_inplace }

loop.on[C.PERIGEE_EVENT_REQUEST] = function(engine, event)
  local method, served = engine.methods[event.method], event.operation
  local run = method and serve[method.kind]
  if not run or band(event.flags, TYPED) ~= 0 then
    return refuse(engine, served, NO_METHOD, "no raw method has this id")
  end
  return run(engine, event, served, method)
end

loop.on[C.PERIGEE_EVENT_SENT] = function(engine, event)
  local served = event.operation
  local sending = engine.replying[served]
  if not sending then return end
  engine.replying[served] = nil
  if sending.scratch then engine.scratch = engine.scratch - sending.scratch end
  if sending.buffer then codec.release(sending.buffer) end
  local context = sending.context
  if not context then return end
  if event.status == 0 then return contexts.settle(context, true) end
  contexts.settle(context, contexts.undelivered(context, event.status))
end
