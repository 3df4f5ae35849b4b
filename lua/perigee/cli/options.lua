-- SPDX-License-Identifier: Apache-2.0
--- The options that commands share, and how their values are read.
local units = require "perigee.runtime.units"

local M = {}

-- Makes argparse's `convert` of a function which returns nil and a sentence for
-- what is wrong.
local function seconds(text)
  local value, why = units.time(text)
  if value then return value end
  return nil, why
end

local function positive(text)
  local value, why = units.time(text)
  if value and value > 0 then return value end
  return nil, why or ("%q is no time above 0"):format(text)
end

local function size(text)
  local value, why = units.size(text)
  if value then return value end
  return nil, why
end

local function count(text)
  local value = tonumber(text)
  if value and value >= 1 and value % 1 == 0 and value <= 2 ^ 31 then
    return value
  end
  return nil, ("%q is no number from 1 on"):format(text)
end

M.seconds, M.positive, M.size, M.count = seconds, positive, size, count

--- --json, which every command has that prints something.
function M.json(parser, what)
  parser:flag("--json", what or "Print one JSON document instead of text.")
end

--- --registry, of commands that look at all scopes.
function M.registry(parser)
  parser:option("--registry", "The registry that holds names: folder:/PATH, "
    .. "redis://HOST, ...; default: $PERIGEE_REGISTRY, or this host's folder.")
    :argname "URL"
end

--- The options for the place of names: --registry and --scope.
function M.place(parser)
  M.registry(parser)
  parser:option("--scope", "The scope of names; default: $PERIGEE_SCOPE, or "
    .. "default."):argname "SCOPE"
end

--- --timeout, as in 200ms or 5; default: so many seconds.
function M.timeout(parser, default, what)
  parser:option("--timeout", (what or "How long all of it may take, as in "
    .. "200ms or 30; default: %g s."):format(default))
    :argname "TIME":convert(positive):default(default)
end

--- An agent to be connected to.
function M.agent(parser)
  parser:argument("name", "The agent's name, or its address (tcp://HOST:PORT, "
    .. "unix:/PATH)."):argname "NAME"
end

--- The options that choose among agents: --kind, --prefix, --service.
function M.filter(parser)
  parser:option("--kind", "Only agents of this kind."):argname "KIND"
  parser:option("--prefix", "Only names that begin with this. Without it, "
    .. "generated names, anonymous-..., are left out.")
    :argname "TEXT"
  parser:option("--service", "Only agents that serve this.")
    :argname "SERVICE"
end

return M
