-- SPDX-License-Identifier: Apache-2.0
--- Reports to a control server what an agent counts (perigee.stats.summary), as
-- often as the server wants it, and once for each answer at most. It is read of
-- the agent's own stats file; an agent without one reports nothing.
local clients = require "perigee.registry.http.client"
local partial = require "perigee.stats.partial"
local summaries = require "perigee.stats.summary"

local M = {}

local PATH = "/v1/scopes/%s/agents/%s/stats?epoch=%s"

-- What the file beside the agent's socket has; nil if it is not this agent's.
local function read(held)
  local place = held.entry.addresses[1]:match "^unix:(.*)%.sock$"
  local told = place and partial.read(place .. ".stats")
  if told and ("%016x"):format(told.epoch) == held.epoch
    and told.name == held.name then
    return told
  end
end

--- Reports by a name that is held. In a task. Failures are nobody's concern:
-- the server says again that it wants a report.
function M.send(control, held)
  local told = read(held)
  if not told then return end
  held.methods = held.methods or summaries.kept()
  local longest = math.min(control.entry_limit or math.huge, summaries.LONGEST)
  local text = summaries.text(told, held.methods, longest)
  if not text then return end
  return control.client:ask("POST", PATH:format(clients.escape(held.scope),
    clients.escape(held.name), clients.escape(held.epoch)), text)
end

return M
