-- SPDX-License-Identifier: Apache-2.0
-- Agents that begin, end in order and are killed, many times under few names:
-- what is left is the stats file of the last life that was killed, and no more.
local cases = require "spec.support.cases"
local host = require "perigee.stats.host"
local process = require "spec.support.process"

local NAMES, LIVES = 6, 50

local function life(child, _, _, name, fate)
  local agent = assert(child.cases.agent(name))
  if fate == "ends" then agent:close() end
  child.say "ready"
  while true do child.cases.await(function() return false end) end
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

describe("stats files of agents that begin and die", function()
  after_each(cases.cleanup)

  it("are those of the last lives that were killed", function()
    local random, fates = 11, {}
    for n = 1, LIVES do
      local children = {}
      for i = 1, NAMES do
        random = (random * 16807) % 2147483647
        local name = "lives" .. i
        local fate = random % 3 == 0 and "ends" or "dies"
        fates[i] = fates[i] or {}
        fates[i][n] = fate
        children[i] = process.start(life, name, fate)
      end
      for i = 1, NAMES do
        children[i]:expect "ready"
        children[i]:kill()
      end
    end
    local agent = assert(cases.agent())
    local folder = host.folder(os.getenv "PERIGEE_REGISTRY", agent.scope)
    for i = 1, NAMES do
      local path = ("%s/lives%d.stats"):format(folder, i)
      local died, before = fates[i][LIVES] == "dies", false
      for n = 1, LIVES - 1 do before = before or fates[i][n] == "dies" end
      assert.equal(died, exists(path), path)
      assert.equal(before, exists(path .. ".last"), path)
    end
    local pipe = io.popen(("ls -A '%s'"):format(folder))
    for file in pipe:lines() do
      local end_of = file:match "^lives%d%.(.*)$"
      assert.is_true(not end_of or end_of == "stats" or end_of == "stats.last"
        or end_of == "lock" or end_of == "sock", file)
    end
    pipe:close()
  end)

  -- A life that was missed would be exported again at the next look.
  local function are_found_once(how)
    local child = process.start(life, "moves", "dies")
    child:expect "ready"
    child:kill()
    local folder = host.folder(os.getenv "PERIGEE_REGISTRY", cases.scope)
    local path, paths, looks = folder .. "/moves.stats", host.paths, 0
    host.paths = function(...)
      looks = looks + 1
      if looks == 2 then
        assert(0 == os.execute(("%s '%s' '%s.last'"):format(how, path, path)))
      end
      return paths(...)
    end
    local files = require "perigee.cli.trace".files { scope = cases.scope }
    host.paths = paths
    assert.equal(2, looks)
    local found = 0
    for _, file in ipairs(files) do
      if file.name == "moves" then found = found + 1 end
    end
    assert.equal(1, found, "the file was missed, or is there twice")
  end

  it("are found while the next life puts the last one's aside", function()
    are_found_once "mv"
    are_found_once "cp -p"
  end)

  -- What its cache closes with is first called as the Lua state ends.
  it("are gone when a cache ends with its program, clients or not", function()
    local child = process.spawn { "luajit", "-e", ([[
      local perigee = require "perigee"
      local scope = "%s"
      assert(perigee.cache { name = "ends", scope = scope, memory = 2 ^ 22 })
      local agent = assert(perigee.agent { scope = scope })
      assert(assert(agent:cache "ends"):put("key", "value"))
    ]]):format(cases.scope) }
    assert.same({ "exit", 0 }, { child:wait(20) })
    local folder = host.folder(os.getenv "PERIGEE_REGISTRY", cases.scope)
    assert.is_false(exists(folder .. "/ends.stats"))
  end)
end)
