-- SPDX-License-Identifier: Apache-2.0
-- A client of one cache: values of all lengths and shapes, keys, what a put
-- asks for, waits, places, views, entries, lists and events; with the directory
-- mapped, and without.
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local perigee = require "perigee"

local SMALL = require "perigee.cache.wire".SMALL

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  assert.equal(kind, err.kind, tostring(err))
  return err
end

local SIZES = { 0, 1, 7, 4095, 4096, 4097, SMALL - 1, SMALL, SMALL + 1, 8191,
                8192, 8193, 65535, 65536, 2 ^ 18 - 1, 2 ^ 18, 2 ^ 18 + 1,
                2 ^ 20 + 3, 3 * 2 ^ 20 }

local function same(wanted, got, err)
  assert.is_string(got, tostring(err))
  assert.equal(#wanted, #got)
  assert.is_true(wanted == got)
end

for _, map in ipairs { true, false } do
  describe("values, map = " .. tostring(map) .. ",", function()
    local blocks, other, region

    before_each(function()
      caches.open { memory = 2 ^ 26 }
      local agent
      blocks, agent = caches.client { map = map }
      other = caches.client()
      region = cases.alloc(agent.engine, 2 ^ 23)
    end)
    after_each(cases.cleanup)

    local function filled(size, seed)
      local slice = region:slice(2 ^ 22, size)
      slice:write(cases.bytes(size, seed))
      return slice
    end

    it("of all sizes come as strings", function()
      for i, size in ipairs(SIZES) do
        assert.is_true(blocks:put("k" .. i, cases.bytes(size, i)))
      end
      for i, size in ipairs(SIZES) do
        for _ = 1, 3 do
          same(cases.bytes(size, i), blocks:get("k" .. i))
          same(cases.bytes(size, i), other:get("k" .. i))
        end
      end
    end)

    it("of all sizes come and go by slices", function()
      for i, size in ipairs(SIZES) do
        local key = "k" .. i
        assert.is_true(blocks:put(key, filled(size, i)))
        for _ = 1, 3 do
          local into = region:slice(0, size + 1)
          into:fill(0xaa)
          local part = assert(blocks:get(key, { into = into }))
          assert.equal(size, part.length)
          same(cases.bytes(size, i), part:string())
          assert.equal(0xaa, cases.byte(into, size))
          if size > 0 then
            local short = region:slice(0, size - 1)
            wrong("too_large", blocks:get(key, { into = short }))
          end
        end
        same(cases.bytes(size, i), other:get(key))
      end
    end)

    it("come and go by strides and lists", function()
      for _, block in ipairs { 1, 64, 1000, 16384 } do
        local size = block * 40
        local from = region:slice(0, block, { count = 40, stride = block + 7 })
        local to = region:slice(2 ^ 21, block, { count = 40,
                                                 stride = 2 * block })
        local list = {}
        for i = 1, 20 do
          list[i] = region:slice(2 ^ 22 + (20 - i) * 3 * block, 2 * block)
        end
        for i = 0, 39 do
          region:slice(i * (block + 7), block):write(
            cases.bytes(size, block):sub(i * block + 1, (i + 1) * block))
        end
        assert.is_true(blocks:put("strided" .. block, from))
        same(cases.bytes(size, block), other:get("strided" .. block))
        for _ = 1, 3 do
          local part = assert(blocks:get("strided" .. block, { into = to }))
          same(cases.bytes(size, block), part:string())
          part = assert(blocks:get("strided" .. block, { into = list }))
          same(cases.bytes(size, block), part:string())
        end
        assert.is_true(blocks:put("listed" .. block, list))
        same(cases.bytes(size, block), other:get("listed" .. block))
        assert.is_true(blocks:put("short", "12345"))
        same("12345", assert(blocks:get("short", { into = to })):string())
        same("12345", assert(blocks:get("short", { into = list })):string())
        assert.is_true(blocks:put("none", ""))
        assert.equal(0, assert(blocks:get("none", { into = to })).length)
        assert.equal(0, assert(blocks:get("none", { into = list })).length)
      end
    end)

    it("are replaced as wholes", function()
      for i = 1, 40 do
        local size = SIZES[i % #SIZES + 1]
        assert.is_true(other:put("k", cases.bytes(size, i)))
        assert.is_true(blocks:put("k", cases.bytes(size + i, i + 1)))
        same(cases.bytes(size + i, i + 1), blocks:get "k")
      end
    end)

    it("have keys of 1 to 512 bytes, of any bytes", function()
      local keys = { "k", "\0", "\0\0", "k\0", "k\0l", ("x"):rep(511),
                     ("x"):rep(512), ("\0"):rep(512), "\255\254", "a\n" }
      for i, key in ipairs(keys) do
        assert.is_true(blocks:put(key, "value " .. i))
        assert.is_true(blocks:put(key, ("v" .. i):rep(SMALL), {
          parent = keys[1] ~= key and keys[1] or nil }))
      end
      for i, key in ipairs(keys) do
        same(("v" .. i):rep(SMALL), blocks:get(key))
        assert.equal(#("v" .. i) * SMALL, blocks:stat(key).length)
      end
      assert.equal(#keys, #assert(blocks:list()))
      local long = ("p"):rep(512)
      assert.is_true(blocks:put(long, "parent"))
      assert.is_true(blocks:put(("c"):rep(512), ("v"):rep(SMALL),
                                { parent = long }))
      same(("v"):rep(SMALL), blocks:get(("c"):rep(512)))
      for _, key in ipairs { "", ("x"):rep(513), 7, {} } do
        for _, f in ipairs { "get", "put", "reserve", "view", "delete", "pin",
                             "touch", "stat" } do
          assert.has_error(function() blocks[f](blocks, key, "v") end)
        end
        assert.has_error(function() blocks:has { key } end)
        assert.has_error(function() blocks:get_many { { key = key } } end)
      end
    end)

    it("are got and put by many", function()
      local puts, gets = {}, {}
      for i = 1, 700 do
        local size = i % 100 == 0 and 50000 or i * 10
        puts[i] = { key = "k" .. i, value = cases.bytes(size, i) }
        gets[i] = { key = "k" .. i, into = region:slice((i - 1) * 10000, size) }
      end
      gets[7].into = region:slice(6 * 10000, 69)
      gets[8].key = "none"
      for i = 100, 700, 100 do
        gets[i].into = region:slice(7100000 + i * 500, 50000)
      end
      for _, got in ipairs(assert(blocks:put_many(puts))) do
        assert.is_true(got, tostring(got))
      end
      for _ = 1, 2 do
        local got = assert(blocks:get_many(gets))
        assert.equal(700, #got)
        for i = 1, 700 do
          if i == 7 then
            assert.equal("too_large", got[i].kind)
          elseif i == 8 then
            assert.equal("not_found", got[i].kind)
          else
            assert.equal(#puts[i].value, got[i], tostring(got[i]))
            same(puts[i].value, gets[i].into:string())
          end
        end
      end
      assert.same({}, blocks:get_many {})
      assert.same({}, blocks:put_many {})
    end)

    it("are known to be there, and how far a chain is", function()
      local keys, there = {}, {}
      for i = 1, 1300 do
        keys[i] = ("key %d "):format(i):rep(40)
        there[i] = i <= 900 or i == 1000
        if there[i] then assert(blocks:put(keys[i], "")) end
      end
      assert.same(there, blocks:has(keys))
      assert.equal(900, blocks:match(keys))
      assert.equal(0, blocks:match { "none", keys[1] })
      assert.equal(512, blocks:match { unpack(keys, 1, 512) })
      assert.equal(0, blocks:match {})
      assert.same({}, blocks:has {})
    end)
  end)
end

describe("a put", function()
  local cache, blocks

  before_each(function()
    cache = caches.open()
    blocks = caches.client()
  end)
  after_each(cases.cleanup)

  for _, size in ipairs { 10, 20000 } do
    local value = cases.bytes(size, 1)

    it("lives as long as it was told, with bytes " .. size, function()
      for i, ttl in ipairs { 1 / 3, 0.123456789, 1e-10, 1e12, math.huge, 0 } do
        local fine, err = blocks:put("t" .. i, value, { ttl = ttl })
        assert.is_true(fine, tostring(err))
      end
      for _, key in ipairs { "t1", "t2", "t3", "t6" } do
        local is_over = cases.eventually(function()
          return not blocks:has({ key })[1]
        end)
        assert.is_true(is_over, key .. " lives on")
      end
      assert.same({ true, true }, blocks:has { "t4", "t5" })
      wrong("not_found", blocks:get "t1")
      cases.await(function() return cache:counters().expired == 4 end)
    end)

    it("may want the key absent, with bytes " .. size, function()
      assert.is_true(blocks:put("k", value, { if_absent = true }))
      local err = wrong("exists", blocks:put("k", "w", { if_absent = true }))
      assert.equal("exists", err.code)
      err = wrong("exists", blocks:put("k", ("w"):rep(9000),
                                       { if_absent = true }))
      assert.equal("exists", err.code)
      assert.is_true(blocks:get "k" == value)
      assert.is_true(blocks:delete "k")
      assert.is_true(blocks:put("k", value, { if_absent = true }))
    end)

    it("has a parent that is there, with bytes " .. size, function()
      local err = wrong("not_found", blocks:put("c", value, { parent = "p" }))
      assert.matches('putting "c".*: the parent is not there$', tostring(err))
      assert.is_true(blocks:put("p", value))
      assert.is_true(blocks:put("c", value, { parent = "p", group = 7 }))
      assert.is_true(blocks:get "c" == value)
    end)

    it("waits for another writer, with bytes " .. size, function()
      local writer = caches.client()
      for _, there in ipairs { false, true } do
        if there then assert(blocks:put("k", "before")) end
        for _, how in ipairs { "seal", "abort" } do
          local place = assert(writer:reserve("k", 4))
          assert(place:write "mine")
          assert.equal("busy", wrong("exists", blocks:put("k", value)).code)
          wrong("exists", blocks:put("k", value, { wait = 0.05 }))
          local before = cache:counters().misses + cache:counters().hits
          local done = perigee.spawn(function()
            return blocks:put("k", value, { wait = 600 })
          end)
          perigee.sleep(0.2)
          assert.is_false(done:done())
          assert.is_true(cache:counters().misses + cache:counters().hits
                         < before + 50)
          assert.is_true(place[how](place))
          assert.is_true(done:wait(20 * cases.slow)) -- not the 600 s
          assert.is_true(blocks:get "k" == value)
          assert(blocks:delete "k")
          if there then assert(blocks:put("k", "before")) end
        end
        if there then assert(blocks:delete "k") end
      end
    end)
  end

  it("is waited for by gets", function()
    local gets = {}
    for i = 1, 30 do
      gets[i] = perigee.spawn(function()
        return caches.client():get("later", { wait = 60 })
      end)
    end
    perigee.sleep(0.05)
    assert(blocks:put("other", "x"))
    assert(blocks:put("later", ("y"):rep(30000)))
    for _, each in ipairs(gets) do
      assert.is_true(assert(each:wait(20 * cases.slow)) == ("y"):rep(30000))
    end
    wrong("not_found", blocks:get("never", { wait = 0.02 }))
  end)

  it("raises for what is misuse", function()
    for _, options in ipairs {
      { ttl = -1 }, { pin = "harder" }, { group = 0.5 }, { parent = "" },
      { if_absent = 1 }, { wait = "x" }, { into = 1 }, 7 } do
      assert.has_error(function() blocks:put("k", "v", options) end)
    end
    for _, value in ipairs { 7, true, {}, { {} } } do
      assert.has_error(function() blocks:put("k", value) end)
    end
    assert.has_error(function() blocks:get("k", { into = "x" }) end)
    assert.has_error(function() blocks:get("k", { wait = -1 }) end)
    assert.has_error(function() blocks:reserve("k", -1) end)
    assert.has_error(function() blocks:list { prefix = ("x"):rep(513) } end)
  end)

  it("raises at the line that is wrong", function()
    local agent = cases.agent()
    local other = cases.alloc(agent.engine, 2 ^ 20):slice()
    local place = assert(blocks:reserve("l", 8))
    local mixed = { cases.alloc(agent.engine, 8):slice(), 5 }
    local region = assert(agent.engine:alloc(8))
    local closed = region:slice()
    region:close()
    assert(blocks:put("k", "v"))
    for i, f in ipairs {
      function() blocks:get("k", { into = closed }) end,
      function() blocks:get("k", { into = { mixed[1], closed } }) end,
      function() blocks:get_many { { key = "k", into = closed } } end,
      function() blocks:put("k", closed) end,
      function() blocks:put_many { { key = "k", value = closed } } end,
      function() blocks.assignments:load("a", 1, { closed }) end,
      function() blocks.assignments:store { closed } end,
      function() blocks:get("k", { into = other }) end,
      function() blocks:get("k", { into = { other, other } }) end,
      function() blocks:get_many { { key = "k", into = other } } end,
      function() blocks:put("k", other) end,
      function() blocks:put("k", other:slice(0, 8)) end,
      function() blocks:put_many { { key = "k", value = other } } end,
      function() place:write(other:slice(0, 8)) end,
      function() blocks.assignments:load("a", 1, { other }) end,
      function() blocks.assignments:store { other } end,
      function() blocks:get("k", { into = mixed }) end,
      function() blocks:get_many { { key = "k", into = mixed } } end,
      function() blocks:put_many { { key = "k", value = "v", ttl = -1 } } end,
      function() blocks:put_many { { key = "k", value = "v", tll = 1 } } end,
      function() blocks:get_many { { key = "k", into = other, wait = 1 } } end,
      function() blocks.assignments:load("a", 1, { 5 }) end,
      function() blocks.assignments:load("a", 1, { mixed }) end,
      function() local _ = agent:cache(5) end,
      function() local _ = agent:cache { "a", 5 } end,
      function() local _ = agent:cache "a/b" end,
      function() local _ = agent:cache { "a", "b/c" } end,
      function() local _ = agent:cache { kind = 5 } end,
      function() local _ = agent:cache { kind = "cache", limit = 1 } end,
      function() local _ = agent:cache("a", { near = 5 }) end,
      function() local _ = agent:cache("a", { replicas = 0 }) end } do
      local fine, why = pcall(f)
      assert.is_false(fine, i)
      assert.is_truthy(tostring(why):find("cache_spec.lua:", 1, true), why)
    end
  end)
end)

describe("a client of caches", function()
  after_each(cases.cleanup)

  it("that finds no cache tells what it was doing, and who was looked for",
     function()
    local agent = assert(cases.agent())
    local function told(text, got, err)
      assert.equal(text, wrong("not_found", got, err).message)
    end
    local group = assert(agent:cache { kind = "cache", prefix = "kv" })
    local nobody = (': no cache of kind "cache", prefix "kv" in scope %s can '
      .. "be asked"):format(cases.scope)
    told('putting "k"' .. nobody, group:put("k", "v"))
    told('getting "k"' .. nobody, group:get "k")
    told('deleting "k"' .. nobody, group:delete "k")
    local list = assert(agent:cache { "kv:0", "kv:1" })
    for _ = 1, 2 do list:put("k", "v") end -- each of them is tried
    local err = wrong("not_found", list:put("k", "v"))
    assert.matches(('putting "k": none of kv:0, kv:1 in scope %s can be asked '
      .. "("):format(cases.scope), err.message, 1, true)
    assert.matches("kv:[01]", err.message:match "%(.*")
  end)

  it("gives closed once it is closed, and never that nothing is there",
     function()
    caches.open()
    local agent = assert(cases.agent())
    local into = cases.alloc(agent.engine, 64):slice()
    for _, which in ipairs { caches.name, { caches.name, "cache:1" },
                             { kind = "cache" } } do
      local blocks = assert(agent:cache(which))
      cases.await(function() return blocks:put("k", "value") end)
      blocks:close()
      blocks:close()
      wrong("closed", blocks:put("k", "other"))
      wrong("closed", blocks:get "k")
      wrong("closed", blocks:get("k", { wait = 60 }))
      wrong("closed", blocks:get("k", { into = into }))
      wrong("closed", blocks:has { "k" })
      wrong("closed", blocks:match { "k" })
      wrong("closed", blocks:reserve("k", 8))
      wrong("closed", blocks:view "k")
      wrong("closed", blocks:delete "k")
      wrong("closed", blocks:touch "k")
      wrong("closed", blocks:pin "k")
      wrong("closed", blocks:stat "k")
      wrong("closed", blocks:stats())
      wrong("closed", blocks:list())
      wrong("closed", blocks:events())
      wrong("closed", nil, blocks:get_many({ { key = "k", into = into } })[1])
      wrong("closed", nil, blocks:put_many({ { key = "k", value = "v" } })[1])
      wrong("closed", blocks.assignments:store { "v" })
      wrong("closed", blocks.assignments:query("owner", 1))
    end
  end)
end)

describe("a place", function()
  local blocks, region

  before_each(function()
    caches.open()
    local agent
    blocks, agent = caches.client()
    region = cases.alloc(agent.engine, 2 ^ 16)
  end)
  after_each(cases.cleanup)

  it("is written in parts, and seen when it is sealed", function()
    local place = assert(blocks:reserve("k", 30000))
    region:slice(0, 30000):write(cases.bytes(30000, 5))
    for at = 20000, 0, -10000 do
      wrong("not_found", blocks:get "k")
      assert.is_true(place:write(region:slice(at, 10000), at))
    end
    wrong("not_found", blocks:get "k")
    assert.is_true(place:seal())
    assert.is_true(blocks:get "k" == cases.bytes(30000, 5))
    assert.has_error(function() place:seal() end)
    assert.has_error(function() place:write "x" end)
    assert.is_true(place:abort())
    assert.is_true(blocks:get "k" == cases.bytes(30000, 5))
  end)

  it("is given up", function()
    local place = assert(blocks:reserve("k", 10))
    assert.is_true(place:abort())
    assert.is_true(place:abort())
    assert.has_error(function() place:write "x" end)
    assert.has_error(function() place:seal() end)
    assert.is_true(blocks:put("k", "v", { if_absent = true }))
  end)

  it("takes no byte beyond its end", function()
    local place = assert(blocks:reserve("k", 10))
    assert.has_error(function() place:write("12345678901") end)
    assert.has_error(function() place:write("1", 10) end)
    assert.has_error(function() place:write("1", -1) end)
    assert.is_true(place:write("", 10))
    assert.is_true(place:write("1234567890"))
    assert.is_true(place:seal())
    local none = assert(blocks:reserve("none", 0))
    assert.is_true(none:write "")
    assert.is_true(none:seal())
    assert.equal("", blocks:get "none")
    wrong("too_large", blocks:reserve("large", 2 ^ 30 + 1))
    wrong("too_large", blocks:reserve("large", 2 ^ 53))
  end)
end)

describe("a view", function()
  after_each(cases.cleanup)

  local function begin(options)
    caches.open(options)
    local blocks = caches.client()
    assert(blocks:put("k", cases.bytes(20000, 1)))
    local view, err = blocks:view "k"
    if caches.mapped then return assert(view, tostring(err)), blocks end
    wrong("unsupported", view, err)
  end

  it("has the bytes until it is closed", function()
    local view, blocks = begin()
    if not view then return end
    assert.equal(20000, view.length)
    assert.is_true(view:string() == cases.bytes(20000, 1))
    assert(blocks:put("k", "new"))
    assert.is_true(view:string() == cases.bytes(20000, 1))
    assert.equal("new", blocks:get "k")
    view:close()
    view:close()
    assert.equal(0, view:left())
    wrong("closed", view:string())
    wrong("not_found", blocks:view "none")
    assert(blocks:put("none", ""))
    local none = assert(blocks:view "none")
    assert.equal("", none:string())
    none:close()
  end)

  for _, map in ipairs { true, false } do
    it("is of the value that its key has now, map = " .. tostring(map),
       function()
      caches.open()
      local blocks, other = caches.client { map = map }, caches.client()
      assert(other:put("k", "old"))
      if not caches.mapped then return end
      assert(blocks:view "k"):close()
      assert(other:put("k", "new"))
      local view = assert(blocks:view "k")
      assert.equal("new", view:string())
      view:close()
      assert(other:delete "k")
      wrong("not_found", blocks:view "k")
    end)
  end

  it("may be as old as its client takes", function()
    caches.open()
    local blocks = caches.client { map = false, stale = 30 }
    local other = caches.client()
    assert(other:put("k", "old"))
    if not caches.mapped then return end
    assert(blocks:view "k"):close()
    assert(other:put("k", "new"))
    assert.equal("old", assert(blocks:view "k"):string())
  end)

  it("ends with its lease", function()
    local view = begin { lease = 0.3 }
    if not view then return end
    assert.is_true(view:left() <= 0.3)
    cases.await(function() return view:left() == 0 end)
    wrong("stale", view:string())
    view:close()
  end)

  it("that are many share leases, and are given back", function()
    local view, blocks = begin { leases = 16 }
    if not view then return end
    for _ = 1, 100 do assert(blocks:view "k"):close() end
    for i = 1, 50 do
      assert(blocks:put("v" .. i, ("v"):rep(i)))
      local one = assert(blocks:view("v" .. i))
      assert.equal(("v"):rep(i), one:string())
      one:close()
    end
    assert.is_true(view:string() == cases.bytes(20000, 1))
    view:close()
  end)
end)
