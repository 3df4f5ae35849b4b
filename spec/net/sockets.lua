-- SPDX-License-Identifier: Apache-2.0
-- Plain sockets for code that does not speak Perigee's protocol: strangers,
-- relays, eavesdroppers.
local ffi = require "ffi"
require "spec.support.process" -- poll, close, send

if not pcall(ffi.typeof, "struct spec_inet") then ffi.cdef [[
  struct spec_inet { uint16_t family, port; uint32_t host; uint64_t zero; };
  int spec_net_socket(int, int, int) __asm__("socket");
  int spec_net_bind(int, const void *, unsigned) __asm__("bind");
  int spec_net_listen(int, int) __asm__("listen");
  int spec_net_accept(int, void *, void *) __asm__("accept");
  int spec_net_connect(int, const void *, unsigned) __asm__("connect");
  int spec_net_name(int, void *, unsigned *) __asm__("getsockname");
  int spec_net_option(int, int, int, const void *, unsigned)
    __asm__("setsockopt");
  long spec_net_recv(int, void *, size_t, int) __asm__("recv");
]] end

local C = ffi.C
local AF_INET, SOCK_STREAM = 2, 1
local NONBLOCK, CLOEXEC = 0x800, 0x80000
local MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN = 0x40, 0x4000, 1
local chunk = ffi.new("char[65536]")

local M = {}

local function swapped(number) -- in network byte order
  return bit.bor(bit.lshift(bit.band(number, 255), 8), bit.rshift(number, 8))
end

local function inet(host, port)
  local a, b, c, d = host:match "(%d+)%.(%d+)%.(%d+)%.(%d+)"
  local number = a + b * 2 ^ 8 + c * 2 ^ 16 + d * 2 ^ 24
  return ffi.new("struct spec_inet", AF_INET, swapped(port), number, 0)
end

local function new(kind)
  local fd = C.spec_net_socket(AF_INET, SOCK_STREAM + CLOEXEC + (kind or 0), 0)
  assert(fd >= 0, "no socket")
  return fd
end

-- A listener at any port, and that port.
function M.listen(host)
  local fd, at, length = new(), inet(host, 0), ffi.new("unsigned[1]", 16)
  assert(C.spec_net_bind(fd, at, 16) == 0 and C.spec_net_listen(fd, 256) == 0)
  C.spec_net_name(fd, at, length)
  return fd, swapped(at.port)
end

function M.accept(fd) return C.spec_net_accept(fd, nil, nil) end

-- A socket to "tcp://HOST:PORT"; hurried: it may not be connected yet; from:
-- this host's address that it comes from.
function M.dial(address, hurried, from)
  local host, port = address:match "tcp://([%d.]+):(%d+)"
  local fd = new(hurried and NONBLOCK)
  if from then assert(C.spec_net_bind(fd, inet(from, 0), 16) == 0) end
  local done = C.spec_net_connect(fd, inet(host, tonumber(port)), 16) == 0
  if done or hurried then return fd end
  C.spec_close(fd)
end

-- Sends all of the text; false if that fails.
function M.send(fd, text)
  local sent = 0
  while sent < #text do
    local n = C.spec_send(fd, ffi.cast("const char *", text) + sent,
                          #text - sent, MSG_NOSIGNAL)
    if n <= 0 then return false end
    sent = sent + tonumber(n)
  end
  return true
end

function M.close(fd) C.spec_close(fd) end

-- A port of this host's that is free. It is none of those that the system gives
-- to who dials, so that nobody else takes it soon.
local last = C.spec_getpid() * 37 % 9973
function M.free_port()
  repeat
    last = (last + 1) % 9973
    local fd, at = new(), inet("127.0.0.1", 20000 + last)
    local fine = C.spec_net_bind(fd, at, 16) == 0
    C.spec_close(fd)
  until fine
  return 20000 + last
end

-- The descriptors that become readable within so many seconds.
function M.readable(fds, seconds)
  local entries, list = ffi.new("struct spec_poll[?]", #fds), {}
  for i, fd in ipairs(fds) do
    entries[i - 1].fd, entries[i - 1].events = fd, POLLIN
  end
  C.spec_poll(entries, #fds, seconds * 1000)
  for i, fd in ipairs(fds) do
    if entries[i - 1].revents ~= 0 then list[#list + 1] = fd end
  end
  return list
end

-- The bytes that can be read now: "" at the end, nil if there is nothing.
function M.receive(fd, most)
  local n = C.spec_net_recv(fd, chunk, math.min(most or 65536, 65536),
                            MSG_DONTWAIT)
  if n >= 0 then return ffi.string(chunk, n) end
  if ffi.errno() ~= 11 then return "" end
end

-- Reads until the end, or for so many seconds; returns a text, and whether the
-- end was reached.
function M.hear(fd, seconds)
  local parts, limit = {}, os.time() + seconds + 1
  repeat
    if #M.readable({ fd }, 0.1) > 0 then
      local text = M.receive(fd)
      if text == "" then return table.concat(parts), true end
      parts[#parts + 1] = text
    end
  until os.time() > limit
  return table.concat(parts), false
end

-- Reads one request of HTTP: its head and body; nil: the client has gone.
function M.request(fd)
  local text = ""
  while true do
    local head, body = text:match "^(.-\r\n\r\n)(.*)$"
    local length = head and tonumber(head:match "Content%-Length: (%d+)" or 0)
    if head and #body >= length then return head, body end
    M.readable({ fd }, 60)
    local more = M.receive(fd)
    if more == "" then return nil end
    text = text .. (more or "")
  end
end

return M
