-- SPDX-License-Identifier: Apache-2.0
-- A floor of calls as a peer: for each burst the client runs the C program that
-- its word tells, with options behind it, and the quickest of its variants
-- counts. The server does nothing.
--
-- Version: this tree's.
-- Copies and sleeping: the head of each program, bench/floor_*.c, tells.

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
local peer = dofile(here .. "peer.lua")
local floor = require "bench.lib.floor"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"

local program, more = arg[1]:match "^(%S+) ?(.*)$"
local roles, words = {}, {}
for word in more:gmatch "%S+" do words[#words + 1] = word end

function roles.version()
  local path = floor.folder .. "/" .. program
  local file = assert(io.open(path), "there is no " .. path)
  file:close()
  peer.say("%s of this tree", arg[1])
end

function roles.server()
  peer.say "ready"
  io.read "*a"
end

local function burst(line)
  local mode, size, seconds = line:match "^(%a+) (%d+) %d+ (%S+)$"
  if mode ~= "echo" then error("no such burst: " .. line, 0) end
  local cores, best = process.allowed(), nil
  local pin = { cores[1], cores[2] or cores[1] }
  for _, pool in pairs(floor.burst(program, { pin = pin }, words,
                                   tonumber(seconds), tonumber(size))) do
    if not best or pool:quantile(0.5) < best:quantile(0.5) then best = pool end
  end
  return best, best.sum, best.count * math.ceil(tonumber(size) / payload.PAGE)
end

function roles.client() peer.answer(burst) end

peer.main(program, arg[2], roles)
