-- SPDX-License-Identifier: Apache-2.0
-- Options of engines: which are in `advanced`, and that each of these is also
-- taken beside it.
local perigee = require "perigee"
local settings = require "perigee.engine.options"

-- The message of what f raises, with the place where it is raised.
local function raised(f)
  local fine, message = pcall(f)
  assert.is_false(fine)
  return message
end

local function here(message)
  assert.matches("^spec/lua/engine_options_spec.lua:%d+: ", message)
  return message
end

describe("options of an engine", function()
  it("reach the core from advanced as from beside it", function()
    local given = { hellos = 7, hello_timeout = 5, watched = 9,
                    message = 2 ^ 20, serving = 3, mapped = 2 ^ 40,
                    descriptors = 99, untaken = 2 ^ 21, spin_always = true,
                    pull = false, epoch = 12, rdma = { qps = 2 },
                    faults = "seed=3", features = "-trace" }
    local seconds = { hello_timeout = 1e9 }
    local ffi = require "ffi"
    for name, value in pairs(given) do
      local inside = settings.flat(settings.check(
        { advanced = { [name] = value } }, "perigee.engine"))
      local beside = settings.flat(settings.check(
        { [name] = value }, "perigee.engine"))
      assert.same(beside, inside)
      local core, keep = settings.core(inside)
      local got = core[name]
      if type(value) == "string" then
        got = ffi.string(got)
      elseif type(value) == "table" then
        value, got = "qps=2", ffi.string(got)
      elseif type(value) == "boolean" then
        value, got = value and 1 or 0, tonumber(got)
      else
        value, got = value * (seconds[name] or 1), tonumber(got)
      end
      assert.equal(value, got, name)
      assert.is_table(keep)
    end
  end)

  it("make engines and agents, in advanced or beside it", function()
    for _, options in ipairs {
      { advanced = { watched = 5, hellos = 9 } }, { advanced = {} },
      { watched = 5, advanced = { hellos = 9 } }, { watched = 5, hellos = 9 },
    } do
      assert(perigee.engine(options)):close()
      assert(perigee.agent { engine = options }):close()
    end
  end)

  it("are refused at the caller's line if advanced has no such one", function()
    for _, f in ipairs {
      function() perigee.engine { advanced = { nonsense = 1 } } end,
      function() perigee.engine { advanced = { pool = 2 ^ 24 } } end,
      function() perigee.agent { engine = { advanced = { pool = 1 } } } end,
    } do
      local message = here(raised(f))
      assert.is_truthy(message:find('option advanced of ', 1, true))
      assert.is_truthy(message:find('has no option "', 1, true))
      assert.is_truthy(message:find("hello_timeout, hellos", 1, true))
    end
  end)

  it("are refused if advanced has a wrong value, or is one", function()
    local message = here(raised(function()
      perigee.engine { advanced = { hellos = "many" } }
    end))
    assert.is_truthy(message:find("option hellos of option advanced of "
      .. "perigee.engine must be an integer", 1, true))
    message = here(raised(function() perigee.engine { advanced = 7 } end))
    assert.is_truthy(message:find("option advanced of perigee.engine must be a "
      .. "table", 1, true))
  end)

  it("are refused if they are given twice", function()
    local message = here(raised(function()
      perigee.engine { hellos = 9, advanced = { hellos = 9 } }
    end))
    assert.is_truthy(message:find("option hellos of perigee.engine is given "
      .. "both in advanced and beside it", 1, true))
    here(raised(function()
      perigee.agent { engine = { pull = true, advanced = { pull = false } } }
    end))
  end)

  it("make no more of them than a loop polls", function()
    local engine, err
    local engines = {}
    repeat
      engine, err = perigee.engine { pool = 2 ^ 20, sessions = 16 }
      engines[#engines + 1] = engine
    until not engine or #engines > 64
    for _, each in ipairs(engines) do each:close() end
    assert.equal("no_memory", err and err.kind)
    assert.matches("a process has 64 already", err.message)
    assert(perigee.engine { pool = 2 ^ 20, sessions = 16 }):close()
  end)

  it("leave a peer some time for its handshake", function()
    local message = here(raised(function()
      perigee.engine { hello_timeout = 0 }
    end))
    assert.is_truthy(message:find("hello_timeout (at least", 1, true), message)
  end)

  it("are listed without those of advanced where one is unknown", function()
    local message = here(raised(function() perigee.engine { nonsense = 1 } end))
    assert.is_truthy(message:find("advanced, dead_after", 1, true))
    assert.is_nil(message:find("hellos", 1, true))
  end)
end)
