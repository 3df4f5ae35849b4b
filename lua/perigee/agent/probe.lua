-- SPDX-License-Identifier: Apache-2.0
--- Is who has a name in a registry dead? Its address is dialled: nobody listens
-- there, or somebody of another epoch does. All else, silence above all, leaves
-- the name to its holder.
local errors = require "perigee.errors"
local folder = require "perigee.registry.folder"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local registries = require "perigee.registry"
local sessions = require "perigee.session"

local M = {}

local TIMEOUT = 2                       -- seconds

-- Addresses that say nothing on another host than their own.
local function is_local(address)
  return address:find "^unix:" or address:find "^tcp://127%."
    or address:find "^tcp://%[::1%]" or address:find "^tcp://localhost:"
end

--- Waits. An agent that asks, and the entry of who has the name.
function M.is_dead(agent, entry)
  local address = registries.address(entry)
  local here = entry.host == folder.system.host()
  if not entry.epoch or is_local(address) and not here then return false end
  local fine, future = pcall(sessions.connect, agent.engine, address,
                             { timeout = TIMEOUT, transport = agent.transport })
  if not fine then return false end
  loop.wait(future, math.huge)
  if not future.ended then return false end
  local session, err = futures.results(future)
  if session then
    local other = session.epoch ~= entry.epoch
    session:close()
    return other
  end
  return errors.is_error(err) and err.kind == "not_found"
    and err.message:find("nobody listens at", 1, true) ~= nil
end

return M
