-- SPDX-License-Identifier: Apache-2.0
-- Who gets in at a control server: after its store was emptied, by what goes
-- over the network, and from pages of the web.
local asking = require "spec.support.asking"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local command = require "spec.support.command"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local redis = require "spec.support.redis"
local registries = require "perigee.registry"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

local ask, await = asking.ask, cases.await
local STRANGER = asking.STRANGER

-- The words of a server that does not start.
local function refused_start(server)
  local _, _, why = command.shell(("timeout %d luajit lua/perigee/cli/perigee "
    .. "ctrl serve --store '%s' --pid '%s.pid' --listen http://127.0.0.1:0 "
    .. "</dev/null"):format(20 * cases.slow, server.address or server.store,
                            server.store))
  return why
end

local function empty_file(server)
  os.execute(("rm -f '%s' '%s-wal' '%s-shm'"):format(server.store,
             server.store, server.store))
end

needing("a control server that had tokens", { control, redis }, function()
  after_each(asking.finish)
  after_each(command.clean)

  for what, more in pairs { ["a server"] = {},
                            ["one that is insecure"] = { "--insecure" } } do
    it("lets nobody in without one when Redis was emptied while it ran: "
      .. what, function()
      local store = redis.start()
      local server = asking.begin(more, nil, nil,
                                  "redis+unix:" .. redis.path(cases))
      local token = server:command "token new --role register"
      local bearer = { "Authorization: Bearer " .. token }
      await(function()
        return ask("GET", "agents", nil, STRANGER) == 401
      end)
      store:ask "FLUSHALL"
      await(function() return ask("GET", "agents", nil, bearer) == 401 end)
      assert.equal(401, (ask("GET", "agents", nil, STRANGER)))
      assert.equal(401, (ask("DELETE", "agents/x", nil, STRANGER)))
      server:kill()
      local why = refused_start(server)
      assert.matches("had tokens, and has none: it was emptied", why)
      assert.matches("perigee ctrl token new", why)
      local mark = why:match "remove (/%S+%.tokens) to"
      assert.equal(51, #server:command "token new --role read")
      server:begin()
      assert.equal(401, (ask("GET", "agents", nil, STRANGER)))
      server:kill()
      store:ask "FLUSHALL"
      os.remove(mark)
      server:begin()
      assert.equal(200, (ask("GET", "agents", nil, STRANGER)))
    end)
  end

  it("stays closed that comes back before its store does", function()
    local store = redis.start()
    local server = asking.begin({}, nil, nil, ("redis+unix:%s?timeout=%g")
      :format(redis.path(cases), cases.slow))
    server:command "token new"
    await(function() return ask("GET", "agents", nil, STRANGER) == 401 end)
    server:kill()
    store:kill()
    server:begin()
    store:begin()
    await(function() return ask("GET", "/readyz") == 200 end)
    assert.equal(401, (ask("GET", "agents", nil, STRANGER)))
  end)

  it("does not start from a new file, whoever has made the token", function()
    local server = asking.begin()
    server:kill()
    server:command "token new"
    empty_file(server)
    assert.matches("had tokens, and has none", refused_start(server))
    os.remove(server.store .. ".tokens")
    server:begin()
    assert.equal(200, (ask("GET", "agents", nil, STRANGER)))
  end)
end)

needing("a token", { control, redis }, function()
  local log, said

  before_each(function()
    log, said = perigee.log, {}
    perigee.log = function(level, text)
      said[#said + 1] = level .. " " .. text
    end
  end)
  after_each(function()
    perigee.log = log
    asking.finish()
  end)

  local function open(address)
    assert(registries.open(address), address)
    return table.concat(said, "\n")
  end

  it("that goes to another host as it is is warned of once", function()
    local text = open "http://127.0.0.1:1,10.9.8.7:1/?token=x1"
    assert.matches("^warning the token for the control server at .* goes to "
      .. "10.9.8.7 as it is, .* use https:// .*%-%-tls%-cert", text)
    assert.is_nil(text:find("x1", 1, true))
    open "http://127.0.0.1:1,10.9.8.7:1/?token=x1"
    assert.equal(1, #said)
    for _, address in ipairs {
      "http://127.0.0.1:1,[::1]:2,LOCALHOST:3/?token=x2",
      "https://10.9.8.7/?token=x3", "http://10.9.8.7",
      "redis://:pw@127.0.0.1:1", "rediss://:pw@10.9.8.7", "etcd://u:pw@[::1]",
    } do
      open(address)
      assert.equal(1, #said, address)
    end
  end)

  it("or a password, of Redis or of etcd, too", function()
    assert.matches("warning the password for Redis .* use rediss://",
                   open "redis://:pw3@10.9.8.7:1")
    assert.matches("warning the password for etcd .* use etcds://",
                   open "etcd://u:pw3@10.9.8.7:1")
    assert.is_nil(table.concat(said):find("pw3", 1, true))
  end)

  it("in a file that others may read is refused", function()
    local server = asking.begin()
    local path = cases.folder .. "/token"
    local file = assert(io.open(path, "w"))
    file:write(server:command "token new", "\n")
    file:close()
    local address = ("%s?token=file:%s"):format(server.url, path)
    for _, mode in ipairs { "644", "640", "602" } do
      os.execute(("chmod %s '%s'"):format(mode, path))
      local none, why = registries.open(address)
      assert.is_nil(none)
      assert.matches("token: it must be this user's, with no access for others "
        .. "%(chmod 600%)", why)
    end
    os.execute(("chmod 600 '%s'"):format(path))
    local one = assert(backends.take(address, "one"))
    assert(one:lookup "one")
  end)
end)

needing("a page of the web", { control, redis }, function()
  after_each(asking.finish)

  local function status_of(server, line, host, more)
    local fd = sockets.dial("tcp://127.0.0.1:" .. server.port)
    sockets.send(fd, ("%s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: 2\r\n"
      .. "Content-Type: application/json\r\nConnection: close\r\n\r\n{}")
      :format(line, host, more or ""))
    local text = sockets.hear(fd, LONG)
    sockets.close(fd)
    return tonumber(text:match "^HTTP/1.1 (%d+)")
  end

  for what, case in pairs {
    ["with a file"] = {},
    ["over Redis"] = { redis = true },
    ["at all addresses"] = { more = { "--insecure", host = "0.0.0.0" } },
    ["over Redis at all addresses"] = {
      redis = true, more = { "--insecure", host = "0.0.0.0" } },
  } do
    it("asks nothing of a server without tokens " .. what .. ", whatever "
      .. "name has led there", function()
      if case.redis then redis.start() end
      local server = asking.begin(case.more, nil, nil, case.redis
        and "redis+unix:" .. redis.path(cases) or nil)
      await(function()
        return status_of(server, "GET /readyz", "localhost") == 200
      end)
      local own = "127.0.0.1:" .. server.port
      for _, line in ipairs {
        "GET /v1/scopes/s/agents", "PUT /v1/scopes/s/entities/x",
        "GET /v1/scopes/s/watch?for=0", "PUT /v1/scopes/s/topology",
        "OPTIONS /v1/scopes/s/entities/x", "GET /openapi.json",
      } do
        for _, host in ipairs { "evil.example", "evil.example:" .. server.port,
                                process.pid() .. ".rebind.example" } do
          assert.equal(403, status_of(server, line, host), line)
          assert.equal(403, status_of(server, line, host, "Origin: http://"
            .. host .. "\r\n"), line)
        end
        for _, origin in ipairs { "http://evil.example", "null",
                                  "http://localhost:1" } do
          assert.equal(403, status_of(server, line, own, "Origin: " .. origin
            .. "\r\n"), line)
        end
        assert.are_not.equal(403, status_of(server, line, own))
      end
    end)
  end
end)
