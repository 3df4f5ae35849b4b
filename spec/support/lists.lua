-- SPDX-License-Identifier: Apache-2.0
-- Lists of slices for specs: of any shape, with gaps, and what is in them.
local M = {}

--- n slices of region that hold size bytes together, from its end to its begin.
-- Some are strided, and each leaves a gap.
function M.places(region, size, n, base)
  local list, left, at = {}, size, (base or 0) + 2 * size + 4096
  for i = 1, n do
    local length = i < n and math.floor(size / n) or left
    left = left - length
    if i % 3 == 2 and length >= 8 and length % 4 == 0 then
      local block = length / 4
      at = at - 8 * block
      list[i] = region:slice(at, block, { count = 4, stride = block + 3 })
    else
      at = at - length - 1
      list[i] = region:slice(at, length)
    end
  end
  return list
end

--- The bytes of a list, or of a table of slices.
function M.text_of(list)
  local parts = {}
  for i, slice in ipairs(list) do parts[i] = slice:string() end
  return table.concat(parts)
end

-- Puts bytes into a slice of any shape.
local function fill(slice, bytes)
  for i = 0, slice.count - 1 do
    slice.owner:slice(slice.offset + i * slice.stride, slice.block):write(
      bytes:sub(i * slice.block + 1, (i + 1) * slice.block))
  end
end

--- Puts bytes into a list.
function M.fill(list, bytes)
  local at = 0
  for _, slice in ipairs(list) do
    fill(slice, bytes:sub(at + 1, at + slice.length))
    at = at + slice.length
  end
end

return M
