-- SPDX-License-Identifier: Apache-2.0
-- `perigee registry`, and the other commands with names in a Redis server whose
-- user may do nothing but what `perigee registry acl` prints.
local cases = require "spec.support.cases"
local cjson = require "cjson"
local command = require "spec.support.command"
local redis = require "spec.support.redis"

local server

local function there()
  if redis.is_there() then return true end
  pending "no redis-server, or no perigee/control.so"
end

after_each(function()
  cases.cleanup()
  command.clean()
  if server then os.remove(server.path) end
  server = nil
end)

describe("perigee registry acl", function()
  it("makes a user by which agents are found, and no more", function()
    if not there() then return end
    server = redis.start()
    local _, line = command.run("registry", "acl", "--user", "fleet")
    assert.matches("^ACL SETUSER fleet reset on >PASSWORD ~perigee:%* ", line)
    assert.equal("OK", server:ask((line:gsub("PASSWORD", "pw")
      :gsub("[>~*]", "\\%0"))))
    local address = ("redis+unix:%s?user=fleet&password=pw"):format(server.path)
    local worker = command.start("serve", "--name", "far", "--registry",
      address, command.file("calc.lua",
      "return { name = 'calc', methods = { max = math.max } }"))
    assert.matches("^serving calc as far ", worker:read())
    local status, text = command.run("call", "far", "calc.max", "1", "2",
                                     "--registry", address)
    assert.equal(0, status)
    assert.equal("2\n", text)
    status, text = command.run("registry", "status", "--json", "--registry",
                               address)
    assert.equal(0, status)
    local told = cjson.decode(text)
    assert.equal(1, told.agents)
    assert.is_nil(text:find "pw")
    assert.matches("NOPERM", server:ask "--user fleet --pass pw KEYS x 2>&1")
  end)

  it("is not asked for the right to write by who only asks", function()
    if not there() then return end
    server = redis.start()
    local address = "redis+unix:" .. server.path
    assert.equal(0, (command.run("agents", "--registry", address)))
    assert.equal(1, (command.run("ping", "nobody", "--count", "1",
                                 "--registry", address)))
    assert.equal("0", server:ask "DBSIZE")
  end)

  it("wants a plain name", function()
    local status, _, errors = command.run("registry", "acl", "--user", "a b")
    assert.equal(2, status)
    assert.matches("^perigee registry acl: %-%-user must be", errors)
  end)
end)

describe("perigee serve with names in Redis", function()
  it("ends without a warning", function()
    if not there() then return end
    server = redis.start()
    local worker = command.start("serve", "--name", "far", "--registry",
      "redis+unix:" .. server.path, command.file("calc.lua",
      "return { name = 'calc', methods = { max = math.max } }"))
    assert.matches("^serving calc as far ", worker:read())
    worker:signal "TERM"
    assert.is_nil(worker:read())
  end)
end)

describe("a registry that does not answer", function()
  it("is told within --timeout", function()
    if not there() then return end
    server = redis.start()
    server.process:signal "STOP"
    local status, _, errors = command.run("agents", "--timeout", "200ms",
      "--registry", "redis+unix:" .. server.path)
    assert.equal(1, status)
    assert.matches("has not answered within 0.2 s; is the registry up", errors)
  end)
end)

describe("perigee doctor", function()
  -- Its report of the registry that PERIGEE_REGISTRY names.
  local function said(address)
    local _, text = command.shell(("PERIGEE_REGISTRY='%s' XDG_RUNTIME_DIR='%s' "
      .. "timeout 60 '%s' doctor --json"):format(address, command.folder(),
                                                 command.path))
    local list = {}
    for _, each in ipairs(cjson.decode(text).checks) do
      if each.name == "registry" then list[#list + 1] = each end
    end
    return list[1], list[2]
  end

  it("asks the registry that programs will ask", function()
    if not there() then return end
    server = redis.start()
    local address = "redis+unix:" .. server.path
    local names, sockets = said(address)
    assert.equal("ok", names.status)
    assert.matches("Redis .* answers in ", names.found)
    assert.matches("^sockets in /.*/perigee, made when needed", sockets.found)
    server:ask "CONFIG SET requirepass pw"
    names = said(address)
    assert.equal("problem", names.status)
    assert.matches("as whom it is asked", names.fix)
  end)

  it("says of what is no registry's address only what it has to be", function()
    local names = said("ftp://names")
    assert.equal("problem", names.status)
    assert.matches("^option registry of perigee.agent must be", names.found)
  end)

  it("says within seconds that it is gone, or silent", function()
    if not there() then return end
    server = redis.start()
    local address = "redis+unix:" .. server.path
    server.process:signal "STOP"
    local names = said(address)
    assert.equal("problem", names.status)
    assert.matches("has not answered within 2 s", names.found)
    server:kill()
    names = said(address)
    assert.equal("problem", names.status)
    assert.equal("unset PERIGEE_REGISTRY", names.command)
  end)

  it("looks at the folder that it names", function()
    local folder = command.folder() .. "/names"
    os.execute(("mkdir -m 755 '%s'"):format(folder))
    local names, more = said("folder:" .. folder)
    assert.equal("problem", names.status)
    assert.matches(folder .. " has mode 0755", names.found, 1, true)
    assert.is_nil(more)
    assert.equal("chmod 700 " .. folder, names.command)
  end)
end)

describe("a registry's folder that is not there", function()
  for _, words in ipairs { { "agents" }, { "registry", "status" }, { "watch" },
                           { "lookup", "a" }, { "call", "a", "b.c" },
                           { "ping", "a" } } do
    it("is told by " .. words[1] .. ", and not made", function()
      local path = command.folder() .. "/typo/deep"
      words[#words + 1] = "--registry"
      words[#words + 1] = "folder:" .. path
      local status, text, errors = command.run(unpack(words))
      assert.equal(1, status)
      assert.equal("", text)
      assert.matches(("the registry's folder %s is not there; is this its "
        .. "path?"):format(path), errors, 1, true)
      assert.is_false(os.rename(command.folder() .. "/typo",
                                command.folder() .. "/typo") or false)
    end)
  end

  it("is no error where it is the host's own", function()
    local status, text, errors = command.run("agents")
    assert.equal(0, status, errors)
    assert.equal("", text)
    assert.matches("there is no agent in scope cli", errors, 1, true)
  end)
end)
