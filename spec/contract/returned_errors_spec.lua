-- SPDX-License-Identifier: Apache-2.0
-- Errors that a handler returns or raises arrive as errors, and are told from
-- those of this side.
local cases = require "spec.support.cases"
local errors = require "perigee.runtime.errors"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local runs, new = 0, require("perigee.runtime.errors").new
  local function lookup(key)
    return nil, new("not_found", ("looking up %s: there is none"):format(key),
                    false)
  end
  local function large(n)
    local list = {}
    for i = 1, n do list[i] = i end
    return list
  end
  child.serve { name = "x", version = 1, methods = {
    returns = function(key) return lookup(key) end,
    coded = function(code)
      local _, err = lookup "nobody"
      err.code = code
      return nil, err
    end,
    large = function(n)
      local _, err = lookup "nobody"
      return nil, err, large(n)
    end,
    inside = function()
      local _, err = lookup "nobody"
      return { err = err }
    end,
    raises = function() return assert(lookup "nobody") end,
    raw = { raw = true, function() return lookup "nobody" end },
    sleeps = function() perigee_.sleep(1) end,
    raw_as = { raw = true, idempotent = true, function(kind)
      runs = runs + 1
      local err = new(kind:string(), "made up", false)
      err.code = "draining"
      return nil, err
    end },
    nothing = { raw = true, function() return nil, "ignored" end },
    told = function(err, ...)
      return perigee_.is_error(err), err.kind, err.message, err.remote, ...
    end,
    -- A peer may say anything.
    says = function(told) return nil, told end,
    once = { idempotent = true, function(told)
      runs = runs + 1
      perigee_.sleep(0.02)              -- longer than a caller spins
      return nil, told
    end },
    runs = function()
      local n = runs
      runs = 0
      return n
    end,
  } }
end

describe("an error", function()
  local proxy

  setup(function()
    process.start(server):expect("ready")
    proxy = cases.proxy("x", { timeout = 5 * cases.slow })
  end)
  teardown(cases.cleanup)

  local function is_not_found(got, err)
    assert.is_nil(got)
    assert.is_true(perigee.is_error(err))
    assert.equal("not_found", err.kind)
    assert.is_true(err.remote)
    assert.is_true(err.sent)
    assert.matches("nobody", tostring(err))
    return err
  end

  it("that a handler returns arrives as one", function()
    is_not_found(proxy:returns "nobody")
    is_not_found(proxy.async:returns "nobody":wait())
  end)

  it("arrives before values of any size", function()
    for _, n in ipairs { 0, 1, 100, 5000, 50000 } do
      local got, err, list = proxy:large(n)
      is_not_found(got, err)
      assert.equal(n, #list)
    end
  end)

  it("keeps a code that is a string or a number", function()
    for _, code in ipairs { "E1", 7 } do
      assert.equal(code, is_not_found(proxy:coded(code)).code)
    end
    assert.is_nil(is_not_found(proxy:coded({})).code)
  end)

  it("is a plain table inside of a table", function()
    local got = proxy:inside()
    assert.is_false(perigee.is_error(got.err))
    assert.equal("not_found", got.err.kind)
  end)

  it("travels as an argument", function()
    local is, kind, message, remote, more = proxy:told(
      errors.new("denied", "no way", false), 1)
    assert.same({ true, "denied", "no way", true, 1 },
                { is, kind, message, remote, more })
  end)

  it("that a handler raises is of kind remote, and so is err.remote", function()
    local got, err = proxy:raises()
    assert.is_nil(got)
    assert.equal("remote", err.kind)
    assert.is_true(err.remote)
    assert.matches("nobody", err.message)
  end)

  it("that a raw handler returns ends its call, and is of its kind", function()
    is_not_found(proxy:raw())
    is_not_found(proxy.async:raw():wait())
    assert.equal("", proxy:nothing())
    local _, err = proxy:raw_as "what no error is"
    assert.equal("remote", err.kind)
    assert.is_true(err.remote)
    proxy:runs()
  end)

  -- These kinds of this side's have such a call made again.
  it("that a raw handler returns does not have it called again", function()
    proxy:runs()
    for kind in ("peer_lost closed"):gmatch "%S+" do
      for _, call in ipairs {
        function() return proxy:raw_as(kind) end,
        function() return proxy.async:raw_as(kind):wait() end,
      } do
        local got, err = call()
        assert.is_nil(got)
        assert.equal(kind, err.kind)
        assert.equal("draining", err.code)
        assert.is_true(err.sent)
        assert.equal(1, (proxy:runs()))
      end
    end
  end)

  it("of this side is not remote", function()
    local _, err = proxy:with({ timeout = 0.01 }):sleeps()
    assert.equal("timeout", err.kind)
    assert.is_nil(err.remote)
    _, err = proxy:absent()
    assert.equal("no_method", err.kind)
    assert.is_nil(err.remote)
  end)

  it("fails wait_all", function()
    local call = proxy.async:returns "nobody"
    is_not_found(perigee.wait_all { call })
  end)

  it("shows its sentence in text, in assert, and where it ends a program",
     function()
    local _, err = proxy:returns "nobody"
    assert.equal("so: " .. err.message, "so: " .. err)
    assert.equal(err.message .. "!", err .. "!")
    assert.equal(err.message, ("%s"):format(err))
    local pipe = io.popen("luajit -e \"local errors = "
      .. "require 'perigee.runtime.errors' assert(nil, "
      .. "errors.new('denied', 'the sentence'))\" 2>&1")
    assert.matches("luajit: the sentence\n", pipe:read "*a")
    pipe:close()
  end)

  it("that a peer makes up is no more than text", function()
    local odd = { {}, 5, true, ("x"):rep(2 ^ 17), "\0", -1 }
    for _, value in ipairs(odd) do
      local got, err = proxy:says { perigee_error = value, kind = value,
                                    message = value, code = value,
                                    traceback = value, sent = false }
      assert.is_nil(got)
      assert.is_true(perigee.is_error(err))
      assert.equal("remote", err.kind)
      assert.equal("string", type(err.message))
      assert.is_true(#err.message <= 2 ^ 16 + 3)
      assert.is_true(err.sent)
      assert.is_nil(err.traceback)
    end
  end)

  it("that a peer returns has no call made again", function()
    for _, told in ipairs {
      { perigee_error = 1, kind = "peer_lost", message = "of another" },
      { perigee_error = 1, kind = "closed", code = "draining", sent = false,
        message = "of another" },
    } do
      for _, call in ipairs {
        function() return proxy:once(told) end,
        function() return proxy.async:once(told):wait() end,
      } do
        local got, err = call()
        assert.is_nil(got)
        assert.equal(told.kind, err.kind)
        assert.equal(1, proxy:runs())
      end
    end
  end)
end)
