-- SPDX-License-Identifier: Apache-2.0
--- Calls the functions of registries, on the loop, where they must not wait,
-- and converts their failures to errors.
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"

local state = loop.state

local M = {}

-- What a pcall of a registry's function returned, as such a function returns.
local function given(fine, first, ...)
  if fine then return first, ... end
  errors.pass(first)
  return nil, "protocol", "the registry failed: " .. errors.shown(first)
end

local function as_future(first, ...)
  if futures.is_future(first) then return first end
  return futures.done(first, ...)
end

-- Puts the pin back; returns the future of what pcall returned.
local function asked(pinned, ...)
  state.pinned = pinned
  return as_future(given(...))
end

--- Calls a function of registry; returns the future of its results.
function M.ask(registry, name, ...)
  local f = registry[name]
  if not f then
    return futures.done(nil, "unsupported", "the registry cannot " .. name)
  end
  local pinned = state.pinned
  state.pinned = "a registry's function " .. name
  return asked(pinned, pcall(f, registry, ...))
end

--- Makes an error of kind and why, which a registry returned after nil.
function M.failure(doing, kind, why)
  local status = type(kind) == "string" and errors.status(kind)
  if errors.is_error(kind) then
    kind, why = kind.kind, kind.message
  elseif not status then
    kind, why = "protocol", "the registry says: " .. errors.shown(kind)
  end
  return errors.new(kind, doing .. ": "
    .. errors.shown(why == nil and errors.text(status) or why), false)
end

--- The kind of a failure to reach a registry's servers: that there is none, or
-- that nobody listens, says nothing of names.
function M.unreached(kind)
  return kind == "not_found" and "peer_lost" or kind
end

--- The results of a future that has ended; nil, "protocol" and why if it
-- raised.
function M.results(future)
  return given(pcall(futures.results, future))
end

return M
