-- SPDX-License-Identifier: Apache-2.0
-- C programs and Lua choose the same folder for the names of a scope, whatever
-- the environment says and whatever folders there are.
local cases = require "spec.support.cases"
local native = require "perigee.native"
local registries = require "perigee.registry"
local where = require "perigee.registry.folder.where"

local ffi = require "ffi"
local C = native.C

local VARIABLES = { "PERIGEE_REGISTRY", "XDG_RUNTIME_DIR", "TMPDIR", "HOME" }
local path = ffi.new "char[4096]"

local function set(name, value)
  if value then return ffi.C.spec_setenv(name, value, 1) end
  ffi.C.unsetenv(name)
end

local function by_c(scope)
  local length = C.perigee_scope_folder(scope, path, 4096)
  if length < 0 then return nil, length end
  return ffi.string(path, length)
end

local function by_lua(scope) return registries.chosen(nil, 1):path(scope) end

describe("the folder of a scope", function()
  local before, root = {}, cases.folder .. "/choice"

  before_each(function()
    for _, name in ipairs(VARIABLES) do before[name] = os.getenv(name) end
    assert.equal(0, C.perigee_folder(root))
    for _, name in ipairs(VARIABLES) do set(name) end
  end)

  after_each(function()
    for _, name in ipairs(VARIABLES) do set(name, before[name]) end
    cases.cleanup()
    os.execute(("rm -rf '%s'"):format(root))
  end)

  local function same(what)
    assert.equal(by_lua "s", (by_c "s"), what)
  end

  it("is the same in every environment", function()
    local values = {
      PERIGEE_REGISTRY = { "", "folder:/x", "folder:/x//", "folder:/" },
      XDG_RUNTIME_DIR = { "", "relative", "/x", "/x/" },
      TMPDIR = { "", "relative", root, root .. "//", "/" },
      HOME = { "", "relative", root, root .. "/", root .. "/nothing" },
    }
    local count = 0
    local function each(i, shown)
      if not VARIABLES[i] then
        count = count + 1
        return same(shown)
      end
      local name = VARIABLES[i]
      for k = 0, #values[name] do
        set(name, values[name][k])
        each(i + 1, ("%s %s=%s"):format(shown, name,
                                        tostring(values[name][k])))
      end
    end
    each(1, "")
    assert.equal(5 * 5 * 6 * 6, count)
  end)

  it("is the same whosever folders are there", function()
    set("TMPDIR", root .. "/tmp")
    set("HOME", root .. "/home")
    local temporary = ("%s/tmp/perigee-%d"):format(root, native.uid())
    local host = where.system.host():match "^[^.]*":gsub("[^%w_-]", "_")
    local home = ("%s/home/.cache/perigee/%s"):format(root, host)
    local states = { "true", "mkdir -p -m 700 '%s'", "touch '%s'",
                     "ln -s /tmp '%s'" }
    local chosen = {}
    for _, first in ipairs(states) do
      for _, second in ipairs(states) do
        os.execute(("rm -rf '%s'/*; mkdir -p '%s/tmp' '%s'; %s; %s"):format(
          root, root, home:match "^(.*)/", first:format(temporary),
          second:format(home)))
        same(first .. "; " .. second)
        chosen[by_c "s"] = true
      end
    end
    assert.same({ [temporary .. "/s"] = true, [home .. "/s"] = true }, chosen)
  end)

  it("is refused in C where names are in a server", function()
    for address, status in pairs { ["redis://x"] = C.PERIGEE_UNSUPPORTED,
                                   ["http://x"] = C.PERIGEE_UNSUPPORTED,
                                   ["folder:x"] = C.PERIGEE_INVALID } do
      set("PERIGEE_REGISTRY", address)
      assert.equal(status, select(2, by_c "s"))
    end
  end)

  it("tells why it cannot be made, in C and in Lua", function()
    cases.engine()
    set("XDG_RUNTIME_DIR", "/dev/null")
    local why = "the registry's folder /dev/null/perigee: Not a directory "
      .. "(or name another, by XDG_RUNTIME_DIR or PERIGEE_REGISTRY)"
    local agent, err = require "perigee".agent { name = "x", scope = "s" }
    assert.is_nil(agent)
    assert.equal("unsupported", err.kind)
    assert.matches(why, err.message, 1, true)
    local out = ffi.new "struct perigee_agent *[1]"
    assert.equal(C.PERIGEE_SYSTEM, C.perigee_agent_open(
      cases.engine().handle, nil, out))
    assert.matches(why, native.detail(), 1, true)
  end)

  it("has the scope of the environment by default", function()
    local given = os.getenv "PERIGEE_SCOPE"
    for _, each in ipairs { { nil, "default" }, { "", "default" },
                            { "lab:1", "lab:1" } } do
      set("PERIGEE_SCOPE", each[1])
      local agent = assert(require "perigee".agent {})
      assert.equal(each[2], agent.scope)
      assert.equal(by_lua(agent.scope), (by_c(nil)))
      assert.equal(by_lua(agent.scope), (by_c ""))
      agent:close()
    end
    set("PERIGEE_SCOPE", given)
  end)

  it("is one that both make", function()
    set("TMPDIR", root)
    local length = C.perigee_scope_folder("s", path, 4096)
    assert.is_nil(where.system.look(ffi.string(path, length)) == "own" or nil)
    local agent = assert(require "perigee".agent { scope = "s" })
    assert.equal("own", where.system.look(ffi.string(path, length)))
    assert.equal("unix:" .. ffi.string(path, length) .. "/" .. agent.name
      .. ".sock", agent.address)
    agent:close()
  end)
end)
