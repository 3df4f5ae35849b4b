-- SPDX-License-Identifier: Apache-2.0
-- Installs the systems that bench/compare.lua measures: Debian's packages by
-- apt-get, wheels into build/compare/venv. It tells what it will fetch and how
-- much, and asks, unless YES=1.
--
--   make compare-deps [PEER...]        (peers or groups; none: all)

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
require "bench.lib.help".asked()
local peers = require "bench.lib.compare.peers"
local shell = require "bench.lib.shell"
local wheels = require "bench.lib.compare.wheels"

local ROOT = here .. "../"
local VENV = ROOT .. "build/compare/venv"
local APT = "env DEBIAN_FRONTEND=noninteractive apt-get "

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

-- Returns the command that installs a peer's packages, or nil.
local function packages(peer)
  return peer.debian and APT .. "install -y --no-install-recommends "
                         .. shell.quoted(peer.debian)
end

-- Returns the wheels of a peer, and the folder for them if they have one of
-- their own, for their headers.
local function wheels_of(peer)
  if not peer.target then return peer.wheels or {} end
  return { peer.target[2] }, ROOT .. "build/" .. peer.target[1]
end

local function tell(peer)
  print(("%s, about %s:"):format(peer.group, peer.fetches or "?"))
  if packages(peer) then print("  " .. packages(peer)) end
  local list, target = wheels_of(peer)
  if not target then list = #list > 0 and wheels.missing(VENV, list) or list end
  if #list > 0 then
    print("  " .. wheels.command(VENV, list, peer.alone, target))
  end
end

local function install(peer)
  local command, list, target = packages(peer), wheels_of(peer)
  if command and os.execute(command) ~= 0 then stop("failed: %s", command) end
  local fine, why = wheels.install(VENV, list, peer.alone, target)
  if fine then return end
  stop("%s: %s (what has come stays; the same command goes on from there)",
       peer.group, why)
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
local debian
for _, peer in ipairs(wanted) do
  tell(peer)
  debian = debian or peer.debian
end
if not agreed() then stop "nothing was installed" end
-- A fresh machine may know no package yet; what is wrong is told below.
if debian then os.execute(APT .. "update -qq") end
for _, peer in ipairs(wanted) do install(peer) end
