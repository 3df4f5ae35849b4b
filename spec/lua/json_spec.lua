-- SPDX-License-Identifier: Apache-2.0
-- JSON of others: what it is decoded as, what is none, and its bounds.
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local ffi = require "ffi"
local needing = require "spec.support.needing"

ffi.cdef [[char *spec_setlocale(int, const char *) __asm__("setlocale");]]

needing("JSON of others", { control }, function()
  local cjson = require "cjson.safe"
  local json = require "perigee.net.json"

  after_each(cases.cleanup)

  -- Decodes a text that comes in pieces of so many bytes.
  local function in_pieces(text, size)
    local decoder = json.new(#text)
    for at = 1, #text, size do decoder:feed(text:sub(at, at + size - 1)) end
    return decoder:value()
  end

  -- The results of each way of decoding, which have to be the same.
  local function decoded(text)
    local value, kind, why = json.decode(text)
    for size = 1, math.min(#text, 20) do
      local again, failed = in_pieces(text, size)
      assert.same(value, again, text)
      assert.equal(kind, failed, text)
    end
    assert.same(value, (json.decode_long(text)))
    return value, kind, why
  end

  it("is decoded as it was encoded", function()
    for _, value in ipairs {
      0, -1, 1.5, 1e300, -2.5e-300, true, false, "", "x", {}, { {} },
      { 1, { 2, { 3 } } }, { a = { b = { c = "d" } } }, { 1, 2, cjson.null },
      "\0\1\31\127\"\\/\b\f\n\r\t", "caf\195\169 \240\159\152\128 \255",
      { ["a b"] = 1, [""] = 2, ["\n"] = { 3 } },
    } do
      assert.same(value, decoded(cjson.encode(value)))
    end
  end)

  it("is encoded as it was decoded, to the last digit", function()
    for _, text in ipairs { "1732567890123456", "-9007199254740992", "0.1",
      "-0.30000000000000004", "[]", "{}", '[[],{},[[]]]', '{"a":[]}',
      '[1,"\\u0000\\n\\"",null,true]', "1e+300" } do
      assert.equal(text, json.encode(json.decode(text)))
    end
    assert.is_nil((json.encode { 1 / 0 }))
    assert.is_nil((json.encode { 0.5, 0 / 0 }))
    assert.is_nil((json.encode { 0.5, print }))
    local round = {}
    round.round = round
    assert.is_nil((json.encode(round)))
  end)

  it("has blanks, escapes, and keys that are there twice", function()
    assert.same({ 1, { a = 2 } }, decoded ' \t[\r\n1 , { "a" : 2 } ] ')
    assert.equal('"\\/\b\f\n\r\tA\0',
                 decoded [["\"\\\/\b\f\n\r\t\u0041\u0000"]])
    assert.equal("\195\169\226\130\172\240\159\152\128",
                 decoded [["\u00e9\u20AC\ud83d\uDE00"]])
    assert.same({ a = 2, b = 3 }, decoded '{"a":1,"b":3,"\\u0061":2}')
    assert.equal(json.null, decoded "null")
    assert.same({ 1732567890123456, 0.1, -0.5, 100, 1 / 0 },
                decoded "[1732567890123456,0.1,-5e-1,1E+2,1e999]")
  end)

  it("is no JSON otherwise", function()
    for _, text in ipairs {
      "", " ", "[", "]", "{", "}", "[}", "{]", "[1", "[1,", "[1,]", "[,1]",
      "[,]", "1,", "{,}", '{"a"}', '{"a":}', '{"a":1,}', '{"a" 1}', "{1:2}",
      '{"a":1 "b":2}', "[1 2]", "1 2", "[] []", "{}}", "nul", "nulll", "True",
      "truefalse", "01", "-", "-01", "+1", ".5", "1.", "1e", "1e+", "0x10",
      "1.5.5", "1e5.5", "NaN", "Infinity", "-Infinity", '"', '"a', '"\\',
      '"\\"', '"\\x"', '"\\u12"', '"\\u12g4"', '"\\ud800"', '"\\ud800\\n"',
      '"\\ud800\\u0041"', '"\\udc00"', '"\n"', '"\0"', "'a'", "\0", "[1]\0",
      "/**/1", "\239\187\1911", ("1"):rep(200), ("["):rep(33) .. ("]"):rep(33),
    } do
      local value, kind, why = decoded(text)
      assert.is_nil(value, text)
      assert.equal("protocol", kind, text)
      assert.is_string(why)
    end
    assert.is_table(decoded(("["):rep(32) .. ("]"):rep(32)))
  end)

  it("has the same numbers whatever the program's locale is", function()
    local LC_NUMERIC = 1
    local before = ffi.string(ffi.C.spec_setlocale(LC_NUMERIC, nil))
    finally(function() ffi.C.spec_setlocale(LC_NUMERIC, before) end)
    local found = false
    for _, name in ipairs { "de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8" } do
      local set = ffi.C.spec_setlocale(LC_NUMERIC, name) ~= nil
      found = found or set and name:sub(1, 1) ~= "C"
      assert.equal(1.5, json.decode "1.5")
    end
    if not found then pending "no locale here has a decimal comma" end
  end)

  it("takes only so much memory by its length", function()
    for _, part in ipairs { "{},", "[],", "[[[]]]," } do
      local text = "[" .. part:rep(50000) .. "1]"
      local value, kind = json.decode(text)
      assert.is_nil(value)
      assert.equal("too_large", kind)
    end
    assert.equal(2001, #json.decode("[" .. ("{},"):rep(2000) .. "1]"))
    local dense = '"r%d":{"length":64,"access":"rw"},'
    local parts = {}
    for i = 1, 4096 do parts[i] = dense:format(i) end
    local value = json.decode("{" .. table.concat(parts) .. '"z":0}')
    assert.equal("rw", value.r4096.access)
  end)

  it("has so many values in one list or object, and so many bytes", function()
    local most = 2 ^ 18
    local ones = ("1,"):rep(most - 1)
    assert.equal(most, #json.decode("[" .. ones .. "1]"))
    assert.equal("too_large", select(2, json.decode("[1," .. ones .. "1]")))
    local decoder = json.new(10)
    assert.is_true(decoder:feed '"12345678"')
    assert.equal("12345678", decoder:value())
    decoder = json.new(10)
    assert.equal("too_large", select(2, decoder:feed '"123456789"'))
    assert.equal("too_large", select(2, decoder:feed " "))
    assert.equal("too_large", select(2, decoder:value()))
  end)
end)
