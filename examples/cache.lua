-- SPDX-License-Identifier: Apache-2.0
-- A cache in one process, and a client in another. The client puts values, gets
-- them into memory of its own, and looks at them where they lie.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local BIG, LAYER, LAYERS = 2 ^ 24, 2 ^ 16, 8

local function cache()
  assert(perigee.cache { name = "cache:0", scope = common.scope,
                         memory = 2 ^ 28 })
  common.ready()
end

local function filled(slice, n)
  ffi.fill(slice.pointer, slice.length, n)
  return slice
end

local function is_filled(bytes, n, length)
  return bytes == string.char(n):rep(length)
end

local function driver()
  local agent = assert(perigee.agent { scope = common.scope })
  local blocks = assert(agent:cache "cache:0")
  local here = assert(agent.engine:alloc(2 * BIG))
  local out, back = here:slice(0, BIG), here:slice(BIG, BIG)

  assert(blocks:put("greeting", "hello", { ttl = 60 }))
  assert(blocks:get "greeting" == "hello")
  assert(blocks:put("tensor", filled(out, 7)))
  filled(out, 8)                        -- the memory is ours again
  local part = assert(blocks:get("tensor", { into = back }))
  assert(part.length == BIG and is_filled(part:string(), 7, BIG))
  print(("put and got 5 bytes as a string and %d MiB into memory of our own, "
    .. "checked"):format(BIG / 2 ^ 20))

  local view, why = blocks:view "tensor"
  if view then
    assert(is_filled(ffi.string(view.pointer, view.length), 7, BIG))
    assert(view:left() > 0, "the lease was over before the bytes were read")
    view:close()
    print "looked at them where they lie, without a copy"
  else
    assert(why.kind == "unsupported", why)
    print "a view takes a cache on this host, over shared memory"
  end

  local items, places = {}, {}
  for n = 1, LAYERS do
    local key = "layer." .. n
    items[n] = { key = key, value = string.char(n):rep(LAYER), pin = "soft" }
    places[n] = { key = key, into = back:slice((n - 1) * LAYER, LAYER) }
  end
  for _, put in ipairs(blocks:put_many(items)) do assert(put == true, put) end
  places[LAYERS + 1] = { key = "layer.none", into = out }
  local lengths = assert(blocks:get_many(places))
  for n = 1, LAYERS do
    assert(lengths[n] == LAYER, lengths[n])
    assert(is_filled(places[n].into:string(), n, LAYER), "other bytes came")
  end
  assert(lengths[LAYERS + 1].kind == "not_found")
  print(("got %d layers at once, each to its place; one that is not there is "
    .. "an error of its own"):format(LAYERS))

  assert(blocks:delete "greeting")
  local gone, err = blocks:get "greeting"
  assert(not gone and err.kind == "not_found")
  print("deleted: " .. tostring(err))
  agent:close()
end

common.main(driver, { cache = cache }, { "cache" })
