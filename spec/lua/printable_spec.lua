-- SPDX-License-Identifier: Apache-2.0
-- Texts of others on a terminal.
local printable = require "perigee.runtime.printable"

describe("a printable text", function()
  it("has all characters that leave the terminal alone", function()
    for _, text in ipairs { "", "a", "\194\160\223\191", "\224\160\128",
                            "\237\159\191\238\128\128", "\239\191\191",
                            "\240\144\128\128", "\244\143\191\191" } do
      assert.equal(text, printable.line(text))
      assert.equal(text, printable.utf8(text))
    end
  end)

  it("has escapes for control characters, of each plane of them", function()
    assert.equal("\\n\\t\\x1b\\x00\\x7f", printable.line "\n\t\27\0\127")
    assert.equal("\n\t\\x1b\\r", printable.lines "\n\t\27\r")
    for _, text in ipairs { "\194\128", "\194\159", "\226\128\168",
                            "\226\128\174", "\226\129\166", "\226\129\169" } do
      local escapes = text:gsub(".", function(byte)
        return ("\\x%02x"):format(byte:byte())
      end)
      assert.equal("a" .. escapes .. "b", printable.lines("a" .. text .. "b"))
      assert.equal(text, printable.utf8(text))
    end
  end)

  it("has escapes, or marks, for bytes that are of no character", function()
    for _, bytes in ipairs { "\128", "\191", "\192\128", "\193\191", "\194",
                             "\224\159\191", "\224\160", "\237\160\128",
                             "\240\143\191\191", "\240\144\128",
                             "\244\144\128\128", "\245\128\128\128", "\255" } do
      local escapes = bytes:gsub(".", function(byte)
        return ("\\x%02x"):format(byte:byte())
      end)
      assert.equal("\195\164" .. escapes .. "b",
                   printable.line("\195\164" .. bytes .. "b"))
      assert.equal("a" .. ("\239\191\189"):rep(#bytes),
                   printable.utf8("a" .. bytes))
    end
  end)

  it("has two digits for each byte, in hexadecimal", function()
    assert.equal("00ff0a61", printable.hex "\0\255\na")
    assert.equal("", printable.hex "")
  end)
end)
