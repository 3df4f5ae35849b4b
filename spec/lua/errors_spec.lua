-- SPDX-License-Identifier: Apache-2.0
local errors = require "perigee.runtime.errors"
local log = require "perigee.runtime.log"
local native = require "perigee.native"
local perigee = require "perigee"

-- Texts of peers, and how they are shown.
local SAID = {
  ["\27[2Jgone"] = "\\x1b[2Jgone", ["\0\7\8\127"] = "\\x00\\x07\\x08\\x7f",
  ["over\rwritten"] = "over\\rwritten",
  ["a\226\128\174b"] = "a\\xe2\\x80\\xaeb",   -- U+202E
  ["\226\128\170\226\129\166"] = "\\xe2\\x80\\xaa\\xe2\\x81\\xa6",
  ["\226\129\169"] = "\\xe2\\x81\\xa9",        -- U+2069
  ["\226\128\168"] = "\\xe2\\x80\\xa8",        -- U+2028
  ["\194\155m"] = "\\xc2\\x9bm",                -- CSI of one character
  ["\155m\255\195"] = "\\x9bm\\xff\\xc3", ["\237\160\128"] = "\\xed\\xa0\\x80",
  ["caf\195\169\226\130\172\226\128\147\226\129\170\240\159\152\128\n\ttab"] =
    "caf\195\169\226\130\172\226\128\147\226\129\170\240\159\152\128\n\ttab",
}

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

  it("print what peers have said without what a terminal would act on",
     function()
    for said, shown in pairs(SAID) do
      local err = errors.new("remote", "it says " .. said)
      assert.equal("it says " .. shown, tostring(err))
      assert.equal("so: it says " .. shown, "so: " .. err)
      assert.equal("it says " .. said, err.message)
    end
  end)

  it("are logged so, and no line of one looks like another message", function()
    local stderr, mine, got = io.stderr, perigee.log, {}
    finally(function()
      io.stderr, perigee.log = stderr, mine -- luacheck: ignore 122
    end)
    io.stderr = { write = function(_, ...) -- luacheck: ignore 122
      got[#got + 1] = table.concat { ... }
    end }
    perigee.log = nil
    for said, shown in pairs(SAID) do
      log.write("error", said)
      assert.equal("perigee: error: " .. shown:gsub("\n", "\n  ") .. "\n",
                   got[#got])
    end
    log.write("warning", "x\nperigee: error: y")
    assert.equal("perigee: warning: x\n  perigee: error: y\n", got[#got])
    perigee.log = function(_, message) got[#got + 1] = message end
    log.write("info", "\27x\ny")
    assert.equal("\\x1bx\ny", got[#got])
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
