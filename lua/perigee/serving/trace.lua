-- SPDX-License-Identifier: Apache-2.0
--- Trace contexts of calls, as in a W3C traceparent:
-- "00-<32 hex: the trace>-<16 hex: the span>-<2 hex: flags>". A call uses the
-- trace of its proxy (`Proxy:with`). Without one, a call that a handler makes
-- continues the trace of the call that the handler serves, and PERIGEE_TRACE
-- may have other calls begin one.
local contexts = require "perigee.serving.context"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local printable = require "perigee.runtime.printable"
local sampling = require "perigee.runtime.sampling"

local ffi = require "ffi"
local C = native.C
local band, bor = bit.band, bit.bor

local M = {}

local TRACED, CARRIED = C.PERIGEE_TRACED, C.PERIGEE_CARRIED
local state, raw = loop.state, contexts.raw
local TRACE = ("%x"):rep(32)
local FULL = "^00%-(" .. TRACE .. ")%-(" .. ("%x"):rep(16) .. ")%-(%x%x)$"
local SHORT = "^(" .. TRACE .. ")$"

-- The trace, the span (nil: a new one for each call) and the flags that a text
-- contains; nothing if it is not valid.
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
  if value ~= true and not parts(value) then
    return 'a W3C traceparent, "00-<32 hex>-<16 hex>-<2 hex>" in lower case, '
      .. "or its 32 digits of the trace, no zeros only; or true"
  end
end

local function unhex(bytes, text)
  for i = 1, #text / 2 do
    bytes[i - 1] = tonumber(text:sub(2 * i - 1, 2 * i), 16)
  end
end

--- A checked text as a struct perigee_trace, for calls; true as it is.
function M.parse(text)
  if text == true then return true end
  local id, span, flags = parts(text)
  local trace = native.trace_t()
  unhex(trace.id, id)
  if span then unhex(trace.span, span) end
  trace.flags = tonumber(flags, 16)
  return trace
end

local function hex(bytes, n)
  return printable.hex(ffi.string(bytes, n))
end

--- A struct perigee_trace as a traceparent.
local function text(trace)
  return ("00-%s-%s-%02x"):format(hex(trace.id, 16), hex(trace.span, 8),
                                  trace.flags)
end
contexts.traceparent = text

--- The trace of the served call of an event; false if it has none.
function M.came(engine, event)
  if band(event.flags, TRACED) == 0 then return false end
  local trace = native.trace_t()
  local has = C.perigee_served_trace(engine.handle, event.operation, trace)
  return has == 1 and trace
end

--- The trace of the call or task that runs here, or false. Code that handles
-- other events has none, although some task waits meanwhile.
local function here()
  if raw.served then return raw.trace end
  return not state.telling and state.current.trace
end
M.here = here

function log.traced(trace)
  trace = trace or here()
  if trace then return hex(trace.id, 16), hex(trace.span, 8) end
end

-- Sets the trace of a call's message: the one that is given (true: a new one;
-- false: none), or the one of here().
local function put(message, given, engine)
  if given then
    if rawequal(given, true) then given = sampling.begin(engine) end
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

-- The same, and begins a trace if the call is outside of any, and is chosen.
-- Peers that do not know traces get the call without it. Descriptions, which
-- are method 0, are no calls of the program's.
local function put_or_begin(message, given, engine)
  if given or here() or message.method == 0
    or not sampling.chooses(engine) then
    return put(message, given, engine)
  end
  message.trace = sampling.begin(engine)
  message.flags = bor(message.flags, CARRIED)
end

--- Sets the trace of a call's message.
M.put = sampling.rate and put_or_begin or put

return M
