-- SPDX-License-Identifier: Apache-2.0
-- A cache that lies: its answers, its regions, its directory. Its client gets
-- errors with a kind, or a miss; nothing is raised, nothing is read outside.
local bit = require "bit"
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local ffi = require "ffi"
local liars = require "spec.support.liar"
local maps = require "perigee.cache.mapped"
local perigee = require "perigee"

local failure = require "perigee.cache.failure"
local missing = require "perigee.native".C.PERIGEE_NOT_FOUND
local own = require "perigee.cache.native".C
local PIECE = own.PERIGEE_CACHE_PIECE

local answer, place, number = caches.answer, caches.place, caches.number
local lies, liar, blocks, region

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  assert.equal(kind, err.kind, tostring(err))
  return err
end

-- A client of a liar; what it may land in.
local function begin(options)
  lies = {}
  liar = caches.liar(lies)
  local agent
  blocks, agent = caches.client(options)
  region = cases.alloc(agent.engine, 2 ^ 17)
end

-- What each function of a client gives, none of which may raise.
local function all(client)
  local into = region:slice(0, 65536)
  return {
    get = { client:get "k" },
    into = { client:get("k", { into = into }) },
    get_many = { client:get_many { { key = "k", into = into },
                                   { key = "l", into = region:slice(0, 9) } } },
    has = { client:has { "k", "l", "m" } },
    match = { client:match { "k", "l", "m" } },
    small = { client:put("k", "v") },
    put = { client:put("k", ("v"):rep(10000)) },
    put_many = { client:put_many { { key = "k", value = "v" } } },
    delete = { client:delete "k" },
    touch = { client:touch "k" },
    pin = { client:pin "k" },
    stat = { client:stat "k" },
    stats = { client:stats() },
    list = { client:list { limit = 1000 } },
    events = { client:events { limit = 10 } },
    view = { client:view "k" },
    waits = { client:get("k", { wait = 0.001 }) },
  }
end

-- Are these results, or a typed error?
local function is_typed(name, got)
  if got[1] == nil then
    assert.is_true(perigee.is_error(got[2]), name .. ": " .. tostring(got[2]))
  end
  if name == "get_many" or name == "put_many" then
    for _, each in ipairs(got[1]) do
      assert.is_true(type(each) == "number" or each == true
                     or perigee.is_error(each), name)
    end
  end
end

local function all_typed(client)
  for name, got in pairs(all(client)) do is_typed(name, got) end
end

describe("answers that are none", function()
  before_each(function() begin() end)
  after_each(cases.cleanup)

  it("are errors of the protocol", function()
    for _, text in ipairs { "", "x", "\1", "\1\1\0", ("\0"):rep(8),
                            ("\255"):rep(8), ("\255"):rep(600),
                            "\2\3\0\0\1\0\0\0" } do
      lies.ask = function() return text end
      for name, got in pairs(all(blocks)) do
        if got[1] == nil then
          assert.is_true(perigee.is_error(got[2]), name)
        end
      end
      wrong("protocol", blocks:get "k")
      wrong("protocol", blocks:stat "k")
      wrong("protocol", blocks:has { "k" })
      wrong("protocol", blocks:put("k", "v"))
      wrong("protocol", blocks:delete "k")
      wrong("protocol", blocks:stats())
      wrong("protocol", blocks:events())
      wrong("protocol", blocks:list())
    end
  end)

  it("are no raised errors if they refuse by any status", function()
    for _, status in ipairs { 0, 1, 7, -1, -11, -101, -102, -103, -104, -9999,
                              2 ^ 31 - 1, -2 ^ 31 } do
      lies.ask = function() return "\1\0\0\0" .. number(status % 2 ^ 32, 4) end
      for name, got in pairs(all(blocks)) do
        is_typed(name, got)
        if not name:find "^put" then
          assert.is_true(got[1] == nil or type(got[1]) == "table", name)
        end
      end
      local got, err = blocks:get "k"
      assert.is_nil(got)
      assert.is_true(perigee.is_error(err))
    end
  end)

  it("are no raised errors if their items have any status", function()
    for _, status in ipairs { 0, 1, 99, -1, -101, -103, -12345 } do
      local items = number(status % 2 ^ 32, 4):rep(40)
      for count = 0, 3 do
        lies.ask = function(request)
          return answer(request:byte(2), count, items)
        end
        all_typed(blocks)
      end
    end
  end)

  it("are cut, and have counts that do not fit", function()
    local whole = number(0, 4) .. place { length = 3, lease = 1, ns = 1e9 }
      .. number(3, 4) .. "abc"
    for _, count in ipairs { 1, 2, 4096, 2 ^ 32 - 1 } do
      for length = 0, #whole do
        lies.ask = function(request)
          return answer(request:byte(2), count, whole:sub(1, length))
        end
        all_typed(blocks)
      end
    end
  end)

  it("are what chance says", function()
    local chance = liars.chance(tonumber(os.getenv "PERIGEE_SEED") or 7)
    local bytes = {}
    lies.ask = function(request)
      for i = 1, chance.next(200) - 1 do
        bytes[i] = string.char(chance.one_in(3) and chance.next(256) - 1
                               or chance.pick { 0, 1, 255 })
      end
      local text = table.concat(bytes)
      return chance.one_in(4) and text
        or answer(request:byte(2), chance.pick { 0, 1, 2, 3 }, text)
    end
    for _ = 1, math.max(20, 2000 * cases.scale) do all_typed(blocks) end
  end)
end)

describe("a value in a cache's file", function()
  after_each(cases.cleanup)

  it("is not told to be missed by a cache that gives no value", function()
    begin { map = false }
    lies.about = function() return { version = 1, file = true } end
    lies.ask = function(request)
      return answer(request:byte(2), 1, number(2 ^ 32 + missing, 4))
    end
    lies.fetch = function() return nil, failure.of(own.PERIGEE_CACHE_BUSY, "x")
    end
    wrong("exists", blocks:get "k")
    wrong("exists", blocks:get("k", { into = region:slice() }))
    lies.fetch = nil                    -- it says each time that it is there
    wrong("stale", blocks:get "k")
  end)
end)

describe("methods that tell neither a result nor an error", function()
  after_each(cases.cleanup)

  local function missed(request)
    return answer(request:byte(2), 1, number(2 ^ 32 + missing, 4))
  end

  -- Begins with a place that is reserved; `name` tells `...` from then on.
  local function begin_with(name, ...)
    begin { map = false }
    lies.ask = missed
    lies.about = function() return { version = 1, file = true } end
    lies.reserve = function() return 1 end
    local reserved = name ~= "about" and assert(blocks:reserve("k", 9))
    local told, n = { ... }, select("#", ...)
    lies[name] = function() return unpack(told, 1, n) end
    return reserved
  end

  local value = ("v"):rep(10000)
  local uses = {
    about = function() return blocks:get "k" end,
    put = function() return blocks:put("k", value) end,
    reserve = function() return blocks:reserve("k", 9) end,
    write = function(reserved) return reserved:write "v" end,
    seal = function(reserved) return reserved:seal() end,
    abort = function(reserved) return reserved:abort() end,
    fetch = function() return blocks:get "k" end,
    touch = function() return blocks:touch "k" end,
    view = function() return blocks:view "k" end,
    wait = function() return blocks.set.live[1]:wait("k", 0) end,
  }

  for use, f in pairs(uses) do
    it(("are wrong, asked by %s"):format(use), function()
      local name = (use == "touch" or use == "view") and "fetch" or use
      for _, told in ipairs { { nil, nil }, { nil, 5 }, { nil, {} },
                              { nil, "no" }, { false, 5 } } do
        if told[1] == nil or name ~= "fetch" and name ~= "wait" then
          wrong("protocol", f(begin_with(name, told[1], told[2])))
        end
        cases.cleanup()
      end
      if name ~= "about" then
        wrong("protocol", f(begin_with(name, "what")))
      end
    end)
  end
end)

describe("places that a cache tells of", function()
  before_each(function()
    begin { map = false }
    liar.engine:alloc(4096, { name = "cache.slab.0", access = "r" })
  end)
  after_each(cases.cleanup)

  local function told(at)
    lies.ask = function()
      return answer(3, 1, number(0, 4) .. place(at) .. number(0, 4))
    end
  end

  it("are longer than values may be", function()
    local slab = maps.slab
    finally(function() maps.slab = slab end)
    function maps.slab() return { remote = { length = 2 ^ 31 } } end
    told { slab = 0, offset = 0, length = 2 ^ 31 - 2 ^ 8, lease = 1, ns = 1e9 }
    wrong("protocol", blocks:get "k")
  end)

  it("lie in no slab, or outside of it", function()
    local into = region:slice(0, 65536)
    for _, at in ipairs {
      { slab = 0, offset = 4096, length = 1 },
      { slab = 0, offset = 0, length = 4097 },
      { slab = 0, offset = 2 ^ 52, length = 10 },
      { slab = 0, offset = 2 ^ 63, length = 10 },
      { slab = 0, offset = 0, length = 65536 },
    } do
      at.lease, at.ns = 1, 1e9
      told(at)
      wrong("protocol", blocks:get("k", { into = into }))
      wrong("protocol", blocks:get "k")
      wrong("protocol", blocks:view "k")
      wrong("protocol", nil, blocks:get_many { { key = "k", into = into } }[1])
    end
    told { slab = 7, length = 1, lease = 1, ns = 1e9 }
    for _, got in ipairs { { blocks:get "k" },
                           { blocks:get("k", { into = into }) },
                           { blocks:view "k" } } do
      assert.is_nil(got[1])
      assert.is_true(perigee.is_error(got[2]))
    end
  end)

  it("have absurd lengths", function()
    for _, length in ipairs { 2 ^ 40, 2 ^ 53, 2 ^ 63 } do
      told { length = length, lease = 1, ns = 1e9 }
      wrong("protocol", blocks:get "k")
      wrong("too_large", blocks:get("k", { into = region:slice(0, 9) }))
      all_typed(blocks)
    end
  end)

  it("have leases of no time, and of all time", function()
    for _, ns in ipairs { 0, 1, 2 ^ 62, 2 ^ 63 } do
      told { length = 8, lease = 1, ns = ns }
      local got, err = blocks:get("k" .. ns)
      if ns < 2 then
        wrong("stale", got, err)
      else
        assert.equal(8, #assert(got, tostring(err)))
      end
      all_typed(blocks)
    end
  end)
end)

describe("a lease that is over when the bytes are there", function()
  after_each(cases.cleanup)

  it("does not count against the cache", function()
    begin { map = false }
    liar.engine:alloc(4096, { name = "cache.slab.0", access = "r" })
    lies.ask = function()
      return answer(3, 1, number(0, 4) .. place { length = 8, lease = 1 }
                          .. number(0, 4))
    end
    local several = caches.client({ map = false }, { caches.name })
    for _ = 1, 2 do wrong("stale", several:get "k") end
  end)
end)

describe("a directory of a liar", function()
  local head

  before_each(function()
    local store = caches.store(caches.open { name = "real:0" })
    head = ffi.string(store.pieces[1].pointer, 2 ^ 18)
    begin()
    lies.ask = function(request) return answer(request:byte(2), 0) end
  end)
  after_each(cases.cleanup)

  it("that is shorter than a directory is not looked at", function()
    for i, length in ipairs { 64, 4096, 65536, PIECE - 1 } do
      local piece = liar.engine:alloc(length, { name = "cache.directory.0",
                                                access = "r" })
      ffi.copy(piece.pointer, head, math.min(length, #head))
      local client, asked = caches.client(), 0
      lies.ask = function(request)
        if request:byte(2) == 3 then asked = asked + 1 end
        return answer(request:byte(2), 0)
      end
      wrong("protocol", client:get("key " .. i))
      assert.equal(1, asked)                     -- the directory told nothing
      assert.is_true(piece:close(5))
    end
  end)

  it("of garbage is a miss, or ends in a request", function()
    local chance = liars.chance(tonumber(os.getenv "PERIGEE_SEED") or 11)
    local piece = liar.engine:alloc(PIECE, { name = "cache.directory.0",
                                             access = "r" })
    local slab = liar.engine:alloc(2 ^ 16, { name = "cache.slab.0",
                                             access = "r" })
    ffi.fill(slab.pointer, slab.length, 0x5a)
    ffi.copy(piece.pointer, head, #head)
    local words = ffi.cast("uint32_t *", piece.pointer)
    for i = 1, math.max(50, 5000 * cases.scale) do
      for _ = 1, 64 do                  -- the head stays, but for its numbers
        local at = 8 + chance.next(2 ^ 16) - 1
        if chance.one_in(4) then at = chance.pick { 8, 9, 10, 16384, 16385 } end
        words[at] = chance.pick { 0, 1, 2, 8, 65536, 2 ^ 31, 2 ^ 32 - 1,
                                  bit.band(chance.next(2 ^ 30), 0xffff) }
      end
      all_typed(blocks)
      is_typed("has", { blocks:has { "key " .. i } })
    end
  end)
end)
