-- SPDX-License-Identifier: Apache-2.0
-- The floors of rpc.lua and transfer.lua over TCP: bare sockets (floor_tcp),
-- other people's programs (peers.lua), a cipher (floor_seal).

local floor = require "bench.lib.floor"
local peers = require "bench.lib.peers"

local M = {}

local LONG = 2 ^ 16 -- from this size on a rate is that of a stream

local function host_of(given)
  local address = given.connect or given.at or ""
  return address:match "^tcp://%[(.*)%]:" or address:match "^tcp://(.*):"
         or "127.0.0.1"
end

-- Returns the floor of floor_tcp --how HOW, between the same two places.
function M.bare(run, how, size)
  local given = run.given
  local words = { "--how", how, "--at", host_of(given) }
  if given.netns then words[5], words[6] = "--netns", given.netns end
  return floor.of("floor_tcp", given, words, size)
end

-- Returns the floor of an echo by a server that sleeps. With --spin 0 the
-- caller may also sleep, or find the answer in its few polls before that, so
-- the faster of both is the floor.
function M.wake(run, size)
  local wake, asleep = M.bare(run, "wake", size), M.bare(run, "asleep", size)
  if run.given.spin ~= 0 then return wake end
  return function(seconds)
    return { wake = wake(seconds / 2).wake,
             asleep = asleep(seconds / 2).asleep }
  end
end

local function peer_of(run, size, window)
  local given = run.given
  return { size = size, depth = window, streams = given.streams or 1,
           host = host_of(given), netns = given.netns, pin = given.pin,
           loopback = not given.netns }
end

local BARE = { spin = true, copy = true, epoll = true, block = true,
               write = true }
local OTHERS = { rivals = true, iperf3 = true, seal = true }

-- Returns whether the floor is one over TCP: because sessions are, or because
-- --floor names one.
function M.concerns(run)
  local name = run.given.floor
  return run.transport == "tcp" or BARE[name] or OTHERS[name]
end

-- Returns the floor that --floor names, else the one of this name.
local function named(run, name, size, window)
  name = run.given.floor or name
  if BARE[name] then
    if window > 1 then return nil, "none for several under way" end
    return M.bare(run, name, size)
  elseif name == "rivals" then
    return peers.echoes(peer_of(run, size, window))
  elseif name == "iperf3" then
    return peers.streams(peer_of(run, size, window))
  elseif name == "seal" then
    return floor.of("floor_seal", run.given, {}, size * window)
  end
  return nil, ("there is no floor %s over TCP"):format(name)
end

function M.echo(run, size, window) return named(run, "spin", size, window) end

-- Returns the floor of a transfer: bytes one way and the answer that they have
-- arrived; with several under way, a stream.
function M.transfer(run, size, window)
  local stream = run.given.encrypt and "seal" or "iperf3"
  if window > 1 and size < LONG and not run.given.floor then
    return nil, "none for several short ones under way"
  end
  return named(run, window > 1 and stream or "write", size, window)
end

return M
