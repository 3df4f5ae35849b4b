-- SPDX-License-Identifier: Apache-2.0
--- Shared by all calls: the wait for the reply, and failures as errors.
local codec = require "perigee.typed.codec"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local traces = require "perigee.serving.trace"

local ffi = require "ffi"
local C = native.C
local band = bit.band
local huge, here = math.huge, traces.here

local M = {}

local POOLED, HELD = C.PERIGEE_POOLED, C.PERIGEE_HELD
local DRAINED = "draining"              -- reply.DRAINING
local DRAINING = C.PERIGEE_DRAINING
-- Kinds of refusals that come before a handler runs, from the core or the peer.
local NOT_RUN = { no_service = true, no_method = true, version = true,
                  denied = true }

--- The core's wait for one operation, and the event that it fills.
M.await, M.event = loop.await, loop.event

--- Returns the binding of the proxy that a method was called on.
function M.binding(proxy, method)
  local binding = type(proxy) == "table" and proxy[1]
  if type(binding) ~= "table" then
    error(("%s is called with a colon, as in proxy:%s(...)"):format(
      method.text, method.name), 3)
  end
  return binding
end

--- "calling calc.add of worker:0".
function M.doing(binding, method)
  return ("calling %s of %s"):format(method.text, binding.session:text())
end

-- Returns what a peer sent as a code, if it is a string or a number.
local function plain(value)
  local kind = type(value)
  if kind == "string" or kind == "number" then return value end
end

local function text_of(value)
  return type(value) == "string" and errors.shown(value) or nil
end

-- Returns a failure's text and what came with it, if that could be decoded.
local function with(text, fine, traceback, code, ran, kind)
  if not fine then
    errors.pass(traceback)
    return text
  end
  return text, text_of(traceback), plain(code), ran, kind
end

local function failure_text(told)
  local text = errors.why(told)
  if told.slice == 0 or told.pointer == nil then return text end
  return with(text, pcall(codec.unpack, told.pointer + told.length + 1,
                          tonumber(told.slice)))
end

local function limit(binding)
  local ns = binding.message.timeout
  return ns >= 0 and ("no answer within %g s"):format(tonumber(ns) * 1e-9)
    or "no answer"
end

local function error_of(binding, method, status, text, traceback, code, ran,
                        own)
  local kind = errors.kind(status)
  if kind == "timeout" and not text then text = limit(binding) end
  local err = errors.ended(status, M.doing(binding, method), text)
  if kind == "remote" then
    err.remote = true
    if errors.status(own) then err.kind = own end -- a raw handler returned it
    if traceback ~= "" then err.traceback = traceback end
  end
  if status == DRAINING then code, ran = DRAINED, false end
  err.code = code
  err.sent = binding.sent or not (ran == false or NOT_RUN[kind])
  return err
end

--- The error of a call that ended as event tells.
function M.failure(binding, method, told)
  return error_of(binding, method, told.status, failure_text(told))
end

--- The end of a call's timeout, from an event that tells what is left of it.
function M.deadline(told)
  if told.remaining < 0 then return huge end
  return loop.now() + tonumber(told.remaining)
end

--- Tells whether err is that of a call which its peer has not taken because it
-- drains: it said so before (PERIGEE_DRAINING), or refuses it (reply.lua).
function M.is_drained(err)
  return err.code == DRAINED and err.kind == "closed"
end

--- Frees the slice of a reply that nobody will get.
function M.discard(binding, told)
  local handle = binding.engine.handle
  if handle and band(told.flags, POOLED) ~= 0 then
    C.perigee_pool_free(handle, told.landed)
  end
end

--- The error of a call whose timeout is over while its reply is decoded.
function M.too_late(binding, method)
  return error_of(binding, method, C.PERIGEE_TIMEOUT)
end

--- Frees a held reply that nobody decodes.
function M.release(binding, told)
  C.perigee_pool_free(binding.engine.handle,
                      ffi.cast(native.pointer_t, told.pointer))
end

--- The error of a reply that cannot be used; why says why not.
function M.no_reply(binding, method, kind, why)
  return errors.new(kind, ("%s: %s"):format(M.doing(binding, method), why),
                    true)
end

--- The error of a call that could not be submitted; the caller's mistakes raise
-- at their line.
function M.refused(binding, method, status)
  local err = errors.from(status, M.doing(binding, method),
                          binding.engine.handle or nil, binding.sent or false)
  if status == DRAINING then err.code = DRAINED end
  return err
end

--- The error of a call on a session that is over.
function M.gone(binding, method)
  return binding.session:gone(("calling %s"):format(method.text))
end

--- Notes the trace that the call of a future belongs to, for its peer may not
-- take it (again.resume). Guarded futures have it already.
function M.note(future)
  local trace = here()
  if trace then future.trace = trace end
end

--- Returns the finish of a prepared call's futures, of that of other calls.
function M.posted(finish)
  return function(future, told)
    local whole = told.status == 0 and band(told.flags, HELD) == 0
    return finish(whole and future or futures.apart(future), told)
  end
end

--- Waits for an operation by a future. Returns the future once it has ended, or
-- nil and an error.
function M.wait(binding, operation, value, finish)
  local future = futures.start(binding, operation, value, finish)
  M.note(future)
  if loop.wait(future, huge) then return future end
  future:cancel()
  return futures.unfinished(futures.doing(future))
end

return M
