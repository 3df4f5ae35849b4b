-- SPDX-License-Identifier: Apache-2.0
-- Memory that is lent to handlers and writers: reply:write and loan:write, a
-- method's capacity, and what happens when a program writes beyond the end.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local process = require "spec.support.process"

local function server(child, perigee, ffi_)
  local agent = assert(child.cases.agent("worker"))
  local ran, errors, arrived, back = 0, {}, {}, nil
  local strided = child.cases.alloc(agent.engine, 4096)
    :slice(0, 4, { count = 3, stride = 16 })
  for i = 0, 2 do
    strided.owner:slice(16 * i, 4):write(("%d%d%d%d"):format(i, i, i, i))
  end
  perigee.log = function(level, message)
    if level == "error" then errors[#errors + 1] = message end
  end
  local kept
  -- Copies as one ffi.copy of all bytes would, but in two pieces: the memory
  -- beyond the end may be the request's own block, and ASan forbids copies that
  -- overlap their source.
  local function stray(reply, request)
    local to, from, length = reply.pointer, request.pointer, request.length
    local within = math.min(length, reply.length)
    ffi_.copy(to, from, within)
    ffi_.copy(to + within, from + within, length - within)
  end
  agent:serve { name = "loans", version = 1, methods = {
    copy = { raw = true, inplace = true, function(request, reply)
      return reply:write(request)
    end },
    parts = { raw = true, inplace = true, function(request, reply)
      local at = reply:write("<")
      at = reply:write(request, at)
      at = reply:write(strided, at)
      return reply:write(">", at)
    end },
    caught = { raw = true, inplace = true, function(request, reply)
      pcall(reply.write, reply, request)
      return 0
    end },
    wrong = { raw = true, inplace = true, function(request, reply)
      local what = { number = 5, table = {}, none = false }
      return reply:write(what[request:string()] or nil)
    end },
    offset = { raw = true, inplace = true, function(request, reply)
      return reply:write("x", tonumber(request:string()))
    end },
    request = { raw = true, inplace = true, function(request)
      return request:write("x")
    end },
    keeps = { raw = true, inplace = true, function(_, reply)
      kept = { reply, reply.write }
      return 0
    end },
    uses = function() return pcall(kept[2], kept[1], "x") end,
    -- The way in which programs wrote replies before there was reply:write.
    unbounded = { raw = true, inplace = true, function(request, reply)
      ran = ran + 1
      stray(reply, request)
      return request.length
    end },
    quiet = { raw = true, inplace = true, function(request, reply)
      stray(reply, request)
      return 0
    end },
    raises = { raw = true, inplace = true, function(request, reply)
      stray(reply, request)
      error("after it has written")
    end },
    ample = { raw = true, inplace = true, capacity = 1000,
              function(_, reply)
      ran = ran + 1
      ffi_.fill(reply.pointer, 1000, 120)
      return 1000
    end },
    -- Sends what it got on by many writers, while its view lives.
    relay = { raw = true, function(request)
      local futures = {}
      for i = 1, 70 do
        futures[i] = assert(back).async:whole(function(loan)
          return loan:write(request)
        end)
      end
      return tostring(#futures)
    end },
    whole = { raw = true, function(request)
      arrived[#arrived + 1] = request:string()
    end },
    back = function()
      back = assert(agent:proxy("worker", "loans"))
      return true
    end,
    arrived = function() return arrived end,
    ran = function() return ran end,
    errors = function()
      local list = errors
      errors = {}
      return list
    end,
    same = function(...) return ... end,
    sleeps = function(seconds) perigee.sleep(seconds) end,
  } }
  child.say("ready")
  perigee.run()
end

describe("what is lent", function()
  local loans, agent

  setup(function()
    process.start(server):expect("ready")
    loans, agent = cases.proxy("loans", { timeout = 10 })
  end)
  teardown(cases.cleanup)

  local function of(capacity) return loans:with { capacity = capacity } end

  local function ends_in(kind, got, err)
    assert.is_nil(got)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  it("takes a view, a slice and a string, at any offset", function()
    for _, size in ipairs { 0, 1, 100, 8000, 20000, 2 ^ 20 } do
      local text = cases.bytes(size, 4)
      local got = assert(of(size + 14):parts(text))
      assert.is_true(got == "<" .. text .. "000011112222>", size)
    end
  end)

  it("arrives whole, however long it is", function()
    for _, size in ipairs { 2 ^ 19 + 1, 2 ^ 20 + 7, 1500001, 3 * 2 ^ 20 + 1,
                            2 ^ 24 + 3 } do
      local text = cases.bytes(size, 5)
      local function writer(loan) return loan:write(text) end
      local got = assert(of(size):copy(writer))
      assert.is_true(got == text, size)
    end
  end)

  it("holds what its capacity says, and not a byte more", function()
    for _, size in ipairs(cases.sizes) do
      local text = cases.bytes(size, 2)
      assert.is_true(of(size):copy(text) == text, size)
      if size > 0 then
        ends_in("too_large", of(size - 1):copy(text))
        ends_in("too_large", of(size - 1):caught(text))
      end
    end
    assert.equal("y", of(1):copy("y"))
  end)

  it("is written at an offset that is one, by a call that is one", function()
    ends_in("too_large", of(8):offset("8"))
    assert.equal(8, #of(8):offset("7"))
    for _, offset in ipairs { "-1", "0.5", "1e300", "nan" } do
      ends_in("remote", of(8):offset(offset))
    end
    for _, what in ipairs { "number", "table", "none", "nothing" } do
      ends_in("remote", of(8):wrong(what))
    end
    ends_in("remote", of(8):request("x"))
  end)

  it("is written no more after its end", function()
    assert.equal("", of(8):keeps(""))
    local fine, message = loans:uses()
    assert.is_false(fine)
    assert.matches("after the function", message)
  end)

  it("to a writer does the same", function()
    for _, size in ipairs { 0, 1, 100, 8192, 8193, 16384, 16385, 2 ^ 20 } do
      local text = cases.bytes(size, 6)
      local proxy = of(size + 1)
      assert.is_true(proxy:copy(function(loan)
        return loan:write(text, loan:write("z"))
      end) == "z" .. text)
      local err = ends_in("too_large", proxy:copy(function(loan)
        return loan:write(text, 2)
      end))
      assert.is_false(err.sent)
      ends_in("too_large", proxy:copy(function(loan)
        pcall(loan.write, loan, text .. "zz")
        return 0
      end))
    end
    assert.equal("y", loans:copy("y"))
  end)

  it("stays what it is while a handler has many more", function()
    assert.is_true(loans:back())
    assert.equal("70", loans:relay("what was sent"))
    local arrived
    cases.eventually(function()
      arrived = loans:arrived()
      return #arrived == 70
    end)
    for i = 1, 70 do assert.equal("what was sent", arrived[i]) end
  end)

  it("to a writer has no write for misuse", function()
    for _, source in ipairs { 5, {}, true } do
      assert.has_error(function()
        loans:copy(function(loan) return loan:write(source) end)
      end)
    end
    assert.equal("y", loans:copy("y"))
  end)

  it("is refused to callers who offer less than a method's capacity", function()
    local before = loans:ran()
    for _, capacity in ipairs { 0, 1, 999 } do
      local err = ends_in("too_large", of(capacity):ample(""))
      assert.is_false(err.sent)
    end
    assert.equal(before, loans:ran())
    assert.equal(("x"):rep(1000), of(1000):ample(""))
  end)

  it("by a huge capacity is refused", function()
    local before = loans:ran()
    for _, capacity in ipairs { 2 ^ 41, 2 ^ 53 } do
      ends_in("too_large", of(capacity):unbounded("x"))
    end
    assert.equal(before, loans:ran())
  end)

  -- Tries each length with capacities on both sides of what fits in the ring.
  -- No block has a power of two as its size, which leaves no room for a mark.
  local function beyond(f)
    for _, capacity in ipairs { 0, 8, 63, 100, 8000, 8192, 9000, 17000,
                               131055 } do
      for _, more in ipairs { 8, 64, 3000 } do f(capacity, more) end
    end
  end

  it("and written beyond its end harms the writer only", function()
    local other = cases.proxy("loans", { timeout = 10 })
    beyond(function(capacity, more)
      local text = cases.bytes(capacity + more, more)
      for _, method in ipairs { "unbounded", "quiet", "raises" } do
        local proxy = of(capacity)
        local err = ends_in("remote", proxy[method](proxy, text))
        assert.is_true(err.sent)
        local told = table.concat((loans:errors()), "\n")
        if method ~= "unbounded" then
          assert.matches("wrote more than the " .. capacity .. " bytes", told)
        end
      end
      assert.equal(7, other:same(7))
      assert.is_true(other:copy(text:sub(1, 8000)) == text:sub(1, 8000))
    end)
  end)

  it("while replies find no room is no worse", function()
    local futures, waiting = {}, of(8).async
    for i = 1, 300 do                   -- unread replies for more than a ring
      futures[i] = waiting:quiet(cases.bytes(600, i))
    end
    for i = 301, 600 do
      futures[i] = waiting:copy(cases.bytes(8, i))
    end
    for i = 1, 300 do ends_in("remote", futures[i]:wait()) end
    for i = 301, 600 do
      assert.is_true(futures[i]:wait() == cases.bytes(8, i), i)
    end
    loans:errors()
    assert.equal("still", loans:copy("still"))
  end)

  it("to a writer and written beyond its end is misuse", function()
    beyond(function(capacity, more)
      local sent = cases.bytes(capacity + more)
      for _, returned in ipairs { 0, capacity } do
        local fine, message = pcall(function()
          return of(capacity):copy(function(loan)
            ffi.copy(loan.pointer, sent, #sent)
            return returned
          end)
        end)
        assert.is_false(fine)
        assert.matches("wrote more than the " .. capacity .. " bytes", message)
      end
      assert.equal("y", loans:copy("y"))
    end)
  end)

  it("takes nothing from a region that was closed, nor from a peer", function()
    local region = cases.alloc(agent.engine, 64)
    local slice = region:slice(0, 8)
    region:close()
    assert.has_error(function()
      loans:copy(function(loan) return loan:write(slice) end)
    end)
    assert.equal("y", loans:copy("y"))
  end)
end)
