-- SPDX-License-Identifier: Apache-2.0
-- perftest: what the device takes for the bytes of an echo, which nobody looks
-- at. No peer, but a floor: up to 1 MiB twice half a round trip of ib_send_lat,
-- above that both ways at the rate of ib_write_bw.
--
-- Version: Debian's.
-- Each burst is a pair of processes, which client and server start. The two
-- arrange that by calls over shared memory.
-- Copies: nobody. Sleeping: nobody, both look for completions.
-- Source: manual pages of perftest; bench/lib/perftest.lua.

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
local peer = dofile(here .. "peer.lua")
local perftest = require "bench.lib.perftest"
local perigee = require "perigee"
local process = require "bench.lib.process"

local role, folder, _, _, address = unpack(arg)
local LONG, UNDER = 2 ^ 20, 8 -- bytes; messages under way at a rate
local OPTIONS = { transport = "shm", engine = { dead_after = peer.PATIENCE } }
local roles = {}

function roles.version()
  if not process.installed "ib_send_lat" then error("it is not there", 0) end
  local child = assert(process.spawn { "ib_send_lat", "--version" })
  peer.say("perftest %s", child:rest():match "[Vv]ersion:?%s*(%S+)" or "")
  child:wait()
end

function roles.server()
  OPTIONS.listen = peer.address(OPTIONS.transport, folder)
  OPTIONS.services = { { name = "perftest", version = 1, methods = {
    perftest = function(...) return perftest.serve(nil, ...) end,
    perftest_end = perftest.stop,
  } } }
  local agent = assert(perigee.agent(OPTIONS))
  peer.say("ready %s", agent.addresses[1])
  peer.serve(agent)
  perftest.stop()
end

local function burst(proxy, line)
  local mode, size, seconds = line:match "^(%a+) (%d+) %d+ (%S+)$"
  if mode ~= "echo" then error("no such burst: " .. line, 0) end
  size = tonumber(size)
  local run = { given = {}, proxy = proxy }
  local measure = assert(perftest.of(run, {
    program = size <= LONG and "ib_send_lat" or "ib_write_bw",
    size = size, scale = 2, depth = UNDER,
  }))
  local _, pool = next(assert(measure(tonumber(seconds))))
  peer.say("ok calls=%d seconds=%.9f checked=0 ns=%s", pool.count,
           pool.sum / 1e9, pool:text())
end

function roles.client()
  local agent = assert(perigee.agent(OPTIONS))
  local proxy = assert(agent:proxy(address, "perftest",
                                   { timeout = peer.PATIENCE }))
  peer.say "ready"
  for line in io.lines() do burst(proxy, line) end
  agent:close()
end

peer.main(role, role, roles)
