-- SPDX-License-Identifier: Apache-2.0
-- The folder of names in a place where everybody may write and another user has
-- made it first. Both sides then use the same other folder.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local process = require "spec.support.process"

ffi.cdef "unsigned spec_hostile_user(void) __asm__(\"getuid\");"
local uid = ffi.C.spec_hostile_user()

-- An agent that has no runtime folder of its own and may not use another's:
-- only TMPDIR is left.
local function serving(child, perigee)
  local agent = assert(perigee.agent { name = "worker", services = {
    { name = "x", methods = { add = function(a, b) return a + b end } } } })
  child.say "ready"
  perigee.run()
  agent:close()
end

local function calling(child, perigee)
  local agent = assert(perigee.agent {})
  local proxy = assert(agent:proxy("worker", "x", { timeout = 5 }))
  child.say(proxy:add(20, 22))
  agent:close()
end

describe("a registry's folder that somebody else made first", function()
  local root = "/tmp/perigee-squatted-" .. process.pid()
  local squatted = root .. ("/perigee-%d"):format(uid)
  local before = {}

  local function set(name, value)
    before[name] = before[name] or os.getenv(name) or false
    if value then ffi.C.spec_setenv(name, value, 1)
    else ffi.C.unsetenv(name) end
  end

  before_each(function()
    assert(os.execute(("mkdir -m 1777 %s && mkdir -m 700 %s/home")
      :format(root, root)) == 0)
    set("XDG_RUNTIME_DIR", nil)
    set("TMPDIR", root)
    set("HOME", root .. "/home")
  end)

  after_each(function()
    for name, value in pairs(before) do set(name, value or nil) end
    cases.cleanup()
    os.execute(("rm -rf %s"):format(root))
  end)

  local function both_find_each_other()
    process.start(serving):expect("ready", 20 * cases.slow)
    process.start(calling):expect("42", 20 * cases.slow)
  end

  it("is done without where it is another user's", function()
    if uid ~= 0 then return pending "only root can be another user" end
    assert(os.execute(("mkdir -m 700 %s && chown 54321 %s")
      :format(squatted, squatted)) == 0)
    both_find_each_other()
  end)

  it("is done without where it is a link to another user's", function()
    if uid ~= 0 then return pending "only root can be another user" end
    assert(os.execute(("mkdir -m 700 %s/theirs && chown 54321 %s/theirs && "
      .. "ln -s theirs %s && chown -h 54321 %s"):format(root, root, squatted,
        squatted)) == 0)
    both_find_each_other()
  end)

  it("is done without where it is a file of another user's", function()
    if uid ~= 0 then return pending "only root can be another user" end
    assert(os.execute(("touch %s && chown 54321 %s"):format(squatted,
                                                            squatted)) == 0)
    both_find_each_other()
  end)
end)
