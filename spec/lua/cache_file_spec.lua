-- SPDX-License-Identifier: Apache-2.0
-- Caches with a file below: what memory evicts goes there, and comes back, also
-- after the process was killed.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local COUNT, LENGTH = 40, 200000

local function server(child, its, _, scope, path)
  local cache = assert(its.cache { name = "filed", scope = scope,
                                   memory = 2 ^ 22, slab = 2 ^ 20, lease = 0.2,
                                   file = path, file_size = 2 ^ 26 })
  local tier = select(2, next(cache.stores)).tier
  while not tier:state().ready do its.sleep(0.001) end
  child.say("ready")
  its.spawn(function() its.sleep(1000) end)
  for _ in child.attend do -- asks whether the file has forgotten what is void
    while next(tier.void) or next(tier.done) do its.sleep(0.001) end
    child.say("forgotten")
  end
end

for _, map in ipairs { true, false } do
describe("a cache with a file, map = " .. tostring(map), function()
  local path, child, agent, blocks, region

  local function starts()
    child = process.start(server, cases.scope, path)
    child:expect "ready"
    if not blocks then blocks = assert(agent:cache("filed", { map = map })) end
    assert(cases.eventually(function() return blocks:stats() end))
  end

  before_each(function()
    path = os.tmpname()
    os.remove(path)
    agent, blocks = assert(cases.agent()), nil
    starts()
    region = agent.engine:alloc(2 ^ 20)
  end)

  after_each(function()
    cases.cleanup()
    os.remove(path)
  end)

  -- Puts more than memory has, as fast as the file takes it.
  local function fill()
    for i = 1, COUNT do
      region:slice(0, LENGTH):write(cases.bytes(LENGTH, i))
      assert(blocks:put(tostring(i), region:slice(0, LENGTH)))
      perigee.sleep(0.01 * process.slow)
    end
    perigee.sleep(0.3 * process.slow)
  end

  -- Gets a value. Memory is small, and may be full of what is leased.
  local function get(key)
    local value, err
    cases.eventually(function()
      value, err = blocks:get(key)
      return value or err.kind ~= "no_memory"
    end)
    return value, err
  end

  -- How many of the values are there; they are right.
  local function found(from)
    local n = 0
    for i = from or 1, COUNT do
      local value, err = get(tostring(i))
      if value then
        assert.is_true(value == cases.bytes(LENGTH, i))
        n = n + 1
      else
        assert.equal("not_found", err.kind, tostring(err))
      end
    end
    return n
  end

  it("gives what memory has evicted", function()
    fill()
    assert.is_true(found() > COUNT * 0.8)
  end)

  it("finds it by all requests", function()
    fill()
    local keys, there = {}, 0
    for i = 1, COUNT do keys[i] = tostring(i) end
    for _, each in ipairs(assert(blocks:has(keys))) do
      if each then there = there + 1 end
    end
    assert.is_true(there > COUNT * 0.8)
    assert.equal(LENGTH, assert(blocks:stat(keys[COUNT / 2])).length)
    local results = blocks:get_many {
      { key = keys[COUNT / 2], into = region:slice(0, LENGTH) },
      { key = keys[COUNT], into = region:slice(LENGTH, LENGTH) } }
    assert.same({ LENGTH, LENGTH }, results)
    assert.is_true(region:slice(0, LENGTH):string()
      == cases.bytes(LENGTH, COUNT / 2))
  end)

  it("has it after it was killed", function()
    fill()
    child:kill()
    starts()
    assert.is_true(found() > COUNT * 0.1)       -- how many, the disk decides
  end)

  it("never gives what was replaced or deleted", function()
    fill()
    assert(blocks:put("1", "new"))
    local _, err = blocks:put("2", "x", { if_absent = true })
    assert.equal("exists", err.kind)
    assert(blocks:delete "2")
    assert(blocks:delete "3")
    assert.equal("not_found", select(2, blocks:delete "3").kind)
    assert.equal("new", blocks:get "1")
    assert.is_nil((blocks:get "2"))
    child:tell "forget"
    child:expect "forgotten"
    child:kill()
    starts()
    local value = blocks:get "1"
    assert.is_true(value == nil or value == "new")
    assert.is_nil((blocks:get "2"))
    assert.is_nil((blocks:get "3"))
    assert.is_true(found(4) > COUNT * 0.1)      -- as above
  end)

  it("never gives bytes that the disk has changed", function()
    fill()
    child:kill()
    local file = assert(io.open(path, "r+b"))
    for at = 8192, 2 ^ 26 - 1, 50000 do
      file:seek("set", at)
      file:write "flipped"
    end
    file:close()
    starts()
    found()                               -- right, or not found
    assert(blocks:put("1", "new"))
    assert.equal("new", blocks:get "1")
  end)

  it("is refused a file that another cache has", function()
    local cache, err = perigee.cache { name = "other", scope = cases.scope,
                                       memory = 2 ^ 22, file = path,
                                       file_size = 2 ^ 26 }
    assert.is_nil(cache)
    assert.matches(path, err.message, 1, true)
  end)
end)
end
