-- SPDX-License-Identifier: Apache-2.0
-- Prefill and decode as two processes with a cache between them. The key of a
-- block of tokens is a hash of the block and of all before it, so a chain of
-- keys stands for a text's beginning. Prefill puts blocks as it computes them,
-- each with its parent. Decode asks how much of its text is there, waits for
-- the rest, and has each block land in pages: one of each layer, wherever its
-- allocator has one free.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local LAYERS, PAGE, PAGES, TOKENS = 8, 2 ^ 12, 64, 16
local BLOCK = LAYERS * PAGE

-- ---- Chains ----------------------------------------------------------------

local PRIME = 0x100000001b3ULL

-- A hash for an example. Texts that others choose want one that nobody can
-- make two texts for.
local function hashed(hash, text)
  for i = 1, #text do
    hash = bit.bxor(hash, text:byte(i) + 0ULL) * PRIME
  end
  return hash
end

-- The keys of a text's whole blocks.
local function chain(text)
  local keys, hash = {}, 0xcbf29ce484222325ULL
  for first = 1, #text - TOKENS + 1, TOKENS do
    hash = hashed(hash, text:sub(first, first + TOKENS - 1))
    keys[#keys + 1] = "kv." .. bit.tohex(hash)
  end
  return keys
end

local function text_of(seed, blocks)
  local tokens = {}
  for i = 1, blocks * TOKENS do
    tokens[i] = string.char(97 + (i * i + seed * i) % 26)
  end
  return table.concat(tokens)
end

-- What a model would compute: a byte for each layer of a block.
local function byte_of(key, layer)
  return tonumber(hashed(0ULL + layer, key) % 256)
end

-- ---- Prefill ---------------------------------------------------------------

local function cache()
  assert(perigee.cache { name = "cache:0", scope = common.scope,
                         memory = 2 ^ 26 })
  common.ready()
end

-- Computes and puts what is missing of a text; returns how much was there.
local function prefilled(blocks, memory, text)
  local keys = chain(text)
  local there = assert(blocks:match(keys))
  for n = there + 1, #keys do
    for layer = 0, LAYERS - 1 do
      ffi.fill(memory.pointer + layer * PAGE, PAGE, byte_of(keys[n], layer))
    end
    assert(blocks:put(keys[n], memory, { parent = keys[n - 1] }))
  end
  return there
end

local function prefill()
  local agent = assert(perigee.agent { name = "prefill",
                                       scope = common.scope })
  local blocks = assert(agent:cache "cache:0")
  local memory = assert(agent.engine:alloc(BLOCK)):slice()
  agent:serve { name = "prefill", version = 1, methods = {
    run = function(text) return prefilled(blocks, memory, text) end } }
  common.ready()
end

-- ---- Decode ----------------------------------------------------------------

-- The places of a block in the pages of all layers: a layout, whose dimensions
-- are the layers; or a list of slices, which names each place by itself.
local function as_layout(memory, page)
  return memory:slice(page * PAGE, PAGE, { count = LAYERS,
                                           stride = PAGES * PAGE })
end

local function as_list(memory, page)
  local list = {}
  for layer = 0, LAYERS - 1 do
    list[layer + 1] = memory:slice((layer * PAGES + page) * PAGE, PAGE)
  end
  return list
end

local function check(memory, key, page)
  for layer = 0, LAYERS - 1 do
    local bytes = memory:slice((layer * PAGES + page) * PAGE, PAGE):string()
    assert(bytes == string.char(byte_of(key, layer)):rep(PAGE),
           "a page has other bytes")
  end
end

-- Gets all blocks of a text, as they come, to pages from `page` on by steps.
local function fetched(blocks, memory, text, page, places)
  local keys = chain(text)
  for n, key in ipairs(keys) do
    local at = (page + (n - 1) * 7) % PAGES     -- pages lie anywhere
    local part = assert(blocks:get(key, { into = places(memory, at),
                                          wait = 30 }))
    assert(part.length == BLOCK, "a block of another length")
    check(memory, key, at)
  end
  return #keys
end

local function driver()
  local agent = assert(perigee.agent { scope = common.scope })
  local blocks = assert(agent:cache "cache:0")
  local memory = assert(agent.engine:alloc(PAGES * BLOCK))
  local worker = assert(agent:proxy("prefill", "prefill", { timeout = 60 }))

  local first = text_of(1, 12)
  assert(blocks:match(chain(first)) == 0)
  local run = worker.async:run(first)
  local n = fetched(blocks, memory, first, 0, as_layout)
  assert(run:wait() == 0)
  print(("%d blocks came while they were computed, each to its page of %d "
    .. "layers by one layout"):format(n, LAYERS))

  -- Another text that begins as the first one does.
  local second = first:sub(1, 9 * TOKENS) .. text_of(2, 5)
  assert(blocks:match(chain(second)) == 9)
  run = worker.async:run(second)
  n = fetched(blocks, memory, second, 3, as_list)
  local there = assert(run:wait())
  assert(there == 9, "prefill has not found the beginning")
  print(("of %d blocks of another text %d were there already; all landed in "
    .. "pages by lists, checked"):format(n, there))
  agent:close()
end

common.main(driver, { cache = cache, prefill = prefill },
            { "cache", "prefill" })
