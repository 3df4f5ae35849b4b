-- SPDX-License-Identifier: Apache-2.0
--- Typed calls. A proxy's function encodes the arguments into a buffer of the
-- codec, which is kept until the call has ended, because the core may refer to
-- it.
local again = require "perigee.call.again"
local bindings = require "perigee.call.binding"
local codec = require "perigee.typed.codec"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local landings = require "perigee.call.landing"
local large = require "perigee.call.large"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local outcome = require "perigee.call.outcome"
local regions = require "perigee.memory.region"
local slices = require "perigee.memory.slice"
local traces = require "perigee.serving.trace"

local C = native.C
local band, bor, tonumber, type = bit.band, bit.bor, tonumber, type
local acquire, release, pack = codec.acquire, codec.release, codec.pack
local unpack_values, unpack_slice = codec.unpack, codec.unpack_slice
local await, event, settle = outcome.await, outcome.event, futures.settle
local binding_of = outcome.binding
local store_local, state = slices.store_local, loop.state
local now, started, put_trace = loop.now, again.started, traces.put
local OWNER, VALUE = futures.OWNER, futures.VALUE
local PROXY, ARGUMENTS = futures.PROXY, futures.ARGUMENTS
local SESSION, ENGINE, MESSAGE = bindings.SESSION, bindings.ENGINE,
                                 bindings.MESSAGE
local BYTES, PLACED, TRACE = bindings.BYTES, bindings.PLACED, bindings.TRACE
local INTO = bindings.INTO

local M = { TYPED = true }

local TYPED, SLICE, HELD = C.PERIGEE_TYPED, C.PERIGEE_SLICE, C.PERIGEE_HELD
local ENCODED = TYPED + C.PERIGEE_CHECKED -- by codec.lua
local ASKS = C.PERIGEE_ASKS
local POOLED, PEER_LOST = C.PERIGEE_POOLED, C.PERIGEE_PEER_LOST
local CLOSED, DRAINING = C.PERIGEE_CLOSED, C.PERIGEE_DRAINING

-- Is a future being ended? Then the interrupt of the decoding is kept, and is
-- raised again once it has ended.
local ending, interrupt = false, false

local function decoded(binding, method, fine, ...)
  if fine then return ... end
  if not ending then errors.pass((...)) end
  if errors.is_interrupt((...)) then
    interrupt = (...)
    return nil, outcome.no_reply(binding, method, "closed",
                                 "it was interrupted")
  end
  return nil, outcome.no_reply(binding, method, "protocol",
    "the reply cannot be decoded: " .. errors.shown((...)))
end

-- Returns the results of a reply that has a slice; values are as codec.placed
-- returns them, or nil.
local function with_slice(binding, method, told, values)
  if not values then
    outcome.discard(binding, told)
    return decoded(binding, method, false, "a slice came without its place")
  end
  if binding.into then
    values[values.place] = slices.first(binding.into, told.slice)
  else
    local at = band(told.flags, POOLED) ~= 0 and told.landed or nil
    values[values.place] = regions.pooled(binding.engine, at,
                                          tonumber(told.slice))
  end
  return unpack(values, 1, values.n)
end

local function results(binding, method, told)
  if told.status ~= 0 then
    return nil, outcome.failure(binding, method, told)
  end
  if band(told.flags, TYPED) == 0 then -- the core has not scanned it
    return decoded(binding, method, false, "it is not typed")
  end
  if band(told.flags, SLICE) ~= 0 then
    return with_slice(binding, method, told,
                      unpack_slice(told.pointer, told.length))
  end
  return decoded(binding, method,
                 pcall(unpack_values, told.pointer, tonumber(told.length)))
end

-- Does the same for a large reply.
local function large_results(binding, method, told, values, n)
  if band(told.flags, SLICE) ~= 0 then
    return with_slice(binding, method, told, values and codec.placed(values, n))
  end
  if not values then return decoded(binding, method, false, n) end
  return unpack(values, 1, n)
end

local function counted(...) return { n = select("#", ...), ... } end

local function misuse(method, problem, level)
  error(("%s: %s"):format(method.text, problem), level + 1)
end

-- Fills in the binding's message, except for the slice among the arguments.
-- Returns the buffer and that slice. The call before may have been a raw one,
-- which has left its own slice and capacity there.
local function fill(binding, method, ...)
  local out = acquire()
  local why, extra = pack(out, ...)
  if why then
    release(out)
    misuse(method, ("argument %d is %s"):format(extra, why), 4)
  end
  local message = binding[MESSAGE]
  message.method, message.flags = method.id, ENCODED
  message.head, message.length = out:ref()
  message.slice.region, message.capacity = nil, 0
  put_trace(message, binding[TRACE], binding[ENGINE])
  return out, extra
end

-- Fills in the slices of the binding's message. slice: the one among the
-- arguments, a list of slices or nil. Returns it as what the core gets, which
-- has to be kept.
local function fill_slices(binding, method, slice, level)
  local message, engine, why = binding.message, binding.engine, nil
  if slice then
    slice, why = slices.place(slice)
    why = why or store_local(message.slice, slice, engine)
  end
  if binding.into then
    why = why or store_local(message.into, binding.into, engine)
  elseif binding.landing then
    message.flags = bor(message.flags, ASKS)
  end
  if why then misuse(method, why, level + 1) end
  return slice
end

-- Submits a call. Returns its operation, its buffer, the slice among its
-- arguments, and the function that it asks for a landing, if any; or nil and an
-- error.
local function submit(binding, method, ...)
  local handle, asks = binding[SESSION].handle, nil
  if binding[BYTES] then
    misuse(method, ("it is typed, and option %s of with is for raw and inplace "
      .. "methods"):format(binding[BYTES]), 3)
  end
  if not handle then return nil, outcome.gone(binding, method) end
  local out, slice = fill(binding, method, ...)
  if slice or binding[PLACED] then
    slice, asks = fill_slices(binding, method, slice, 3), binding.landing
  end
  local operation = C.perigee_call(handle, binding[MESSAGE])
  if operation < 0 then
    release(out)
    return nil, outcome.refused(binding, method, operation, 4)
  end
  return operation, out, slice, asks
end

-- Returns what a future keeps for its call: the buffer, in a table with a slice
-- among its arguments and `into` if there is one of these.
local function keep(binding, out, slice)
  local into = binding[INTO]
  return (slice or into) and { out, slice, into } or out
end

local function buffer_of(kept)
  return type(kept) == "table" and kept[1] or kept
end

local function free(kept) release(buffer_of(kept)) end

-- The arguments that a call was sent with, of what its future keeps.
local function arguments(kept)
  local out = buffer_of(kept)
  local pointer, length = out:ref()
  if kept == out or not kept[2] then
    return counted(unpack_values(pointer, length))
  end
  local values = unpack_slice(pointer, length)
  values[values.place] = kept[2]
  return values
end

-- The function that is made for each method only calls on, as in raw.lua.
local function finish_of(method, future, told)
  local binding, kept = future[OWNER], future[VALUE]
  local status = told.status
  if (status == PEER_LOST or status == CLOSED or status == DRAINING)
    and again.resume(future, method, told, arguments) then
    return free(kept)
  end
  free(kept)
  if band(told.flags, HELD) ~= 0 then
    return large.start(future, method, told, large_results)
  end
  ending = true
  settle(future, results(binding, method, told))
  ending = false
  if interrupt then
    local raised = interrupt
    interrupt = false
    errors.pass(raised)
  end
end

local function finish_by(method)
  return function(future, told) return finish_of(method, future, told) end
end

--- Returns a proxy's function for a method: it calls and waits.
function M.call(method)
  local finish = finish_by(method)
  local asked = landings.finish_by(method, finish, free)
  return function(self, ...)
    local binding = binding_of(self, method)
    if state.pinned then loop.check_wait(2) end
    local began, session = method.idempotent and now(), binding[SESSION]
    local operation, out, slice, asks = submit(binding, method, ...)
    local err, due
    if not operation then
      err = out
    elseif not asks and await(binding[ENGINE], operation) then
      release(out)
      if band(event.flags, HELD) ~= 0 then
        return large.wait(binding, method, event, large_results)
      end
      local status = event.status
      if status == 0 or status ~= CLOSED and status ~= DRAINING
        and (not began or status ~= PEER_LOST) then
        return results(binding, method, event)
      end
      err, due = outcome.failure(binding, method, event),
                 outcome.deadline(event)
    else
      local future
      future, err = outcome.wait(binding, operation, keep(binding, out, slice),
                                 asks and asked or finish)
      if not future then return nil, err end
      err = began and futures.lost(future)
      if not err then return futures.results(future) end
    end
    local call, proxy = again.renew(self, method, err, {
      session = session, began = operation and began, due = due })
    if call then return call(proxy, ...) end
    return nil, proxy
  end
end

local function start_of(method, finish, asked, ended, self, ...)
  local binding = binding_of(self, method)
  local operation, out, slice, asks = submit(binding, method, ...)
  local future
  if operation and not asks then
    return started(method, finish, ended, self, operation,
                   keep(binding, out, slice), ...)
  elseif operation then
    future = started(method, asked, nil, self, operation,
                     keep(binding, out, slice), ...)
  else
    future = again.later(self, method, out, ...)
  end
  return ended and futures.renew(ended, future) or future
end

--- Returns the function of a proxy's async for a method: it calls, and returns
-- the future of the results.
function M.start(method)
  local finish = finish_by(method)
  local asked = landings.finish_by(method, finish, free)
  return function(self, ...)
    return start_of(method, finish, asked, nil, self, ...)
  end
end

--- Returns what a prepared call (prepared.lua) keeps of its arguments.
function M.arguments(_, ...) return counted(...) end

-- Makes a prepared call once more. LuaJIT does not compile unpack, so it is for
-- many arguments alone.
local function post_of(method, posted, asked, ended)
  local self, list = ended[PROXY], ended[ARGUMENTS]
  local n = list.n
  if n == 0 then
    return start_of(method, posted, asked, ended, self)
  elseif n == 1 then
    return start_of(method, posted, asked, ended, self, list[1])
  elseif n == 2 then
    return start_of(method, posted, asked, ended, self, list[1], list[2])
  elseif n == 3 then
    return start_of(method, posted, asked, ended, self, list[1], list[2],
                    list[3])
  end
  return start_of(method, posted, asked, ended, self, unpack(list, 1, n))
end

--- Returns the function that makes a prepared call of a method once more.
function M.post(method)
  local finish = finish_by(method)
  local asked = landings.finish_by(method, finish, free)
  local posted = outcome.posted(finish)
  return function(ended) return post_of(method, posted, asked, ended) end
end

return M
