-- SPDX-License-Identifier: Apache-2.0
--- An answer of an HTTP server that is read while it comes: `status`, `headers`
-- and then read() or line(), until nil, and close(). Bytes that nobody reads
-- are kept up to the limit of the request; then the server has to wait.
local control = require "perigee.net.native"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"

local ffi = require "ffi"
local C = control.C

local M = {}

local LIMIT = 2 ^ 20                    -- bytes of a line
local LINE = "\n([^:\r\n]+):[ \t]*([^\r\n]*)"

local Stream = {}
Stream.__index = Stream

local answer = control.answer_t()

-- ---- Answers ---------------------------------------------------------------

-- The values of a head's lines by their names in lower case.
local function headers_of(head)
  local values = {}
  for name, value in head:gmatch(LINE) do
    name, value = name:lower(), value:match "^.*[^ \t]" or ""
    values[name] = values[name] and values[name] .. ", " .. value or value
  end
  return values
end

--- Copies status and headers of C's answer into a table, which it returns.
function M.head(from, into)
  into.status = from.status
  into.headers = headers_of(ffi.string(from.head, from.head_length))
  return into
end

--- The results of a future; or nil, a kind and why it has not ended until
-- deadline.
function M.wait(future, deadline)
  loop.wait(future, deadline)
  if future.ended then return futures.results(future) end
  if loop.state.stopping then return nil, "closed", "the loop was stopped" end
  return nil, "timeout", "it does not answer"
end

-- ---- Streams ---------------------------------------------------------------

-- The future of a stream ends with each thing that has come.
local function heard(_, stream, from)
  if from.status ~= 0 and not stream.status then M.head(from, stream) end
  futures.settle(stream.future, true)
end

--- A call of a client's (http) that is to be a stream. free(stream) ends it.
function M.new(url, free)
  return setmetatable({
    future = futures.new(false, "asking " .. url), handle = false,
    streamed = true, heard = heard, free = free, status = false, kind = false,
    why = false, rest = "", at = 1, parts = {}, aside = 0,
  }, Stream)
end

-- Looks at a stream's call. True; or nil, a kind and why it has failed.
local function look(stream)
  if not stream.handle then return nil, stream.kind, stream.why end
  C.perigee_http_look(stream.handle, answer)
  if answer.result >= 0 or answer.length > 0 then return true end
  stream.kind = errors.kind(answer.result)
  stream.why = ffi.string(answer.why)
  return nil, stream.kind, stream.why
end

-- Waits for more. True; or nil, a kind and why.
local function await(stream, deadline)
  local fine, kind, why = M.wait(stream.future, deadline)
  if not fine then return nil, kind, why end
  stream.future = futures.new(false, "reading what a server sends")
  return look(stream)
end

--- Waits for its head, for seconds at most. Itself; or nil, a kind and why, and
-- then it is closed.
function Stream:open(seconds)
  local deadline = loop.deadline(seconds)
  while not self.status do
    local fine, kind, why = await(self, deadline)
    if not fine then
      self:close()
      return nil, kind, why
    end
  end
  return self
end

--- Returns the bytes that have arrived since the last time. Waits until there
-- is something, for seconds at most. Nil alone after the end; or nil, a kind
-- and why.
function Stream:read(seconds)
  local deadline = loop.deadline(seconds)
  local fine, kind, why = look(self)
  while fine do
    if answer.length > 0 then
      local text = ffi.string(answer.body, answer.length)
      C.perigee_http_take(self.handle, #text)
      return text
    elseif answer.result == 1 then
      return nil
    end
    fine, kind, why = await(self, deadline)
  end
  return nil, kind, why
end

--- The next piece of a line, without the line's end, and whether it is the last
-- one. Waits for it, for seconds at most. Nil alone after the end; or nil, a
-- kind and why.
function Stream:piece(seconds)
  if self.at > #self.rest then
    local text, kind, why = self:read(seconds)
    if not text then return nil, kind, why end
    self.rest, self.at = text, 1
  end
  local stop = self.rest:find("\n", self.at, true)
  local text = self.rest:sub(self.at, stop and stop - 1)
  self.at = (stop or #self.rest) + 1
  return text, stop ~= nil
end

-- The line of which all pieces have come.
local function joined(stream)
  local text = table.concat(stream.parts)
  stream.parts, stream.aside = {}, 0
  return text
end

-- The rest of a line that the stream's end cut off.
local function remainder(stream)
  local text = joined(stream)
  return text ~= "" and text or nil
end

--- The next line, without its end, which may be missing at the stream's end.
-- Waits for it, for seconds at most. Nil alone after the end; or nil, a kind
-- and why: `too_large` if it has more than most bytes (default 1 MiB).
function Stream:line(most, seconds)
  local deadline = loop.deadline(seconds)
  local ended
  repeat
    local text, last, why = self:piece(loop.left(deadline))
    if not text and last then return nil, last, why end
    if not text then return remainder(self) end
    ended = last
    self.parts[#self.parts + 1] = text
    self.aside = self.aside + #text
    if self.aside > (most or LIMIT) then
      return nil, "too_large", "a line of what it answers is too large"
    end
  until ended
  local line = joined(self)
  return line:byte(-1) == 13 and line:sub(1, -2) or line
end

--- Ends it. A task that reads it gets `closed`.
function Stream:close()
  self.kind, self.why = self.kind or "closed", self.why or "it was closed"
  self.free(self)
  futures.settle(self.future, nil, self.kind, self.why)
end

return M
