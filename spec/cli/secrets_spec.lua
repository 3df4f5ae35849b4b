-- SPDX-License-Identifier: Apache-2.0
-- The secret of a scope and the password of a registry, which a user has in the
-- environment: where others could read them, they are not.
local cases = require "spec.support.cases"
local command = require "spec.support.command"
local ffi = require "ffi"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local LONG = 60 * cases.slow
local PASSWORD = "password-of-" .. cases.scope
local SECRET = "secret-words-of-" .. cases.scope

local VARIABLES = { "PERIGEE_REGISTRY", "PERIGEE_SECRET", "PERIGEE_SCOPE",
                    "REDISCLI_AUTH" }

after_each(function()
  for _, name in ipairs(VARIABLES) do ffi.C.unsetenv(name) end
  cases.cleanup()
  command.clean()
end)

local function set(name, value) ffi.C.spec_setenv(name, value, 1) end

local function output(line)
  local pipe = io.popen(line .. " 2>&1")
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local function has_none(text, from)
  for _, hidden in ipairs { PASSWORD, SECRET } do
    assert.is_nil(text:find(hidden, 1, true), from)
  end
end

local function perigee(words)
  local text = output(("timeout %d %s %s"):format(LONG, command.path, words))
  has_none(text, words)
  return text
end

describe("what a user keeps secret", function()
  local server

  local function start()
    server = redis.start()
    server:ask("CONFIG SET requirepass " .. PASSWORD)
    set("REDISCLI_AUTH", PASSWORD)
    set("PERIGEE_REGISTRY", ("redis+unix:%s?password=%s"):format(server.path,
                                                                 PASSWORD))
    set("PERIGEE_SECRET", SECRET)
    set("PERIGEE_SCOPE", cases.scope)
  end

  it("is in no list, no log, no store and no process's words", function()
    if not redis.is_there() then
      return pending "no redis-server, or no perigee/control.so"
    end
    start()
    local job = process.spawn { "sh", "-c", ("exec %s run -n 2 '%s' 2>&1")
      :format(command.path, command.file("rank.lua", [[
        local perigee = require "perigee"
        local me = assert(perigee.launch())
        local agent = assert(perigee.agent { name = "rank:" .. me.rank,
                                             listen = "tcp://127.0.0.1:0" })
        print "there"
        io.stdout:flush()
        perigee.run()
      ]])) }
    for _ = 1, 2 do assert.matches("there", assert(job:read(LONG))) end
    local words = output "ps -eo args"
    assert.matches("rank.lua", words, 1, true)
    has_none(words, "ps")
    assert.matches('"rank:0"', perigee "agents --json", 1, true)
    assert.matches("rank:1", perigee "describe rank:1 --json", 1, true)
    for _, each in ipairs { "explain rank:1", "registry status --json",
                            "doctor --json", "ping nobody --count 1" } do
      assert.is_true(#perigee(each) > 0)
    end
    local kept = server:ask(("GET 'perigee:{%s}:name:rank%%3A0'"):format(
      cases.scope))
    assert.matches('"rank:0"', kept, 1, true)
    has_none(kept, "Redis")
    server:ask "CONFIG SET requirepass another"
    set("REDISCLI_AUTH", "another")
    server:ask "CLIENT KILL TYPE normal"
    assert.matches("WRONGPASS", perigee "agents")
    job:signal "TERM"
    for line in function() return job:read(LONG) end do
      has_none(line, "the log")
    end
  end)
end)
