-- SPDX-License-Identifier: Apache-2.0
--- Finds out whether the holder of a name in a registry is dead, by dialling
-- its addresses. It is dead if all those refuse that can prove it, and there is
-- one: nobody listens there, or an agent of another epoch does. In any other
-- case, above all if there is no answer, the holder keeps the name.
--
--   the holder sees     its death is proved by
--   this system         its socket; the others that lead to this host if that
--                       is not there
--   another system      numbers that lead to another host
--
-- Two hosts may have one name, and one number as well, as containers often do.
-- A host's name may lead to this host or to a family of addresses at which the
-- holder does not listen. So a name proves life alone. An address that leads
-- to this host means nothing of a holder that sees another system than this
-- process (registry/machine.lua).
local errors = require "perigee.runtime.errors"
local explain = require "perigee.engine.explain"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local machine = require "perigee.registry.machine"
local native = require "perigee.native"
local registries = require "perigee.registry"
local sessions = require "perigee.engine.session"

local C = native.C

local M = {}

local TIMEOUT = 2                       -- seconds

local function is_socket(address) return address:find "^unix:" ~= nil end

-- What a dial of an address has to lead to, so that it can prove a death.
local function leads_to(entry)
  local here = entry.machine and entry.machine == machine.identity()
  return here and C.PERIGEE_LEADS_HERE or C.PERIGEE_LEADS_ELSEWHERE
end

-- The addresses of an entry, and last its socket if that is not there any more.
local function addresses_of(entry, proof)
  local list, own = registries.addresses(entry), entry.addresses[1]
  if proof == C.PERIGEE_LEADS_HERE and is_socket(own) and list[1] ~= own then
    list[#list + 1] = own
  end
  return list
end

-- The addresses to dial, each { address =, proves = }; nil if none of them can
-- prove a death. A socket that is there needs no other's proof.
local function targets_of(entry, proof)
  local list, any = {}, false
  for i, address in ipairs(addresses_of(entry, proof)) do
    local proves = C.perigee_address_leads(address) == proof
    list[i], any = { address = address, proves = proves }, any or proves
    if i == 1 and proves and is_socket(address) then return list end
  end
  return any and list or nil
end

-- Begins to dial a target; what is no address refuses nothing.
local function dial(agent, target)
  local fine, future = pcall(sessions.connect, agent.engine, target.address,
                             { timeout = TIMEOUT, transport = agent.transport })
  if not fine then errors.pass(future) end
  target.future = fine and future or futures.done(nil)
end

-- Is it the error of an address at which nobody listens? A socket that is not
-- there may be told of in other words.
local function is_refusal(address, err)
  return errors.is_error(err) and err.kind == "not_found"
    and (is_socket(address)
         or err.message:find("nobody listens at", 1, true) ~= nil)
end

-- Waits for a target's answer: "lives", "refuses", or nil for neither. An agent
-- of this host that answers for another host was reached by a detour.
local function answer(target, epoch, proof)
  loop.wait(target.future, math.huge)
  if not target.future.ended then return nil end
  local session, err = futures.results(target.future)
  if not session then
    return is_refusal(target.address, err) and "refuses" or nil
  end
  local same = session.epoch == epoch
  local astray = proof == C.PERIGEE_LEADS_ELSEWHERE
    and (not session.handle or explain.info(session.handle).same_host)
  session:close()
  return same and "lives" or not astray and "refuses" or nil
end

--- Waits until agent knows whether the holder in entry is dead; returns that,
-- and whether it lives: neither is true of one that does not answer.
function M.is_dead(agent, entry)
  local proof = leads_to(entry)
  local targets = entry.epoch and targets_of(entry, proof)
  if not targets then return false end
  for _, target in ipairs(targets) do dial(agent, target) end
  local dead, lives = true, false
  for _, target in ipairs(targets) do
    local said = answer(target, entry.epoch, proof)
    lives = lives or said == "lives"
    dead = dead and (said == "refuses" or not target.proves)
  end
  return dead and not lives, lives
end

return M
