-- SPDX-License-Identifier: Apache-2.0
-- Peers of bench/compare.lua with a fault each, for its specs. The first word
-- is the fault; server and client are otherwise Perigee's own adapter.
--
--   slow     the server takes 5 ms for each call
--   flips    the server answers with one other byte
--   hangs    the client answers no burst
--   babbles  the client answers with a line that means nothing
--   mute     the server says nothing
--   dies     the server ends with a word on standard error
--
-- PLANTED_PIDS names a file to which every process adds its number.

local fault, role = table.remove(arg, 1), arg[1]
local process = require "bench.lib.process"

local SLOW = 5e6 -- ns
local pids = os.getenv "PLANTED_PIDS"
if pids and role ~= "version" then
  local file = assert(io.open(pids, "a"))
  file:write(process.pid(), "\n")
  file:close()
end

local function sleep_long() while true do process.sleep(1) end end

local function busy_echo(request)
  local limit = process.now() + SLOW
  while process.now() < limit do end
  return request
end

local function flipping_echo(request)
  local text = request:string()
  local at = math.ceil(#text / 2)
  local other = string.char((text:byte(at) + 1) % 256)
  return text:sub(1, at - 1) .. other .. text:sub(at + 1)
end

local handlers = { slow = busy_echo, flips = flipping_echo }

local function serve(folder, handler)
  local perigee = require "perigee"
  local agent = assert(perigee.agent {
    listen = "unix:" .. folder .. "/echo", transport = "shm",
    services = { { name = "echo", version = 1, methods = {
      echo = { raw = true, handler },
    } } },
  })
  print("ready " .. agent.addresses[1])
  io.flush()
  perigee.spawn(function()
    require "perigee.descriptor".readable(0)
    perigee.stop()
  end)
  perigee.run()
end

if role == "version" then
  print("planted, " .. jit.version)
elseif role == "server" and handlers[fault] then
  serve(arg[2], handlers[fault])
elseif role == "server" and fault == "mute" then
  sleep_long()
elseif role == "server" and fault == "dies" then
  io.stderr:write "no such device\n"
  os.exit(3)
elseif role == "server" then
  print "ready -"
  io.flush()
  sleep_long()
elseif handlers[fault] then
  table.insert(arg, 1, "shm")
  dofile(os.getenv "PLANTED_CLIENT")
else
  print "ready"
  io.flush()
  for _ in io.lines() do
    if fault == "hangs" then sleep_long() end
    print "forty-two"
    io.flush()
  end
end
