-- SPDX-License-Identifier: Apache-2.0
-- The ways by which a client of the cache's host gets a value
-- (lua/perigee/cache/member.lua):
--
--   map    it looks into the mapped directory
--   new    it asks the cache: a short value comes along, others are leased
--   held   it has a lease from before
local wire = require "perigee.cache.wire"

local M = {}

local LASTS = 2e9                       -- ns that a held lease has to last
local HELD = 60                         -- seconds, more than any lease lasts

local function view_all(client, keys)
  for _, key in ipairs(keys) do assert(client:view(key)):close() end
end

-- Leases that are given back are so before the next request is answered.
local function give_back(client, keys)
  client.only.leases:clear()
  assert(client:has(keys))
end

local function renew(client, keys)
  for _, key in ipairs(keys) do
    if not client.only.leases:find(key, LASTS) then
      return view_all(client, keys)
    end
  end
end

--- Returns a client, and what is to be done before each sample (nil: nothing),
-- so that these keys are got in that way. length: of a value.
function M.client(side, way, keys, length)
  local client = side:client(way == "map", way == "held" and HELD or nil)
  assert(client:has(keys))              -- a session, and the map
  if way == "held" then
    view_all(client, keys)
    return client, function() renew(client, keys) end
  elseif way == "new" and length > wire.SMALL then
    return client, function() give_back(client, keys) end
  end
  return client
end

return M
