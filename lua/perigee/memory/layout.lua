-- SPDX-License-Identifier: Apache-2.0
--- Layouts: lists of slices that are told by counts and strides in bytes, such
-- as the pages of a cache in each of its layers. A layout stands wherever a
-- list of slices does (see `Slice`). A prepared transfer of two layouts is
-- posted for some of their blocks by number.
--
-- * `length`: bytes of all blocks together
-- * `base`, `block`, `dims`: as they were given; `dims` is a copy
-- @classmod Layout
local check = require "perigee.runtime.check"
local slices = require "perigee.memory.slice"
local units = require "perigee.runtime.units"

local M = {}

local is_count = check.is_count
local DIMS, OUTER = 8, 4096             -- the latter as in native/perigee.h

local function dims_of(value)
  if type(value) ~= "table" or #value < 1 or #value > DIMS then
    return ("a list of 1 to %d pairs { count, stride }"):format(DIMS)
  end
  for i = 1, #value do
    local dim = value[i]
    if type(dim) ~= "table" or not is_count(dim[1]) or not is_count(dim[2])
      or dim[1] < 1 or dim[3] ~= nil then
      return "pairs { count, stride }, a count of at least 1 and bytes"
    end
  end
end

local function base_of(value)
  if not slices.is_slice(value) or value.count ~= 1 then
    return "a slice of one block, as region:slice()"
  end
end

local function block_of(value)
  if not is_count(units.size(value)) then
    return "bytes, an integer of at least 0, or a size as \"16K\""
  end
end

local OPTIONS = { base = base_of, dims = dims_of, block = block_of }

-- Adds the slices of a layout from dimension i on, outermost first, of which
-- the first begins at offset.
local function add(list, layout, i, offset)
  local dims = layout.dims
  local count, stride = dims[i][1], dims[i][2]
  if i == #dims then
    list[#list + 1] = slices.new(layout.base.owner, offset, layout.block,
      { count = count, stride = count > 1 and stride or layout.block }, 4)
    return
  end
  for n = 0, count - 1 do add(list, layout, i + 1, offset + n * stride) end
end

-- The bytes from the first block's begin to the last one's end, and how many
-- slices it takes.
local function extent(layout)
  local span, outer, dims = layout.block, 1, layout.dims
  for i = 1, #dims do
    span = span + (dims[i][1] - 1) * dims[i][2]
    if i < #dims then outer = outer * dims[i][1] end
  end
  return span, outer
end

local function misuse(problem) error("perigee.layout: " .. problem, 3) end

--- Makes a layout. Its blocks lie where the outermost dimension's stride, times
-- a number below its count, and so on to the innermost one's, lead to from the
-- begin of `base`. Bytes fill the blocks in this order, the innermost dimension
-- first.
-- @function perigee.layout
-- @tparam table options
-- @tparam Slice options.base the memory, own or a peer's; all blocks lie in it
-- @tparam table options.dims pairs { count, stride in bytes }, outermost first,
--   1 to 8 of them. The counts of all but the last make 4096 at most
-- @tparam number|string options.block bytes of a block, also as "16K"
-- @treturn Layout
-- @waits no
-- @usage
-- -- Blocks of 16 bytes, 8 to a layer, in 4 layers.
-- local pages = perigee.layout { base = region:slice(0, 4096), block = 16,
--                                dims = { { 4, 1024 }, { 8, 16 } } }
-- local theirs = perigee.layout { base = remote:slice(0, 4096), block = 16,
--                                 dims = { { 4, 256 }, { 8, 32 } } }
-- local move = session:prepare_write { from = pages, to = theirs }
-- print(move:post():wait(5), pages.length)                     --> true 512
-- print(move:post({ from = { 7, 3 }, to = { 0, 1 } }):wait(5)) --> true
function M.new(options)
  check.options(options, OPTIONS, "perigee.layout", 2)
  if not (options and options.base and options.dims and options.block) then
    misuse "it needs base, dims and block"
  end
  local dims = {}
  for i, dim in ipairs(options.dims) do dims[i] = { dim[1], dim[2] } end
  local layout = { base = options.base, dims = dims,
                   block = units.size(options.block) }
  local last = dims[#dims]
  if layout.block < 1 or last[1] > 1 and last[2] < layout.block then
    misuse "a block has 1 byte at least, and at most the last stride"
  end
  local span, outer = extent(layout)
  if span > layout.base.length then
    misuse(("it takes %.0f bytes, and base has %.0f"):format(span,
      layout.base.length))
  elseif outer > OUTER then
    misuse(("the counts of all dimensions but the last make %.0f, and %d is "
      .. "the most"):format(outer, OUTER))
  end
  local slices_of = {}
  add(slices_of, layout, 1, layout.base.offset)
  return slices.named_list(slices_of, layout)
end

return M
