-- SPDX-License-Identifier: Apache-2.0
--- What a session is, as a table of plain values that prints as text.
local native = require "perigee.native"
local units = require "perigee.units"

local ffi = require "ffi"
local C = native.C

local M = {}

local STATES = { [0] = "none", "hello", "open", "ended" }
local COUNTERS = { "calls", "served", "replies", "failures", "timeouts",
                   "transfers", "messages", "bytes_sent", "bytes_received",
                   "wakes", "sleeps", "stalls", "sessions", "regions",
                   "operations", "pooled", "refused", "polls" }
local OF_ENGINE = { sessions = true, regions = true, operations = true,
                    pooled = true, refused = true, polls = true }

local function text(pointer)
  return pointer ~= nil and ffi.string(pointer) or ""
end

--- The core's counters as numbers.
function M.counters(counters, of_session)
  local values = {}
  for _, name in ipairs(COUNTERS) do
    if not (of_session and OF_ENGINE[name]) then
      values[name] = tonumber(counters[name])
    end
  end
  return values
end

--- What the core says of a session's handle.
function M.info(handle)
  local info = native.info_t()
  C.perigee_session_info(handle, info)
  return { id = info.id, state = STATES[info.state] or "none",
           status = info.status, pid = info.pid ~= 0 and info.pid or nil,
           version = info.version, pull = info.pull ~= 0,
           transport = text(info.transport), carrier = text(info.carrier),
           security = text(info.security),
           address = text(info.address), from = text(info.peer),
           reason = text(info.reason),
           epoch = ("%016x"):format(info.epoch),
           features = ("%x"):format(info.features),
           limits = { ring = tonumber(info.ring),
                      eager = tonumber(info.eager),
                      message = tonumber(info.message),
                      typed = tonumber(info.typed) } }
end

local Explanation = {}

local function limits(values)
  local parts = {}
  for _, name in ipairs { "ring", "eager", "typed", "message" } do
    parts[#parts + 1] = name .. " " .. units.format_size(values[name])
  end
  return table.concat(parts, ", ")
end

local function counts(values)
  local parts = {}
  for _, name in ipairs(COUNTERS) do
    if values[name] and values[name] > 0 then
      parts[#parts + 1] = ("%s %.0f"):format(name, values[name])
    end
  end
  return #parts > 0 and table.concat(parts, ", ") or "none yet"
end

function Explanation:__tostring()
  local lines = {
    ("session %d with %s (pid %s) at %s: %s"):format(self.id, self.peer,
      self.pid or "unknown", self.address, self.state),
    ("  carried by %s, protocol version %d; large payloads are %s"):format(
      self.transport, self.version,
      self.pull and "read from the sender's memory or copied in chunks"
        or "copied in chunks"),
    "  limits: " .. limits(self.limits),
    "  counters: " .. counts(self.counters),
  }
  if self.security ~= "" then
    table.insert(lines, 3, "  security: " .. self.security)
  end
  if self.carrier ~= "" then
    table.insert(lines, 3, "  over " .. self.carrier)
  end
  if self.reason ~= "" then
    table.insert(lines, 3, "  why: " .. self.reason)
  end
  return table.concat(lines, "\n")
end

--- The explanation of a session that has a handle.
function M.session(session)
  local told = M.info(session.handle)
  told.peer = session:text()
  told.counters = M.counters(C.perigee_counters(session.engine.handle,
                                                session.handle), true)
  return setmetatable(told, Explanation)
end

return M
