-- SPDX-License-Identifier: Apache-2.0
--- Entities: things that are no agents, as databases or printers, with a kind,
-- an endpoint, metadata and, if they have a ttl, a lease. Nobody holds them:
-- who may register may write, and preconditions keep writers apart.
local calls = require "perigee.control.call"
local problem = require "perigee.control.problem"
local records = require "perigee.control.records"

local json = require "perigee.net.json"

local METADATA = 4096
local TYPES = { kind = "string", endpoint = "string", metadata = "table" }

local M = { kind = "entities", ttl = 0 }

local function wrong(...)
  return nil, problem(400, "protocol", (...):format(select(2, ...)))
end

-- Only what is known is kept, so an entity is what its document says.
function M.read(call, value)
  local kept = { name = call.name, scope = call.scope }
  for field, kind in pairs(TYPES) do
    if value[field] ~= nil and type(value[field]) ~= kind then
      return wrong("%s is of a wrong type", field)
    end
    kept[field] = value[field]
  end
  if kept.metadata and not calls.is_object(kept.metadata) then
    return wrong "metadata is of a wrong type"
  end
  if not kept.kind then return wrong "an entity needs a kind" end
  local metadata = kept.metadata and json.encode(kept.metadata) or ""
  if #metadata > METADATA then
    return wrong("metadata is larger than %d bytes", METADATA)
  end
  return kept
end
jit.off(M.read)

function M.refuses() return nil end

function M.stamp() end

function M.tell(_, _, headers) return headers end

function M.gone() end

M.routes = records.routes(M)

return M
