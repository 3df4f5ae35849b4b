-- SPDX-License-Identifier: Apache-2.0
--- Replies whose caller says where they land when they have come (option
-- `landing` of a proxy). The core tells of such a reply (REPLY_LANDING) when
-- its length is known, and of the call's end (REPLY) as of any other. Both
-- events come to the finish of the call's future.
--
--   the call         event                      becomes
--   waits            REPLY_LANDING              decodes (if it is typed)
--   waits            REPLY                      ended: nothing came that lands
--   decodes          the values are there       asks
--   asks             the landing gives a slice  lands
--   asks             it gives nothing, raises,  cancelled
--                    or gives no usable slice
--   decodes, lands   REPLY                      ended
--   cancelled        REPLY                      ended, with what was wrong
--
-- future.asked is the call's Asked from REPLY_LANDING on.
local codec = require "perigee.typed.codec"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local outcome = require "perigee.call.outcome"
local portions = require "perigee.typed.portions"
local slices = require "perigee.memory.slice"

local C = native.C
local band, state, settle = bit.band, loop.state, futures.settle
local marked = errors.marked

local M = {}

local TYPED, HELD = C.PERIGEE_TYPED, C.PERIGEE_HELD
local CANCELLED, INVALID = C.PERIGEE_CANCELLED, C.PERIGEE_INVALID
local REPLY_LANDING = C.PERIGEE_EVENT_REPLY_LANDING
local target = native.slice_t()

-- An Asked has the fields of a job of portions.lua, and:
--   binding, method, operation, length   of the call, and of what came
--   values    of a typed reply, as codec.placed returns them
--   place     where the reply lands; keeps that memory
--   why       the error of a call that does not go on
--   raised    true if waiting for the call is to raise `what`
--   over      true after the call's end
local Asked = {}
Asked.__index = Asked

-- ---- Asking ----------------------------------------------------------------

-- Ends the call; REPLY tells its future.
function Asked:cancel()
  C.perigee_cancel(self.engine.handle, self.operation)
end

function Asked:refuse(kind, why)
  self.why = outcome.no_reply(self.binding, self.method, kind, why)
  self:cancel()
end

function Asked:raise(what)
  self.raised, self.what = true, what
  self:cancel()
end

function Asked:interrupt(raised)
  if self.engine.handle then self:refuse("closed", "it was interrupted") end
  errors.raise(raised)
end

function Asked:misuse(why)
  self:raise(("%s: its landing gave something else than what it may: %s")
    :format(self.method.text, why))
end

-- Puts the pin back; returns the rest of its arguments, unless the landing has
-- yielded.
local function leave(before, ...)
  state.pinned = before
  local why = state.strayed and loop.strayed "a landing"
  if why then return false, why end
  return ...
end

-- Calls the program's function with the results of the call, among which the
-- length stands for the slice. Returns what xpcall returns.
local function call(self)
  local landing, values = self.binding.landing, self.values
  local before = state.pinned
  state.pinned = "a landing"
  if not values then
    return leave(before, xpcall(landing, marked, self.length))
  end
  values[values.place] = self.length
  return leave(before,
               xpcall(landing, marked, unpack(values, 1, values.n)))
end

function Asked:land(given)
  local length, handle = self.length, self.engine.handle
  local place, why = slices.place(given)
  why = why or slices.store_local(target, place, self.engine)
  if why then return self:misuse(why) end
  if place.length < length then
    return self:refuse("too_large", ("the landing has %.0f bytes, what came "
      .. "%.0f"):format(place.length, length))
  end
  local status = C.perigee_land_reply(handle, self.operation, target)
  if status == INVALID then return self:misuse(native.detail(handle)) end
  if status < 0 then
    return self:refuse(errors.kind(status), native.detail(handle))
  end
  -- Not before that: the core reads the array of the List that was given.
  self.place = slices.first(place, length)
end

function Asked:ask()
  local fine, slice, reason = call(self)
  if errors.is_marked(slice) then return self:interrupt(slice) end
  if not self.engine.handle then return end -- it has closed the engine
  if not fine then return self:raise(slice) end
  if slice ~= nil then return self:land(slice) end
  return self:refuse("denied",
                     errors.shown(reason or "the landing gave nothing"))
end

-- Asks with the values of a typed reply; values is nil, and why maybe a text,
-- if they cannot be decoded.
function Asked:decoded(values, why)
  if values then
    self.values = values
    return self:ask()
  end
  return self:refuse("protocol", why and "the reply cannot be decoded: " .. why
    or "a slice came without its place")
end

function Asked:wanted() return self.engine.handle and not self.over end

function Asked:done(values, n)
  if not self:wanted() then return end
  if not values then return self:decoded(nil, n) end
  return self:decoded(codec.placed(values, n))
end

-- ---- Events ----------------------------------------------------------------

local function came(future, method, told)
  local binding = future.owner
  local engine, typed = binding.engine, band(told.flags, TYPED) ~= 0
  futures.expect(engine, told.operation, future)
  local self = setmetatable({
    engine = engine, session = told.session, served = false,
    binding = binding, method = method, operation = told.operation,
    length = tonumber(told.slice), values = false, place = false, why = false,
    raised = false, over = false,
  }, Asked)
  future.asked = self
  if typed ~= method.kind.TYPED then
    return self:refuse("protocol", typed and "the reply is not raw"
      or "the reply is not typed")
  elseif not typed then
    return self:ask()
  elseif band(told.flags, HELD) ~= 0 then
    return portions.start(told.pointer, tonumber(told.length), self)
  end
  return self:decoded(codec.unpack_slice(told.pointer, told.length))
end

local function results(self)
  local values = self.values
  if not values then return self.place end
  values[values.place] = self.place
  return unpack(values, 1, values.n)
end

-- The call has ended. Returns false if its end is that of any other call.
local function ended(future, self, told)
  local status = told.status
  self.over = true
  if status == CANCELLED and self.raised then
    futures.raise(future, self.what)
  elseif status == CANCELLED and self.why then
    settle(future, nil, self.why)
  elseif status == 0 then
    if band(told.flags, HELD) ~= 0 then outcome.release(self.binding, told) end
    settle(future, results(self))
  else
    return false
  end
  return true
end

--- Returns the finish of futures of a method's calls that ask for a landing.
-- finish: that of its other calls. free(kept): gives back what a future keeps
-- for its call; finish does so by itself.
function M.finish_by(method, finish, free)
  return function(future, told)
    if told.kind == REPLY_LANDING then return came(future, method, told) end
    local self, kept = future.asked, future.value
    future.asked = nil
    if self and ended(future, self, told) then return free(kept) end
    return finish(future, told)
  end
end

return M
