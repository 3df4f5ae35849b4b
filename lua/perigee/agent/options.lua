-- SPDX-License-Identifier: Apache-2.0
-- The options of `perigee.agent`: their checks, their defaults, and those that
-- are its engine's.
local check = require "perigee.runtime.check"
local engine_settings = require "perigee.engine.options"
local entries = require "perigee.registry.entry"
local native = require "perigee.native"
local registries = require "perigee.registry"
local services = require "perigee.serving.service"

local C = native.C

local M = {}

-- ---- One by one ------------------------------------------------------------

local function is_list(value)
  local n = 0
  for _, each in pairs(value) do
    if type(each) ~= "string" then return false end
    n = n + 1
  end
  return n == #value
end

local function addresses(value)
  local kind = type(value)
  if kind == "string" or kind == "table" and is_list(value) then return end
  return "an address or a list of addresses"
end
jit.off(is_list)

local function list_of(given)
  return type(given) == "string" and { given } or given
end

-- Returns why no peer can dial an address; nil: one may be able to.
local function undialled(address)
  if not address:find "^tcp://" then return "this is no tcp://" end
  if C.perigee_address_leads(address) < 0 then return native.detail(nil) end
  return address:find ":0+$" and "port 0 is for listeners" or nil
end

local function advertised(value)
  local wrong = addresses(value)
  for _, each in ipairs(not wrong and list_of(value) or {}) do
    local why = undialled(each)
    if why then
      return ("an address as tcp://HOST:PORT, or a list of those (%s)")
        :format(why)
    end
  end
  return wrong
end

local function weight(value)
  if type(value) ~= "number" or not (value >= 0 and value < math.huge) then
    return "a number of at least 0"
  end
end

local function secret(value)
  if type(value) == "string" then return check.secret(value) end
  if type(value) == "table" then return end
  return "a string, or a table of strings by scope", type(value)
end

-- Options of the engine that `perigee.agent` takes directly, too.
local OF_ENGINE = { "insecure", "encrypt", "dead_after", "streams",
                    "progress" }

local function name_or_none(value)
  if value == false then return end
  return check.name(value)
end

local OPTIONS = { name = name_or_none, scope = check.name,
                  services = check.table, transport = check.string,
                  engine = check.table, listen = addresses,
                  advertise = advertised, secret = secret,
                  registry = registries.check, kind = check.name,
                  metadata = entries.wrong_metadata, weight = weight,
                  topology = check.boolean, stats = check.boolean }
for _, name in ipairs(OF_ENGINE) do
  OPTIONS[name] = engine_settings.CHECKS[name]
end

local function default_scope(level)
  local scope = os.getenv("PERIGEE_SCOPE")
  if not scope or scope == "" then return "default" end
  check.value(scope, check.name, "the environment's PERIGEE_SCOPE", level + 1)
  return scope
end

-- Raises for a wrong definition. This runs before a name is held, so that
-- nothing is left half made.
local function check_services(list, level)
  local seen = {}
  for i = 1, #list do
    local service = services.new(list[i], level + 1)
    if seen[service.name] then
      error(("option services of perigee.agent has service %s twice"):format(
        service.name), level + 1)
    end
    seen[service.name] = true
  end
  for key in pairs(list) do
    if type(key) ~= "number" or key < 1 or key > #list then
      error(("option services of perigee.agent is a list of services, it has "
        .. "no %s"):format(tostring(key)), level + 1)
    end
  end
end

-- Returns the secret for scope if option secret is a table by scope.
local function secret_of(options, scope, level)
  local given = options.secret
  if type(given) ~= "table" then return given end
  local one = given[scope]
  if type(one) ~= "string" then
    error(("option secret of perigee.agent has %s for scope %s; it needs a "
      .. "string, as for every scope in which it is used"):format(
        one == nil and "none" or "a " .. type(one), scope), level + 1)
  end
  check.value(one, check.secret,
    "option secret of perigee.agent, for scope " .. scope .. ",", level + 1)
  return one
end

-- Returns the options of the agent's engine: those in option engine, and those
-- that the agent takes directly.
local function engine_options(options, scope, level)
  local all = {}
  for name, value in pairs(options.engine or {}) do all[name] = value end
  for _, name in ipairs(OF_ENGINE) do
    if options[name] ~= nil then all[name] = options[name] end
  end
  all.secret = secret_of(options, scope, level + 1) or all.secret
  all.scope = all.scope or scope
  return all
end
jit.off(engine_options)

-- ---- All of them -----------------------------------------------------------

--- Checks options of what makes agents and takes options of its own besides,
-- which go before those of perigee.agent. what: its name. Returns a function
-- (options, level), which returns the options; level is that of its caller.
function M.with(own, what)
  local all = {}
  for name, each in pairs(OPTIONS) do all[name] = each end
  for name, each in pairs(own) do all[name] = each end
  return function(options, level)
    return (check.options(options, all, what, level + 1))
  end
end
jit.off(M.with)

-- Checks all options of perigee.agent. Returns them and the agent's scope.
function M.check(options, level)
  options = check.options(options, OPTIONS, "perigee.agent", level + 1)
  local scope = options.scope or default_scope(level + 1)
  engine_settings.check(options.engine, "option engine", level + 1)
  check_services(options.services or {}, level + 1)
  return options, scope
end

-- An option that takes one text or a list of them, as a list.
M.list_of = list_of

-- Returns the options of the agent's engine.
M.engine = engine_options

return M
