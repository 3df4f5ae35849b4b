-- SPDX-License-Identifier: Apache-2.0
-- The three kinds of method: what is sent, and a handler's arguments and
-- results.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, _, ffi_)
  child.serve {
    name = "kinds", version = 1,
    methods = {
      same = function(...) return ... end,
      count = function(...) return select("#", ...) end,
      nothing = function() end,
      long = function(n) return ("x"):rep(n) end,
      wide = { raw = true, function(request)
        return ("x"):rep(tonumber(request:string()))
      end },
      nils = function(n)
        if n == 1 then return nil end
        if n == 2 then return nil, nil end
        if n > 4 then return unpack({}, 1, n) end
        return 1, nil, 3, nil
      end,
      echo = { raw = true, function(request) return request end },
      text = { raw = true, function(request)
        return request:string() .. "!"
      end },
      length = { raw = true, function(request)
        return tostring(request.length)
      end },
      empty = { raw = true, function() end },
      number = { raw = true, function() return 42 end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      capacity = { raw = true, inplace = true, function(_, reply)
        local text = tostring(reply.length)
        ffi_.copy(reply.pointer, text, #text)
        return #text
      end },
      filled = { raw = true, inplace = true, function(request)
        local answers = { beyond = 2 ^ 40, negative = -1, half = 0.5,
                          string = "7", yes = true, zero = 0 }
        return answers[request:string()]
      end },
    },
  }
end

describe("a method", function()
  local calc, caller

  setup(function()
    process.start(server):expect("ready")
    calc, caller = cases.proxy("kinds", { timeout = 20 * cases.slow })
  end)
  teardown(cases.cleanup)

  describe("that is typed", function()
    it("takes and gives every kind of value", function()
      local values = { true, false, 0, -1.5, 2 ^ 53, math.huge, -math.huge, "",
                       "text", "\0\255bytes", { 1, 2, 3 }, {},
                       { a = { b = { c = "deep" } }, [2] = true } }
      for _, value in ipairs(values) do
        assert.same(value, (calc:same(value)))
      end
      assert.same(values, { calc:same(unpack(values)) })
      local nan = calc:same(0 / 0)
      assert.is_true(nan ~= nan)
    end)

    it("keeps int64 and uint64 what they are", function()
      local a, b = calc:same(-2LL ^ 62, 0xffffffffffffffffULL)
      assert.is_true(ffi.istype("int64_t", a) and a == -2LL ^ 62)
      assert.is_true(ffi.istype("uint64_t", b) and b == 0xffffffffffffffffULL)
      assert.is_true(calc:same({ n = 5LL }).n == 5LL)
    end)

    it("counts arguments exactly, nils included", function()
      assert.equal(0, calc:count())
      assert.equal(1, calc:count(nil))
      assert.equal(3, calc:count(nil, 2, nil))
      assert.equal(5, calc:count(nil, nil, nil, nil, nil))
    end)

    it("counts results exactly, nils included", function()
      assert.equal(0, select("#", calc:nothing()))
      assert.equal(1, select("#", calc:nils(1)))
      assert.equal(2, select("#", calc:nils(2)))
      assert.equal(4, select("#", calc:nils(4)))
      assert.equal(3, select("#", calc:same(nil, 2, nil)))
    end)

    it("carries long strings and large tables", function()
      for _, size in ipairs(cases.sizes) do
        local text = cases.bytes(size)
        assert.is_true(calc:same(text) == text, size)
      end
      local large = {}
      for i = 1, 20000 do large[i] = { i, tostring(i) } end
      local got = assert(calc:same(large))
      assert.equal(#large, #got)
      for i, pair in ipairs(got) do     -- all at once would be told for minutes
        assert.same(large[i], pair)
      end
    end)

    it("takes and gives 250 values, and no more", function()
      assert.equal(250, calc:count(unpack({}, 1, 250)))
      assert.equal(250, select("#", calc:nils(250)))
      local fine, message = pcall(function()
        calc:count(unpack({}, 1, 251))
      end)
      assert.is_false(fine)
      assert.matches("kinds_spec.lua:.*250 values", message)
      local got, err = calc:nils(251)
      assert.is_nil(got)
      assert.equal("remote", err.kind)
      assert.matches("250 values", err.message)
    end)

    it("says what is too much of its values", function()
      local empty, colliding = {}, {}
      for i = 1, 20000 do empty[i] = {} end
      for i = 1, 5000 do colliding[1.7e12 + i] = true end
      local _, err = calc:same(empty)
      assert.equal("too_large", err.kind)
      assert.matches("of memory, more than 8 times", err.message)
      _, err = calc:same(colliding)
      assert.equal("too_large", err.kind)
      assert.matches("collide", err.message)
      _, err = calc:same(("x"):rep(2 ^ 20 + 4096))
      assert.equal("too_large", err.kind)
      assert.matches("option typed", err.message)
      assert.equal(7, calc:same(7))
    end)

    it("says whose option a reply is over, and whose a call", function()
      local agent = assert(cases.agent(nil, { engine = { typed = 2 ^ 14,
                                                         message = 2 ^ 15 } }))
      local narrow = assert(agent:proxy("worker", "kinds"))
      local _, err = narrow:long(20000)
      assert.equal("too_large", err.kind)
      assert.matches("20005 bytes of typed values are more than the caller's "
        .. "limit of 16384 (the caller's option typed)", err.message, 1, true)
      _, err = narrow:wide "40000"
      assert.matches("40000 bytes are more than the caller's limit of 32768 "
        .. "(the caller's option message)", err.message, 1, true)
      _, err = narrow:same(("x"):rep(2 ^ 21))
      assert.matches("more than the peer's limit of 1052672 (the peer's option "
        .. "typed)", err.message, 1, true)
      assert.equal(7, narrow:same(7))
    end)

    it("refuses what cannot travel, and blames the caller", function()
      local cycle = {}
      cycle.cycle = cycle
      local deep = {}
      for _ = 1, 100 do deep = { deep } end
      local unfit = { print, coroutine.create(print), io.stdout, cycle, deep,
                      ffi.new("int[3]"), { { print } } }
      for _, value in ipairs(unfit) do
        local fine, message = pcall(function() calc:same(value) end)
        assert.is_false(fine)
        assert.matches("kinds_spec.lua:", message)
      end
      assert.equal(7, calc:same(7))
    end)

    it("takes at most one slice", function()
      local region = cases.alloc(cases.engine(), 4096)
      assert.has_error(function()
        calc:same(region:slice(0, 1), region:slice(1, 1))
      end)
    end)
  end)

  describe("that is raw", function()
    it("gives a Lua string, at every size", function()
      for _, size in ipairs(cases.sizes) do
        local text = cases.bytes(size, size)
        local got = assert(calc:echo(text))
        assert.equal("string", type(got))
        assert.is_true(got == text, size)
        assert.equal(tostring(size), calc:length(text))
        assert.is_true(calc:text(text) == text .. "!", size)
      end
    end)

    it("takes a slice as its payload", function()
      local _, agent = cases.proxy("kinds")
      local slice = cases.alloc(agent.engine, 2 ^ 17):slice(100, 70000)
      for _, size in ipairs { 0, 1, 70000 } do
        local part = slice:slice(0, size)
        assert.is_true(agent:proxy("worker", "kinds"):echo(part)
          == part:string())
      end
    end)

    it("may return nothing, which is the empty string", function()
      assert.equal("", calc:empty("x"))
    end)

    it("may not return something else", function()
      local got, err = calc:number("x")
      assert.is_nil(got)
      assert.equal("remote", err.kind)
      assert.equal("y", calc:echo("y"))
    end)

    it("takes nothing but a string, a slice or a writer", function()
      assert.has_error(function() calc:echo(42) end)
      assert.has_error(function() calc:echo({}) end)
      assert.has_error(function() calc:echo(true) end)
    end)

    it("takes one argument, and no other behind nils", function()
      local HERE = debug.getinfo(1, "S").short_src
      local ways = {
        function(...) assert(calc:echo("a", ...)) end,
        function(...) assert(calc.async:echo("a", ...)) end,
        function(...) assert(perigee.prepare(calc, "echo", "a", ...)) end,
      }
      for _, way in ipairs(ways) do
        way(nil, nil)
        for _, more in ipairs { { "b" }, { nil, "b" } } do
          local fine, err = pcall(way, more[1], more[2])
          assert.is_false(fine)
          assert.matches("^" .. HERE .. ":%d+: .*takes one argument", err)
        end
      end
    end)
  end)

  describe("that is inplace", function()
    it("fills the reply's loan, at every size", function()
      for _, size in ipairs(cases.sizes) do
        local text = cases.bytes(size, 3)
        local got = calc:with({ capacity = size + 1 }):copy(text)
        assert.is_true(got == text, size)
      end
    end)

    it("gets a loan of the capacity that the caller asked for", function()
      for _, capacity in ipairs { 10, 4096, 8193, 16257, 100000, 2 ^ 24 } do
        local got = assert(calc:with({ capacity = capacity }):capacity(""))
        assert.equal(capacity, tonumber(got))
      end
    end)

    it("is an error to the caller if it returns no length within", function()
      local proxy = calc:with { capacity = 1000 }
      for _, what in ipairs { "beyond", "negative", "half", "string", "yes",
                              "nothing" } do
        local got, err = proxy:filled(what)
        assert.is_nil(got)
        assert.equal("remote", err.kind, what)
      end
      assert.equal("", proxy:filled("zero"))
    end)
  end)

  describe("of any kind", function()
    local ways = {
      function(on, name, ...) return on[name](on, ...) end,
      function(on, name, ...) return on.async[name](on.async, ...):wait() end,
      function(on, name, ...)
        return perigee.prepare(on, name, ...):post():wait()
      end,
    }

    -- A method, what its call gives, and the arguments.
    local function calls_of(region)
      local part = region:slice(0, 4):write "part"
      local list = { part, region:slice(8, 4):write "list" }
      local function write(loan) return loan:write "written" end
      return {
        { "count", 3, 7, nil, 1 }, { "long", ("x"):rep(9000), 9000 },
        { "same", "part", part }, { "same", "partlist", list },
        { "echo", "raw", "raw" }, { "echo", "" }, { "echo", "part", part },
        { "echo", "partlist", list }, { "echo", "written", write },
        { "wide", ("x"):rep(9000), "9000" },
        { "copy", "abc", "abc" }, { "copy", "part", part },
        { "copy", "partlist", list }, { "copy", "written", write },
      }
    end

    local function check(way, on, call)
      local got = assert(way(on, call[1], unpack(call, 3, table.maxn(call))))
      local kind = type(got)
      if kind ~= "string" and kind ~= "number" then got = got:string() end
      assert.equal(call[2], got)
    end

    it("gets its own arguments and room, whatever call its proxy made before",
       function()
      local region = cases.alloc(caller.engine, 2 ^ 16)
      local calls, room = calls_of(region), region:slice(2 ^ 15)
      local function land(length) return room:slice(0, length) end
      for _, options in ipairs { {}, { into = room }, { landing = land } } do
        for _, first in ipairs(calls) do
          for _, second in ipairs(calls) do
            local on = calc:with(options)
            for _, way in ipairs(ways) do
              check(ways[1], on, first)
              check(way, on, second)
              check(way, on:with {}, second)
            end
          end
        end
      end
    end)
  end)
end)
