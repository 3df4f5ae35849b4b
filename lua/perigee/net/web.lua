-- SPDX-License-Identifier: Apache-2.0
--- An HTTP server on the loop. `Web:run` reads what has come and returns the
-- complete requests; each is answered once, or gets a stream.
--
-- A request has `method`, `target` (path and query, as sent), `body` and
-- `excess`: false; or the body is not there, since it was larger than allowed
-- (1), or there were too many long ones (2).
local control = require "perigee.net.native"
local descriptors = require "perigee.descriptor"
local errors = require "perigee.runtime.errors"

local ffi = require "ffi"
local C = control.C

local M = {}

local to_t = ffi.typeof "struct perigee_web_to"
local text_t = ffi.typeof "char[64]"
local out_t = ffi.typeof "struct perigee_web *[1]"
local reply = ffi.new "struct perigee_web_reply"

local Web, Request, Stream = {}, {}, {}
Web.__index, Request.__index, Stream.__index = Web, Request, Stream

--- Listens at target: { host, port, certificate, key (texts in PEM), and the
-- limits connections, per_host, head, body, patience, queued, backlog, answers;
-- names: what a request may name as its host }, as in control.h. Returns the
-- server, or nil and an error.
function M.open(target)
  local to = to_t(target)
  local out, why = out_t(), ffi.new "char[256]"
  local status = C.perigee_web_open(out, to, why, 256)
  if status < 0 then
    return nil, errors.new(errors.kind(status), ("listening at %s:%d: %s")
      :format(target.host, target.port, ffi.string(why)))
  end
  return setmetatable({ web = out[0], port = C.perigee_web_port(out[0]) }, Web)
end

-- ---- Requests --------------------------------------------------------------

local function request_of(raw)
  return setmetatable({ raw = raw, method = ffi.string(raw.method),
                        target = ffi.string(raw.target),
                        body = raw.length > 0
                          and ffi.string(raw.body, raw.length) or "",
                        excess = raw.excess ~= 0 and raw.excess },
                      Request)
end

--- Reads and writes what can be, and appends the complete requests to list.
-- Returns the milliseconds until it has to run again, or -1.
function Web:run(list)
  local wait = C.perigee_web_run(self.web)
  local raw = C.perigee_web_next(self.web)
  while raw ~= nil do
    list[#list + 1] = request_of(raw)
    raw = C.perigee_web_next(self.web)
  end
  return wait
end

--- The bytes that an answer may have now, so that there is room for others.
function Web:room() return tonumber(C.perigee_web_room(self.web)) end

local counts = ffi.new "uint32_t[2]"

--- Its connections, and how many of them are streams.
function Web:count()
  C.perigee_web_count(self.web, counts, counts + 1)
  return counts[0], counts[1]
end

--- The address that it listens at, as a number.
function Web:address()
  local into = text_t()
  C.perigee_web_address(self.web, into)
  return ffi.string(into)
end

--- The descriptor that it waits for, an epoll with all connections.
function Web:descriptor() return C.perigee_web_descriptor(self.web) end

--- Waits until there may be something to run, at most milliseconds.
function Web:wait(milliseconds)
  return descriptors.readable(self:descriptor(), milliseconds * 1e-3, true)
end

--- Ends the waits, for what another task has answered or told.
function Web:wake()
  if self.web then descriptors.cancel(self:descriptor()) end
end

function Web:close()
  if not self.web then return end
  descriptors.forget(self:descriptor())
  C.perigee_web_close(self.web)
  self.web = false
end

--- The value of a header, or nil. Several are joined by commas.
function Request:header(name)
  local value = C.perigee_web_header(self.raw, name)
  return value ~= nil and ffi.string(value) or nil
end

-- Headers are names and values in turn, as in { "ETag", '"1"' }.
local function fill(status, body, headers)
  local n = headers and #headers or 0
  reply.status = status
  for i = 1, n do reply.header[i - 1] = headers[i] end
  reply.header[n] = nil
  reply.body, reply.length = body, #body
end

--- Answers it. headers: at most six, names and values in turn.
function Request:answer(status, body, headers)
  fill(status, body, headers)
  C.perigee_web_answer(self.raw, reply)
  self.raw = false
end

--- Is there a place for a stream? trusted: it is no stranger's.
function Request:may_stream(trusted)
  return C.perigee_web_may_stream(self.raw, trusted and 1 or 0) ~= 0
end

--- Answers it with a stream; nil if there is no memory.
function Request:stream(status, headers, trusted)
  fill(status, "", headers)
  local raw = self.raw
  self.raw = false
  if C.perigee_web_stream(raw, reply, trusted and 1 or 0) < 0 then
    return nil
  end
  return setmetatable({ raw = raw }, Stream)
end

--- Tells the client a part. False once the client has gone, or is too slow.
function Stream:tell(part)
  C.perigee_web_tell(self.raw, part, #part)
  return self.raw.gone == 0
end

--- Returns the number of bytes that were told and not sent. The number is very
-- large while all streams together are so far behind that nobody should be told
-- what can wait.
function Stream:behind()
  return tonumber(C.perigee_web_behind(self.raw))
end

--- Has its client gone?
function Stream:is_gone() return self.raw.gone ~= 0 end

function Stream:close()
  if not self.raw then return end
  C.perigee_web_end(self.raw)
  self.raw = false
end

return M
