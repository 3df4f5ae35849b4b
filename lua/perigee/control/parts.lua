-- SPDX-License-Identifier: Apache-2.0
--- Regions and services: what the agents of a scope have, told one by one. A
-- page has those of as many agents as its limit says, or as have so many bytes.
local calls = require "perigee.control.call"
local records = require "perigee.control.records"
local sorted = require "perigee.runtime.sorted"

local json = require "cjson.safe"

local M = {}

local MOST = 65536                      -- bytes that are decoded for a page

local function regions(texts, entry)
  local all = entry.regions
  for _, name in ipairs(sorted(all)) do
    local region = type(all[name]) == "table" and all[name] or {}
    texts[#texts + 1] = json.encode {
      agent = entry.name, name = name, length = region.length,
      access = region.access }
  end
end

local function services(texts, entry)
  local all = entry.services
  for _, name in ipairs(sorted(all)) do
    texts[#texts + 1] = json.encode {
      agent = entry.name, name = name, version = all[name] }
  end
end

local function list(call, add)
  local limit, status, body, headers = calls.limit(call)
  if not limit then return status, body, headers end
  local collection = call.state:listed(call, "agents")
  status, body, headers = records.unchanged(call, collection)
  if status then return status, body, headers end
  local texts, n, size = {}, 0, 0
  local more = records.each(call, collection, function(record)
    if n == limit or size >= MOST then return false end
    n, size = n + 1, size + #record.text
    add(texts, json.decode(record.text .. "}"))
    return true
  end)
  return records.page(collection, texts, more)
end

local function routes(add)
  return { all = { GET = { role = "read", run = function(call)
    return list(call, add)
  end } } }
end

M.regions = routes(regions)
M.services = routes(services)

return M
