-- SPDX-License-Identifier: Apache-2.0
-- Two network namespaces with a cable (a veth pair) between them. A process
-- that ends with this one holds each namespace, which disappears with it.

local process = require "bench.lib.process"

local M = {}

local NEAR, FAR = "10.91.7.1", "10.91.7.2"
local DEVICE = "cable" -- the name of either end

local HOLD = "echo held; read line" -- ends when its input is closed

-- Runs a command. If it fails, its whole output is the reason.
local function run(words)
  local command = { "sh", "-c", 'exec "$@" 2>&1', "sh" }
  for _, word in ipairs(words) do command[#command + 1] = word end
  local child, why = process.spawn(command)
  if not child then return nil, why end
  local text = child:rest()
  if child:wait() == 0 then return true end
  return nil, text:match "([^\n]+)\n*$" or words[1] .. " has failed"
end

local function hold()
  local child = process.spawn { "unshare", "-n", "sh", "-c", HOLD }
  if child and child:line() == "held" then return child end
  return nil, "no network namespace can be made here (are you root?)"
end

local function path_of(holder) return ("/proc/%d/ns/net"):format(holder.pid) end

local function inside(holder, text)
  local words = { "nsenter", "--net=" .. path_of(holder), "ip" }
  for word in text:gmatch "%S+" do words[#words + 1] = word end
  return run(words)
end

local Cable = {}
Cable.__index = Cable

function Cable:remove()
  for _, holder in ipairs { self.a, self.b } do holder:stop() end
end

local function connect(cable)
  local steps = {
    { cable.a, ("link add %s type veth peer name %s netns %d"):format(
        DEVICE, DEVICE, cable.b.pid) },
    { cable.a, ("address add %s/24 dev %s"):format(NEAR, DEVICE) },
    { cable.b, ("address add %s/24 dev %s"):format(FAR, DEVICE) },
  }
  for _, holder in ipairs { cable.a, cable.b } do
    steps[#steps + 1] = { holder, "link set lo up" }
    steps[#steps + 1] = { holder, "link set " .. DEVICE .. " up" }
  end
  for _, step in ipairs(steps) do
    local fine, why = inside(unpack(step))
    if not fine then return nil, why end
  end
  return true
end

-- Returns a cable: near and far are the paths of the namespaces, at is the far
-- end's address, device its name. Returns nil and the reason if there can be
-- none.
function M.new()
  local a, b, why, fine
  a, why = hold()
  if not a then return nil, why end
  b, why = hold()
  local cable = setmetatable({ a = a, b = b, at = FAR, device = DEVICE }, Cable)
  if b then fine, why = connect(cable) end
  if not fine then
    cable:remove()
    return nil, why
  end
  cable.near, cable.far = path_of(a), path_of(b)
  return cable
end

return M
