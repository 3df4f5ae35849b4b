-- SPDX-License-Identifier: Apache-2.0
-- What moves in one operation of the aggregated bench: a list of transfers
-- between the same places of a local and a remote region.
--
-- A plan says
--   name      what the row is called, behind the operation
--   bytes     of one operation
--   span      bytes of the regions
--   lists     how many different lists there are; they take turns
--   of(k)     the pieces of list k (from 0), each { offset, length } or
--             { offset, length, count, stride }
--   layout    nil, or the block and the dims of perigee.layout that tell the
--             same pieces, which are one transfer then
--   numbers   nil, or as many numbers of blocks of that layout, in no order,
--             by which it is posted
--   posts     the time of posting is what is measured, not that of the transfer

local M = {}

local LISTS = 64     -- of one row at most
local SPAN = 2 ^ 26  -- bytes over which small transfers are spread

-- ---- Transfers of one size -------------------------------------------------

local PLACES = {}
M.PLACES = PLACES

function PLACES.same() return 0 end

function PLACES.spread(k, places) return k % places end

-- The same on all runs: a step that meets all places if their number is a power
-- of two, and many if not.
function PLACES.random(k, places)
  return (k * 1103515245 + 12345) % 2 ^ 31 % places
end

--- Batches of transfers of this size.
function M.batch(size, batch, window, offsets)
  local place = PLACES[offsets]
  local span = math.max(SPAN, size * batch * window)
  local places = math.floor(span / size)
  return {
    bytes = size * batch, span = places * size, size = size, batch = batch,
    lists = math.min(LISTS, math.max(window, math.floor(places / batch))),
    of = function(k)
      local pieces = {}
      for i = 1, batch do
        local at = place(k * batch + i - 1, places)
        pieces[i] = { at * size, size }
      end
      return pieces
    end,
  }
end

-- ---- Blocks of a KV cache --------------------------------------------------

-- Each layer has its blocks in one run of memory, `stride` apart. Plans for the
-- same bytes: a strided transfer for each layer, a transfer for each block, one
-- transfer of contiguous bytes, one of a layout.
local function strided(kv)
  local pieces = {}
  for i = 1, kv.layers do
    pieces[i] = { (i - 1) * kv.blocks * kv.stride, kv.block, kv.blocks,
                  kv.stride }
  end
  return pieces
end

local function one_list(kv)
  local pieces = {}
  for i = 1, kv.layers * kv.blocks do
    pieces[i] = { (i - 1) * kv.stride, kv.block }
  end
  return pieces
end

local function contiguous(kv)
  return { { 0, kv.layers * kv.blocks * kv.block } }
end

local PLANS = {
  { "kv contiguous", contiguous }, { "kv strided", strided },
  { "kv list", one_list }, { "kv layout", strided, own = true },
  { "kv numbers", strided, own = true, numbers = true },
  { "kv layout post", strided, own = true, posts = true },
  { "kv numbers post", strided, own = true, numbers = true, posts = true },
}
local MOST_NUMBERS = 4096 -- of one post
M.MOST_NUMBERS = MOST_NUMBERS

--- All numbers below n, in the same order in each run.
local function shuffled(n)
  local list, state = {}, 1
  for i = 1, n do
    state = state * 16807 % (2 ^ 31 - 1)
    local at = state % i + 1
    list[i] = list[at]
    list[at] = i - 1
  end
  return list
end

M.shuffled = shuffled

local function is_there(one, kv, own)
  return not one.own or own and (not one.numbers or kv.blocks <= MOST_NUMBERS)
end

--- The plans. own: also those of a layout, which others do not have.
function M.kv(kv, own)
  local plans = {}
  for _, one in ipairs(PLANS) do
    plans[#plans + 1] = is_there(one, kv, own) and {
      layout = one.own and {
        block = kv.block,
        dims = { { kv.layers, kv.blocks * kv.stride },
                 { kv.blocks, kv.stride } } } or nil,
      numbers = one.numbers and shuffled(kv.blocks) or nil,
      posts = one.posts,
      name = one[1], bytes = kv.layers * kv.blocks * kv.block, lists = 1,
      span = kv.layers * kv.blocks * kv.stride, size = kv.block,
      batch = one[2] == one_list and kv.layers * kv.blocks or kv.layers,
      of = function() return one[2](kv) end,
    } or nil
  end
  return plans
end

--- Reads "kv:layers=61,blocks=256,block=16K,stride=32K"; nil and a message if
-- it is wrong. stride: twice the block unless given.
function M.parse(text, size_of)
  local words = text:match "^kv:(.*)$"
  if not words then return nil, ("'%s' is no shape: kv:..."):format(text) end
  local kv = { layers = 61, blocks = 256, block = 2 ^ 14 }
  for word in words:gmatch "[^,]+" do
    local name, value = word:match "^(%a+)=(%w+)$"
    local number = value and size_of(value)
    if not number or number < 1 or kv[name] == nil and name ~= "stride" then
      return nil, ("'%s': a shape has layers, blocks, block and stride, as in "
        .. "kv:layers=61,blocks=256,block=16K"):format(word)
    end
    kv[name] = number
  end
  kv.stride = kv.stride or 2 * kv.block
  if kv.stride < kv.block then
    return nil, "a stride is at least the block"
  end
  return kv
end

--- The plan of strided transfers alone: blocks that lie apart.
function M.paged(kv)
  for _, plan in ipairs(M.kv(kv)) do
    if plan.name == "kv strided" then return plan end
  end
end

--- Writes what a plan moves for an adapter of bench/peers, into its folder.
function M.write(plan, folder)
  local file = assert(io.open(folder .. "/pieces", "w"))
  for _, piece in ipairs(plan.of(0)) do
    file:write(("%d %d %d %d\n"):format(piece[1], piece[2], piece[3] or 1,
                                        piece[4] or piece[2]))
  end
  file:close()
end

--- Compares a row with that of the contiguous plan, which comes first and whose
-- p50 the table keeps.
function M.compare(kept, plan, row)
  if plan.name == "kv contiguous" then kept.contiguous = row.p50_us end
  if not plan.name or plan.posts then return end
  row.floor_p50_us = kept.contiguous
  row.ratio = row.p50_us / kept.contiguous
end

--- The longest span of these plans.
function M.span(plans)
  local most = 0
  for _, plan in ipairs(plans) do most = math.max(most, plan.span) end
  return most
end

return M
