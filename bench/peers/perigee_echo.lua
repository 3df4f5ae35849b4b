-- SPDX-License-Identifier: Apache-2.0
-- Perigee from Lua: raw calls, from a slice of private memory into another; the
-- method returns its request. Word: shm, tcp or verbs. With "-inplace" behind
-- it a writer fills the request's loan from private memory, the method copies
-- that to its reply's loan, and a reader reads one byte of each page there.
--
-- Version: this tree's.
-- Mode: one agent and one session a side; in `loan` inplace calls and a reader.
-- Copies: as in perigee.c; in place the writer and the method.
-- Sleeping: whoever has polled for 20 ms; in modes `paced` and `fanout`, and
-- where both share a core, Perigee's defaults.
-- Setting: an engine's options spin and dead_after (peer.lua).

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
local peer = dofile(here .. "peer.lua")
local calls = require "bench.lib.calls"
local ffi = require "ffi"
local histogram = require "perigee.bench.histogram"
local payload = require "bench.lib.payload"
local perigee = require "perigee"
local process = require "bench.lib.process"

local word, role, folder, size, under = unpack(arg)
local way, kind = word:match "^(%a+)%-?(%a*)$"
local inplace = kind == "inplace"
local SAMPLES, FEWEST, ATTEMPTS = 2 ^ 20, 3, 8
local options = peer.options(way, (tonumber(size) or 0)
                                  * (tonumber(under) or 0))
local roles = {}

local function copy(request, reply) return reply:write(request) end

function roles.server()
  options.listen = peer.address(way, folder)
  options.services = { { name = "echo", version = 1, methods = {
    echo = { raw = true, function(request) return request end },
    copy = { raw = true, inplace = true, copy },
    timed = { raw = true, inplace = true, calls.timed },
  } } }
  local agent = assert(perigee.agent(options))
  peer.say("ready %s", agent.addresses[1])
  peer.serve(agent)
end

-- ---- The client ------------------------------------------------------------

local agent, proxy
local proxies = {} -- of all servers, if it is a fan-out

-- An inplace call whose reader keeps the whole reply.
local function echo_in_place(slot, length)
  local function writer(loan)
    ffi.copy(loan.pointer, slot.from.pointer, length)
    return length
  end
  local calling = proxy:with { capacity = length, reader = function(reply)
    ffi.copy(slot.into.pointer, reply.pointer, math.min(reply.length, length))
    return { length = reply.length }
  end }
  return calling:copy(writer)
end

-- A slot of verify: what is sent, where the reply goes, and echo(), which makes
-- a call and returns what waits for its reply. One at a time is called as in
-- echo, several as in pipelined.
local function new_slot(region, number, length, alone)
  local at = 2 * number * length
  local into = region:slice(at + length, length)
  local slot = { from = region:slice(at, length), into = into }
  local calling = proxies[number % #proxies + 1]:with { into = into }
  function slot.echo()
    if not alone then return calling.async:echo(slot.from) end
    local got, err
    if inplace then
      got, err = echo_in_place(slot, length)
    else
      got, err = calling:echo(slot.from)
    end
    return { wait = function() return got, err end }
  end
  return slot
end

local function fill(bytes, length, call)
  for i = 0, length - 1 do
    bytes[i] = (i * 7 + call * 31 + math.floor(i / 251)) % 256
  end
end

local function compare(slot, got, length, call)
  local from, into = slot.from.pointer, slot.into.pointer
  for i = 0, length - 1 do
    if got.length ~= length or into[i] ~= from[i] then
      error(("wrong bytes: call %d, byte %d of %d"):format(call, i, length), 0)
    end
  end
end

-- Calls in rounds of `at_once`, of which every byte is new and compared.
local function verify(length, at_once, wanted)
  local region = assert(agent.engine:alloc(2 * at_once * length))
  local begin, taken, slots = process.now(), histogram.new(), {}
  for i = 1, at_once do
    slots[i] = new_slot(region, i - 1, length, at_once == 1)
  end
  while taken.count < wanted do
    for i, slot in ipairs(slots) do
      fill(slot.from.pointer, length, taken.count + i)
      slot.at = process.now()
      slot.future = slot.echo()
    end
    for _, slot in ipairs(slots) do
      local got = assert(slot.future:wait())
      taken:add(process.now() - slot.at)
      compare(slot, got, length, taken.count)
    end
  end
  region:close()
  return taken, process.now() - begin, taken.count * length
end

local samples = ffi.new("double[?]", SAMPLES)
local steps = {} -- the measured loops by mode, size and calls at once

-- whole: replies of which all bytes were compared, beside one of each page.
local function pool(n, length, whole, ns)
  local taken = histogram.new()
  taken:add_all(samples, n)
  return taken, ns or taken.sum,
         n * math.ceil(length / payload.PAGE) + whole * length
end

-- Calls that are under way together: a future for each, prepared, in batches.
local function pipelined(length, at_once)
  if kind == "batched" then
    return calls.batched(proxy, length, at_once, agent.engine)
  end
  local slots = kind == "posted" and calls.posted_slots or calls.raw_slots
  return calls.windowed(at_once, slots(proxy, length, at_once, agent.engine))
end

local function step_of(mode, length, at_once)
  local key = ("%s %d %d"):format(mode, length, at_once)
  if not steps[key] then
    steps[key] = mode == "fanout" and calls.fan(proxies, length, agent.engine)
      or mode == "loan" and calls.loan(proxy, length)
      or mode == "pipelined" and pipelined(length, at_once)
      or inplace and calls.inplace(proxy, length, agent.engine)
      or calls.raw(proxy, length, agent.engine)
  end
  return steps[key]
end

local TIMED = { echo = true, pipelined = true, fanout = true, loan = true }

local function timed(mode, length, at_once, seconds)
  if not TIMED[mode] then error("no such mode: " .. mode, 0) end
  local step = step_of(mode, length, at_once)
  local until_ns, n, spent, steps_made = process.now() + seconds * 1e9, 0, 0, 0
  repeat
    local taken, ns = step(samples + n, SAMPLES - n, until_ns)
    n, spent, steps_made = n + taken, ns and spent + ns, steps_made + 1
  until n >= FEWEST
  return pool(n, length, mode == "loan" and 0 or steps_made * at_once, spent)
end

-- So many calls each second, each from the time at which it is due.
local function paced(length, rate, seconds)
  local step = step_of("paced", length, 1)
  local one, begin, n = ffi.new "double[1]", process.now(), 0
  repeat
    local due = begin + n * 1e9 / rate
    local early = due - process.now()
    if early > 0 then perigee.sleep(early / 1e9) end
    step(one, 1, 0)
    samples[n] = process.now() - due
    n = n + 1
  until process.now() - begin >= seconds * 1e9 and n >= FEWEST
  return pool(n, length, n, process.now() - begin)
end

local function burst(line)
  local mode, length, number, limit = line:match "^(%a+) (%d+) (%d+) (%S+)$"
  length, number, limit = tonumber(length), tonumber(number), tonumber(limit)
  if mode == "verify" then return verify(length, number, limit) end
  if mode == "paced" then return paced(length, number, limit) end
  return timed(mode, length, number, limit)
end

local function connect(address)
  local one, why
  for _ = 1, ATTEMPTS do -- a handshake has two seconds, also on a busy machine
    one, why = agent:proxy(address, "echo", { timeout = peer.PATIENCE })
    if one then break end
  end
  return assert(one, why)
end

function roles.client()
  agent = assert(perigee.agent(options))
  for i = 6, #arg do proxies[i - 5] = connect(arg[i]) end
  proxy = proxies[1]
  verify(tonumber(size), 1, 1)
  peer.answer(burst)
  agent:close()
end

peer.main(way, role, roles)
