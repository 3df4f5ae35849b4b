-- SPDX-License-Identifier: Apache-2.0
-- A peer that uses the C core directly, for attackers. It sends what its caller
-- gives it: typed bytes that no codec made, any method, capacity or announced
-- length. It reads replies only when told to.
local ffi = require "ffi"
local native = require "perigee.native"

local C = native.C

local BATCH = 64

local Bare = {}
Bare.__index = Bare
local M = {}

-- options: those of the core by their names there; texts are kept alive.
function M.new(options)
  local core = native.options_t()
  C.perigee_options_init(core, ffi.sizeof(core))
  core.hello_timeout = 10e9
  for name, value in pairs(options or {}) do core[name] = value end
  local out = ffi.new("struct perigee_engine *[1]")
  local status = C.perigee_engine_open(core, out)
  if status < 0 then return nil, native.detail(nil) end
  return setmetatable({ handle = out[0], keep = options,
                        events = native.events_t(BATCH) }, Bare)
end

-- Polls once and passes each event to handle, if given; returns their number.
function Bare:poll(handle)
  local n = C.perigee_poll(self.handle, self.events, BATCH)
  for i = 0, n - 1 do
    local event = self.events[i]
    if bit.band(event.flags, C.PERIGEE_POOLED) ~= 0 and not self.keeps then
      C.perigee_pool_free(self.handle, event.landed)
    end
    if handle then handle(event) end
  end
  return n
end

-- Sleeps until there is something to poll, for at most so many seconds.
function Bare:wait(seconds)
  local list = native.engines_t(1)
  list[0] = self.handle
  C.perigee_wait(list, 1, seconds * 1e9)
end

-- Polls for so many seconds, or until handle returns true.
function Bare:attend(seconds, handle)
  local limit, over = native.clock() + seconds * 1e9, false
  repeat
    if self:poll(function(event)
      over = handle and handle(event) or over
    end) == 0 then
      self:wait(0.001)
    end
  until over or native.clock() > limit
  return over
end

-- A session to that address, or nil and the reason.
function Bare:dial(address, transport, seconds)
  seconds = seconds or 5
  local operation = C.perigee_connect(self.handle, address, transport,
                                      seconds * 1e9)
  if operation < 0 then return nil, native.detail(self.handle) end
  local id, why = nil, "no answer"
  self:attend(seconds + 1, function(event)
    if event.operation ~= operation then return false end
    if event.kind ~= C.PERIGEE_EVENT_CONNECTED then return false end
    id = event.status == 0 and event.session
    why = event.pointer ~= nil and ffi.string(event.pointer, event.length)
          or ffi.string(C.perigee_status_name(event.status))
    return true
  end)
  local session = id and C.perigee_session(self.handle, id)
  if not session or session == nil then return nil, why end
  return session
end

-- Listens at an address; returns the address in use.
function Bare:listen(address)
  local out = ffi.new("struct perigee_listener *[1]")
  local status = C.perigee_listen(self.handle, address, out)
  assert(status == 0, native.detail(self.handle))
  return ffi.string(C.perigee_listener_address(out[0]))
end

-- A slice of so many bytes that has not been touched yet.
function Bare:memory(length)
  local out = ffi.new("struct perigee_region *[1]")
  local status = C.perigee_region_alloc(self.handle, nil, length, 0, nil, out)
  assert(status == 0, native.detail(self.handle))
  local slice = native.slice_t()
  slice.region, slice.offset, slice.length = out[0], 0, length
  slice.count, slice.stride = 1, length
  return slice
end

local function fill(message, given)
  local flags = given.typed and C.PERIGEE_TYPED or 0
  message.method, message.flags = given.method or 0, flags
  message.status = given.status or 0
  message.head, message.length = given.bytes, given.bytes and #given.bytes or 0
  message.slice.region = nil
  if given.slice then message.slice = given.slice end
  message.into.region = nil
  message.capacity = given.capacity or 0
  message.timeout = (given.timeout or 30) * 1e9
  message.code = given.code or 0
  return message
end

-- Makes a call; given: method, bytes, typed, slice, capacity, timeout, code.
-- Returns the operation or a negative status. The bytes must stay as they are
-- until the operation ends.
function Bare:call(session, given)
  local message = fill(native.message_t(), given)
  return C.perigee_call(session, message)
end

function Bare:send(session, slice, timeout)
  return C.perigee_send(session, slice, (timeout or 30) * 1e9)
end

-- Answers a call; given as in Bare:call, and status.
function Bare:reply(served, given)
  self.replied = given -- keeps its bytes alive
  return C.perigee_reply(self.handle, served, fill(native.message_t(), given))
end

-- Answers with a loan of that capacity and claims that so many bytes of it are
-- filled; none is written.
function Bare:reply_loan(served, length)
  local loan = native.loan_t()
  local status = C.perigee_reply_begin(self.handle, served, length, loan)
  if status < 0 then return status end
  return C.perigee_reply_commit(self.handle, served, length)
end

local info = native.info_t()
function Bare:is_open(session)
  C.perigee_session_describe(session, info, ffi.sizeof(info))
  return info.state == C.PERIGEE_SESSION_OPEN
end

function Bare:hang_up(session)
  C.perigee_session_close(session)
  C.perigee_session_free(session)
end

function Bare:close()
  C.perigee_engine_close(self.handle)
end

return M
