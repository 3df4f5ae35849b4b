-- SPDX-License-Identifier: Apache-2.0
-- Pages of a KV cache between GPUs: the blocks of a request lie one after the
-- other in each layer of the driver's memory, and go to pages of a worker's
-- cache, which lie apart. One operation moves all layers. Posted by numbers, it
-- moves some blocks to the pages that a scheduler chose.
local gpu = dofile((arg[0]:match(".*/") or "./") .. "gpu.lua")
local common, perigee = gpu.common, require "perigee"

local LONG = 120
local APART = 2 -- a page begins so many blocks behind the one before

local function size_of(o) return o.layers * o.blocks * o.block end

local function worker(kind, o)
  local engine = perigee.engine {}
  assert(engine:alloc(APART * size_of(o), { kind = kind, name = "pages",
                                            access = "rw" }))
  local listener = assert(engine:listen(common.address()))
  common.ready()
  assert(listener:accept(10))
end

local function layout(base, o, apart)
  return perigee.layout { base = base, block = o.block,
    dims = { { o.layers, apart * o.blocks * o.block },
             { o.blocks, apart * o.block } } }
end

-- Returns what the pages hold once blocks `from` went to pages `to`.
local function moved(bytes, o, from, to)
  local all = {}
  for i = 0, o.layers * o.blocks - 1 do
    all[i + 1] = bytes:sub(i * o.block + 1, (i + 1) * o.block)
  end
  local after = { unpack(all, 1, 0) }
  for i, block in ipairs(all) do after[i] = block end
  for layer = 0, o.layers - 1 do
    local first = layer * o.blocks + 1
    for k, at in ipairs(to) do after[first + at] = all[first + from[k]] end
  end
  return table.concat(after)
end

local function driver(kind, o)
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local cache = assert(session:region("pages"))
  local out = assert(engine:alloc(size_of(o), { kind = kind })):slice()
  local back = assert(engine:alloc(size_of(o), { kind = kind })):slice()
  local bytes = gpu.bytes(size_of(o), 5)
  out:write(bytes)

  local blocks, pages = layout(out, o, 1), layout(cache:slice(), o, APART)
  local move = session:prepare_write { from = blocks, to = pages }
  local start = common.now()
  assert(move:post():wait(LONG))
  print(("%d layers x %d blocks of %d bytes of %s went to pages in %.1f ms")
    :format(o.layers, o.blocks, o.block, out.kind,
            (common.now() - start) * 1e3))
  local fetch = session:prepare_read { from = pages, to = layout(back, o, 1) }
  assert(fetch:post():wait(LONG))
  assert(back:string() == bytes, "other bytes came back")

  -- These blocks of every layer go to these pages.
  local from, to = { o.blocks - 1, 1, 2 }, { 0, 3, 1 }
  assert(move:post({ from = from, to = to }):wait(LONG))
  assert(fetch:post():wait(LONG))
  assert(back:string() == moved(bytes, o, from, to), "a wrong page")
  print("3 blocks of each layer went to pages by their numbers, all checked")

  -- A list names each place by itself: the first page of each layer.
  local list, apart = {}, APART * o.blocks * o.block
  for i = 1, o.layers do list[i] = cache:slice((i - 1) * apart, o.block) end
  local first = back:slice(0, o.layers * o.block)
  assert(session:write { from = first, to = list }:wait(LONG))
  local again = out:slice(0, first.length)
  assert(session:read { from = list, to = again }:wait(LONG))
  assert(again:string() == first:string(), "a wrong page")
  print(("a list of %d pages came back, checked"):format(#list))
  engine:close()
end

gpu.main(driver, worker, { { "layers", 61, "layers of the cache" },
                           { "blocks", 256, "blocks of a layer, at least 4" },
                           { "block", 2 ^ 14, "bytes of a block, as in 16K" } })
