-- SPDX-License-Identifier: Apache-2.0
--- A client of HTTP servers on the loop, by libcurl. It keeps connections and
-- runs any number of calls at once.
--
--   local http = require "perigee.net.http"
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
-- that nobody has read), `tls` and `proxy` (a URL). Check `status`, as any
-- status is an answer. Redirects are answers, too; the environment's proxies
-- are not used.
--
-- A failure is nil, a kind of error and why: `not_found` (no such host, or it
-- refuses), `timeout`, `denied` (TLS), `too_large`, `peer_lost`, `protocol`
-- (also of a URL or a header that is not valid), `no_memory`, `closed`. The
-- server may have got the request after any failure but `not_found` and
-- `denied`. A server that closes kept connections may get one twice.
local control = require "perigee.net.native"
local descriptors = require "perigee.descriptor"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local lost = require "perigee.net.lost"
local streams = require "perigee.net.http_stream"
local tasks = require "perigee.runtime.task"

local ffi = require "ffi"
local C = control.C

local M = {}

local TIMEOUT, LIMIT = 30, 2 ^ 20
local LONGEST = 2 ^ 31 - 1              -- milliseconds

local Client = {}
Client.__index = Client

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
  lost.add(client)
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
  if not self.handle then return end
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

-- ---- Answers ---------------------------------------------------------------

local function heard_all(client, call)
  if answer.result == 0 then return end
  if answer.result < 0 then
    return fail(client, call, errors.kind(answer.result),
                ffi.string(answer.why))
  end
  local whole = streams.head(answer, {
    body = ffi.string(answer.body, answer.length) })
  free(client, call)
  futures.settle(call.future, whole)
end

-- Goes on with all calls. A call that ends may begin others.
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
    call.heard(client, call, answer)
  end
end

-- ---- Requests --------------------------------------------------------------

local function run(client, life)
  while client.life == life and next(client.calls) do
    local ready, err = descriptors.readable(client.fd, nil, true)
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

--- Does the same, and waits for it, in a task.
function Client:ask(request)
  return streams.wait(self:send(request), math.huge)
end

--- Begins a request, and waits for the head of its answer. Returns a stream
-- (http_stream), to be closed; or nil, a kind and why.
function Client:stream(request)
  local stream = streams.new(request.url, function(stream)
    free(self, stream)
  end)
  begin(self, request, stream)
  return stream:open(request.timeout or TIMEOUT)
end

return M
