-- SPDX-License-Identifier: Apache-2.0
--- What the world did, as values: functions return nil and one of these. What
-- the caller did wrong is raised, and never one of these. It prints as its
-- message.
--
-- * `kind`: one of those below
-- * `message`: a sentence: what was being done, to whom, and what happened
-- * `sent`: false promises that no handler ran; true: one may have
-- * `code`: what a remote handler's error table had as its code, if any
-- * `traceback`: the remote handler's, as text, if any
--
-- The kinds:
--
-- * `timeout`: the operation's own time is over, or that of a wait
-- * `cancelled`: somebody asked for its end
-- * `peer_lost`: the session with the peer ended while the operation was under
--   way: its process died, its host is silent for `dead_after` seconds, the
--   connection broke, or the peer closed the session. The operation may have
--   been done or not (`sent` tells what is known). A proxy finds the peer again
--   by itself, a session does not
-- * `remote`: the peer's handler raised; message and traceback are its
-- * `denied`: not granted: an access, a landing, a secret, another user's
--   process
-- * `range`: outside of the peer's region, or a loan that was overrun
-- * `stale`: of memory that was closed, or of an earlier life of the peer
-- * `no_service`, `no_method`, `version`: the peer has no such one; the message
--   lists what it has
-- * `too_large`: over a limit, or longer than what was to take it
-- * `unsupported`: not on this machine, or not by the peer
-- * `protocol`: the peer did not keep to the protocol
-- * `no_memory`: there is none, or this peer may have no more
-- * `closed`: the object, its engine or the loop was closed or stopped on this
--   side
-- * `name_taken`: a live owner has it
-- * `not_found`: nobody and nothing of that name
-- @classmod Error
-- @usage
-- local sum, err = calc:fail("no luck")
-- print(sum, err.kind, err.sent)                            --> nil remote true
-- print(err.message:find("no luck", 1, true) ~= nil)           --> true
local native = require "perigee.native"

local ffi = require "ffi"
local C = native.C

local M = {}

--- Every kind there is.
M.kinds = {
  "timeout", "cancelled", "peer_lost", "remote", "denied", "range", "stale",
  "no_service", "no_method", "version", "too_large", "unsupported", "protocol",
  "no_memory", "closed", "name_taken", "not_found",
}

local kind_of, status_of = {}, {}
for i, kind in ipairs(M.kinds) do
  kind_of[-i] = kind
  status_of[kind] = -i
end
-- Statuses of the core that have no kind of their own.
kind_of[C.PERIGEE_AGAIN] = "no_memory"
kind_of[C.PERIGEE_SYSTEM] = "unsupported"

local Error = {}
Error.__index = Error

function Error:__tostring() return self.message end

function Error.__concat(a, b) return tostring(a) .. tostring(b) end

--- A new error.
function M.new(kind, message, sent)
  return setmetatable({ kind = kind, message = message, sent = sent }, Error)
end

--- Tells an error of Perigee's from a handler's own `nil, x`, which passes
-- unchanged.
-- @function perigee.is_error
-- @param x anything
-- @treturn boolean
-- @waits no
-- @usage
-- local value, err = calc:add(1, nil)               -- raises in the handler
-- print(value, perigee.is_error(err), perigee.is_error "x") --> nil true false
function M.is_error(x)
  return getmetatable(x) == Error
end

local LONGEST = 2 ^ 16                  -- bytes of text about what failed

--- x, which anybody may have made, as text of at most 64 KiB. Never raises.
--- What is no text tells its type, not where it lies: peers may hear it.
function M.shown(x)
  local fine, text = pcall(tostring, x)
  if not fine or type(text) ~= "string" then return "what cannot be shown" end
  if type(x) ~= "string" then text = text:gsub(": 0x%x+$", "") end
  return #text > LONGEST and text:sub(1, LONGEST) .. "..." or text
end

--- A traceback without the addresses of functions in C.
function M.trace(traceback)
  return M.shown((traceback:gsub("%[C%]: at 0x%x+", "[C]")))
end

--- The kind of a status of the core, the status of a kind, the core's sentence
-- for a status.
function M.kind(status) return kind_of[status] or "protocol" end
function M.status(kind) return status_of[kind] end
function M.text(status) return ffi.string(C.perigee_status_text(status)) end

local LIBRARY = debug.getinfo(1, "S").source:match "^(@.*/)errors%.lua$"

-- The level, for error() in the function that asks, of who called the library:
-- however deep it is when the core finds a mistake, the line told is theirs.
local function outside()
  local level = 2
  while LIBRARY do
    local at = debug.getinfo(level + 1, "S")
    if not at then break end
    if at.what ~= "C" and at.source:sub(1, #LIBRARY) ~= LIBRARY then
      return level
    end
    level = level + 1
  end
  return 2
end

--- An error from a status that a function of the core returned. doing says
-- what was being done and to whom; engine is its handle or nil. The caller's
-- own mistakes raise at the line outside of Perigee from which it came here.
function M.from(status, doing, engine, sent)
  local detail = native.detail(engine)
  local why = detail ~= "" and detail or M.text(status)
  if status == C.PERIGEE_INVALID or status == C.PERIGEE_FORKED then
    if status == C.PERIGEE_FORKED then why = M.text(status) end
    error(doing .. ": " .. why, outside())
  end
  return M.new(M.kind(status), doing .. ": " .. why, sent)
end

--- The text of an event's failure, or nil.
function M.why(event)
  if event.pointer == nil or event.length == 0 then return nil end
  return ffi.string(event.pointer, math.min(tonumber(event.length), LONGEST))
end

--- An error of an operation that the core ended with status; text may add what
-- is known (what the peer said).
function M.ended(status, doing, text, sent)
  local why = text and text ~= "" and text or M.text(status)
  return M.new(M.kind(status), doing .. ": " .. why, sent)
end

return M
