-- SPDX-License-Identifier: Apache-2.0
-- Installs the systems that bench/compare.lua measures: Debian's packages by
-- apt-get, wheels into build/compare/venv. It tells what it will fetch and how
-- much, and asks, unless YES=1.
--
--   make compare-deps [PEER...]        (peers or groups; none: all)

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local peers = require "perigee.bench.compare.peers"
local wheels = require "perigee.bench.compare.wheels"

local ROOT = here .. "../"
local VENV = ROOT .. "build/compare/venv"

local function stop(format, ...)
  io.stderr:write("compare-deps: ", format:format(...), "\n")
  os.exit(1)
end

-- Returns the groups that are wanted and not there, each once.
local function absent()
  local all, seen, groups = peers.all(ROOT), {}, {}
  if arg[1] then
    local chosen, unknown = peers.chosen(all, arg)
    all = chosen or stop("there is no peer %q", unknown)
  end
  for _, peer in ipairs(all) do
    if not seen[peer.group] and not peers.version(peer) then
      groups[#groups + 1] = peer
    end
    seen[peer.group] = true
  end
  return groups
end

local function quoted(words)
  local parts = {}
  for i, word in ipairs(words) do
    parts[i] = "'" .. word:gsub("'", "'\\''") .. "'"
  end
  return table.concat(parts, " ")
end

-- Returns the commands that install a peer, but for its wheels.
local function commands(peer)
  local list = {}
  if peer.debian then
    list[#list + 1] = "apt-get install -y --no-install-recommends "
                      .. quoted(peer.debian)
  end
  if peer.target then -- a wheel in a folder of its own, for its headers
    list[#list + 1] = ("python3 -m pip install --quiet --target %sbuild/%s %s")
                      :format(ROOT, peer.target[1], quoted { peer.target[2] })
  end
  return list
end

local function agreed()
  if os.getenv "YES" == "1" then return true end
  io.write "Go on? [y/N] "
  return (io.read() or ""):lower() == "y"
end

local wanted = absent()
if #wanted == 0 then
  print "All that is wanted is there."
  os.exit(0)
end
for _, peer in ipairs(wanted) do
  print(("%s, about %s:"):format(peer.group, peer.fetches or "?"))
  for _, command in ipairs(commands(peer)) do print("  " .. command) end
  local missing = peer.wheels and wheels.missing(VENV, peer.wheels) or {}
  if #missing > 0 then
    print("  " .. wheels.command(VENV, missing, peer.alone))
  end
end
if not agreed() then stop "nothing was installed" end
for _, peer in ipairs(wanted) do
  for _, command in ipairs(commands(peer)) do
    if os.execute(command) ~= 0 then stop("failed: %s", command) end
  end
  local fine, why = wheels.install(VENV, peer.wheels or {}, peer.alone)
  if not fine then
    stop("%s: %s (what has come stays; the same command goes on from there)",
         peer.group, why)
  end
end
