-- SPDX-License-Identifier: Apache-2.0
-- Trees of spans (perigee.stats.trace) of agents whose clocks differ, of which
-- some are missing, and of which some lie.
local traces = require "perigee.stats.trace"

local HOUR = 3600e9

-- An agent's file: its clock was 0 at that ns since 1970.
local function file(name, host, offset)
  return { name = name, host = host, offset = (offset or 0) + 0LL,
           state = "asleep", now = 5000, spans = {} }
end

local function add(where, side, start, ended, ids, more)
  local span = { side = side, trace = "t", start = start, ended = ended,
                 sent = side == "caller" and start or nil,
                 given = side == "callee" and start or nil,
                 span = ids[1], parent = ids[2], wire = ids[3],
                 peer = "", number = #where.spans + 1 }
  for key, value in pairs(more or {}) do span[key] = value end
  table.insert(where.spans, span)
  return span
end

local function tree(...)
  return traces.tree(traces.collect({ ... }).t)
end

local function shape(of)
  local list = {}
  for i, span in ipairs(of.spans) do
    list[i] = ("%d%s"):format(span.depth, span.span)
  end
  return table.concat(list, " ")
end

describe("a tree of spans", function()
  it("has a callee of another clock within its caller, and says so", function()
    for _, hours in ipairs { -5, 7 } do
      local a, b = file("a", "one"), file("b", "two", hours * HOUR)
      add(a, "caller", 1000, 2000, { "A", nil, "A" })
      local callee = add(b, "callee", 50000, 50600, { "B", "A" })
      add(b, "caller", 50100, 50200, { "C", "A", "C" })
      local all = tree(a, b)
      assert.equal("0A 1B 2C", shape(all))
      assert.equal(200, callee.at)      -- 200 each way
      assert.is_true(math.abs(callee.shift) > HOUR)
      assert.equal(300, all.spans[3].at)
      assert.is_nil(all.spans[3].shift)
      assert.equal(400, all.spans[1].wires)
    end
  end)

  it("leaves times of other clocks which may be right", function()
    local a, b = file("a", "one", 5000), file("b", "two", 100)
    add(a, "caller", 1000, 2000, { "A", nil, "A" })
    local callee = add(b, "callee", 6000, 6500, { "B", "A" })
    tree(a, b)
    assert.is_nil(callee.shift)
    assert.equal(100, callee.at)
  end)

  it("shifts nothing of one host: requests may be read late", function()
    local a, b = file("a", "one", 5000), file("b", "one", 900000)
    add(a, "caller", 1000, 2000, { "A", nil, "A" }, { status = "timeout" })
    local callee = add(b, "callee", 9000, 9500, { "B", "A" })
    tree(a, b)
    assert.is_nil(callee.shift)
    assert.equal(8000, callee.at)
  end)

  it("has calls that did not end", function()
    local a, b = file("a", "one"), file("b", "two", HOUR)
    local caller = add(a, "caller", 1000, nil, { "A", nil, "A" })
    local callee = add(b, "callee", 10, nil, { "B", "A" })
    assert.equal("0A 1B", shape(tree(a, b)))
    assert.equal(0, callee.at)
    assert.is_nil(caller.took)
    assert.is_nil(caller.wires)
  end)

  it("tells calls apart that were made with one span", function()
    local a, b, c = file("a", "one"), file("b", "one"), file("c", "one")
    for i, peer in ipairs { "b", "c", "b" } do
      add(a, "caller", 1000 * i, 1000 * i + 500, { "A" .. i, "S", "S" },
          { peer = peer, service = "s", method = "m" .. i })
    end
    add(c, "callee", 2100, 2200, { "C2", "S" }, { service = "s",
                                                  method = "m2" })
    add(b, "callee", 1100, 1200, { "B1", "S" }, { service = "s",
                                                  method = "m1" })
    add(b, "caller", 1150, 1160, { "D1", "S", "D1" })
    add(b, "callee", 3100, 3200, { "B3", "S" }, { service = "s",
                                                  method = "m3" })
    add(b, "caller", 3150, 3160, { "D3", "S", "D3" })
    assert.equal("0A1 1B1 2D1 0A2 1C2 0A3 1B3 2D3", shape(tree(a, b, c)))
  end)

  it("has several roots if what is between is gone", function()
    local a, b = file("a", "one"), file("b", "one")
    add(a, "caller", 1000, 2000, { "A", nil, "A" })
    add(b, "callee", 1500, 1600, { "B", "gone" })
    local all = tree(b, a)
    assert.equal("0A 0B", shape(all))
    assert.equal("A", all.root.span)
    assert.equal(500, all.spans[2].at)
  end)

  it("goes on behind a callee whose span is gone", function()
    local a, b = file("a", "one"), file("b", "one")
    add(a, "caller", 1000, 2000, { "A", nil, "A" })
    add(b, "caller", 1500, 1600, { "C", "A", "C" })
    assert.equal("0A 1C", shape(tree(a, b)))
  end)

  it("ends where parents go round in circles", function()
    local a, b = file("a", "one"), file("b", "one")
    add(a, "caller", 1, 2, { "A", "C", "A" })
    add(b, "callee", 1, 2, { "B", "A" })
    add(b, "caller", 1, 2, { "C", "A", "C" })
    local all = tree(a, b)
    assert.equal(3, #all.spans)
    add(a, "callee", 1, 2, { "D", "D" }, { wire = "D" })
    add(a, "caller", 1, 2, { "E", "E", "E" })
    assert.equal(5, #tree(a, b).spans)
  end)

  it("may be as deep as there are spans", function()
    local a, b = file("a", "one"), file("b", "one")
    for i = 1, 20000 do
      add(i % 2 == 0 and a or b, "caller", i, i + 1,
          { "s" .. i, "s" .. i - 1, "s" .. i })
    end
    local all = tree(a, b)
    assert.equal(20000, #all.spans)
    assert.equal(19999, all.spans[20000].depth)
  end)

  -- Reads of fields while a tree is made of so many calls of one span. The
  -- callee makes as many, behind spans that are there, or (`gone`) are not.
  local function reads(calls, gone)
    local n = 0
    local function counted(span)
      return setmetatable({}, {
        __index = function(_, key) n = n + 1; return span[key] end,
        __newindex = function(_, key, value) span[key] = value end })
    end
    local a, b, c = file("a", "one"), file("b", "one"), file("c", "one")
    for i = 1, calls do
      local own = { peer = "b", service = "s", method = "m" .. i % 2 }
      add(a, "caller", i, i + 9, { "A" .. i, "S", "S" }, own)
      if not gone then add(b, "callee", i, i + 5, { "B" .. i, "S" }, own) end
      add(b, "caller", i, i + 1, { "C" .. i, "S", "S" }, own)
      add(c, "callee", i, i, { "D" .. i, "S" })
    end
    for _, each in ipairs { a, b, c } do
      for i, span in ipairs(each.spans) do each.spans[i] = counted(span) end
    end
    tree(a, b, c)
    return n
  end

  -- Sorting takes a bit more than twice as much for twice as many.
  it("is made of many calls of one span without comparing each with each",
     function()
    for _, gone in ipairs { false, true } do
      local some, more = reads(250, gone), reads(500, gone)
      assert.is_true(more < 2.5 * some, ("%d, then %d"):format(some, more))
    end
  end)
end)
