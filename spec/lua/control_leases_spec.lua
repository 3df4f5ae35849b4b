-- SPDX-License-Identifier: Apache-2.0
-- Leases of a control server end: none early, and many in portions.
local control = require "spec.support.control"
local counts = require "perigee.control.counts"
local loop = require "perigee.runtime.loop"
local needing = require "spec.support.needing"
local perigee = require "perigee"

needing("the leases of a control server", { control }, function()
  local states = require "perigee.control.state"

  local function storage(commits)
    local function yes() return true end
    return { revision = function() return 7 end, load = yes, set = yes,
             unset = yes, discard = yes, commit = commits or yes }
  end

  local function put(state, name, ttl)
    return state:put("s", "agents", name, "{", ttl, { epoch = "1" })
  end

  it("last from the moment at which they are asked for", function()
    local state = states.open(storage())
    perigee.sleep(0.1)
    local record = put(state, "a", 1)
    assert.is_true(record.deadline - state.now > 1.09)
    perigee.sleep(0.1)
    state:renew(record)
    assert.is_true(record.deadline - state.now > 1.19)
  end)

  it("end in portions, between which others are answered", function()
    local state = states.open(storage())
    for i = 1, 2000 do put(state, ("n%05d"):format(i), 0.25) end
    for i = 1, 10 do put(state, ("kept%d"):format(i), 100) end
    assert(state:commit())
    perigee.sleep(0.8)
    local collection = state:known("s", "agents")
    local passes, before = 0, #collection.names
    repeat
      local more = state:pass(250)
      passes = passes + 1
      assert.is_true(before - #collection.names <= 250)
      before = #collection.names
      assert(state:commit())
    until not more
    assert.is_true(passes >= 8)
    local left = {}
    for name in pairs(collection.records) do left[#left + 1] = name end
    table.sort(left)
    assert.equal(10, #left)
    assert.same(left, collection.names)
  end)

  it("end in smaller portions where a commit takes long", function()
    local alone = require "perigee.control.alone"
    local state = states.open(storage(function()
      local over = loop.now() + 2e7
      repeat until loop.now() >= over
      return true
    end))
    for i = 1, 500 do put(state, ("n%05d"):format(i), 0.25) end
    assert(state:commit())
    perigee.sleep(0.8)
    local server = { state = state, ends = alone.ENDS, due = 0, checked = 1,
                     beat = math.huge, counts = counts.new(),
                     tokens = { version = 1, refresh = function() end } }
    local names, least = 500, math.huge
    while alone.pass(server, loop.now(), 0) do
      local left = #state:known("s", "agents").names
      assert.is_true(names - left <= alone.ENDS)
      if left > 0 then least = math.min(least, names - left) end
      names = left
    end
    assert.is_true(least < alone.ENDS / 2)
    assert.equal(500, server.counts.ended)
    assert.same({}, state:known("s", "agents").names)
  end)

  it("are as they were if the end of them is not kept", function()
    local fails = false
    local state = states.open(storage(function()
      return not fails or nil, "no_memory", "the disk is full"
    end))
    for i = 1, 20 do put(state, ("n%02d"):format(i), 0.25) end
    assert(state:commit())
    perigee.sleep(0.8)
    fails = true
    state:pass(250)
    assert.is_nil((state:commit()))
    local collection = state:known("s", "agents")
    assert.equal(20, #collection.names)
    assert.equal("n20", collection.names[20])
    fails = false
    perigee.sleep(0.6)
    repeat local more = state:pass(250) until not more
    assert(state:commit())
    assert.same({}, collection.names)
  end)
end)
