-- SPDX-License-Identifier: Apache-2.0
-- Perigee from Lua: raw calls, from a slice of private memory into another; the
-- method returns its request. Word: shm or tcp.
--
-- What copies: as in perigee.c.
-- Who sleeps: whoever has polled for 20 ms; in mode `paced`, and
-- where both share a core, Perigee's defaults.

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
dofile(here .. "../tree.lua")
local calls = require "perigee.bench.calls"
local ffi = require "ffi"
local histogram = require "perigee.bench.histogram"
local perigee = require "perigee"
local process = require "perigee.bench.process"

local way, role, folder, size, _, address = unpack(arg)
local PATIENCE = 600 -- seconds: others have their turns
local LOOK = 0.2     -- seconds between looks at standard input
local SAMPLES, FEWEST, ATTEMPTS = 2 ^ 20, 3, 8
local options = {
  transport = way,
  engine = {
    spin = os.getenv "COMPARE_MODE" ~= "paced"
           and os.getenv "COMPARE_CORES" ~= "1" and 0.02 or nil,
    dead_after = PATIENCE,
  },
}

local function say(format, ...)
  io.write(format:format(...), "\n")
  io.flush()
end

local ROLES = {}

function ROLES.version() say("Perigee %s, %s", perigee.version, jit.version) end

-- ---- The server ------------------------------------------------------------

-- Nothing is sent to the server's standard input, so there is its end to read.
local function end_with_stdin()
  while not process.readable(0, 0) do perigee.sleep(LOOK) end
  perigee.stop()
end

function ROLES.server()
  options.listen = way == "tcp" and "tcp://127.0.0.1:0"
                   or "unix:" .. folder .. "/echo"
  options.services = { { name = "echo", version = 1, methods = {
    echo = { raw = true, function(request) return request end },
  } } }
  local agent = assert(perigee.agent(options))
  say("ready %s", agent.addresses[1])
  perigee.spawn(end_with_stdin)
  perigee.run()
  agent:close()
end

-- ---- The client ------------------------------------------------------------

local agent, proxy

-- So many calls, of which every byte is new and compared.
local function verify(length, wanted)
  local region = assert(agent.engine:alloc(2 * length))
  local from, into = region:slice(0, length), region:slice(length, length)
  local begin, taken = process.now(), histogram.new()
  for call = 1, wanted do
    for i = 0, length - 1 do
      from.pointer[i] = (i * 7 + call * 31 + math.floor(i / 251)) % 256
    end
    local at = process.now()
    local got = assert(proxy:with { into = into }:echo(from))
    taken:add(process.now() - at)
    for i = 0, length - 1 do
      if got.length ~= length or into.pointer[i] ~= from.pointer[i] then
        error(("wrong bytes: call %d, byte %d of %d"):format(call, i, length),
              0)
      end
    end
  end
  region:close()
  return taken, process.now() - begin, wanted * length
end

local samples = ffi.new("double[?]", SAMPLES)
local steps = {} -- the measured loops by mode, made once

local function pool(n, ns)
  local taken = histogram.new()
  taken:add_all(samples, n)
  return taken, ns or taken.sum, n
end

local function timed(mode, length, at_once, seconds)
  local step = steps[mode]
  if not step and mode == "echo" then
    step = calls.raw(proxy, length, agent.engine)
  elseif not step then
    step = calls.windowed(at_once, calls.raw_slots(proxy, length, at_once,
                                                   agent.engine))
  end
  steps[mode] = step
  local until_ns, n, spent = process.now() + seconds * 1e9, 0, 0
  repeat
    local taken, ns = step(samples + n, SAMPLES - n, until_ns)
    n, spent = n + taken, ns and spent + ns
  until n >= FEWEST
  return pool(n, spent)
end

-- So many calls each second, each from the time at which it is due.
local function paced(length, rate, seconds)
  steps.paced = steps.paced or calls.raw(proxy, length, agent.engine)
  local one, begin, n = ffi.new "double[1]", process.now(), 0
  repeat
    local due = begin + n * 1e9 / rate
    local early = due - process.now()
    if early > 0 then perigee.sleep(early / 1e9) end
    steps.paced(one, 1, 0)
    samples[n] = process.now() - due
    n = n + 1
  until process.now() - begin >= seconds * 1e9 and n >= FEWEST
  return pool(n, process.now() - begin)
end

local function burst(line)
  local mode, length, number, limit = line:match "^(%a+) (%d+) (%d+) (%S+)$"
  length, number, limit = tonumber(length), tonumber(number), tonumber(limit)
  if mode == "verify" then return verify(length, limit) end
  if mode == "paced" then return paced(length, number, limit) end
  return timed(mode, length, number, limit)
end

function ROLES.client()
  agent = assert(perigee.agent(options))
  local why
  for _ = 1, ATTEMPTS do -- a handshake has two seconds, also on a busy machine
    proxy, why = agent:proxy(address, "echo", { timeout = PATIENCE })
    if proxy then break end
  end
  assert(proxy, why)
  verify(tonumber(size), 1)
  say "ready"
  for line in io.lines() do
    local taken, ns, checked = burst(line)
    say("ok calls=%d seconds=%.9f checked=%d ns=%s", taken.count, ns / 1e9,
        checked, taken:text())
  end
  agent:close()
end

if way == "version" then role = way end
local fine, why = pcall(ROLES[role])
if not fine then
  why = tostring(why):gsub("\n.*", "")
  local wrong = why:match "wrong bytes:? ?(.*)"
  say("%s %s", wrong and "wrong" or "failed", wrong or why)
  os.exit(1)
end
