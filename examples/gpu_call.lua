-- SPDX-License-Identifier: Apache-2.0
-- Calls with GPU memory: a slice of a GPU as the argument of a call lands in
-- memory of the server's GPU, and one that a handler returns lands in the
-- caller's. Calls of bytes and of Lua values are as ever.
-- Others may open memory with `share`, and a GPU copies it to their place;
-- without, it passes through memory of the host.
local gpu = dofile((arg[0]:match(".*/") or "./") .. "gpu.lua")
local common, perigee = gpu.common, require "perigee"

local BLOCK = 2 ^ 21
local KEYS = { "layer.0", "layer.1", "layer.2", "layer.3" }

local function worker(kind)
  local agent = assert(perigee.agent { name = "store", scope = common.scope })
  local cache = assert(agent.engine:alloc(#KEYS * BLOCK, { kind = kind,
                                                           share = true }))
  local places, full = {}, {}
  for i, key in ipairs(KEYS) do
    places[key] = cache:slice((i - 1) * BLOCK, BLOCK)
  end
  agent:serve {
    name = "store", version = 1,
    methods = {
      put = {
        landing = function(length, key) return places[key]:slice(0, length) end,
        function(slice, key)
          full[key] = slice
          return slice.length, slice.kind
        end,
      },
      get = function(key) return full[key] end,
      echo = { raw = true, function(request) return request end },
    },
  }
  common.ready()
end

local function driver(kind)
  local agent = assert(perigee.agent { scope = common.scope })
  local store = assert(agent:proxy("store", "store", { timeout = 30 }))
  local here = assert(agent.engine:alloc(2 * BLOCK, { kind = kind,
                                                      share = true }))
  local out, back = here:slice(0, BLOCK), here:slice(BLOCK, BLOCK)

  for n, key in ipairs(KEYS) do
    out:write(gpu.bytes(BLOCK, n))
    local length, there = store:put(out, key)
    assert(length == BLOCK, there)
    print(("put %s, %d bytes of %s, into %s"):format(key, length, out.kind,
                                                     there))
  end
  local fetch = store:with { into = back }
  for n, key in ipairs(KEYS) do
    local got = assert(fetch:get(key))
    assert(got:string() == gpu.bytes(BLOCK, n), "other bytes came")
  end
  print("got all of them back into " .. back.kind .. ", every byte checked")

  -- A raw call: the bytes go by the server's host memory.
  local echoed = assert(fetch:echo(out))
  assert(echoed:string() == out:string(), "other bytes came")
  print("a raw echo from and into " .. back.kind)
  agent:close()
end

gpu.main(driver, worker)
