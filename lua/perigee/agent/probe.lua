-- SPDX-License-Identifier: Apache-2.0
--- Finds out whether the holder of a name in a registry is dead, by dialling
-- its address. It is dead if nobody listens there, or an agent of another epoch
-- does. In any other case, above all if there is no answer, the holder keeps
-- the name.
--
-- Two hosts may have one name, as containers often do. An address that means
-- nothing on other systems is therefore dialled only if the holder sees the
-- same system as this process (registry/machine.lua).
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local machine = require "perigee.registry.machine"
local registries = require "perigee.registry"
local sessions = require "perigee.engine.session"

local M = {}

local TIMEOUT = 2                       -- seconds

-- Tells whether an address means nothing on other systems than its own.
local function is_local(address)
  return address:find "^unix:" or address:find "^tcp://127%."
    or address:find "^tcp://%[::1%]" or address:find "^tcp://localhost:"
end

--- Waits until agent knows whether the holder in entry is dead; returns that,
-- and whether it lives: neither is true of one that does not answer.
function M.is_dead(agent, entry)
  local address = registries.address(entry)
  local here = entry.machine and entry.machine == machine.identity()
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
    return other, not other
  end
  return errors.is_error(err) and err.kind == "not_found"
    and err.message:find("nobody listens at", 1, true) ~= nil
end

return M
