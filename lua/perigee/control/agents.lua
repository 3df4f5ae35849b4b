-- SPDX-License-Identifier: Apache-2.0
--- Agents: entries of a registry, each held by one life of one agent, which its
-- epoch names. Another life may take the name over. It has to name the epoch
-- that it has found dead ("over"), or the tag that it has read (If-Match).
local calls = require "perigee.control.call"
local entries = require "perigee.registry.entry"
local graphs = require "perigee.control.graph"
local problem = require "perigee.control.problem"
local records = require "perigee.control.records"
local summaries = require "perigee.stats.summary"

local json = require "perigee.net.json"

local METADATA = 4096
local LONGEST = 1e12                    -- seconds since an agent began
local MAPS = { "services", "regions", "metadata" }

local M = { kind = "agents", ttl = 10 }

local function add(headers, name, value)
  headers[#headers + 1] = name
  headers[#headers + 1] = value
end

--- Adds what an agent is told: whether it is to report what it counts
-- (control/stats) and is in a topology (control/graph), and beside its entry
-- how many bytes one may have (Perigee-Body).
function M.tell(call, record, headers)
  if headers then
    add(headers, "Perigee-Body", ("%d"):format(call.state.longest))
  end
  if call.state.stats:renewed(record, call.token) then
    headers = headers or {}
    add(headers, "Perigee-Stats", "wanted")
  end
  return graphs.tell(call, record, headers)
end

function M.gone(call, record) call.state.stats:gone(record) end

local function wrong(...)
  return nil, problem(400, "protocol", (...):format(select(2, ...)))
end

-- The first field that the check of entries drops, since its type is wrong.
local function dropped(value, scope, name)
  local copy = {}
  for field, each in pairs(value) do copy[field] = each end
  if not entries.trusted(copy, scope, name) then return "addresses" end
  for field in pairs(value) do
    if copy[field] == nil then return field end
  end
  for _, field in ipairs(MAPS) do
    if value[field] and not calls.is_object(value[field]) then return field end
  end
end
jit.off(dropped)

function M.read(call, value)
  value.name, value.scope = value.name or call.name, value.scope or call.scope
  if value.name ~= call.name or value.scope ~= call.scope then
    return wrong "name and scope must be those of the path"
  end
  local field = dropped(value, call.scope, call.name)
  if field then
    return wrong("the entry's %s is of a wrong type or value", field)
  end
  -- Larger ones may be infinite in other units, which JSON cannot tell.
  if value.since and math.abs(value.since) > LONGEST then
    return wrong "the entry's since is too large"
  end
  if not value.epoch or value.epoch == "" then
    return wrong "an entry needs an epoch"
  end
  local metadata = value.metadata and json.encode(value.metadata) or ""
  if #metadata > METADATA then
    return wrong("metadata is larger than %d bytes", METADATA)
  end
  return value
end

function M.refuses(call, record, epoch, over)
  if epoch == record.epoch or over and over == record.epoch then return nil end
  if not epoch and call.role == "admin" and call.method == "DELETE" then
    return nil
  end
  local holder = json.decode(records.shown(call.state, record))
  return problem(409, "name_taken",
    ("process %s on %s holds it"):format(tostring(holder.pid or "?"),
                                         tostring(holder.host or "?")),
    { holder = holder })
end

--- Numbers each taking of the name, also by who had it and asks for it anew.
function M.stamp(call, value, before)
  local is_same = before and before.epoch == value.epoch
    and call.query.over ~= value.epoch
  value.term = is_same and before.term or call.state:term(before)
end

-- ---- What it counts ---------------------------------------------------------

local function report(call)
  local record = call.state:find(call.scope, M.kind, call.name)
  if not record then return records.nothing(call) end
  local status, body, headers = M.refuses(call, record, call.query.epoch)
  if status then return status, body, headers end
  if #call.request.body > summaries.LONGEST then
    return problem(413, "too_large", ("a report has at most %d bytes"):format(
      summaries.LONGEST))
  elseif not call.state.stats:may(record, call.token) then
    return problem(429, "no_memory", "no report is taken now", nil,
                   { "Retry-After", "1" })
  end
  local value, told, field
  value, status, body, headers = calls.object(call)
  if not value then return status, body, headers end
  told, field = summaries.read(value)
  if not told then
    return problem(400, "protocol", ("the report's %s is wrong"):format(field))
  end
  call.state.stats:keep(record, call.token, told)
  return 204, ""
end

M.routes = records.routes(M)
M.routes.stats = { POST = { role = "register", run = report } }

return M
