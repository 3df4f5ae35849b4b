-- SPDX-License-Identifier: Apache-2.0
--- `perigee describe NAME`: what an agent offers: its entry in the registry,
-- and by itself its services' methods and the limits of a session with it.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local sorted = require "perigee.runtime.sorted"
local units = require "perigee.runtime.units"

local M = {
  name = "describe",
  summary = "Tell an agent's services, their methods, and its memory.",
}

function M.configure(parser)
  parser:argument("name", "The agent's name."):argname "NAME"
  options.json(parser)
  options.place(parser)
  options.timeout(parser, 5)
end

-- ---- What there is ---------------------------------------------------------

local function methods_of(session, service, given)
  local check = require "perigee.runtime.check"
  local told, err = require "perigee.call.proxy".describe(session, service,
                                                     client.left(given))
  client.check(told, err)
  local methods = {}
  for name, each in pairs(told.methods) do
    local sized = check.is_count(each.capacity)   -- the peer may say anything
    methods[name] = { kind = type(each.kind) == "string" and each.kind or "?",
                      landing = each.landing == true,
                      idempotent = each.idempotent == true,
                      capacity = sized and each.capacity or nil }
  end
  return { version = told.version, methods = methods }
end

local function found(agent, name, given)
  local entry = client.check(agent:lookup(name,
                                          { timeout = client.left(given) }))
  local session = client.check(agent:session(name,
                                             { timeout = client.left(given) }))
  local told = { services = {}, limits = session:explain().limits }
  for field, value in pairs(entry) do
    if field ~= "services" then told[field] = value end
  end
  for _, service in ipairs(sorted(entry.services)) do
    told.services[service] = methods_of(session, service, given)
  end
  return told
end

-- ---- As text ---------------------------------------------------------------

local function method(each)
  local parts = { each.kind }
  if each.capacity then
    parts[#parts + 1] = "a reply of at least "
      .. units.format_size(each.capacity) .. " offered"
  end
  if each.landing then parts[#parts + 1] = "its slice lands where it says" end
  if each.idempotent then parts[#parts + 1] = "idempotent" end
  return table.concat(parts, ", ")
end

local function write_methods(service, out)
  for _, name in ipairs(sorted(service.methods)) do
    out.line("    %-20s %s", name, method(service.methods[name]))
  end
end

local function write(told, out)
  local entry = require "perigee.cli.entry"
  entry.head(told, out)
  entry.services(told.services, out, write_methods)
  entry.tail(told, out)
  out.line("  limits: a record of %s, typed values of %s, messages of %s",
           units.format_size(told.limits.ring),
           units.format_size(told.limits.typed),
           units.format_size(told.limits.message))
end

function M.run(given)
  local name = client.peer(given.name)
  if name:find "/" then
    failure.misuse("describe asks the registry, which has no addresses: give "
      .. "the agent's name; perigee explain takes addresses")
  end
  local out = require "perigee.cli.out"
  return client.run(given, function(agent)
    local told = found(agent, name, given)
    if given.json then return out.json(told) end
    write(told, out)
  end)
end

return M
