-- SPDX-License-Identifier: Apache-2.0
-- Agents of C programs (spec/support/named.c) and of Lua find each other by
-- their names.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local NAMED = "build/spec/support/named"
local PERIGEE = "lua/perigee/cli/perigee"

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

-- What a program says, with its errors, and its exit status.
local function said(...)
  local words = { ... }
  for i, word in ipairs(words) do words[i] = quoted(word) end
  local pipe = io.popen(("timeout %d %s 2>&1; echo status $?"):format(
    60 * cases.slow, table.concat(words, " ")))
  local text = pipe:read "*a"
  pipe:close()
  local all, status = text:match "^(.*)status (%d+)\n$"
  return all, tonumber(status)
end

local function holding(name, ...)
  local child = process.spawn { NAMED, "agent", cases.scope, name, ... }
  return child:expect("holding " .. name, 30 * cases.slow)
end

-- An agent of another process that serves "x" as the C program does.
local function other(child, perigee, _, registry)
  local agent = assert(child.cases.agent("lua", {
    registry = registry ~= "" and registry or nil, listen = "tcp://127.0.0.1:0",
    services = { { name = "x", version = 7, methods = {
      echo = { raw = true, function(request) return request end } } } } }))
  child.say(agent.engine.handle and "ready" or "closed")
  perigee.run()
end

local function lua_agent(registry)
  return process.start(other, registry or ""):expect("ready", 30 * cases.slow)
end

describe("an agent of a C program", function()
  after_each(cases.cleanup)

  it("is told of as one of Lua", function()
    local child = holding("c", "tcp://127.0.0.1:0")
    local agent = assert(cases.agent())
    local entry = assert(agent:lookup "c")
    assert.same({ "c", cases.scope, "c", "up", 1, child.pid },
                { entry.name, entry.scope, entry.kind, entry.state,
                  entry.weight, entry.pid })
    assert.equal(("unix:%s/perigee/%s/c.sock"):format(cases.folder,
      cases.scope), entry.addresses[1])
    assert.matches("^tcp://127.0.0.1:%d+$", entry.addresses[2])
    assert.same({}, entry.services)
    assert.same({}, entry.regions)
    assert.same({}, entry.metadata)
    assert.is_true(entry.since >= 0 and entry.since < 60 * cases.slow)
    local own = assert(cases.agent "own")
    local mine = assert(agent:lookup "own")
    assert.equal(mine.machine, entry.machine)
    assert.equal(mine.host, entry.host)
    assert.equal(#mine.epoch, #entry.epoch)
    assert.is_true(entry.term > 0 and mine.term > entry.term)
    for field in pairs(mine) do assert.is_truthy(entry[field], field) end
    own:close()
    assert.equal("c", backends.names(agent))
    assert.equal("c", backends.names_in(agent:list { kind = "c" }))
    assert.matches('"name":"c"', (said(PERIGEE, "agents", "--json", "--scope",
                                       cases.scope)), 1, true)
  end)

  it("is watched", function()
    local agent = assert(cases.agent())
    local told, entries = backends.watched(agent)
    local child = holding "c"
    cases.await(function() return told[1] end)
    child:tell ""
    child:expect "closed"
    cases.await(function() return told[#told] == "down c" end)
    assert.equal("up c", told[1])
    assert.equal("c", entries[1].name)
  end)

  it("serves Lua's proxies", function()
    local child = holding "c"
    local agent = assert(cases.agent())
    local session = assert(agent:session "c")
    local proxy = assert(agent:proxy("c", "x", { timeout = 10 * cases.slow }))
    assert.equal("hello", proxy:echo "hello")
    assert.equal(agent:lookup("c").epoch, session.epoch)
    child:kill()
    local none, err = proxy:with { timeout = 0.5 }:echo "hello"
    assert.is_nil(none)
    assert.is_truthy(err)
  end)

  it("has its name alone", function()
    holding "c"
    local _, err = cases.agent "c"
    assert.equal("name_taken", err.kind)
    assert.matches("process %d+ on %S+ holds it", tostring(err))
    assert(cases.agent "lua")
    local text, status = said(NAMED, "agent", cases.scope, "lua")
    assert.equal(1, status)
    assert.matches("^name_taken: .*process " .. process.pid() .. " on ", text)
  end)

  it("loses its name when it is killed", function()
    local child = holding "c"
    local agent = assert(cases.agent())
    assert(agent:lookup "c")
    child:kill()
    assert.equal("not_found", select(2, agent:lookup "c").kind)
    local next_one = assert(cases.agent "c")
    next_one:close()
    holding "c"
  end)

  it("finds one of Lua's, and one like itself", function()
    local child = lua_agent()
    local text, status = said(NAMED, "find", cases.scope, "lua")
    assert.equal(0, status, text)
    assert.matches(("^lua in %s: agent, up, pid %d, epoch %%x+\nat unix:/[^\n]*"
      .. "\nat tcp://127.0.0.1:%%d+\nserves x 7\nhello\n$"):format(cases.scope,
        child.pid), text)
    holding "c"
    text, status = said(NAMED, "find", cases.scope, "c")
    assert.equal(0, status, text)
    assert.matches("^c in .*\nhello\n$", text)
    child:kill()
    text, status = said(NAMED, "find", cases.scope, "lua")
    assert.equal(1, status)
    assert.matches("^not_found: no agent named lua is in scope ", text)
  end)

  it("is asked by its own scope", function()
    holding "c"
    assert.matches("^not_found: ", (said(NAMED, "find", "another", "c")))
    assert.matches("^invalid: ", (said(NAMED, "find", "../x", "c")))
  end)
end)

describe("the text of an entry", function()
  after_each(cases.cleanup)

  local function text_of(name, ...)
    local text, status = said(PERIGEE, "lookup", name, "--entry", "--scope",
                              cases.scope, ...)
    assert.equal(0, status, text)
    return text:match "^(perigee%-entry%-1:%S+)\n$"
  end

  local function reaches(text, name)
    local got, status = said(NAMED, "parse", text)
    assert.equal(0, status, got)
    assert.matches(("^%s in %s: .*\nhello\n$"):format(name, cases.scope), got)
    return got
  end

  it("leads a C program to an agent in the folder", function()
    lua_agent()
    holding "c"
    local text = text_of "lua"
    assert.matches("\nserves x 7\n", reaches(text, "lua"))
    reaches(text_of "c", "c")
    assert.matches("\nhello\n$", (said("sh", "-c", ("%s lookup c --entry "
      .. "--scope %s | %s parse -"):format(PERIGEE, cases.scope, NAMED))))
    for _, wrong in ipairs { text:sub(1, -2), text:sub(2), text .. "A", "",
                             text:sub(1, 30) .. " " .. text:sub(31) } do
      local got, status = said(NAMED, "parse", wrong)
      assert.equal(1, status)
      assert.matches("^protocol: it is no entry: ", got)
    end
  end)

  it("leads it to one in a Redis", function()
    if not redis.is_there() then return pending(redis.needs) end
    redis.start()
    local registry = redis.address(cases)
    lua_agent(registry)
    local text
    cases.await(function()
      local _, status = said(PERIGEE, "lookup", "lua", "--scope", cases.scope,
                             "--registry", registry)
      return status == 0
    end)
    text = text_of("lua", "--registry", registry)
    assert.matches("\nat tcp://127.0.0.1:%d+\n.*serves x 7\n",
                   reaches(text, "lua"))
    assert.matches("^not_found: ", (said(NAMED, "find", cases.scope, "lua")))
    assert.matches("\nhello\n$", (said("sh", "-c", ("%s lookup lua --entry "
      .. "--scope %s --registry %s | %s parse -"):format(PERIGEE, cases.scope,
        quoted(registry), NAMED))))
  end)

  it("leads it by further addresses where the socket is not", function()
    local child = lua_agent()
    local path = ("%s/perigee/%s/lua.sock"):format(cases.folder, cases.scope)
    local text = text_of "lua"
    assert(os.rename(path, path .. ".gone"))
    reaches(text, "lua")
    os.rename(path .. ".gone", path)
    child:kill()
    local got, status = said(NAMED, "parse", text)
    assert.equal(1, status)
    assert.matches("\nnot_found: connecting to lua at ", got)
  end)

  it("leads it to nobody else who has its address", function()
    local one = assert(cases.agent "one")
    local text = text_of "one"
    one:close()
    local path = ("%s/perigee/%s/one.sock"):format(cases.folder, cases.scope)
    local child = holding "c"
    os.execute(("ln -sf c.sock '%s'"):format(path))
    local got, status = said(NAMED, "parse", text)
    assert.equal(1, status)
    assert.matches("\ndenied: connecting to one at unix:/", got)
    child:kill()
  end)

  it("has as much as an entry may have", function()
    local agent = assert(cases.agent "lua")
    for i = 1, 3000 do
      agent:serve { name = ("service-%04d-"):format(i) .. ("x"):rep(200),
                    version = i, methods = {} }
    end
    cases.await(function()
      return agent:lookup("lua").services["service-3000-" .. ("x"):rep(200)]
    end)
    local got = said("sh", "-c", ("%s lookup lua --entry --scope %s | "
      .. "%s show - | grep -c ^serves"):format(PERIGEE, cases.scope, NAMED))
    assert.equal("3000\n", got)
  end)
end)
