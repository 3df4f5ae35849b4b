-- SPDX-License-Identifier: Apache-2.0
--- Which of several caches has a key: rendezvous hashing with weights. Each
-- cache has a score for each key (perigee_cache_hash says which); those with
-- the highest ones have it. So a cache that joins or leaves moves its own share
-- alone, and all clients agree without asking anybody.
local native = require "perigee.cache.native"

local C = native.C
local log, rshift, tonumber = math.log, require "bit".rshift, tonumber

local M = {}

--- Returns what stands for a cache's name in scores.
function M.hash(name) return C.perigee_cache_hash(name, #name, 0) end

-- Of numbers from 2^63 on LuaJIT's compiled code makes other doubles than its
-- interpreter, and a score must not differ from itself: hence a half.
local function score(member, key)
  local half = tonumber(rshift(C.perigee_cache_hash(key, #key, member.hash), 1))
  return -member.weight / log((half + 0.5) / 2 ^ 63)
end

-- The one with the highest score below `limit`; nil: there is none.
local function highest(members, key, limit)
  local best, top = nil, 0
  for i = 1, #members do
    local each = score(members[i], key)
    if each < limit and each > top then best, top = members[i], each end
  end
  return best, top
end

--- Returns member number n (1 is the first) of those that have a key; nil:
-- there are not so many. members have `hash` and `weight`.
function M.owner(members, key, n)
  if #members == 1 then return n == 1 and members[1] or nil end
  local limit, best = math.huge, nil
  for _ = 1, n do
    best, limit = highest(members, key, limit)
  end
  return best
end

return M
