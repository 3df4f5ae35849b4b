-- SPDX-License-Identifier: Apache-2.0
--- Replies: sends what a handler returned, or how it failed, to the caller. The
-- core may refer to a reply's data until the event SENT; until then
-- engine.replying keeps it alive: { value, buffer, context }. A failure is sent
-- as a text, a zero and typed values: traceback, code, whether a handler ran
-- (native/operation/operations.h), and the kind of an error that a raw handler
-- has returned.
local codec = require "perigee.typed.codec"
local contexts = require "perigee.serving.context"
local errors = require "perigee.runtime.errors"
local failures = require "perigee.serving.failures"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local slices = require "perigee.memory.slice"
local views = require "perigee.typed.view"

local C = native.C
local pack, acquire = codec.pack, codec.acquire
local state = loop.state

local M = {}

local REMOTE = C.PERIGEE_REMOTE
local ENCODED = C.PERIGEE_TYPED + C.PERIGEE_CHECKED -- by codec.lua
local TOO_LARGE = C.PERIGEE_TOO_LARGE
local message = native.message_t()      -- shared; the core copies it
local out = acquire()                   -- typed heads; replaced while in use

-- The value that error() was given, as text, with what else is told of it.
local function describe(e)
  if errors.is_interrupt(e, 4) then return { interrupt = e } end
  local message_text, code = e, nil
  if type(e) == "table" then
    code = rawget(e, "code")
    if not errors.is_error(e) and not (getmetatable(e) or {}).__tostring then
      message_text = rawget(e, "message") or errors.shown(e)
    end
  end
  if type(code) ~= "number" and type(code) ~= "string" and code ~= nil then
    code = errors.shown(code)
  end
  return { message = errors.shown(message_text),
           traceback = errors.trace((debug.traceback("", 4):gsub("^\n", ""))),
           place = failures.place(4), code = code }
end

--- The message handler of every xpcall of a handler.
function M.caught(e)
  local fine, described = pcall(describe, e)
  if fine then return described end
  return { message = "an error that cannot be shown", traceback = "" }
end

--- The failure that the error value of xpcall is: a table from caught, or a
-- plain text if LuaJIT had no memory or stack left to run caught. Raises an
-- interrupt again.
local function failure_of(given)
  errors.pass(given.interrupt)
  if type(given) == "table" then return given end
  return { message = errors.shown(given), traceback = "" }
end
M.failure_of = failure_of

-- Ends the call for its record (a worker, or the record of raw handlers). kept:
-- what to keep until the event SENT, or nil if no such event will come.
local function over(engine, record, served, status, kept)
  local context = record.context
  record.served, record.context = false, false
  if context then
    if kept then
      kept.context = context
      contexts.replied(context, false)
    else
      contexts.replied(context, status == 0
        or contexts.undelivered(context, status))
    end
  end
  if kept then engine.replying[served] = kept end
  local once = engine.once
  if once and record.method.service ~= "" then once() end
end

-- Sends the filled message; value and buffer are kept alive if the core still
-- refers to them.
local function send(engine, served, record, value, buffer)
  local status = C.perigee_reply(engine.handle, served, message)
  local kept
  if status == 1 then
    kept = { value = value, buffer = buffer, context = false }
    if buffer == out then out = acquire() end
  end
  if kept or record.context or engine.once then
    over(engine, record, served, status, kept)
  else
    record.served = false
  end
end

local function plain(status, flags, pointer, length)
  message.status, message.flags = status, flags
  message.head, message.length = pointer, length
  message.slice.region = nil
end

-- The record of a call that is refused.
local NOBODY = { served = false, context = false, method = { service = "" } }

local LONGEST = 6 * 2 ^ 10              -- of a traceback, and of a code
local TEXT = 2 ^ 16                     -- of a message; the core takes 128 KiB

local function cut(text)
  if type(text) == "string" then return text:sub(1, LONGEST) end
  return text
end

-- A zero ends the text; two bytes stand for it.
local function without_zeros(text)
  return text:gsub("%z", "\\0"):sub(1, TEXT)
end

--- The code of the error by which an agent that drains refuses a call.
M.DRAINING = "draining"

-- Replies with the error status; failure has the text. ran: did a handler run?
local function fail(engine, served, record, status, failure, ran)
  out:reset()
  out:put(without_zeros(failure.message), "\0")
  pack(out, cut(failure.traceback or ""), cut(failure.code))
  out:encode(ran)
  if failure.kind then out:encode(failure.kind) end
  local pointer, length = out:ref()
  plain(status, ENCODED, pointer, length)
  send(engine, served, record, nil, out)
end

local function refuse(engine, served, status, text, code, context)
  local worker = state.current
  if worker.served == served and worker.engine == engine then
    context = context or worker.context
    worker.served, worker.context = false, false
  end
  NOBODY.context = context or false
  fail(engine, served, NOBODY, status, { message = text, code = code }, false)
end

--- Refuses a call whose handler did not run. context: the call's, if its
-- landing has asked for it.
function M.refuse(engine, served, status, text, context)
  return refuse(engine, served, status, text, nil, context)
end

--- Refuses a call for whose method engine.methods has no handler; what says
-- what is missing.
function M.no_method(engine, served, what)
  if not engine.draining then
    return refuse(engine, served, C.PERIGEE_NO_METHOD, what)
  end
  refuse(engine, served, C.PERIGEE_CLOSED,
         "the agent is draining and takes no new calls", M.DRAINING)
end

-- Tells whether the engine was closed while the handler ran, which has ended
-- the call and its context.
local function is_gone(engine, record)
  if engine.handle then return false end
  record.served, record.context = false, false
  return true
end

-- Ends a call whose handler or landing was interrupted, and raises the
-- interrupt again. The program may go on after it.
local function interrupted(engine, served, record, interrupt, before)
  if not is_gone(engine, record) then
    fail(engine, served, record, C.PERIGEE_CLOSED,
         { message = "its program was interrupted" }, not before)
  end
  errors.pass(interrupt)
end

--- Replies that the handler failed; before: that its landing failed, and the
-- handler did not run. Raises an interrupt again.
function M.failed(engine, served, record, failure, before)
  local method = record.method
  if failure.interrupt then
    return interrupted(engine, served, record, failure.interrupt, before)
  end
  failure = failure_of(failure)
  if not is_gone(engine, record) then
    fail(engine, served, record, REMOTE, failure, not before)
  end
  if not failure.logged then
    failures.note(method, failure, nil, { engine = engine,
                                          trace = record.trace })
  end
end

--- Replies that the handler's result did not fit into the caller's capacity.
function M.too_large(engine, served, record, capacity)
  fail(engine, served, record, TOO_LARGE, { message = ("%s: what it replies "
    .. "does not fit into the caller's capacity of %d bytes"):format(
    record.method.text, capacity) }, true)
end

--- Replies that a raw handler, or (before) a landing, has returned nil and err.
function M.returned(engine, served, record, err, before)
  return M.failed(engine, served, record,
                  { message = errors.shown(err.message),
                    kind = errors.status(err.kind) and err.kind,
                    code = errors.code(err),
                    logged = true },    -- a result, no failure of the handler
                  before)
end

local function bad_result(engine, served, record, text)
  return M.failed(engine, served, record,
                  { message = record.method.text .. " returned " .. text })
end

--- Replies to a typed call with the results of xpcall.
function M.answer(engine, served, worker, fine, ...)
  if not fine and (...).interrupt then
    return M.failed(engine, served, worker, (...))
  end
  if is_gone(engine, worker) then return end
  if not fine then return M.failed(engine, served, worker, (...)) end
  out:reset()
  local why, slice = pack(out, ...)
  if why then return bad_result(engine, served, worker, why) end
  local pointer, length = out:ref()
  plain(0, ENCODED, pointer, length)
  if slice then
    slice, why = slices.place(slice)
    why = why or slices.store_local(message.slice, slice, engine)
    if why then return bad_result(engine, served, worker, why) end
  end
  send(engine, served, worker, slice, out)
end

--- Replies with bytes of the request itself, which stay valid for the core.
function M.bytes(engine, served, record, pointer, length)
  if is_gone(engine, record) then return end
  plain(0, 0, pointer, length)
  send(engine, served, record, nil, nil)
end

--- Replies with what a raw handler returned, other than its request.
function M.raw(engine, served, record, result)
  if is_gone(engine, record) then return end
  if type(result) == "string" then
    plain(0, 0, result, #result)
  elseif result == nil then
    plain(0, 0, nil, 0)
  elseif slices.stands(result) then
    plain(0, 0, nil, 0)
    local why = not slices.is_slice(result) and slices.beside(result)
    if why then return bad_result(engine, served, record, why) end
    result, why = slices.place(result)
    why = why or slices.store_local(message.slice, result, engine)
    if why then return bad_result(engine, served, record, why) end
  elseif views.is_view(result) then
    return bad_result(engine, served, record,
                      "a view that is not its own request")
  else
    return bad_result(engine, served, record, slices.named(result)
      .. "; a raw handler returns a string, its request, a slice or nothing")
  end
  send(engine, served, record, result, nil)
end

--- Takes note of a reply that was committed in place with status.
function M.commit(engine, served, record, status)
  if status == 1 then
    return over(engine, record, served, status, { context = false })
  end
  if record.context or engine.once then
    return over(engine, record, served, status, nil)
  end
  record.served = false
end

return M
