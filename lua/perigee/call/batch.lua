-- SPDX-License-Identifier: Apache-2.0
--- Batches of calls: many calls of one raw method, named once, and made
-- together any number of times. A post is one submission, and one event tells
-- that all have ended, so short calls take less time each than by
-- `perigee.prepare`. A batch is itself the future of its last post. One task at
-- a time posts it and waits for it. It needs no `close`. Before its first post
-- it has ended, with true. Made by `perigee.batch`.
-- @classmod CallBatch

-- The batch's event is DONE. A call that ends well has no event of its own. A
-- call that fails has one, REPLY, before DONE. Such a call becomes a future of
-- its own in `others`, by its number, and ends or goes on there as any other
-- call does. Calls that were refused or lost, and may go on, become futures at
-- DONE. Without a session all calls of a post become futures. The batch ends
-- when all futures in `others` have.
local again = require "perigee.call.again"
local bindings = require "perigee.call.binding"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local outcome = require "perigee.call.outcome"
local proxies = require "perigee.call.proxy"
local raw = require "perigee.call.raw"
local sampling = require "perigee.runtime.sampling"
local signals = require "perigee.runtime.signal"
local slices = require "perigee.memory.slice"
local traces = require "perigee.serving.trace"

local ffi = require "ffi"
local C = native.C
local Future, settle, start = futures.Future, futures.settle, futures.start
local first, here, now = slices.first, traces.here, loop.now
local getmetatable, tonumber, max = getmetatable, tonumber, math.max
local ENDED, OPERATION, OWNER = futures.ENDED, futures.OPERATION, futures.OWNER
local SESSION, ENGINE, TRACE = bindings.SESSION, bindings.ENGINE,
                               bindings.TRACE
local REPLY, INVALID = C.PERIGEE_EVENT_REPLY, C.PERIGEE_INVALID
local PEER_LOST, CLOSED = C.PERIGEE_PEER_LOST, C.PERIGEE_CLOSED
local CANCELLED, DRAINING = C.PERIGEE_CANCELLED, C.PERIGEE_DRAINING
-- Statuses with which a whole batch is ended.
local STOPS = { [CANCELLED] = true, [PEER_LOST] = true, [CLOSED] = true }
local MOST = 4096                       -- calls of a batch
-- The status of an answer that the core has not written, and the byte of it.
local UNWRITTEN, UNWRITTEN_BYTE = -0x7f7f7f80, 0x80

local M = {}

local CallBatch = {}
local META = futures.metatable(CallBatch, "batch of calls")
CallBatch.wait, CallBatch.done = Future.wait, Future.done

-- ---- Results ---------------------------------------------------------------

-- Makes an event that tells how call i has ended, of its answer. It has the
-- text of the batch's event if the call ended as the whole batch did.
local function event_of(self, i)
  local event, status = native.event_t(), self.answers[i - 1].status
  if status == UNWRITTEN then status = self.status end
  if status == self.status and self.why then
    event.pointer, event.length = self.why, #self.why
  end
  event.status, event.session = status, self.number
  local timeout = tonumber(self[OWNER].message.timeout)
  event.remaining = timeout < 0 and -1
    or max(0, self.began + timeout - now())
  return event
end

-- The error of call i, of which no event told: it ended with the whole batch,
-- or was refused.
local function error_of(self, i)
  local event = event_of(self, i)
  if event.status == INVALID then
    error(("%s: request or place %d is a list whose slices overlap, or are of "
      .. "different kinds of memory"):format(self.method.text, i), 0)
  end
  local err = outcome.failure(self[OWNER], self.method, event)
  if not STOPS[event.status] then err.sent = self[OWNER].sent or false end
  return err
end

-- What call i has filled; or nil and an error. Raises what it ended with, if it
-- raised.
local function result(self, i)
  local other = self.others and self.others[i]
  if other then return futures.results(other) end
  if self.answers[i - 1].status == 0 then
    return first(self.places[i], self.answers[i - 1].length)
  end
  return nil, error_of(self, i)
end

-- Returns the filled parts of all calls; or nil and the error of the first, in
-- order, that has failed.
local function parts(self)
  local list = {}
  for i = 1, self.n do
    local got, err = result(self, i)
    if got == nil then return nil, err end
    list[i] = got
  end
  return list
end

-- ---- Calls by themselves ---------------------------------------------------

local function alone(self, i)
  return self.proxy:with { into = self.places[i] }
end

-- Calls by themselves may have found the peer in another session.
local function stay(self)
  local binding = self[OWNER]
  for i = 1, self.n do
    local owner = self.others[i] and self.others[i][OWNER]
    local session = owner and owner.session
    if session and session.handle and session ~= binding.session then
      binding.session = session
      return
    end
  end
end

local function conclude(self)
  if self.others then stay(self) end
  futures.settle_by(self, pcall(parts, self))
end

local function cancel_others(self)
  for i = 1, self.n do
    if self.others[i] then self.others[i]:cancel() end
  end
end

-- Has a pending batch end when all others have.
local function await_others(self)
  local count = 0
  for i = 1, self.n do if self.others[i] then count = count + 1 end end
  self.inner = { cancel = function() cancel_others(self) end }
  local signal = signals.new(count, function() conclude(self) end)
  for i = 1, self.n do
    if self.others[i] then signals.attach(self.others[i], signal) end
  end
end

-- Returns the future that a call gave, or one that ends with what it raised.
local function future_of(fine, future)
  if fine then return future end
  local raised = futures.new()
  futures.raise(raised, future)
  return raised
end

-- Makes all calls by themselves: they wait for the peer, or fail, as others do.
local function post_alone(self)
  self.others = {}
  futures.anew(self)
  for i = 1, self.n do
    self.others[i] = future_of(pcall(self.start_call, alone(self, i),
                                     self.requests[i]))
  end
  await_others(self)
end

-- Makes the future of call i, which has failed as an event tells. It goes on,
-- or has ended.
local function fail(self, i, told)
  local proxy, request = alone(self, i), self.requests[i]
  local method, binding = self.method, proxy[1]
  local future = futures.new(binding, outcome.doing(binding, method))
  future.value = request
  if method.idempotent then
    local call = again.guard(future, proxy, request).again
    call.began, call.trace = self.began, self.caller
  elseif self.caller then
    future.trace = self.caller
  end
  self.others = self.others or {}
  self.others[i] = future
  local fine, why = pcall(self.finish_call, future, told)
  if not fine then futures.raise(future, why) end
end

-- May call i, which had no event, go on?
local function may_go_on(self, i)
  local status = self.answers[i - 1].status
  return status == DRAINING
    or (status == PEER_LOST or status == CLOSED) and self.method.idempotent
end

-- The batch has ended with a status.
local function ended_badly(self, told)
  self.status, self.number = told.status, told.session
  self.why = errors.why(told) or false
  self[OPERATION] = false
  for i = 1, self.n do
    if not (self.others and self.others[i]) and may_go_on(self, i) then
      fail(self, i, event_of(self, i))
    end
  end
  if not self.others then return conclude(self) end
  if self.cancelled then cancel_others(self) end
  await_others(self)
end
jit.off(ended_badly)

-- One of its calls has failed; DONE follows.
local function failed(self, told)
  futures.expect(self[OWNER][ENGINE], told.operation, self)
  fail(self, tonumber(told.capacity) + 1, told)
end

-- The finish of a batch.
local function finish(self, told)
  if told.kind == REPLY then return failed(self, told) end
  if told.status ~= 0 or self.others then return ended_badly(self, told) end
  local full = self.full and tonumber(told.length) == self.room
  settle(self, full and self.full or parts(self))
end

-- ---- Posting ---------------------------------------------------------------

-- Do the messages have the method's number and the handles of the slices'
-- owners as these are now? Most batches have one owner, so there is no loop for
-- that.
local function is_filled(self)
  local owners, handles, method = self.owners, self.handles, self.method
  if self.id ~= method.id or self.inplace ~= method.inplace
    or owners[1].handle ~= handles[1] then
    return false
  end
  for i = 2, #owners do
    if owners[i].handle ~= handles[i] then return false end
  end
  return true
end

local function note_owner(self, slice)
  self.owned[slice.owner] = slice.owner.handle
end

local function note_owners(self, place)
  if slices.is_slice(place) then return note_owner(self, place) end
  for i = 1, #place do note_owner(self, place[i]) end
end

local function store(self, i, what, target, place, level)
  local why = slices.store_own(target, place, self[OWNER][ENGINE])
  if why then
    error(("%s: %s %d: %s"):format(self.method.text, what, i, why), level + 1)
  end
  note_owners(self, place)
end

local function fill_one(self, i, level)
  local binding, method = self[OWNER], self.method
  local message, place = self.messages[i - 1], self.places[i]
  message.method, message.timeout = method.id, binding.message.timeout
  message.capacity = method.inplace and (binding.capacity or place.length) or 0
  store(self, i, "request", message.slice, self.requests[i], level + 1)
  store(self, i, "place", message.into, place, level + 1)
end

-- Names the method and the slices in the messages.
local function fill(self, level)
  self.id, self.owned = false, {}
  for i = 1, self.n do fill_one(self, i, level + 1) end
  local owners, handles = {}, {}
  for owner, handle in pairs(self.owned) do
    owners[#owners + 1], handles[#handles + 1] = owner, handle
  end
  self.owners, self.handles = owners, handles
  self.id, self.inplace = self.method.id, self.method.inplace
end
jit.off(note_owners)
jit.off(fill_one)
jit.off(fill)

-- Calls outside of any trace may begin one each. The sampler uses one struct
-- for all, so each is copied.
local function put_traces(self, given, engine)
  self.traces = self.traces or native.traces_t(self.n)
  for i = 0, self.n - 1 do
    local message = self.messages[i]
    message.flags = 0
    traces.put(message, given, engine)
    if message.trace ~= nil then
      self.traces[i] = message.trace[0]
      message.trace = self.traces + i
    end
  end
end
jit.off(put_traces)

-- Has the messages name the caller's trace, if there is any.
local function trace(self)
  local given, caller = self[OWNER][TRACE], here()
  self.caller = caller
  local traced = given or caller or sampling.rate or false
  if traced or self.traced then put_traces(self, given, self[OWNER][ENGINE]) end
  self.traced = traced
end

--- Makes all calls once more, in order. Its `wait`, `done` and `cancel` (as a
-- `Future`'s) are of this post until the next one. The result is a list of what
-- each call has filled of its place, in order; or nil and the error of the
-- first call, in order, that has failed. A call that fails stops no other
-- (`CallBatch:result`). Requests stay unchanged, and places are left alone,
-- until the batch has ended. To post one that is still under way is misuse.
--
-- If all places are full, the list is the same each time: do not change it.
-- @function CallBatch:post
-- @treturn CallBatch itself, as the future of these results
-- @errors those of `Proxy:method`, by the future; `no_memory` of calls for
--   which the option `operations` leaves no room
-- @waits no
-- @usage
-- local requests, places = {}, {}
-- for i = 1, 8 do
--   places[i] = region:slice(128 * i, 64)
--   requests[i] = region:slice(128 * i + 64, 64)
-- end
-- local batch = assert(perigee.batch(calc, "echo", requests, places))
-- for round = 1, 3 do
--   requests[8]:fill(round)
--   assert(batch:post():wait(5))
-- end
-- local parts = batch:wait()
-- print(#parts, parts[8].length, parts[8].pointer[0])          --> 8 64 3
function CallBatch:post()
  if getmetatable(self) ~= META then check.dotted("batch", "post", 2) end
  if not self[ENDED] then
    error("batch:post: it is still posted; wait for it first", 2)
  end
  local binding = self[OWNER]
  local handle = binding[ENGINE].handle and binding[SESSION].handle
  if handle and not is_filled(self) then fill(self, 2) end
  if handle then trace(self) end
  self.others, self.cancelled, self.began = false, false, false
  ffi.fill(self.answers, self.size, UNWRITTEN_BYTE)
  local began = now()
  local operation = handle and C.perigee_call_batch(handle, self.messages,
                                                    self.n, self.answers)
  if operation and operation >= 0 then
    self.began = began
    return start(binding, operation, true, finish, binding[ENGINE], self)
  end
  post_alone(self)
  self.began = began
  return self
end

--- Ends all calls that are under way, with `cancelled`; and with that the
-- batch, unless a call before them has failed. Does nothing if it has ended.
-- @function CallBatch:cancel
-- @waits no
-- @usage
-- local batch = assert(perigee.batch(calc, "echo", { region:slice(0, 5) },
--                                    { region:slice(64, 64) }))
-- batch:post():cancel()
-- print(batch:wait(5) == nil or batch:result(1).length)         --> true
function CallBatch:cancel()
  if getmetatable(self) ~= META then check.dotted("batch", "cancel", 2) end
  self.cancelled = true
  Future.cancel(self)
end

--- The result of one call of the last post, which has ended.
-- @function CallBatch:result
-- @tparam number i which one, from 1
-- @treturn Slice what it has filled of its place; or nil and an error
-- @errors those of `Proxy:method`
-- @waits no
-- @usage
-- local batch = assert(perigee.batch(calc, "echo", { region:slice(0, 5) },
--                                    { region:slice(64, 64) }))
-- assert(batch:post():wait(5))
-- print(batch:result(1).length)                                --> 5
function CallBatch:result(i)
  if getmetatable(self) ~= META then check.dotted("batch", "result", 2) end
  if not self[ENDED] or not self.began then
    error("batch:result: post it, and wait for it first", 2)
  end
  if type(i) ~= "number" or i % 1 ~= 0 or i < 1 or i > self.n then
    error(("batch:result takes the number of a call, 1 to %d"):format(self.n),
          2)
  end
  return result(self, i)
end

-- ---- Making one ------------------------------------------------------------

local function copied(list)
  local copy = {}
  for i = 1, #list do copy[i] = list[i] end
  return copy
end

-- Returns a slice, or a List of a list's slices, which only the batch has.
local function own_place(x)
  local place, why = slices.place(x)
  if not place or slices.is_slice(place) then return place, why end
  return slices.place(copied(place))
end

-- Returns the slices, or the Lists, of a list; the sum of their lengths; and
-- whether all are slices.
local function placed(list, what, engine, level)
  local places, room, plain = {}, 0, true
  for i = 1, #list do
    local place, why = own_place(list[i])
    local name = ("perigee.batch: number %d of %s"):format(i, what)
    if not place then error(("%s: %s"):format(name, why), level + 1) end
    slices.check_own(place, name, level + 1, engine)
    places[i], room = place, room + place.length
    plain = plain and slices.is_slice(place)
  end
  return places, room, plain
end

local function check_lists(requests, places, level)
  if type(requests) ~= "table" or type(places) ~= "table"
    or #requests ~= #places or #requests < 1 or #requests > MOST then
    error(("perigee.batch takes a list of 1 to %d slices, the requests, and a "
      .. "list of as many, the places of their replies"):format(MOST),
      level + 1)
  end
end

local function check_method(binding, method, level)
  if method.kind ~= raw then
    error(("%s is typed, and a batch is of a raw method's calls"):format(
      method.text), level + 1)
  end
  for _, name in ipairs { "into", "landing", "reader" } do
    if binding[name] then
      error(("perigee.batch names the places of replies; the proxy has an "
        .. "option %s, too"):format(name), level + 1)
    end
  end
end

--- Names many calls of one raw or inplace method, which `CallBatch:post` makes
-- together, any number of times. Call i sends `requests[i]`, with the bytes
-- that it has then, and its reply goes to `places[i]`. Each of them is a slice
-- of this engine's memory, or a list of slices. The batch keeps them. Places
-- may not overlap.
-- @function perigee.batch
-- @tparam Proxy proxy with its options; not `into`, `landing` or `reader`
-- @tparam string method the method's name
-- @tparam {Slice,...} requests 1 to 4096 of them
-- @tparam {Slice,...} places as many, one for each reply
-- @treturn CallBatch the batch, which was not posted yet; or nil and an error
-- @errors `no_method`
-- @waits no
-- @usage
-- local requests = { region:slice(0, 8), region:slice(8, 8) }
-- local places = { region:slice(64, 8), region:slice(72, 8) }
-- local batch = assert(perigee.batch(calc, "echo", requests, places))
-- print(#assert(batch:post():wait(5)))                         --> 2
function M.new(proxy, name, requests, places)
  local method, err = proxies.method(proxy, name, "perigee.batch", 2)
  if not method then return nil, err end
  local own = proxy:with {}
  local binding = own[1]
  check_lists(requests, places, 2)
  check_method(binding, method, 2)
  local room, plain
  requests = placed(requests, "requests", binding.engine, 2)
  places, room, plain = placed(places, "places", binding.engine, 2)
  local n = #places
  local self = { 1, true, false, false, binding, false,
                 proxy = own, method = method, n = n, room = room,
                 requests = requests, places = places,
                 full = plain and copied(places),
                 messages = native.messages_t(n), owners = {}, handles = {},
                 id = false, inplace = false, answers = native.answers_t(n),
                 size = n * ffi.sizeof "struct perigee_answer",
                 start_call = raw.start(method),
                 finish_call = raw.finish(method),
                 began = false, others = false, cancelled = false,
                 status = 0, number = 0, why = false,
                 caller = false, traces = false, traced = false }
  return setmetatable(self, META)
end
jit.off(M.new)

return M
