-- SPDX-License-Identifier: Apache-2.0
--- `perigee registry`: whether names can be asked for, and what a Redis server
-- has to be told for them.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"

-- ---- status ----------------------------------------------------------------

local status = {
  name = "status",
  summary = "Tell which registry is used, and whether it answers.",
}

function status.configure(parser)
  options.json(parser)
  options.place(parser)
  options.timeout(parser, 5)
end

-- The address of the registry, without passwords.
local function place(agent)
  local registries = require "perigee.registry"
  local registry = agent.registry
  if registries.has_places(registry) then
    return "folder:" .. tostring(agent.address):match "^unix:(.*)/[^/]*/[^/]*$"
  end
  return registry.target.text
end

function status.run(given)
  local out = require "perigee.cli.out"
  return client.run(given, function(agent)
    local loop = require "perigee.runtime.loop"
    local units = require "perigee.runtime.units"
    local began = loop.now()
    local list = client.check(agent:list { timeout = given.timeout })
    local took = (loop.now() - began) / 1e9
    local told = { registry = place(agent), scope = agent.scope,
                   agents = #list, seconds = took }
    if given.json then return out.json(told) end
    out.line("%s answers in %s: %d agent%s in scope %s", told.registry,
             units.format_time(took), #list, #list == 1 and "" or "s",
             told.scope)
  end)
end

-- ---- acl -------------------------------------------------------------------

local acl = {
  name = "acl",
  summary = "Print the command that makes a Redis user for Perigee.",
  description = "Prints the command for redis-cli that makes a user who may do "
    .. "what Perigee's names need, and nothing else: it has keys that begin "
    .. "with perigee: alone, no scripts, no administration. Put a password in "
    .. "the place of PASSWORD.",
}

function acl.configure(parser)
  parser:option("--user", "The user's name."):argname "NAME":default "perigee"
end

function acl.run(given)
  local out = require "perigee.cli.out"
  if not given.user:find "^[%w_.-]+$" then
    failure.misuse("--user must be letters, digits and . _ -")
  end
  out.line("ACL SETUSER %s reset on >PASSWORD ~perigee:* +@all -@scripting "
           .. "-@admin -@dangerous", given.user)
  out.finish()
end

return {
  name = "registry",
  summary = "Tell whether the registry answers; make a Redis user for it.",
  commands = { status, acl },
}
