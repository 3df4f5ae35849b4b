-- SPDX-License-Identifier: Apache-2.0
--- Trace contexts of calls, as a text of W3C, a traceparent, tells them:
-- "00-<32 hex: the trace>-<16 hex: the span>-<2 hex: flags>". A call has the
-- one that its proxy was given (`Proxy:with`), or carries on that of the call
-- which is being served where it is made.
local contexts = require "perigee.context"
local loop = require "perigee.loop"
local native = require "perigee.native"

local ffi = require "ffi"
local C = native.C
local band, bor = bit.band, bit.bor

local M = {}

local TRACED, CARRIED = C.PERIGEE_TRACED, C.PERIGEE_CARRIED
local state, raw = loop.state, contexts.raw
local TRACE = ("%x"):rep(32)
local FULL = "^00%-(" .. TRACE .. ")%-(" .. ("%x"):rep(16) .. ")%-(%x%x)$"
local SHORT = "^(" .. TRACE .. ")$"

-- The trace, the span (nil: a new one for each call) and the flags of a text.
local function parts(text)
  if type(text) ~= "string" or text:find "%u" then return end
  local id, span, flags = text:match(FULL)
  if not id then id, flags = text:match(SHORT), "01" end
  if not id or not id:find "[^0]" or span and not span:find "[^0]" then
    return
  end
  return id, span, flags
end

--- The check of option trace.
function M.check(value)
  if not parts(value) then
    return 'a W3C traceparent, "00-<32 hex>-<16 hex>-<2 hex>" in lower case, '
      .. "or its 32 digits of the trace; no zeros only"
  end
end

local function unhex(bytes, text)
  for i = 1, #text / 2 do
    bytes[i - 1] = tonumber(text:sub(2 * i - 1, 2 * i), 16)
  end
end

--- What calls take, of a text that was checked.
function M.parse(text)
  local id, span, flags = parts(text)
  local trace = native.trace_t()
  unhex(trace.id, id)
  if span then unhex(trace.span, span) end
  trace.flags = tonumber(flags, 16)
  return trace
end

local function hex(bytes, n)
  return (ffi.string(bytes, n):gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end))
end

--- The traceparent of one.
local function text(trace)
  return ("00-%s-%s-%02x"):format(hex(trace.id, 16), hex(trace.span, 8),
                                  trace.flags)
end
contexts.traceparent = text

--- That of a served call that has come, by its event: false if it has none.
function M.came(engine, event)
  if band(event.flags, TRACED) == 0 then return false end
  local trace = native.trace_t()
  local has = C.perigee_served_trace(engine.handle, event.operation, trace)
  return has == 1 and trace
end

--- That of the call which is being served here, or false. What events call is
-- not part of whatever waits meanwhile.
local function here()
  if raw.served then return raw.trace end
  return not state.telling and state.current.trace
end
M.here = here

--- Names in a call's message the trace that binding was given, or that of the
-- call which is being served here.
function M.put(message, binding)
  local given = binding.trace
  if given then
    message.trace = given
    return
  end
  local trace = here()
  if trace then
    message.trace, message.flags = trace, bor(message.flags, CARRIED)
  else
    message.trace = nil
  end
end

return M
