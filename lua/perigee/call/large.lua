-- SPDX-License-Identifier: Apache-2.0
--- Large typed replies (PERIGEE_HELD) are decoded in portions while the loop
-- goes on. The call's timeout still applies, and the call can be cancelled. The
-- bytes are in a pooled block that is freed when decoding is over.
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local outcome = require "perigee.call.outcome"
local portions = require "perigee.typed.portions"

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

--- Decodes the reply that the event told, then ends future, a call's, with
-- results(binding, method, told, values, n). If the reply cannot be decoded,
-- values is nil and n is a text.
function M.start(future, method, told, results)
  local binding = future.owner
  future.operation, future.value = false, false
  future.doing = outcome.doing(binding, method)
  portions.start(told.pointer, tonumber(told.length), setmetatable({
    engine = binding.engine, session = told.session, served = false,
    future = future, method = method, results = results,
    block = ffi.cast(native.pointer_t, told.pointer),
    deadline = outcome.deadline(told),
    told = { flags = told.flags, landed = told.landed, slice = told.slice },
  }, Large))
end

--- Does the same without a caller's future: waits, and returns the results.
function M.wait(binding, method, told, results)
  local future = futures.new(binding)
  M.start(future, method, told, results)
  if loop.wait(future, huge) then return futures.results(future) end
  future:cancel()
  return nil, errors.new("closed", futures.doing(future)
    .. ": the loop was stopped")
end

return M
