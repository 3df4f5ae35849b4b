-- SPDX-License-Identifier: Apache-2.0
--- Batches of calls: many calls of one raw method, named once, and made
-- together any number of times. A post is one submission, and all ends come by
-- one event, so short calls take less time each than by `perigee.prepare`. A
-- batch is itself the future of its last post. One task at a time posts it and
-- waits for it. It needs no `close`. Before its first post it has ended, with
-- true. Made by `perigee.batch`.
-- @classmod CallBatch

-- Calls that fail, and all of a post that cannot be submitted (its peer is
-- away), become futures of their own, which go on as other calls do: `others`,
-- by their number. The batch ends when all of them have.
local again = require "perigee.call.again"
local bindings = require "perigee.call.binding"
local check = require "perigee.runtime.check"
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
local tonumber, max = tonumber, math.max
local ENDED, OWNER = futures.ENDED, futures.OWNER
local SESSION, ENGINE, TRACE = bindings.SESSION, bindings.ENGINE,
                               bindings.TRACE
local MOST = 4096                       -- calls of a batch
local PEER_LOST = C.PERIGEE_PEER_LOST

local M = {}

local CallBatch = {}
local META = futures.metatable(CallBatch, "batch of calls")
CallBatch.wait, CallBatch.done = Future.wait, Future.done
CallBatch.cancel = Future.cancel

-- ---- Results ---------------------------------------------------------------

-- What call i has filled.
local function part(self, i)
  return first(self.places[i], self.answers[i - 1].length)
end

-- Returns the filled parts of all calls; or nil and the error of the first, in
-- order, that has failed. Raises what it ended with, if it raised.
local function parts(self)
  local list, others = {}, self.others
  for i = 1, self.n do
    local other = others and others[i]
    local got, err
    if other then
      got, err = futures.results(other)
      if got == nil then return nil, err end
    end
    list[i] = got or part(self, i)
  end
  return list
end

-- ---- Calls by themselves ---------------------------------------------------

local function alone(self, i)
  return self.proxy:with { into = self.places[i] }
end

-- Calls by themselves may have found the peer again.
local function stay(self)
  for _, other in pairs(self.others) do
    local session = other.owner.session
    if session and session.handle then self[OWNER].session = session end
  end
end

local function conclude(self, all)
  stay(self)
  local function end_with(fine, ...)
    if fine then return settle(all, ...) end
    futures.raise(all, (...))
  end
  end_with(pcall(parts, self))
end

-- Returns a future that ends when all of these calls have.
local function gather(self, others)
  local count = 0
  for _ in pairs(others) do count = count + 1 end
  local all = futures.new(self[OWNER], outcome.doing(self[OWNER], self.method))
  all.inner = { cancel = function()
    for _, other in pairs(others) do other:cancel() end
  end }
  self.others = others
  local signal = signals.new(count, function() conclude(self, all) end)
  for _, other in pairs(others) do signals.attach(other, signal) end
  return all
end

-- Makes all calls by themselves: they wait for the peer, or fail, as others do.
local function post_alone(self)
  local others = {}
  for i = 1, self.n do
    local calls = alone(self, i).async
    others[i] = calls[self.method.name](calls, self.requests[i])
  end
  return futures.renew(self, gather(self, others))
end

-- The event of call i, of the batch's. The text is that of the call that failed
-- first, or tells why the peer is lost.
local function event_of(self, i, told)
  local event = native.event_t()
  ffi.copy(event, told, ffi.sizeof(event))
  event.status = self.answers[i - 1].status
  if event.status ~= told.status
    or event.status ~= PEER_LOST and tonumber(told.capacity) ~= i - 1 then
    event.pointer, event.length, event.slice, event.code = nil, 0, 0, 0
  end
  local timeout = tonumber(self[OWNER].message.timeout)
  event.remaining = timeout < 0 and -1
    or max(0, self.began + timeout - now())
  return event
end

-- Returns the future of call i, which has failed: it goes on, or has ended.
local function failed(self, i, told)
  local proxy, request = alone(self, i), self.requests[i]
  local method, binding = self.method, proxy[1]
  local future = futures.new(binding, outcome.doing(binding, method))
  future.value = request
  if method.idempotent then
    local call = again.guard(future, proxy, request).again
    call.began, call.trace = self.began, self.trace
  elseif self.trace then
    future.trace = self.trace
  end
  raw.finish(method)(future, event_of(self, i, told))
  return future
end

local function go_on(self, told)
  local others = {}
  for i = 1, self.n do
    local status = self.answers[i - 1].status
    if status ~= 0 then others[i] = failed(self, i, told) end
  end
  if next(others) then return futures.follow(self, gather(self, others)) end
  settle(self, nil, outcome.failure(self[OWNER], self.method, told))
end

-- The finish of a batch.
local function ended(self, told)
  if told.status ~= 0 then return go_on(self, told) end
  local full = tonumber(told.length) == self.room
  settle(self, full and self.places or parts(self))
end

-- ---- Posting ---------------------------------------------------------------

-- Are the slices' owners those that the messages name?
local function is_filled(self)
  local owners, handles = self.owners, self.handles
  for i = 1, #owners do
    if owners[i].handle ~= handles[i] then return false end
  end
  return self.id == self.method.id
end

local function fill_one(self, i, level)
  local message, engine = self.messages[i - 1], self[OWNER][ENGINE]
  message.method = self.method.id
  local function store(what, target, slice)
    local why = slices.store_own(target, slice, engine)
    if why then
      error(("%s: %s %d: %s"):format(self.method.text, what, i, why), level + 2)
    end
    self.owners[slice.owner] = slice.owner.handle
  end
  store("request", message.slice, self.requests[i])
  store("place", message.into, self.places[i])
end

-- Names the slices in the messages.
local function fill(self, level)
  self.owners, self.id = {}, false
  for i = 1, self.n do fill_one(self, i, level + 1) end
  local owners, handles = {}, {}
  for owner, handle in pairs(self.owners) do
    owners[#owners + 1], handles[#handles + 1] = owner, handle
  end
  self.owners, self.handles, self.id = owners, handles, self.method.id
end
jit.off(fill_one)
jit.off(fill)

-- The calls belong to the caller's trace, or some to traces of their own.
local function put_traces(self)
  local binding = self[OWNER]
  local given, trace = binding[TRACE], here()
  self.trace = trace
  local traced = given or trace or sampling.rate
  if not traced and not self.traced then return end
  self.traced = traced
  for i = 0, self.n - 1 do
    local message = self.messages[i]
    message.flags = 0
    traces.put(message, given, binding[ENGINE])
  end
end

--- Makes all calls once more, in order. Its `wait`, `done` and `cancel` (as a
-- `Future`'s) are of this post until the next one. The result is a list of what
-- each call has filled of its place, in order (the same list whenever all
-- places are full); or nil and the error of the first call, in order, that has
-- failed. A call that fails stops no other (`CallBatch:result`). To post a
-- batch that is still under way is misuse.
-- @function CallBatch:post
-- @treturn CallBatch itself, as the future of these results
-- @errors those of `Proxy:method`, by the future
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
  if not is_filled(self) then fill(self, 2) end
  put_traces(self)
  self.others, self.began = false, now()
  local handle = binding[SESSION].handle
  local operation = handle and C.perigee_call_batch(handle, self.messages,
                                                    self.n, self.answers)
  if operation and operation >= 0 then
    return start(binding, operation, true, ended, binding[ENGINE], self)
  end
  return post_alone(self)
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
  local other = self.others and self.others[i]
  if other then return futures.results(other) end
  return part(self, i)
end

-- ---- Making one ------------------------------------------------------------

local function check_slices(list, what, level)
  if type(list) ~= "table" then
    error(("perigee.batch takes %s, a list of slices"):format(what), level + 1)
  end
  for i, slice in ipairs(list) do
    if not slices.is_slice(slice) then
      error(("perigee.batch: number %d of %s is no slice, but %s"):format(
        i, what, slices.named(slice)), level + 1)
    end
  end
end

local function check_lists(requests, places, level)
  check_slices(requests, "requests", level + 1)
  check_slices(places, "places", level + 1)
  if #requests ~= #places or #requests < 1 or #requests > MOST then
    error(("perigee.batch takes 1 to %d requests and as many places, not %d "
      .. "and %d"):format(MOST, #requests, #places), level + 1)
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

-- The caller may change its list.
local function copied(list)
  local copy = {}
  for i = 1, #list do copy[i] = list[i] end
  return copy
end

-- Returns messages without the slices, and the bytes of all places.
local function messages_of(binding, method, places)
  local messages, room = native.messages_t(#places), 0
  for i, place in ipairs(places) do
    local message = messages[i - 1]
    room = room + place.length
    message.timeout = binding.message.timeout
    if method.inplace then
      message.capacity = binding.capacity or place.length
    end
  end
  return messages, room
end

--- Names many calls of one raw or inplace method, which `CallBatch:post` makes
-- together, any number of times. Call i sends `requests[i]`, with the bytes
-- that it has at the post, and its reply goes to `places[i]`. The lists are
-- copied.
-- @function perigee.batch
-- @tparam Proxy proxy with its options; not `into`, `landing` or `reader`
-- @tparam string method the method's name
-- @tparam {Slice,...} requests 1 to 4096 slices of this engine's memory
-- @tparam {Slice,...} places as many slices, one for each reply
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
  check_lists(requests, places, 2)
  local own = proxy:with {}
  local binding = own[1]
  check_method(binding, method, 2)
  local messages, room = messages_of(binding, method, places)
  local self = { 1, true, false, false, binding, false,
                 proxy = own, method = method, n = #places,
                 requests = copied(requests), places = copied(places),
                 messages = messages, room = room,
                 answers = native.answers_t(#places),
                 owners = {}, handles = {}, id = false,
                 began = false, others = false, traced = false }
  return setmetatable(self, META)
end
jit.off(M.new)

return M
