-- SPDX-License-Identifier: Apache-2.0
-- The control server's lines: who is answered first, and that strangers leave
-- places to who is known. And where a page of a list ends in a round.
local control = require "spec.support.control"
local needing = require "spec.support.needing"

needing("the lines of a control server", { control }, function()
  local lines = require "perigee.control.lines"

  local function call(trusted, more)
    local made = { method = "GET", scope = "s", trusted = trusted,
                   status = false, route = { role = "read" } }
    for key, value in pairs(more or {}) do made[key] = value end
    return made
  end

  local function fill(line, what)
    local n = 0
    while what(line) do n = n + 1 end
    return n
  end

  local function add(trusted)
    return function(line) return line:add(call(trusted)) end
  end

  local function park(trusted)
    return function(line) return line:park(call(trusted), 1) end
  end

  it("take lists of strangers until half of the places are taken", function()
    local line = lines.new()
    assert.equal(128, fill(line, add(false)))
    assert.equal(128, fill(line, add(true)))
    line = lines.new()
    assert.equal(128, fill(line, park(false)))
    assert.equal(128, fill(line, park(true)))
  end)

  it("take what is urgent from all, always", function()
    local line = lines.new()
    fill(line, add(true))
    assert.is_true(line:add(call(false, { name = "x" })))
    assert.is_true(line:add(call(false, { method = "PUT", name = "x" })))
    assert.equal("PUT", line:next_urgent().method)
  end)

  it("have metrics wait with lists, but no question whether it runs", function()
    local line = lines.new()
    line:add(call(true, { scope = false }))
    assert.is_false(line:is_urgent())
    line:add(call(false, { scope = false, route = {} }))
    assert.is_true(line:is_urgent())
  end)

  it("give what waits for room its turn once there is as much", function()
    local line = lines.new()
    line:park(call(true, { name = "large" }), 100)
    assert.is_false(line:has_some(99))
    assert.is_nil(line:next_long(99))
    assert.is_true(line:has_some(100))
    assert.equal("large", line:next_long(100).name)
  end)
end)
