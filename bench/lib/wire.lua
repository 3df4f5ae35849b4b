-- SPDX-License-Identifier: Apache-2.0
-- HTTP by bare sockets, for benches of the control server: one connection that
-- waits for its answer, and crowds of connections that wait by epoll. So the
-- client's own time is small, and the same beside each server.

local ffi = require "ffi"
local process = require "bench.lib.process"

ffi.cdef [[
typedef struct { uint16_t family, port; uint8_t ip[4]; uint64_t zero; }
  perigee_bench_place;
typedef struct __attribute__((packed)) { uint32_t events; uint64_t data; }
  perigee_bench_ready;
typedef struct { unsigned long now, most; } perigee_bench_limit;
int perigee_bench_socket(int, int, int) __asm__("socket");
int perigee_bench_connect(int, const perigee_bench_place *, uint32_t)
  __asm__("connect");
int perigee_bench_option(int, int, int, const int *, uint32_t)
  __asm__("setsockopt");
int perigee_bench_epoll(int) __asm__("epoll_create1");
int perigee_bench_control(int, int, int, perigee_bench_ready *)
  __asm__("epoll_ctl");
int perigee_bench_wait(int, perigee_bench_ready *, int, int)
  __asm__("epoll_wait");
int perigee_bench_get_limit(int, perigee_bench_limit *) __asm__("getrlimit");
int perigee_bench_set_limit(int, const perigee_bench_limit *)
  __asm__("setrlimit");
]]

local C = ffi.C
local AF_INET, SOCK_STREAM, SOCK_CLOEXEC = 2, 1, 0x80000
local IPPROTO_TCP, TCP_NODELAY = 6, 1
local RLIMIT_NOFILE = 7
local EPOLLIN, ADD = 1, 1
local BUFFER, BATCH = 2 ^ 16, 256

local M = {}

local buffer = ffi.new("char[?]", BUFFER)

-- Lets this process, and those that it starts, open as many files as they may.
-- Returns how many.
function M.files()
  local limit = ffi.new "perigee_bench_limit"
  C.perigee_bench_get_limit(RLIMIT_NOFILE, limit)
  limit.now = limit.most
  C.perigee_bench_set_limit(RLIMIT_NOFILE, limit)
  return tonumber(limit.most)
end

-- A request as text. body, token: optional.
function M.request(method, path, token, body)
  local lines = { ("%s %s HTTP/1.1\r\nHost: 127.0.0.1"):format(method, path) }
  if token then lines[#lines + 1] = "Authorization: Bearer " .. token end
  if body then
    lines[#lines + 1] = "Content-Type: application/json"
    lines[#lines + 1] = ("Content-Length: %d"):format(#body)
  end
  return table.concat(lines, "\r\n") .. "\r\n\r\n" .. (body or "")
end

-- The descriptor of a new connection to a port of loopback.
local function connected(port)
  local fd = C.perigee_bench_socket(AF_INET,
                                    SOCK_STREAM + SOCK_CLOEXEC, 0)
  if fd < 0 then error("no more files (ulimit -n)", 0) end
  local place = ffi.new("perigee_bench_place", AF_INET,
                        bit.rshift(bit.bswap(port), 16), { 127, 0, 0, 1 })
  if C.perigee_bench_connect(fd, place, 16) ~= 0 then
    error(("port %d does not answer"):format(port), 0)
  end
  C.perigee_bench_option(fd, IPPROTO_TCP, TCP_NODELAY, ffi.new("int[1]", 1), 4)
  return fd
end

local function send(fd, text)
  if C.write(fd, text, #text) ~= #text then
    error("a connection does not take a request", 0)
  end
end

-- The status and the body of an answer that text begins with, and what follows
-- it; nil while it is not whole.
local function whole(text)
  local _, last = text:find("\r\n\r\n", 1, true)
  if not last then return nil end
  local head = text:sub(1, last)
  local status = tonumber(head:match "^HTTP/1%.1 (%d%d%d)")
  local length = tonumber(head:lower():match "\r\ncontent%-length: *(%d+)") or 0
  if #text < last + length then return nil end
  return status, text:sub(last + 1, last + length), text:sub(last + length + 1)
end

-- Ends the bench if an answer has another status than it should have.
function M.expect(got, status, body)
  if got ~= status then
    error(("it answers with %d instead of %d: %s"):format(got, status,
                                                         body or ""), 0)
  end
end

local function receive(fd)
  local got = tonumber(C.read(fd, buffer, BUFFER))
  if got <= 0 then error("a connection was closed", 0) end
  return ffi.string(buffer, got)
end

-- ---- One connection --------------------------------------------------------

local Line = {}
Line.__index = Line

function M.line(port) return setmetatable({ fd = connected(port) }, Line) end

-- Asks, waits, and returns the answer's status and body.
function Line:ask(request)
  send(self.fd, request)
  local text = ""
  while true do
    text = text .. receive(self.fd)
    local status, body = whole(text)
    if status then return status, body end
  end
end

-- Asks for a stream. Line:hear() waits until it has told a text, and forgets
-- what was before that.
function Line:follow(request)
  send(self.fd, request)
  self.heard = ""
end

function Line:hear(text)
  while true do
    local _, last = self.heard:find(text, 1, true)
    if last then
      self.heard = self.heard:sub(last + 1)
      return
    end
    self.heard = self.heard .. receive(self.fd)
  end
end

function Line:close() C.close(self.fd) end

-- ---- A crowd ---------------------------------------------------------------

local Crowd = {}
Crowd.__index = Crowd

-- Opens count connections.
function M.crowd(port, count)
  local crowd = setmetatable({ epoll = C.perigee_bench_epoll(SOCK_CLOEXEC),
                               fds = {}, texts = {},
                               ready = ffi.new("perigee_bench_ready[?]",
                                               BATCH) }, Crowd)
  local event = ffi.new "perigee_bench_ready"
  for i = 1, count do
    local fd = connected(port)
    crowd.fds[i] = fd
    event.events, event.data = EPOLLIN, i
    C.perigee_bench_control(crowd.epoll, ADD, fd, event)
  end
  return crowd
end

-- Has the i-th connection ask.
function Crowd:ask(i, request)
  self.texts[i] = ""
  send(self.fds[i], request)
end

-- Reads what has come within so many milliseconds; calls f(i, status, body) for
-- each answer that is whole, and returns how many there were.
function Crowd:take(milliseconds, f)
  local n = C.perigee_bench_wait(self.epoll, self.ready, BATCH, milliseconds)
  local count = 0
  for k = 0, n - 1 do
    local i = tonumber(self.ready[k].data)
    self.texts[i] = self.texts[i] .. receive(self.fds[i])
    local status, body = whole(self.texts[i])
    if status then
      self.texts[i], count = "", count + 1
      if f then f(i, status, body) end
    end
  end
  return count
end

-- Has all ask once within so many seconds, evenly, and waits for their answers,
-- whose status has to be as given. Returns the seconds that it took.
function Crowd:ask_evenly(seconds, status, request)
  local asked, answered, most = 0, 0, #self.fds
  local begin = process.now()
  local function check(_, got) M.expect(got, status) end
  while answered < most do
    local passed = (process.now() - begin) * 1e-9
    while asked < math.min(most, passed / seconds * most) do
      asked = asked + 1
      self:ask(asked, request(asked))
    end
    answered = answered + self:take(1, check)
  end
  return (process.now() - begin) * 1e-9
end

-- Has each ask again and again, for so many seconds. Returns how many answers
-- there were in a second.
function Crowd:ask_on(seconds, status, request)
  local begin, n, asked = process.now(), 0, #self.fds
  local function again(i, got, body)
    M.expect(got, status, body)
    asked = asked + 1
    self:ask(i, request(asked))
  end
  for i = 1, #self.fds do self:ask(i, request(i)) end
  repeat n = n + self:take(100, again)
  until process.now() >= begin + seconds * 1e9
  return n / ((process.now() - begin) * 1e-9)
end

-- Has all ask, `under` at a time, and waits for their answers, whose status has
-- to be as given. request: function (i), which returns the text.
function Crowd:ask_all(under, status, request)
  local asked, answered, most = 0, 0, #self.fds
  local function check(_, got, body) M.expect(got, status, body) end
  while answered < most do
    while asked < most and asked - answered < under do
      asked = asked + 1
      self:ask(asked, request(asked))
    end
    answered = answered + self:take(1000, check)
  end
end

function Crowd:close()
  for _, fd in ipairs(self.fds) do C.close(fd) end
  C.close(self.epoll)
end

-- ---- What is asked of a control server -------------------------------------

-- The path of an agent's name.
function M.path(scope, name)
  return ("/v1/scopes/%s/agents/%s"):format(scope, name)
end

-- Requests that take, renew and give up a name.
function M.put(scope, name, ttl, token)
  local body = ('{"name":"%s","scope":"%s","epoch":"e-%s","addresses":'
    .. '["tcp://127.0.0.1:7000"],"kind":"worker","pid":%d,"host":"here",'
    .. '"services":{"calc":1}}'):format(name, scope, name, process.pid())
  return M.request("PUT", ("%s?ttl=%g"):format(M.path(scope, name), ttl),
                   token, body)
end

function M.renew(scope, name, token)
  return M.request("POST", ("%s/renew?epoch=e-%s"):format(M.path(scope, name),
                                                         name), token)
end

return M
