-- SPDX-License-Identifier: Apache-2.0
-- Lists of slices, wherever one slice may stand: each is compared with the same
-- bytes in one piece, and bytes between the places stay untouched.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local lists = require "spec.support.lists"
local process = require "spec.support.process"

local ffi = require "ffi"

local ROOM = 2 ^ 22
local places, text_of, fill_all = lists.places, lists.text_of, lists.fill

local function server(child, perigee_)
  local spec = require "spec.support.lists"
  local agent = assert(child.cases.agent("worker"))
  local region = child.cases.alloc(agent.engine, 2 ^ 23)
  local landed, count
  agent:serve {
    name = "store", version = 1,
    methods = {
      put = {
        landing = function(length, n, more)
          return spec.places(region, length + (more or 0), n)
        end,
        function(list, n)
          landed, count = list, n
          return #list, list.length
        end,
      },
      odd = { landing = function() return { region:slice(0, 8), 7 } end,
              function() return true end },
      overlaps = { landing = function()
        return { region:slice(0, 8), region:slice(4, 8) }
      end, function() return true end },
      named = function() return { region:slice(0, 8), name = "kv" } end,
      landed = function() return spec.text_of(landed), count end,
      plain = function(slice)
        landed = { slice }
        return slice.length
      end,
      get = function(size, n)
        local list = spec.places(region, size, n, 2 ^ 21 + n * 2 ^ 14)
        spec.fill(list, child.cases.bytes(size, n))
        return list, size
      end,
      both = function()
        return { region:slice(0, 1) }, region:slice(1, 1)
      end,
      echo = { raw = true, function(request) return request end },
      raw = { raw = true, function(request)
        local n = tonumber(request:string())
        local list = {}
        for i = 1, n do list[i] = region:slice(10 * i, 5):write "abcde" end
        return list
      end },
      many = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
    },
  }
  child.say("ready")
  perigee_.run()
end

local SIZES = { 1, 64, 1000, cases.EAGER, cases.EAGER + 4, cases.RING + 1,
                2 ^ 20 + 3 }

describe("a list of slices", function()
  local store, agent, region

  before_each(function()
    process.start(server):expect("ready")
    store, agent = cases.proxy("store", { timeout = 20 * cases.slow })
    region = cases.alloc(agent.engine, 2 * ROOM)
  end)
  after_each(cases.cleanup)

  it("is an argument, and lands in a list", function()
    for i, size in ipairs(SIZES) do
      for _, n in ipairs { 1, 2, 7 } do
        local list, bytes = places(region, size, n), cases.bytes(size, i)
        fill_all(list, bytes)
        local parts, length = assert(store:put(list, n))
        assert.equal(n, parts)
        assert.equal(size, length)
        local text, count = store:landed()
        assert.is_true(text == bytes, size)
        assert.equal(n, count)
      end
    end
  end)

  it("that a landing gives is told as its filled parts", function()
    local list = places(region, 1000, 2)
    -- 4 places of 500 bytes for 1000
    local parts, length = assert(store:put(list, 4, 1000))
    assert.equal(2, parts)
    assert.equal(1000, length)
    parts, length = assert(store:put({ region:slice(0, 0) }, 4, 1000))
    assert.equal(1, parts)
    assert.equal(0, length)
  end)

  it("is one slice where it arrives without a landing", function()
    for i, size in ipairs(SIZES) do
      local list, bytes = places(region, size, 5), cases.bytes(size, i)
      fill_all(list, bytes)
      assert.equal(size, (store:plain(list)))
      assert.is_true(store:landed() == bytes, size)
    end
  end)

  it("is a result, and `into` may be one", function()
    for _, size in ipairs(SIZES) do
      for _, n in ipairs { 2, 6 } do
        region:slice():fill(0xee)
        local into = places(region, size + 10, 3)
        local got, told = assert(store:with({ into = into }):get(size, n))
        assert.equal(size, told)
        assert.equal(size, got.length)
        assert.is_true(got:string() == cases.bytes(size, n), size)
        assert.is_true(text_of(got) == cases.bytes(size, n), size)
        assert.equal(into[1].offset, got[1].offset)
        local after = got[#got].offset + got[#got].block
        if got[#got].count == 1 then
          assert.equal(0xee, cases.byte(region, after))
        end
        assert.equal(0xee, cases.byte(region, into[1].offset
          + (into[1].count - 1) * into[1].stride + into[1].block))
      end
    end
    local pooled = assert(store:get(5000, 3))
    assert.is_true(pooled:string() == cases.bytes(5000, 3))
    pooled:close()
  end)

  it("of a result that is too long is too_large to the caller", function()
    for _, size in ipairs(SIZES) do
      local into = places(region, size, 2)
      local got, err = store:with({ into = into }):get(size + 1, 4)
      assert.is_nil(got)
      assert.equal("too_large", err.kind)
    end
  end)

  it("counts as the one slice", function()
    assert.has_error(function()
      store:plain({ region:slice(0, 1) }, region:slice(1, 1))
    end)
    local got, err = store:both()
    assert.is_nil(got)
    assert.equal("remote", err.kind)
    assert.matches("second slice", err.message)
  end)

  it("is the payload, the reply and `into` of raw methods", function()
    for i, size in ipairs(SIZES) do
      local list, bytes = places(region, size, 4), cases.bytes(size, i)
      fill_all(list, bytes)
      assert.is_true(store:echo(list) == bytes)
      local into = places(region, size + 1, 3, ROOM / 2)
      local fast = store:with { into = into }
      for _ = 1, 3 do
        local got = assert(fast:echo(bytes))
        assert.equal(size, got.length)
        assert.is_true(got:string() == bytes)
        into[1]:fill(0)
      end
      local got = assert(store:with({ into = into, capacity = size + 1 })
        :many(function(loan) return loan:write(bytes) end))
      assert.is_true(got:string() == bytes)
    end
    assert.equal(("abcde"):rep(100), (store:raw "100"))
  end)

  it("goes with asynchronous calls, many at once", function()
    local futures, all = {}, {}
    for i = 1, 50 do
      all[i] = places(region, 5000, 4, i * 15000)
      futures[i] = store:with({ into = all[i] }).async:get(5000, 1 + i % 5)
    end
    assert(perigee.wait_all(futures, 20 * cases.slow))
    for i = 1, 50 do
      assert.is_true(text_of(all[i]) == cases.bytes(5000, 1 + i % 5))
    end
  end)

  it("may be changed as soon as the call has begun", function()
    local list, bytes = places(region, 2 ^ 20, 8), cases.bytes(2 ^ 20, 3)
    fill_all(list, bytes)
    local future = store.async:put(list, 3)
    for i = 1, 8 do list[i] = nil end
    assert(future:wait())
    assert.is_true(store:landed() == bytes)
  end)

  it("may be lengthened by a program that got it", function()
    local bound = store:with {
      into = { region:slice(0, 8), region:slice(16, 8) } }
    local got = assert(bound:get(16, 1))
    assert.equal(16, (store:plain(got)))
    got[3] = region:slice(64, 8):write "lengthen"
    assert.is_true(got:string() == cases.bytes(16, 1) .. "lengthen")
    -- What the core reads has room for all of them.
    assert.equal(24, (store:plain(got)))
    local entry = ffi.sizeof "struct perigee_slice"
    assert.is_true(ffi.sizeof(got.array) >= #got * entry)
    -- The binding's own list has stayed as it was.
    assert.equal(2, #assert(bound:get(16, 2)))
  end)

  it("may be a layout that is made shorter during the call", function()
    local into = perigee.layout { base = region:slice(0, 16), block = 8,
                                  dims = { { 2, 8 }, { 1, 8 } } }
    local future = store:with({ into = into }).async:get(16, 1)
    into[2] = nil
    assert.equal(1, #assert(future:wait(20 * cases.slow)))
    assert.is_true(region:slice(0, 16):string() == cases.bytes(16, 1))
  end)

  it("is refused with the number of what is wrong", function()
    local slice = region:slice(0, 8)
    local other = cases.alloc(cases.engine(), 64)
    local function wrong(list, why)
      for _, f in ipairs {
        function() store:with({ into = list }):get(4, 1) end,
        function() store:plain(list) end,
        function() store:echo(list) end,
      } do
        local fine, message = pcall(f)
        assert.is_false(fine)
        assert.matches("lists_spec.lua:", message)
        if list[1] then assert.matches(why, message) end
      end
    end
    wrong({ slice, 7 }, "number 2 of a list is a number, not a slice")
    wrong({ slice, other:slice(0, 8) }, "number 2 of a list")
    wrong({ slice, name = "kv" }, "a list of slices has name beside them")
    local many = {}
    for i = 1, 4097 do many[i] = region:slice(i, 1) end
    wrong(many, "1 to 4096 slices, not 4097")
    many[4097] = nil
    assert.equal(4096, (store:plain(many)))
    local fine, message = pcall(function()
      store:with({ into = { slice, region:slice(100, 8), region:slice(7, 2) } })
        :get(4, 1)
    end)
    assert.is_false(fine)
    assert.matches("slices 1 and 3 of a list overlap", message)
    assert.has_error(function() store:with { into = {} } end)
    local got, err = store:odd(region:slice(0, 4))
    assert.is_nil(got)
    assert.equal("remote", err.kind)
    assert.matches("number 2 of a list is a number", err.message)
    local whys = { named = "a list of slices has name beside them",
                   overlaps = "slices 1 and 2 of a list overlap" }
    for method, why in pairs(whys) do
      got, err = store[method](store, region:slice(0, 4))
      assert.is_nil(got)
      assert.equal("remote", err.kind, err.message)
      assert.matches(why, err.message)
    end
    local sparse = {}
    sparse[3], sparse[2] = region:slice(40, 4), region:slice(20, 4)
    sparse[1] = slice
    assert.equal(16, (store:plain(sparse)))
    assert.equal(4, (store:plain({ slice:slice(0, 4) })))
  end)

  it("of a closed region is refused", function()
    local gone = cases.alloc(agent.engine, 64)
    local list = { region:slice(0, 8), gone:slice(0, 8) }
    gone:close()
    local fine, message = pcall(function() return store:plain(list) end)
    assert.is_false(fine)
    assert.matches("number 2 of a list: .*closed", message)
  end)
end)

describe("a list of slices in a message", function()
  local function owner(child, perigee_)
    local engine = child.cases.engine()
    local spec = require "spec.support.lists"
    local region = child.cases.alloc(engine, 2 ^ 23)
    local listener = assert(engine:listen(child.cases.address()))
    child.say("ready")
    local session = assert(listener:accept(10))
    while true do
      local list = spec.places(region, 2 ^ 20 + 100, 5)
      local length = session:recv(list, { timeout = 60 }):wait()
      if not length then break end
      local back = region:slice(2 ^ 22, length):write(
        spec.text_of(list):sub(1, length))
      if not session:send(back, { timeout = 60 }):wait() then break end
    end
    perigee_.run()
  end

  after_each(cases.cleanup)

  it("is sent and received in order", function()
    process.start(owner):expect("ready")
    local engine, session = cases.connect()
    local region = cases.alloc(engine, 2 * ROOM)
    for i, size in ipairs(SIZES) do
      local list, bytes = places(region, size, 6), cases.bytes(size, i)
      local back = places(region, size, 3, ROOM)
      fill_all(list, bytes)
      local received = session:recv(back)
      assert(session:send(list):wait(20 * cases.slow))
      assert.equal(size, received:wait(20 * cases.slow))
      assert.is_true(text_of(back) == bytes, size)
    end
    assert.has_error(function() session:send {} end)
    assert.has_error(function()
      session:recv { region:slice(0, 8), region:slice(4, 8) }
    end)
    session:close()
  end)
end)

describe("a list of slices in a transfer", function()
  local LENGTH = 2 ^ 22

  local function owner(child, perigee_, ffi_)
    local engine = child.cases.engine()
    for _, name in ipairs { "a", "b" } do
      child.cases.alloc(engine, 2 ^ 22, { name = name, access = "rw" })
    end
    local own = ffi_.new("uint8_t[?]", 2 ^ 22)
    engine:register(own, 2 ^ 22, { name = "own", access = "rw" })
    child.cases.alloc(engine, 2 ^ 22, { name = "readonly", access = "r" })
    local listener = assert(engine:listen(child.cases.address()))
    child.say("ready")
    assert(listener:accept(10))
    perigee_.run()
    return own
  end

  local engine, session, here, remotes
  local timeout = 20 * cases.slow

  before_each(function()
    process.start(owner):expect("ready")
    engine, session = cases.connect()
    here = cases.alloc(engine, 2 * LENGTH)
    remotes = {}
    for _, name in ipairs { "a", "b", "own", "readonly" } do
      remotes[name] = assert(session:region(name))
    end
  end)
  after_each(cases.cleanup)

  local function get(slice)
    local back = here:slice(LENGTH, slice.length)
    assert(session:read { from = slice, to = back }:wait(timeout))
    return back:string()
  end

  local function texts(list)
    local parts = {}
    for i, slice in ipairs(list) do parts[i] = get(slice) end
    return table.concat(parts)
  end

  local SHAPES = { { 1, 3 }, { 4, 1 }, { 3, 5 }, { 20, 7 }, { 7, 64 } }

  for _, name in ipairs { "a", "own" } do
    it("is paired by bytes: " .. name, function()
      local remote = remotes[name]
      for i, size in ipairs(SIZES) do
        for _, shape in ipairs(SHAPES) do
          here:slice(0, LENGTH):fill(0xee)
          local from, to = places(here, size, shape[1]),
                           places(remote, size, shape[2])
          local bytes = cases.bytes(size, i)
          fill_all(from, bytes)
          assert(session:write { from = from, to = to }:wait(timeout))
          assert.is_true(texts(to) == bytes, size)
          fill_all(from, ("\0"):rep(size))
          local last = from[#from]
          assert(session:read { from = to, to = from }:wait(timeout))
          assert.is_true(text_of(from) == bytes, size)
          assert.equal(0xee, cases.byte(here, last.offset - 1))
        end
      end
    end)
  end

  it("may have one slice on the other side", function()
    local bytes = cases.bytes(100000, 5)
    local to, one = places(remotes.a, 100000, 30), here:slice(7, 100000)
    one:write(bytes)
    assert(session:write { from = one, to = to }:wait(timeout))
    assert.is_true(texts(to) == bytes)
    local back = places(here, 100000, 9, 100007)
    local strided = remotes.own:slice(5, 1000, { count = 100, stride = 3000 })
    assert(session:write { from = one, to = strided }:wait(timeout))
    assert(session:read { from = strided, to = back }:wait(timeout))
    assert.is_true(text_of(back) == bytes)
    assert(session:write { from = back,
                           to = remotes.b:slice(9, 100000) }:wait(timeout))
    assert.is_true(get(remotes.b:slice(9, 100000)) == bytes)
  end)

  it("may name several regions of the peer", function()
    local to = {}
    for i = 0, 29 do
      local name = ({ "a", "b", "own" })[i % 3 + 1]
      to[i + 1] = remotes[name]:slice(i * 5000, 3001)
      if i % 5 == 0 then
        to[i + 1] = remotes[name]:slice(i * 5000, 1, { count = 3001,
                                                       stride = 1 })
      end
    end
    local bytes = cases.bytes(30 * 3001, 8)
    local from = places(here, #bytes, 4)
    fill_all(from, bytes)
    assert(session:write { from = from, to = to }:wait(timeout))
    assert.is_true(texts(to) == bytes)
    local back = places(here, #bytes, 11, 2 ^ 20)
    assert(session:read { from = to, to = back }:wait(timeout))
    assert.is_true(text_of(back) == bytes)
  end)

  it("goes in batches, and is prepared", function()
    local list, all = {}, {}
    for i = 1, 20 do
      local from = places(here, 777, 3, i * 8000)
      fill_all(from, cases.bytes(777, i))
      all[i] = cases.bytes(777, i)
      list[i] = { from = from, to = places(remotes.a, 777, 4, i * 8000) }
      if i % 4 == 0 then
        list[i].from = here:slice(2 ^ 20 + i * 1000, 777):write(all[i])
      end
      if i % 5 == 0 then
        list[i].to = remotes.own:slice(i * 1000, 777)
      end
    end
    assert(session:write(list):wait(timeout))
    for i = 1, 20 do
      local to = list[i].to
      assert.is_true((to.owner and get(to) or texts(to)) == all[i], i)
    end
    local from = places(here, 50000, 5, 2 ^ 21)
    local move = session:prepare_write { from = from,
                                         to = places(remotes.b, 50000, 6) }
    for i = 1, 20 do
      fill_all(from, cases.bytes(50000, i))
      assert(move:post():wait(timeout))
      assert.is_true(texts(places(remotes.b, 50000, 6))
        == cases.bytes(50000, i))
    end
    move:close()
  end)

  it("carries an immediate, and may be empty", function()
    local empty = { here:slice(0, 0), here:slice(8, 0) }
    assert(session:write { from = empty,
                           to = { remotes.a:slice(0, 0) } }:wait(timeout))
    assert(session:write_imm({ from = empty,
                               to = { remotes.a:slice(0, 0) } },
                             7):wait(timeout))
    assert(session:write_imm({ from = { here:slice(0, 8), here:slice(9, 8) },
                               to = { remotes.own:slice(0, 16) } },
                             8):wait(timeout))
  end)

  it("is refused before anything moves, by number", function()
    local from = here:slice(0, 24):fill(1)
    local a = remotes.a
    local function refused(spec, why)
      local fine, message = pcall(function() session:write(spec):wait(1) end)
      assert.is_false(fine)
      assert.matches("lists_spec.lua:", message)
      assert.matches(why, message)
    end
    refused({ from = from, to = { a:slice(0, 8), a:slice(20, 8),
                                  a:slice(6, 8) } },
            "slices 1 and 3 of a list overlap")
    refused({ from = from, to = { a:slice(0, 8), a:slice(8, 8) } },
            "from has 24 bytes and to has 16")
    refused({ from = from, to = { a:slice(0, 8), 7 } }, "number 2 of a list")
    refused({ from = { from }, to = { a:slice(0, 8), here:slice(8, 16) } },
            "number 2 of a list")
    refused({ from = {}, to = from }, "a slice is meant")
    local fine = pcall(function()
      session:read { from = { a:slice(0, 24) },
                     to = { here:slice(0, 16), here:slice(8, 8) } }
    end)
    assert.is_false(fine)
    local done, err = session:write {
      from = from, to = { a:slice(0, 8), remotes.readonly:slice(0, 16) } }
      :wait(timeout)
    assert.is_nil(done)
    assert.equal("denied", err.kind)
    assert.matches("slice 2 of a list", err.message)
    assert.equal(("\0"):rep(8), get(a:slice(0, 8)))
    -- What is read may be named twice.
    assert(session:read { from = { a:slice(0, 8), a:slice(4, 8),
                                   a:slice(0, 8) }, to = from }:wait(timeout))
  end)

  describe("told by a layout", function()
    -- Two layouts of 6 layers with 10 blocks of 24 bytes, of other strides.
    local function layouts(remote)
      local mine = perigee.layout {
        base = here:slice(8, 2 ^ 16), block = 24,
        dims = { { 6, 1000 }, { 10, 50 } } }
      local theirs = perigee.layout {
        base = remote:slice(16, 2 ^ 16), block = 24,
        dims = { { 6, 300 }, { 10, 24 } } }
      return mine, theirs
    end

    it("is the list that it tells", function()
      local mine, theirs = layouts(remotes.a)
      assert.equal(6 * 10 * 24, mine.length)
      assert.equal(24, mine.block)
      local bytes = cases.bytes(mine.length, 5)
      fill_all(mine, bytes)
      for layer = 0, 5 do
        for n = 0, 9 do
          local at = (layer * 10 + n) * 24
          assert.equal(bytes:sub(at + 1, at + 24),
                       here:slice(8 + layer * 1000 + n * 50, 24):string())
        end
      end
      assert(session:write { from = mine, to = theirs }:wait(timeout))
      for layer = 0, 5 do
        assert.equal(bytes:sub(layer * 240 + 1, layer * 240 + 240),
                     get(remotes.a:slice(16 + layer * 300, 240)))
      end
      local move = session:prepare_read { from = theirs, to = mine }
      fill_all(mine, ("x"):rep(mine.length))
      assert(move:post():wait(timeout))
      assert.is_true(mine:string() == bytes)
      local three = perigee.layout {
        base = here:slice(0, 4096), block = 4,
        dims = { { 2, 1024 }, { 3, 128 }, { 5, 8 } } }
      assert.equal(6, #three)
      assert.equal(1024 + 2 * 128, three[6].offset)
    end)

    for _, name in ipairs { "a", "own" } do
      it("is posted for blocks by their numbers: " .. name, function()
        local mine, theirs = layouts(remotes[name])
        local write = session:prepare_write { from = mine, to = theirs }
        local read = session:prepare_read { from = theirs, to = mine }
        local bytes = cases.bytes(mine.length, 6)
        fill_all(mine, bytes)
        assert(session:write { from = here:slice(2 ^ 17, 4096):fill(0),
                               to = remotes[name]:slice(0, 4096) }
          :wait(timeout))
        assert(write:post({ from = { 7, 3, 9 }, to = { 0, 1, 5 } })
          :wait(timeout))
        local function block(text, layer, n)
          return text:sub((layer * 10 + n) * 24 + 1, (layer * 10 + n + 1) * 24)
        end
        for layer = 0, 5 do
          local row = get(remotes[name]:slice(16 + layer * 300, 240))
          for n = 0, 9 do
            local from = ({ [0] = 7, [1] = 3, [5] = 9 })[n]
            assert.equal(from and block(bytes, layer, from) or ("\0"):rep(24),
                         block(row, 0, n))
          end
        end
        fill_all(mine, ("x"):rep(mine.length))
        for _ = 1, 3 do
          assert(read:post({ from = { 5 }, to = { 2 } }):wait(timeout))
        end
        local now = mine:string()
        for layer = 0, 5 do
          assert.equal(block(bytes, layer, 9), block(now, layer, 2))
          assert.equal(("x"):rep(24), block(now, layer, 3))
        end
        assert(write:post():wait(timeout))
        assert.is_true(get(theirs[1]) == mine[1]:string())
      end)
    end

    it("is paired by bytes where the outer dimensions differ", function()
      local mine = layouts(remotes.a)
      local flat = perigee.layout { base = remotes.a:slice(0, 2 ^ 16),
                                    block = 24 * 6, dims = { { 50, 200 } } }
      local bytes = cases.bytes(mine.length, 9)
      fill_all(mine, bytes)
      local move = session:prepare_write { from = mine, to = {
        remotes.a:slice(0, 24 * 6, { count = 10, stride = 200 }) } }
      assert(move:post({ from = { 4, 2 }, to = { 1, 0 } }):wait(timeout))
      local want = {}
      for layer = 0, 5 do
        for _, n in ipairs { 4, 2 } do
          want[#want + 1] = bytes:sub((layer * 10 + n) * 24 + 1,
                                      (layer * 10 + n + 1) * 24)
        end
      end
      want = table.concat(want)
      assert.equal(want:sub(1, 144), get(remotes.a:slice(200, 144)))
      assert.equal(want:sub(145), get(remotes.a:slice(0, 144)))
      assert.equal(50 * 144, flat.length)
    end)

    it("takes a block's bytes as people write them", function()
      local layout = perigee.layout { base = here:slice(0, 2 ^ 13),
                                      dims = { { 2, 4096 } }, block = "1K" }
      assert.same({ 1024, 2048 }, { layout.block, layout.length })
    end)

    it("is refused where it is wrong", function()
      local mine, theirs = layouts(remotes.a)
      local base = here:slice(0, 1000)
      for _, options in ipairs {
        {}, { base = base, dims = {}, block = 1 },
        { base = base, dims = { { 2, 600 } }, block = 401 },
        { base = base, dims = { { 2, 10 } }, block = 11 },
        { base = base, dims = { { 2, 10 } }, block = "1X" },
        { base = base, dims = { { 2 } }, block = 1 },
        { base = base, dims = { { 0, 1 } }, block = 1 },
        { base = here, dims = { { 1, 1 } }, block = 1 },
        { base = here:slice(0, 2 ^ 20), dims = { { 4097, 8 }, { 2, 4 } },
          block = 4 },
      } do
        local fine, message = pcall(perigee.layout, options)
        assert.is_false(fine)
        assert.matches("perigee.layout", message)
      end
      for _, block in ipairs { "16X", 1.5, false } do
        local fine, message = pcall(perigee.layout, {
          base = base, dims = { { 1, 1 } }, block = block })
        assert.is_false(fine)
        assert.matches("must be bytes, an integer of at least 0, or a size",
                       message)
      end
      theirs[#theirs + 1] = "foo"
      local wrote, said = pcall(function()
        session:write { from = mine, to = theirs }
      end)
      assert.is_false(wrote)
      assert.matches("lists_spec.lua:.*is a string, not a slice", said)
      theirs[#theirs] = nil
      local move = session:prepare_write { from = mine, to = theirs }
      local function refused(spec, why)
        local fine, message = pcall(function() move:post(spec) end)
        assert.is_false(fine)
        assert.matches("lists_spec.lua:", message)
        assert.matches(why, message)
      end
      refused({ from = { 1, 2 }, to = { 3, 3 } }, "slices 1 and 2 of a list")
      refused({ from = { 1, 10 }, to = { 3, 4 } },
              "number 2 of the local blocks is 10, of 10")
      refused({ from = { 1 }, to = { 3, 4 } }, "has 1 numbers and to has 2")
      refused({ from = {}, to = {} }, "1 to 4096")
      refused({ from = { -1 }, to = { 1 } }, "number 1 of from")
      refused({ from = { 1 }, to = { "x" } }, "number 1 of to")
      refused(7, "from = numbers")
      refused(false, "from = numbers")
      refused({ from = { 1 }, to = { 1 }, timeout = 0.1 },
              "takes from and to, no timeout")
      refused({ from = { 1 }, to = { 1 }, [1] = 7 }, "from and to, no 1")
      assert(move:post({ from = { 1, 1 }, to = { 3, 4 } }):wait(timeout))
      local plain = session:prepare_write { from = here:slice(0, 8),
                                            to = remotes.a:slice(0, 8) }
      assert.has_error(function()
        plain:post { from = { 0 }, to = { 0 } }
      end)
    end)
  end)

  it("keeps a region from closing while it is posted only", function()
    local other = cases.alloc(engine, 64)
    local move = session:prepare_write {
      from = { here:slice(0, 8), other:slice(0, 8) },
      to = { remotes.a:slice(0, 16) } }
    assert(move:post():wait(timeout))
    assert(other:close(timeout))
    local done, err = move:post():wait(timeout)
    assert.is_nil(done)
    assert.equal("stale", err.kind)
  end)
end)

describe("a list with a place in a region that its owner has closed", function()
  after_each(cases.cleanup)

  it("is stale, also where a new region has taken its number", function()
    local engine, other = cases.engine(), cases.engine()
    local listener = assert(other:listen(cases.address()))
    local session = assert(engine:connect(cases.address(), { timeout = 5 }))
    assert(listener:accept(5))
    local old = cases.alloc(other, 64, { name = "old", access = "rw" })
    local was = assert(session:region "old")
    assert(old:close(5))
    cases.alloc(other, 64, { name = "new", access = "rw" })
    local is = assert(session:region "new")
    local done, err = session:write {
      from = cases.alloc(engine, 64):slice():fill(7),
      to = { is:slice(0, 32), was:slice(0, 32) } }:wait(5)
    assert.is_nil(done)
    assert.equal("stale", err.kind)
  end)
end)

describe("agent:read and agent:write", function()
  local function worker(child, perigee_)
    local agent = assert(child.cases.agent("worker"))
    child.cases.alloc(agent.engine, 2 ^ 20, { name = "kv", access = "rw" })
    child.say("ready")
    perigee_.run()
  end

  after_each(cases.cleanup)

  it("take lists", function()
    process.start(worker):expect("ready")
    local agent = assert(cases.agent())
    local here = cases.alloc(agent.engine, 2 ^ 20)
    local from, back = places(here, 50000, 7), places(here, 50000, 3, 2 ^ 18)
    local bytes = cases.bytes(50000, 2)
    fill_all(from, bytes)
    for _ = 1, 2 do -- at first the region is unknown
      local fine, message = pcall(function()
        agent:write("worker", { to = "kv", from = cases.alloc(cases.engine(), 8)
          :slice() })
      end)
      assert.is_false(fine)
      assert.matches("lists_spec.lua:%d+: agent:write: .* another engine's",
                     message)
      assert(agent:write("worker", { to = "kv", from = from }):wait(20))
    end
    assert(agent:write("worker", { to = "kv", at = 100, from = from })
      :wait(20 * cases.slow))
    assert(agent:read("worker", { from = "kv", at = 100, to = back })
      :wait(20 * cases.slow))
    assert.is_true(text_of(back) == bytes)
    assert.has_error(function()
      agent:write("worker", { to = "kv", from = { here:slice(), 5 } })
    end)
  end)
end)
