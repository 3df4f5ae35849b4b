-- SPDX-License-Identifier: Apache-2.0
--- Landings: where the slice of a typed call is stored, a slice or a list of
-- slices. engine.landed maps the served call's number to its landing until the
-- handler takes the slice.
local codec = require "perigee.typed.codec"
local contexts = require "perigee.serving.context"
local errors = require "perigee.runtime.errors"
local failures = require "perigee.serving.failures"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local portions = require "perigee.typed.portions"
local regions = require "perigee.memory.region"
local reply = require "perigee.serving.reply"
local slices = require "perigee.memory.slice"
local traces = require "perigee.serving.trace"

local C = native.C
local band = bit.band
local state, raw = loop.state, contexts.raw

local M = {}

local POOLED, TYPED, HELD = C.PERIGEE_POOLED, C.PERIGEE_TYPED, C.PERIGEE_HELD
local TOO_LARGE, DENIED = C.PERIGEE_TOO_LARGE, C.PERIGEE_DENIED
local CANCELLED, INVALID = C.PERIGEE_CANCELLED, C.PERIGEE_INVALID
local target = native.slice_t()

local Landing = {}
Landing.__index = Landing

--- Tells the method that its handler will never run; called at most once.
-- status: how the call ended, for the context that the landing has asked for,
-- unless that has ended already.
function Landing:abandon(status)
  if status then contexts.lost(self.context, status) end
  local abandoned, values = self.method.abandoned, self.values
  if not abandoned then return end
  values[values.place] = self.slice
  state.pinned, contexts.apart = "an abandoned function", true
  local fine, failure = xpcall(abandoned, reply.caught,
                               unpack(values, 1, values.n))
  state.pinned, contexts.apart = false, false
  if not fine then
    failures.note(self.method, reply.failure_of(failure), "'s abandoned", self)
  end
end

local function pooled(engine, served)
  target.region = nil
  local status = C.perigee_land(engine.handle, served, target)
  if status < 0 then
    reply.refuse(engine, served, status, native.detail(engine.handle))
  end
end

-- Calls the method's landing function. Returns whether it succeeded (false: it
-- raised), then the slice it returned, or nil and the reason for refusing.
local function ask(engine, event, method, values)
  values[values.place] = tonumber(event.slice)
  state.pinned = "a landing"
  raw.engine, raw.served, raw.method = engine, event.operation, method
  raw.session, raw.context, raw.place = event.session, false, values.place
  raw.trace = traces.came(engine, event)
  local fine, slice, reason = xpcall(method.landing, reply.caught,
                                     unpack(values, 1, values.n))
  state.pinned, raw.served = false, false
  local why = state.strayed and loop.strayed "a landing"
  if why then return false, { message = method.text .. ": " .. why } end
  return fine, slice, reason
end

local function mistaken(engine, served, method, why)
  reply.failed(engine, served, raw, { message = method.text
    .. ": its landing gave something else than what it may: " .. why }, true)
end

local function land(engine, served, method, values, given, length)
  local slice, why = slices.place(given)
  why = why or slices.store_local(target, slice, engine)
  if why then return mistaken(engine, served, method, why) end
  local landing = setmetatable({ engine = engine, method = method,
                                 values = values, slice = slice,
                                 trace = raw.trace, context = raw.context },
                               Landing)
  if slice.length < length then
    reply.refuse(engine, served, TOO_LARGE,
      ("the landing has %d bytes, the slice %d"):format(slice.length, length),
      landing.context)
    return landing:abandon()
  end
  engine.landed[served] = landing
  local status = C.perigee_land(engine.handle, served, target)
  -- Not before that: the core reads the array of the List that was given.
  landing.slice = slices.first(slice, length)
  if status >= 0 then return end
  engine.landed[served] = nil
  -- The peer may have gone meanwhile, if a thread moves the session on. Then
  -- the landing has done nothing wrong.
  if C.perigee_served_cancelled(engine.handle, served) then
    reply.refuse(engine, served, CANCELLED, "the caller has given up",
                 landing.context)
  elseif status == INVALID then
    mistaken(engine, served, method, native.detail(engine.handle))
  else
    reply.refuse(engine, served, status, native.detail(engine.handle),
                 landing.context)
  end
  landing:abandon()
end

-- Abandons what a landing gave that has closed its engine.
local function came_too_late(method, values, slice)
  slice = slices.place(slice)
  if not slice then return end
  setmetatable({ method = method, values = values, slice = slice }, Landing)
    :abandon()
end

-- Asks the method where the slice goes, once the call's arguments are decoded.
-- values: as codec.placed returns them; nil if no argument stands for a slice.
local function arrive(engine, event, method, values)
  local served = event.operation
  if not values then
    return reply.refuse(engine, served, C.PERIGEE_PROTOCOL,
                        "a slice came without its place")
  end
  local fine, slice, reason = ask(engine, event, method, values)
  if not engine.handle and (fine or not slice.interrupt) then
    return fine and came_too_late(method, values, slice)
  end
  if not fine then return reply.failed(engine, served, raw, slice, true) end
  if slice == nil and errors.is_error(reason) and errors.code(reason) then
    return reply.returned(engine, served, raw, reason, true)
  elseif slice == nil then
    return reply.refuse(engine, served, DENIED,
                        errors.shown(reason or "the landing gave nothing"),
                        raw.context)
  end
  return land(engine, served, method, values, slice, tonumber(event.slice))
end

-- A call whose large arguments are still being decoded in portions. Meanwhile
-- it takes the landing's place in engine.landed, and serves as the event.
local Coming = {}
Coming.__index = Coming

function Coming:abandon() self.gone = true end

function Coming:wanted()
  local handle = self.engine.handle
  return handle and not self.gone
    and not C.perigee_served_cancelled(handle, self.served)
end

function Coming:done(values, n)
  local engine, served = self.engine, self.served
  if self.gone or not engine.handle then return end
  engine.landed[served] = nil
  if not values and not n then
    return reply.refuse(engine, served, C.PERIGEE_CANCELLED,
                        "the caller has given up")
  end
  return arrive(engine, self, self.method,
                values and codec.placed(values, n))
end

local function decode(engine, event, method)
  local coming = setmetatable({
    engine = engine, session = event.session, served = event.operation,
    operation = event.operation, slice = event.slice, method = method,
    flags = event.flags,
    gone = false }, Coming)
  engine.landed[event.operation] = coming
  portions.start(event.pointer, tonumber(event.length), coming)
end

loop.on[C.PERIGEE_EVENT_LANDING] = function(engine, event)
  local method, served = engine.methods[event.method], event.operation
  if not method or method.kind ~= "typed" then
    return reply.no_method(engine, served, "no typed method has this id")
  end
  if not method.landing then return pooled(engine, served) end
  if band(event.flags, HELD) ~= 0 then return decode(engine, event, method) end
  return arrive(engine, event, method, band(event.flags, TYPED) ~= 0
    and codec.unpack_slice(event.pointer, event.length)) -- scanned if TYPED
end

loop.on[C.PERIGEE_EVENT_ABANDONED] = function(engine, event)
  local landing = engine.landed[event.operation]
  engine.landed[event.operation] = nil
  if landing then landing:abandon(CANCELLED) end
end

--- The slice of a REQUEST that came with one: the landing's, which stays in
-- engine.landed until the handler is about to run, or a pooled one.
function M.slice_of(engine, event, served)
  local landing = engine.landed[served]
  if landing then return landing.slice end
  local pointer = band(event.flags, POOLED) ~= 0 and event.landed or nil
  return regions.pooled(engine, pointer, tonumber(event.slice))
end

--- The handler of the call is about to run, by this worker, and has the slice
-- from now on.
function M.taken(engine, served, worker)
  local landing = engine.landed[served]
  if not landing then return end
  engine.landed[served] = nil
  local context = landing.context
  worker.context = context
  if context then context.worker = worker end
end

--- Gives up a slice that no handler will get.
function M.give_up(engine, served, slice)
  local landing = engine.landed[served]
  if not landing then return slice:close() end
  engine.landed[served] = nil
  landing:abandon(CANCELLED)
end

return M
