-- SPDX-License-Identifier: Apache-2.0
--- Large typed replies (PERIGEE_HELD): they are decoded in portions, while the
-- loop goes on; their call's time goes on, too, and it can be cancelled. The
-- bytes are a pooled block of ours until that is over.
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local native = require "perigee.native"
local outcome = require "perigee.call.outcome"
local portions = require "perigee.portions"

local ffi = require "ffi"
local C = native.C
local huge, now, settle = math.huge, loop.now, futures.settle

local M = {}

local Large = {}
Large.__index = Large

function Large:wanted()
  return self.engine.handle and not self.future.ended and now() < self.deadline
end

-- The error of a reply whose decoding was given up.
local function given_up(self, binding)
  if self.engine.handle then
    return nil, outcome.too_late(binding, self.method)
  end
  return nil, outcome.no_reply(binding, self.method, "closed",
                               "the engine of the session was closed")
end

function Large:done(values, n)
  local future, told, method = self.future, self.told, self.method
  local binding = future.owner
  if self.engine.handle then
    C.perigee_pool_free(self.engine.handle, self.block)
  end
  if future.ended or not values and not n then
    outcome.discard(binding, told)
    return settle(future, given_up(self, binding))
  end
  settle(future, self.results(binding, method, told, values, n))
end

local function deadline(told)
  if told.remaining < 0 then return huge end
  return now() + tonumber(told.remaining)
end

--- Has future, a call's, end once the reply that the event told has been
-- decoded: as results(binding, method, told, values, n) says, where nil and a
-- text come of what cannot be decoded.
function M.start(future, method, told, results)
  local binding = future.owner
  future.operation, future.value = false, false
  future.doing = outcome.doing(binding, method)
  portions.start(told.pointer, tonumber(told.length), setmetatable({
    engine = binding.engine, session = told.session, served = false,
    future = future, method = method, results = results,
    block = ffi.cast(native.pointer_t, told.pointer),
    deadline = deadline(told),
    told = { flags = told.flags, landed = told.landed, slice = told.slice },
  }, Large))
end

--- The same where nobody has a future: waits, and returns what comes of it.
function M.wait(binding, method, told, results)
  local future = futures.new(binding)
  M.start(future, method, told, results)
  if loop.wait(future, huge) then return futures.results(future) end
  future:cancel()
  return nil, errors.new("closed", futures.doing(future)
    .. ": the loop was stopped")
end

return M
