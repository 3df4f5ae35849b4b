-- SPDX-License-Identifier: Apache-2.0
-- A value lands in places of any shape, however it comes: with the answer to a
-- request, by a transfer, or from the mapped directory's memory.
local cases = require "spec.support.cases"
local perigee = require "perigee"

local BLOCKS, APART = 8, 4096

describe("a value of a cache", function()
  local cache, agent

  before_each(function()
    cache = assert(perigee.cache { name = "cache:0", scope = cases.scope,
      memory = 2 ^ 26, engine = { encrypt = cases.sealed or nil } })
    cases.opened[1] = cache.agents[1]
    agent = assert(cases.agent())
  end)
  after_each(cases.cleanup)

  -- A place of `size` bytes in blocks that lie apart: one slice of many blocks,
  -- or a list of such slices, the last one short.
  local function places(region, size)
    local block = size / BLOCKS
    local function blocks(first, count)
      return region:slice(first * APART * 16, block,
                          { count = count, stride = APART * 16 })
    end
    return { blocks(0, BLOCKS),
             { blocks(0, 3), blocks(3, 1), blocks(4, 4) },
             { blocks(0, 6), blocks(6, 1), region:slice(7 * APART * 16,
                                                       block) } }
  end

  local function bytes_of(region, size)
    local parts = {}
    for i = 0, BLOCKS - 1 do
      parts[i + 1] = region:slice(i * APART * 16, size / BLOCKS):string()
    end
    return table.concat(parts)
  end

  for _, map in ipairs { true, false } do
    for _, size in ipairs { 64, 4096, 2 ^ 15, 2 ^ 19 } do
      it(("of %d bytes lands in blocks that lie apart, %s"):format(size,
        map and "by the map" or "by requests"), function()
        local blocks = assert(agent:cache("cache:0", { map = map }))
        local value = cases.bytes(size, 3)
        local region = cases.alloc(agent.engine, BLOCKS * APART * 16)
        assert(blocks:put("k", value))
        for i, place in ipairs(places(region, size)) do
          region:slice():fill(0)
          local part = assert(blocks:get("k", { into = place }))
          assert.equal(size, part.length)
          assert.is_true(part:string() == value, i)
          assert.is_true(bytes_of(region, size) == value, i)
        end
        -- A value that is shorter than its place ends in the midst of a block.
        local short = value:sub(1, size / BLOCKS * 3 + 5)
        assert(blocks:put("k", short))
        for i, place in ipairs(places(region, size)) do
          region:slice():fill(0)
          local part = assert(blocks:get("k", { into = place }))
          assert.is_true(part:string() == short, i)
          assert.is_true(bytes_of(region, size)
            == short .. ("\0"):rep(size - #short), i)
          region:slice():fill(0)
          assert.same({ #short }, blocks:get_many { { key = "k",
                                                      into = place } })
          assert.equal(short, bytes_of(region, size):sub(1, #short))
        end
        blocks:close()
      end)
    end
  end
end)
