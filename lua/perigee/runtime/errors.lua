-- SPDX-License-Identifier: Apache-2.0
--- An error is what a function returns after nil when an operation has failed.
-- Mistakes of the caller are raised, and never are one of these. An error
-- prints as its message, in which control characters but tabs and ends of
-- lines, and those that turn the direction of text, are escapes.
--
-- * `kind`: one of those below
-- * `message`: a sentence: what was being done, to whom, and what happened. It
--   may quote a peer, byte for byte
-- * `sent`: false if no handler can have run; true if one may have run
-- * `code`: the code in a remote handler's error table, if any
-- * `traceback`: the remote handler's, as text, if any
-- * `remote`: true of an error that a peer's handler raised or returned, and of
--   one that came as an argument; nil of those of this side. An error that was
--   returned, or came as an argument, has that side's `kind`, `message` and
--   `code`
--
-- The kinds:
--
-- * `timeout`: the timeout of the operation, or of a wait for it, is over
-- * `cancelled`: the operation was cancelled
-- * `peer_lost`: the session with the peer ended while the operation was under
--   way: its process died, its host is silent for `dead_after` seconds, the
--   connection broke, or the peer closed the session. The operation may have
--   been done or not (`sent` tells what is known). A proxy finds the peer again
--   by itself, a session does not
-- * `remote`: the peer's handler raised; message and traceback are the
--   handler's
-- * `denied`: the peer does not grant an access or a landing, the secret is
--   wrong, or the process is another user's
-- * `range`: outside of the peer's region, or beyond the end of a loan
-- * `stale`: the memory was closed, or is of an earlier life of the peer
-- * `no_service`, `no_method`, `version`: the peer does not have it; the
--   message lists what the peer has
-- * `too_large`: larger than a limit, or than the memory that was to take it
-- * `unsupported`: this machine or the peer cannot do it
-- * `protocol`: what came from the other side violates the protocol
-- * `no_memory`: memory or another resource is used up, or this peer's share of
--   it
-- * `closed`: this side closed or stopped the object, its engine or the loop;
--   or the peer takes no new calls (`code` is "draining", `sent` is false); or
--   the peer's program was interrupted (Ctrl-C) while it served the call
-- * `name_taken`: a live owner has the name
-- * `not_found`: there is nothing of that name, or nobody has it
-- @classmod Error
-- @usage
-- local sum, err = calc:fail("no luck")
-- print(sum, err.kind, err.sent, err.remote)           --> nil remote true true
-- print(err.message:find("no luck", 1, true) ~= nil)           --> true
local native = require "perigee.native"
local printable = require "perigee.runtime.printable"

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
kind_of[C.PERIGEE_DRAINING] = "closed"  -- with a code (call/outcome.lua)

local Error = {}
Error.__index = Error

-- Peers' texts are in the message as they came; a terminal gets none of their
-- control characters.
function Error:__tostring() return printable.lines(self.message) end

function Error.__concat(a, b) return tostring(a) .. tostring(b) end

--- A new error.
function M.new(kind, message, sent)
  return setmetatable({ kind = kind, message = message, sent = sent }, Error)
end

--- Tells whether x is an error of Perigee's. A handler's own results `nil, x`
-- pass unchanged, so x may be anything. An error that a typed handler returns
-- arrives as one; inside a table it arrives as a plain table.
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

-- ---- Travelling ------------------------------------------------------------

-- Errors travel as tables with this field. A peer of an older version shows
-- them as such.
M.MARK = "perigee_error"
local MARK = M.MARK

local LONGEST = 2 ^ 16                  -- bytes of text about what failed

--- Returns any value as text of at most 64 KiB. Never raises. The text of what
-- is no string does not tell its address, because peers may see it.
function M.shown(x)
  local fine, text = pcall(tostring, x)
  if not fine or type(text) ~= "string" then return "what cannot be shown" end
  if type(x) ~= "string" then text = text:gsub(": 0x%x+$", "") end
  return #text > LONGEST and text:sub(1, LONGEST) .. "..." or text
end

--- Returns an error's code, if that is a string or a number.
function M.code(err)
  local code = err.code
  if type(code) == "string" then return M.shown(code) end
  return type(code) == "number" and code or nil
end

--- Returns a plain table that stands for an error on its way.
function M.packed(err)
  return { [MARK] = 1, kind = M.shown(err.kind), message = M.shown(err.message),
           code = M.code(err) }
end

--- Makes the error that a table from a peer stands for; the table may have
-- anything in it.
function M.unpacked(told)
  local kind = status_of[told.kind] and told.kind or "remote"
  local err = M.new(kind, M.shown(told.message), true)
  err.code, err.remote = M.code(told), true
  return err
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

--- The kind and the sentence of a status of a function that has no engine. The
-- core tells what is used up, if something is.
function M.told(status)
  local used_up = status == C.PERIGEE_NO_MEMORY
  return M.kind(status), used_up and native.detail(nil) or M.text(status)
end

-- ---- Interrupts -----------------------------------------------------------

local RAISERS = { [error] = true, [assert] = true }

-- Has LuaJIT's program raised the interrupt e in the function at a level? It
-- gives its place, unless that is a function in C.
local function is_raised(e, level)
  local at = debug.getinfo(level + 1, "Sf")
  if at.what ~= "C" then return true end
  return e == "interrupted!" and not RAISERS[at.func]
    or debug.getinfo(level + 2, "f").func == M.pass
end

--- Is e an interrupt? LuaJIT's program raises one after Ctrl-C, from a debug
-- hook, wherever the program is. So it is no failure of what it came in. level,
-- for a message handler: that of the function that raised e; a text that a
-- program gave to error() is none.
function M.is_interrupt(e, level)
  if e ~= "interrupted!" and not (type(e) == "string"
    and e:find ":%d+: interrupted!$") then
    return false
  end
  return not level or is_raised(e, level + 1)
end

--- Raises e again if it is an interrupt.
function M.pass(e)
  if M.is_interrupt(e) then error(e, 0) end
end

--- A message handler: e with a traceback, an interrupt as it is.
function M.traced(e)
  return M.is_interrupt(e, 2) and e or debug.traceback(M.shown(e), 2)
end

local Marked = {}

--- A message handler for a program's function whose errors are raised again, by
-- `raise`: e as it is, an interrupt with a mark.
function M.marked(e)
  return M.is_interrupt(e, 2) and setmetatable({ text = e }, Marked) or e
end

function M.is_marked(e) return getmetatable(e) == Marked end

--- Raises what xpcall has caught with `marked`.
function M.raise(e)
  if M.is_marked(e) then M.pass(e.text) end
  error(e, 0)
end

-- ---- Failures of the core --------------------------------------------------

local LIBRARY = debug.getinfo(1, "S").source:match "^(@.*/)runtime/errors%.lua$"

-- Returns the level at which error(), in the calling function, blames the code
-- that called the library. However deep in the library the core finds a
-- mistake, the message names the program's line.
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

--- Returns an error for a status that a function of the core returned. doing
-- says what was being done and to whom; engine is its handle or nil. A status
-- that means a mistake of the caller raises instead, at the program's line.
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

--- Returns the error of an operation that the core ended with status. text may
-- add what is known (what the peer said).
function M.ended(status, doing, text, sent)
  local why = text and text ~= "" and text or M.text(status)
  return M.new(M.kind(status), doing .. ": " .. why, sent)
end

return M
