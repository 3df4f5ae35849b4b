-- SPDX-License-Identifier: Apache-2.0
--- Reads the entries of a rendezvous (agent/rendezvous). Others wrote them, so
-- nothing in them is trusted to be of any type.
local M = {}

local NOTHING = {}

--- Returns what a call has put into an entry: `ticket`, `agent` (its name) and
-- `result`; none of these if it is no such entry.
function M.said(entry)
  local told = entry and entry.metadata
  if type(told) ~= "table" or type(told.ticket) ~= "string"
    or type(told.agent) ~= "string" then
    return NOTHING
  end
  return told
end

--- The result in an entry, if it is one for this call.
function M.result(meeting, entry)
  local result = M.said(entry).result
  local tickets = type(result) == "table" and result.tickets
  if type(tickets) ~= "table" or type(result.names) ~= "table" then return end
  for i = 1, meeting.n do
    if type(result.names[i]) ~= "string" then return end
    if tickets[i] == meeting.ticket then return result end
  end
end

--- The entries of places, in the order of the places.
function M.places(meeting, view)
  local list = {}
  for i = 1, meeting.n do list[#list + 1] = view[meeting.prefix .. i] end
  return list
end

--- Returns a result with this call's ticket in a place; and the entries of
-- those who wait for one.
function M.survey(meeting, view)
  local waiting, result = {}, nil
  for _, entry in ipairs(M.places(meeting, view)) do
    result = result or M.result(meeting, entry)
    if M.said(entry).ticket and not M.said(entry).result then
      waiting[#waiting + 1] = entry
    end
  end
  return result, waiting
end

local function before(a, b)
  local one, two = M.said(a), M.said(b)
  if one.agent ~= two.agent then return one.agent < two.agent end
  return one.ticket < two.ticket
end

--- The result of those who wait, a list of entries, which it sorts.
function M.result_of(list)
  local result = { names = {}, tickets = {} }
  table.sort(list, before)
  for i, entry in ipairs(list) do
    local told = M.said(entry)
    result.names[i], result.tickets[i] = told.agent, told.ticket
  end
  return result
end

return M
