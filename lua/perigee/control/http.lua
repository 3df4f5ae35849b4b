-- SPDX-License-Identifier: Apache-2.0
--- A client of HTTP servers on the loop, by libcurl. It keeps connections and
-- runs any number of calls at once.
--
--   local http = require "perigee.control.http"
--   local client = http.new()
--   local answer, kind, why = client:ask {       -- in a task: waits
--     method = "PUT", url = "https://host:7470/v1/x", body = text,
--     headers = { "Content-Type: application/json" }, timeout = 5,
--     tls = { ca = FILE, cert = FILE, key = FILE } }
--   print(answer.status, answer.headers["content-type"], answer.body)
--
--   local stream = client:stream { method = "GET", url = url }
--   for line in stream.line, stream do print(line) end
--   stream:close()
--
-- A request has `url`, and optionally `method` (default "GET"), `headers` (a
-- list of lines), `body`, `path` (a Unix socket instead of the URL's host),
-- `timeout` (seconds for all of it; a stream: until its head is there; default
-- 30), `limit` (the answer's bytes at most, default 1 MiB; of a stream those
-- that nobody has read), `tls` and `proxy` (a URL). Whoever asks a server that
-- may be another's checks `status`: any status is an answer. Redirects are
-- answers, too; the environment's proxies are not used.
--
-- A failure is nil, a kind of error and why: `not_found` (no such host, or it
-- refuses), `timeout`, `denied` (TLS), `too_large`, `peer_lost`, `protocol`
-- (also of a URL or a header that is not valid), `no_memory`, `closed`. After a
-- failure other than `not_found` and `denied` the server may have got the
-- request, and a server that closes kept connections may get one twice.
local control = require "perigee.control.native"
local descriptors = require "perigee.descriptor"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local ffi = require "ffi"
local C = control.C

local M = {}

local TIMEOUT, LIMIT = 30, 2 ^ 20
local LONGEST = 2 ^ 31 - 1              -- milliseconds
local LINE = "\n([^:\r\n]+):[ \t]*([^\r\n]-)[ \t]*%f[\r\n]"

local Client, Stream = {}, {}
Client.__index, Stream.__index = Client, Stream

local all = setmetatable({}, { __mode = "k" })
local answer = control.answer_t()
local made = control.call_out_t()

--- Makes a client. It is closed with the Lua state, or by close().
function M.new()
  local handle = C.perigee_http_open()
  if handle == nil then return nil, "no_memory", "there is no memory" end
  local client = setmetatable({
    handle = ffi.gc(handle, C.perigee_http_close), calls = {}, tag = 0,
    fd = C.perigee_http_descriptor(handle), running = false, life = 0,
  }, Client)
  all[client] = true
  return client
end

-- ---- Ending ----------------------------------------------------------------

-- Frees a call of libcurl's. The task that waits for the client's descriptor
-- has nothing to wait for after the last one.
local function free(client, call)
  if not call.handle then return end
  C.perigee_http_end(call.handle)
  call.handle, client.calls[call.tag] = false, nil
  if client.running and not next(client.calls) then
    descriptors.forget(client.fd)
  end
end

local function fail(client, call, kind, why)
  call.kind, call.why = kind, why
  free(client, call)
  futures.settle(call.future, nil, kind, why)
end

--- Ends all calls with nil, kind and why.
function Client:lose(kind, why)
  self.life, self.running = self.life + 1, false
  descriptors.forget(self.fd)
  local list = {}
  for _, call in pairs(self.calls) do list[#list + 1] = call end
  for _, call in ipairs(list) do fail(self, call, kind, why) end
end
jit.off(Client.lose)

--- Ends all calls, and the client.
function Client:close()
  if not self.handle then return end
  self:lose("closed", "it was closed")
  C.perigee_http_close(ffi.gc(self.handle, nil))
  self.handle = false
end

local function lose_all(why)
  local list = {}
  for client in pairs(all) do list[#list + 1] = client end
  for _, client in ipairs(list) do
    if client.handle then client:lose("closed", why) end
  end
end
jit.off(lose_all)

-- Tasks are not resumed after a stop; without an engine nothing can be waited
-- for.
loop.dropped[#loop.dropped + 1] = function()
  lose_all "the loop was stopped"
end
loop.emptied[#loop.emptied + 1] = function()
  lose_all "the last engine was closed"
end

-- ---- Answers ---------------------------------------------------------------

-- The values of a head's lines by their names in lower case.
local function headers_of(head)
  local values = {}
  for name, value in head:gmatch(LINE) do
    name = name:lower()
    values[name] = values[name] and values[name] .. ", " .. value or value
  end
  return values
end

local function head_of(into)
  into.status = answer.status
  into.headers = headers_of(ffi.string(answer.head, answer.head_length))
  return into
end

local function why_of() return ffi.string(answer.why) end

local function heard_all(client, call)
  if answer.result == 0 then return end
  if answer.result < 0 then
    return fail(client, call, errors.kind(answer.result), why_of())
  end
  local whole = head_of { body = ffi.string(answer.body, answer.length) }
  free(client, call)
  futures.settle(call.future, whole)
end

-- The future of a stream ends with each thing that has come.
local function heard_some(_, call)
  if answer.status ~= 0 and not call.status then head_of(call) end
  futures.settle(call.future, true)
end

-- Goes on with all calls. What ends by it may begin others.
local function pump(client)
  local life = client.life
  if C.perigee_http_step(client.handle) < 0 then
    return client:lose("no_memory", "there is no memory")
  end
  while client.life == life do
    local tag = tonumber(C.perigee_http_news(client.handle))
    if tag == 0 then return end
    local call = client.calls[tag]
    C.perigee_http_look(call.handle, answer)
    call.heard(client, call)
  end
end

-- ---- Requests --------------------------------------------------------------

local function run(client, life)
  while client.life == life and next(client.calls) do
    local ready, err = descriptors.readable(client.fd)
    if client.life ~= life then return end
    if ready then
      pump(client)
    elseif err.kind ~= "cancelled" then
      return client:lose(err.kind, err.message)
    end
  end
  if client.life == life then client.running = false end
end

local function milliseconds(seconds)
  return math.max(1, math.min(LONGEST, math.ceil(seconds * 1000)))
end

-- The request in C, and a list of what must live while C reads it.
local function given(request, call)
  local to, tls = control.request_t(), request.tls or {}
  local lines = request.headers or {}
  local list = control.words_t(#lines + 1)
  for i, line in ipairs(lines) do list[i - 1] = line end
  to.method, to.url = request.method or "GET", request.url
  to.path, to.proxy, to.header = request.path, request.proxy, list
  to.body, to.length = request.body, request.body and #request.body or 0
  to.authorities, to.certificate, to.key = tls.ca, tls.cert, tls.key
  to.connecting = milliseconds(request.timeout or TIMEOUT)
  to.total = call.streamed and 0 or to.connecting
  to.limit, to.tag = request.limit or LIMIT, call.tag
  to.streamed = call.streamed and 1 or 0
  return to, list
end

local function begin(client, request, call)
  if not client.handle then
    return futures.settle(call.future, nil, "closed", "it was closed")
  end
  client.tag = client.tag + 1
  call.tag = client.tag
  local to, list = given(request, call)
  local status = C.perigee_http_send(client.handle, to, made)
  list[0] = nil                         -- it has lived until here
  if status < 0 then
    return futures.settle(call.future, nil, errors.kind(status),
                          errors.text(status))
  end
  call.handle, client.calls[call.tag] = made[0], call
  pump(client)
  if client.running or not next(client.calls) then return end
  client.running = true
  tasks.spawn(run, client, client.life)
end

--- Begins a request. Returns the future of { status, headers (by their names in
-- lower case), body }; or of nil, a kind and why.
function Client:send(request)
  local call = { future = futures.new(false, "asking " .. request.url),
                 handle = false, streamed = false, heard = heard_all }
  begin(self, request, call)
  return call.future
end

local function wait(future, deadline)
  loop.wait(future, deadline)
  if future.ended then return futures.results(future) end
  if loop.state.stopping then return nil, "closed", "the loop was stopped" end
  return nil, "timeout", "it does not answer"
end

--- Does the same, and waits for it, in a task.
function Client:ask(request)
  return wait(self:send(request), math.huge)
end

-- ---- Streams ---------------------------------------------------------------

-- Looks at a stream's call. True; or nil, a kind and why it has failed.
local function look(stream)
  if not stream.handle then return nil, stream.kind, stream.why end
  C.perigee_http_look(stream.handle, answer)
  if answer.result >= 0 or answer.length > 0 then return true end
  stream.kind, stream.why = errors.kind(answer.result), why_of()
  return nil, stream.kind, stream.why
end

-- Waits for more. True; or nil, a kind and why.
local function await(stream, deadline)
  local fine, kind, why = wait(stream.future, deadline)
  if not fine then return nil, kind, why end
  stream.future = futures.new(false, "reading what a server sends")
  return look(stream)
end

--- Begins a request, and waits for the head of its answer. Returns a stream
-- with `status` and `headers`, to be closed; or nil, a kind and why.
function Client:stream(request)
  local stream = setmetatable({
    client = self, future = futures.new(false, "asking " .. request.url),
    handle = false, streamed = true, heard = heard_some, kind = false,
    why = false, rest = "", at = 1,
  }, Stream)
  begin(self, request, stream)
  local deadline = loop.deadline(request.timeout or TIMEOUT)
  while not stream.status do
    local fine, kind, why = await(stream, deadline)
    if not fine then
      stream:close()
      return nil, kind, why
    end
  end
  return stream
end

--- What has arrived since the last time. Waits until there is something, for
-- seconds at most. Nil alone after the end; or nil, a kind and why.
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

-- What is left, after the stream's end, of a line that has no end.
local function remainder(stream)
  local text = stream.rest:sub(stream.at)
  stream.rest, stream.at = "", 1
  return text ~= "" and text or nil
end

--- The next line, without its end, which may be missing at the stream's end.
-- Waits for it, for seconds at most. Nil alone after the end; or nil, a kind
-- and why: `too_large` if it has more than most bytes (default 1 MiB).
function Stream:line(most, seconds)
  local deadline = loop.deadline(seconds)
  local stop = self.rest:find("\n", self.at, true)
  while not stop and #self.rest - self.at < (most or LIMIT) do
    local text, kind, why = self:read(loop.left(deadline))
    if not text and kind then return nil, kind, why end
    if not text then return remainder(self) end
    local first = #self.rest - self.at + 2
    self.rest, self.at = self.rest:sub(self.at) .. text, 1
    stop = self.rest:find("\n", first, true)
  end
  if not stop or stop - self.at > (most or LIMIT) then
    return nil, "too_large", "a line of what it answers is too large"
  end
  local line = self.rest:sub(self.at, stop - 1)
  self.at = stop + 1
  return (line:gsub("\r$", ""))
end

--- Ends it. Who reads it gets `closed`.
function Stream:close()
  self.kind, self.why = self.kind or "closed", self.why or "it was closed"
  free(self.client, self)
  futures.settle(self.future, nil, self.kind, self.why)
end

return M
