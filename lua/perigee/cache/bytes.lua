-- SPDX-License-Identifier: Apache-2.0
--- The bytes of a value: where they are, and whether they are those that were
-- put.
local native = require "perigee.cache.native"
local slices = require "perigee.memory.slice"

local C = native.C

local M = {}

--- The pointer to a value that is one block of host memory, or a string, and
-- its length; nil: it is something else.
function M.of(value)
  if type(value) == "string" then return value, #value end
  if slices.is_slice(value) and value.count == 1 then
    return value.pointer, value.length
  end
end

--- Are the bytes of a value what the cache has sealed? sum 0: it does not tell.
function M.is_whole(part, sum)
  if sum == 0 then return true end
  local bytes, length = M.of(part)
  if not bytes then bytes, length = part:string(), part.length end
  return C.perigee_cache_sum(bytes, length, 0) == sum
end

return M
