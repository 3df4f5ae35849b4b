-- SPDX-License-Identifier: Apache-2.0
local cases = require "spec.support.cases"
local perigee = require "perigee"

describe("strangers who are refused", function()
  local said, before, port

  before_each(function()
    said, before = {}, perigee.log
    perigee.log = function(level, message)
      said[#said + 1] = level .. ": " .. message
    end
    local listener = assert(cases.engine { secret = "" }
      :listen("tcp://127.0.0.1:0"))
    port = listener.address:match(":(%d+)$")
  end)

  after_each(function()
    perigee.log = before
    cases.cleanup()
  end)

  -- Each connects, sends its text and closes, all before the loop runs.
  local function come(...)
    for _, text in ipairs { ... } do
      assert.equal(0, os.execute(("bash -c 'printf \"%s\" "
        .. ">/dev/tcp/127.0.0.1/%s'"):format(text, port)))
    end
  end

  local function told(level, text)
    local n = #said + 1
    assert.is_true(cases.eventually(function() return said[n] end))
    assert.matches("^" .. level .. ": refused ", said[n])
    assert.matches(text, said[n], 1, true)
  end

  it("are no warning if they only looked", function()
    come ""
    told("info", "127.0.0.1")
    come("", "")
    told("info", "refused 2 connections, among them tcp://127.0.0.1:")
  end)

  it("are one if any of them did more, whoever came last", function()
    come "this is something else altogether"
    told("warning", "no Perigee frame")
    come("", "this is something else altogether", "", "")
    told("warning", "refused 4 connections, among them tcp://127.0.0.1:")
    assert.matches("no Perigee frame", said[2], 1, true)
  end)
end)
