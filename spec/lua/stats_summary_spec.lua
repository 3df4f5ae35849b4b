-- SPDX-License-Identifier: Apache-2.0
-- Summaries of what agents count: what one agent writes another process reads,
-- also if it is of another version.
local cases = require "spec.support.cases"
local json = require "perigee.net.json"
local partial = require "perigee.stats.partial"
local planted = require "spec.support.planted_stats"
local stats = require "perigee.control.stats"
local summaries = require "perigee.stats.summary"

local registry = "folder:" .. cases.folder .. "/planted"
local AT = partial.at

-- What is read of a planted agent with so many methods, called once, twice, ...
local function agent(n)
  local file = planted.new("a", "s")
  for i = 1, n do planted.method(file, i, 2, "svc", "m" .. i, i) end
  return assert(partial.read(planted.write(registry, "s", "a",
                                           planted.bytes(file))))
end

local function sum_of(methods)
  local sum = partial.numbers()
  for _, each in ipairs(methods) do partial.add(sum, each.numbers) end
  return sum
end

local function assert_same(a, b)
  for i = 0, AT.bins + partial.bins - 1 do assert.equal(a[i], b[i]) end
end

describe("a summary", function()
  before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
  after_each(cases.cleanup)

  local function passed(told, kept, longest)
    local text = assert(summaries.text(told, kept or summaries.kept(),
                                       longest or summaries.LONGEST))
    return assert(summaries.read(assert(json.decode(text)))), text
  end

  it("tells what was read of a file", function()
    local told = agent(5)
    local got = passed(told)
    assert.equal(5, #got.methods)
    for i, each in ipairs(told.methods) do
      assert.equal(each.side, got.methods[i].side)
      assert_same(each.numbers, got.methods[i].numbers)
      assert.equal("m" .. i, got.methods[i].names:sub(65))
    end
    for _, field in ipairs { "host", "pid", "state", "began_at", "begun" } do
      assert.equal(told[field], got[field], field)
    end
    for name, value in pairs(got.counters) do
      assert.equal(told.counters[name] or 0, value, name)
    end
  end)

  it("sums the methods that it has no room for", function()
    local told = agent(60)
    local got, text = passed(told)
    assert.equal(summaries.METHODS + 1, #got.methods)
    assert.is_true(#text <= summaries.LONGEST)
    assert_same(sum_of(told.methods), sum_of(got.methods))
    got, text = passed(told, nil, 1000)
    assert.is_true(#text <= 1000)
    assert.equal(1, #got.methods)
    assert_same(sum_of(told.methods), got.methods[1].numbers)
    assert.is_nil(summaries.text(told, summaries.kept(), 10))
  end)

  it("goes on to tell of the methods that it has told of", function()
    local kept, told = summaries.kept(), agent(60)
    local early = table.remove(told.methods, 1)
    local before = passed(told, kept)
    table.insert(told.methods, 1, early)
    local after = passed(told, kept)
    for i = 1, summaries.METHODS do
      assert.equal(before.methods[i].names, after.methods[i].names)
    end
  end)

  it("is understood with statuses, bounds and fields of a version to come",
     function()
    local got = assert(summaries.read {
      state = "asleep", news = { 1 }, counters = { news = 1 },
      methods = { { side = "server", service = "s", method = "m", news = true,
                    ends = { ["0"] = 1, ["200"] = 1, news = 1 },
                    bins = { ["9"] = 1, ["10"] = 2, ["40"] = 4, news = 8 } }
      } })
    local numbers = got.methods[1].numbers
    assert.equal(3, numbers[AT.calls])
    assert.equal(1, numbers[AT.ends])
    assert.equal(3, numbers[AT.bins + 1])
    assert.equal(12, numbers[AT.bins + partial.bins - 1])
  end)
end)

describe("reports", function()
  local now, kept, has_many

  before_each(function()
    now, has_many = 1e9, true
    kept = stats.new(function() return has_many end, function() return now end)
  end)

  local function record(name, epoch)
    return { collection = { scope = "s" }, name = name, epoch = epoch or "1",
             ttl = 10 }
  end

  local function put(name, token)
    local one = record(name)
    if not kept:may(one, token) then return false end
    kept:keep(one, token, assert(summaries.read { state = "running" }))
    return true
  end

  it("are wanted after a while, and taken no oftener than once a second",
     function()
    assert.is_true(kept:renewed(record "a", "t"))
    assert.is_true(put("a", "t"))
    assert.is_false(kept:renewed(record "a", "t"))
    assert.is_false(put("a", "t"))
    now = now + 1e9
    assert.is_false(kept:renewed(record "a", "t"))
    assert.is_true(put("a", "t"))
    now = now + 3e9
    assert.is_true(kept:renewed(record "a", "t"))
    now = now + 8e9
    assert.equal(1, #kept:list())       -- it was renewed since
    now = now + 2e9
    assert.equal(0, #kept:list())
  end)

  it("that are junk count, too", function()
    local n = 0
    while kept:may(record "a", "t") do n = n + 1 end
    assert.equal(100, n)
    assert.is_true(kept:may(record "a", "u"))
    assert.same({}, kept:list())
    assert.is_false(kept:may(record "a", "t"))
  end)

  it("are not wanted of who would miss the request", function()
    has_many = false
    assert.is_false(kept:renewed(record "a", "t"))
  end)

  it("of a peer with very many leave places and time to others", function()
    local function put_many(from, n)
      for i = from, from + n - 1 do
        if not put("a" .. i, "many") then return i - from end
      end
      return n
    end
    assert.equal(100, put_many(1, 2048))
    assert.is_true(put("b", "few"))
    local n = 100
    for _ = 1, 20 do                    -- names live for 10 s, unless renewed
      now = now + 1e9
      for i = 1, n do kept:renewed(record("a" .. i), "many") end
      kept:renewed(record "b", "few")
      n = n + put_many(n + 1, 2048)
    end
    assert.equal(1536, n)
    assert.is_false(kept:renewed(record "a5000", "many"))
    assert.is_true(put("c", "few"))
    assert.equal(1538, #kept:list())
  end)
end)
