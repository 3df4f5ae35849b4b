-- SPDX-License-Identifier: Apache-2.0
local errors = require "perigee.errors"
local native = require "perigee.native"

describe("errors", function()
  it("are told from everything else", function()
    local err = errors.new("timeout", "waiting", false)
    assert.is_true(errors.is_error(err))
    for _, other in ipairs { {}, "text", 1, true, { kind = "timeout" } } do
      assert.is_false(errors.is_error(other))
    end
    assert.is_false(errors.is_error(nil))
  end)

  it("print as their sentence, and join with text", function()
    local err = errors.new("remote", "calling x of y: it failed")
    assert.equal("calling x of y: it failed", tostring(err))
    assert.equal("so: calling x of y: it failed", "so: " .. err)
  end)

  it("have the core's names for their kinds", function()
    for i, kind in ipairs(errors.kinds) do
      local name = require("ffi").string(native.C.perigee_status_name(-i))
      assert.equal(kind, name)
      assert.equal(kind, errors.kind(-i))
      assert.equal(-i, errors.status(kind))
    end
  end)

  it("raise what is the caller's own mistake", function()
    local fine, message = pcall(errors.from, native.C.PERIGEE_INVALID,
                                "doing something")
    assert.is_false(fine)
    assert.matches("doing something", message)
  end)
end)
