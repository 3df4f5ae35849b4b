-- SPDX-License-Identifier: Apache-2.0
-- Landings: the receiver of bulk data names the memory in which it lands, so a
-- store keeps the data without another copy.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local BLOCK = 2 ^ 22
local KEYS = { "layer.0", "layer.1", "layer.2", "layer.3" }

local function worker()
  local agent = assert(perigee.agent { name = "store", scope = common.scope })
  local store, full = {}, {}
  for _, key in ipairs(KEYS) do store[key] = agent.engine:alloc(BLOCK) end
  agent:serve {
    name = "store", version = 1,
    methods = {
      put = {
        landing = function(length, key)
          if not store[key] then return nil, "no block is called " .. key end
          return store[key]:slice(0, length)
        end,
        function(slice, key)
          full[key] = slice
          return slice.length
        end,
      },
      get = function(key) return full[key] end,
    },
  }
  common.ready()
end

local function driver()
  local agent = assert(perigee.agent { scope = common.scope })
  local store = assert(agent:proxy("store", "store", { timeout = 5 }))
  local here = agent.engine:alloc(2 * BLOCK)
  local out, back = here:slice(0, BLOCK), here:slice(BLOCK, BLOCK)

  for n, key in ipairs(KEYS) do
    ffi.fill(out.pointer, BLOCK, n)
    assert(store:put(out, key) == BLOCK, "put said another length")
  end
  print(("put %d blocks of %d bytes, each where the store wanted it")
    :format(#KEYS, BLOCK))

  for n, key in ipairs(KEYS) do
    local got = assert(store:with { into = back }:get(key))
    assert(got.length == BLOCK and got.pointer == back.pointer)
    assert(got:string() == string.char(n):rep(BLOCK), "other bytes came")
  end
  print("got them back into memory of our own, every byte checked")

  local pooled = assert(store:get("layer.2"))
  assert(pooled:string() == string.char(3):rep(BLOCK))
  pooled:close()
  print("without a landing a pooled block serves")

  local done, err = store:put(out, "layer.9")
  assert(not done and err.kind == "denied")
  print("a key that the store does not know: " .. tostring(err))
  agent:close()
end

common.main(driver, { worker = worker }, { "worker" })
