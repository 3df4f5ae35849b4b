-- SPDX-License-Identifier: Apache-2.0
-- Connections of peers without the secret, 4,000 a second: silence, half a
-- HELLO, a whole one recorded elsewhere followed by nothing or a wrong proof,
-- garbage; and now and then a whole handshake with a wrong secret. attack.from
-- is the address of this host that they come from ("": that of the clients).
local ffi = require "ffi"
local native = require "perigee.native"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

local RATE, OPEN = 4000, 200

ffi.cdef [[
  struct spec_linger { int on, seconds; };
]]
local SOL_SOCKET, SO_LINGER, NONBLOCK_INET = 1, 13, 0x80801

-- 127.0.0.N:PORT, or any port.
local function at(last, port)
  local swapped = bit.bor(bit.lshift(port % 256, 8), math.floor(port / 256))
  return ffi.new("struct spec_inet", 2, swapped, 127 + last * 2 ^ 24, 0)
end

-- Closing resets the connection at once, so that no port stays in TIME_WAIT.
local at_once = ffi.new("struct spec_linger", 1, 0)
local function raw_connect(from, to)
  local fd = ffi.C.spec_net_socket(2, NONBLOCK_INET, 0)
  if fd < 0 then return nil end
  ffi.C.spec_net_option(fd, SOL_SOCKET, SO_LINGER, at_once, 8)
  if from then ffi.C.spec_net_bind(fd, from, 16) end
  ffi.C.spec_net_connect(fd, to, 16)
  return fd
end

-- Records the first bytes that a peer with a wrong secret sends.
local function overheard(peer)
  local fd, port = sockets.listen "127.0.0.1"
  native.C.perigee_connect(peer.handle, "tcp://127.0.0.1:" .. port, "tcp", 1e9)
  local guest, text
  for _ = 1, 1000 do
    peer:poll()
    guest = guest or #sockets.readable({ fd }, 0) > 0 and sockets.accept(fd)
    text = guest and sockets.receive(guest)
    if text and #text > 0 then break end
    process.usleep(0.001)
  end
  sockets.close(fd)
  return assert(text, "nothing was overheard")
end

local function hang_up(fd)
  if fd then sockets.close(fd) end
end

-- Ten messages, of which seven are HELLOs: these cost the server most.
local function words_of(hello)
  local list = { "", hello:sub(1, 100), ("\255"):rep(300) }
  for i = 1, 7 do
    list[#list + 1] = i % 2 == 0 and hello or hello .. ("p"):rep(40)
  end
  return list
end

return function(attack)
  local peer = attack:peer { secret = "not the secret of these specs" }
  local words = words_of(overheard(peer))
  local to = at(1, tonumber(attack.address:match ":(%d+)$"))
  local from = attack.from ~= "" and at(tonumber(attack.from), 0) or nil
  local open, n, begun = {}, 0, process.now()
  while not attack:over() do
    local due = (process.now() - begun) * RATE
    while n < due do
      local slot, text = n % OPEN, words[attack:random(#words) + 1]
      hang_up(open[slot])
      open[slot] = raw_connect(from, to) -- at once on one host
      if open[slot] then ffi.C.spec_send(open[slot], text, #text, 0x4040) end
      n = n + 1
      if n % 40 == 0 then
        native.C.perigee_connect(peer.handle, attack.address, "tcp", 1e9)
      end
      if n % 8 == 0 then peer:poll() end
      attack:done()
    end
    peer:poll()
    process.usleep(0.0002)
  end
  for slot = 0, OPEN - 1 do hang_up(open[slot]) end
  peer:close()
end
