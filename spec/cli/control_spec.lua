-- SPDX-License-Identifier: Apache-2.0
-- Commands with names in a control server that wants tokens.
local cases = require "spec.support.cases"
local cjson = require "cjson"
local command = require "spec.support.command"
local control = require "spec.support.control"
local process = require "spec.support.process"
local redis = require "spec.support.redis"
local sockets = require "spec.net.sockets"

local server

local function there()
  if control.is_there() then return true end
  pending "no perigee/control.so"
end

after_each(function()
  cases.cleanup()
  command.clean()
end)

-- The server's address with a new token of a role.
local function address(role)
  local text = server:command("token new --role " .. role)
  local path = command.file(role, text)
  os.execute("chmod 600 " .. path)
  return ("%s?token=file:%s"):format(server.url, path)
end

describe("perigee ctrl without its libraries", function()
  it("says what to install", function()
    local core = package.searchpath("perigee.core", package.cpath)
    local build = command.folder() .. "/build"
    assert.equal(0, os.execute(("mkdir -p '%s/perigee' && ln -s \"$(realpath "
      .. "'%s')\" '%s/perigee/core.so'"):format(build, core, build)))
    for _, words in ipairs { "start", "serve", "token list" } do
      local status, text, why = command.shell(
        ("PERIGEE_BUILD='%s' LUA_CPATH='/-/?.so' XDG_STATE_HOME='%s' "
         .. "perigee ctrl %s"):format(build, build, words))
      assert.equal(2, status, why)
      assert.equal("", text)
      assert.matches("^perigee ctrl [^\n]*: perigee/control.so is not on "
        .. "package.cpath: install libcurl[^\n]*\n$", why)
    end
  end)
end)

describe("perigee ctrl token new", function()
  it("fails where its token cannot be written", function()
    if not there() then return end
    local status, _, why = command.shell(("perigee ctrl token new --store "
      .. "'%s/ctrl.db' >/dev/full"):format(command.folder()))
    assert.equal(1, status)
    assert.matches("its id, for revoke: %x+\n.*writing the output: No space",
                   why)
  end)
end)

describe("perigee ctrl token", function()
  it("asks a store that is there, and makes none", function()
    if not there() then return end
    local folder = command.folder() .. "/stores"
    local named = (" --store '%s/typo.db'"):format(folder)
    assert.equal(0, (command.shell(("mkdir '%s'"):format(folder))))
    for _, words in ipairs { "list", "list --json", "revoke x" } do
      for _, store in ipairs { named, "" } do
        local status, text, why = command.shell(
          ("export XDG_STATE_HOME='%s'; perigee ctrl token %s%s"):format(
            folder, words, store))
        assert.equal(1, status)
        assert.equal("", text)
        assert.matches("no store at " .. folder, why, 1, true)
        assert.equal("", select(2, command.shell("ls -A " .. folder)))
      end
    end
    assert.equal(0, (command.shell("perigee ctrl token new" .. named)))
    local status, text = command.shell("perigee ctrl token list" .. named)
    assert.equal(0, status)
    assert.matches("valid", text)
  end)
end)

describe("the guide", function()
  it("has a certificate and a token made with which a server is asked",
     function()
    if not there() then return end
    if os.execute "command -v openssl >/dev/null" ~= 0 then
      return pending "no openssl"
    end
    local file = assert(io.open "lua/perigee/README.md")
    local lines = file:read "*a":match "\n(    openssl req .-)\n\n"
    file:close()
    lines = lines:gsub("10%.0%.0%.5", "127.0.0.1")
      :gsub(":7470", ":" .. sockets.free_port())
      :gsub("PERIGEE_REGISTRY=('[^']*') luajit worker.lua",
            "perigee agents --json --registry %1\nperigee ctrl stop")
    local status, text, why = command.shell(("export XDG_STATE_HOME='%s'\n"
      .. "cd '%s'\n%s"):format(command.folder(), command.folder(), lines))
    assert.equal(0, status, why)
    assert.matches("^https://127%.0%.0%.1:%d+\n%[%]\n$", text, why)
  end)
end)

describe("perigee ctrl serve --pid FILE", function()
  it("holds its number and nothing else, for kill $(cat FILE)", function()
    if not there() then return end
    local file, store = command.folder() .. "/server.pid",
      command.folder() .. "/ctrl.db"
    local serving = command.start("ctrl", "serve", "--store", store, "--listen",
                                  "http://127.0.0.1:0", "--pid", file, "--log",
                                  "/dev/null")
    local url = serving:read()
    assert.matches("^http://127%.0%.0%.1:%d+$", url)
    assert.equal(serving.pid .. "\n", command.content(file))
    local words = ("--store '%s' --pid '%s'"):format(store, file)
    local status, text = command.shell("perigee ctrl status --json " .. words)
    assert.equal(0, status)
    local told = cjson.decode(text)
    assert.equal(serving.pid, told.pid)
    assert.equal(url, told.url)
    assert.equal(0, os.execute(("kill $(cat '%s')"):format(file)))
    assert.is_true(command.eventually(function()
      return command.is_gone(serving.pid)
    end))
    assert.equal(0, os.execute(("! ls '%s'* 2>/dev/null"):format(file)))
    assert.equal(1, (command.shell("perigee ctrl stop " .. words)))
  end)

  it("is not taken from a server that runs", function()
    if not there() then return end
    local file, folder = command.folder() .. "/server.pid", command.folder()
    local function serve(store)
      return "ctrl", "serve", "--store", folder .. store, "--listen",
             "http://127.0.0.1:0", "--pid", file, "--log", folder .. "/log"
    end
    local serving = command.start(serve "/one.db")
    local url = serving:read()
    local status, _, why = command.run(serve "/two.db")
    assert.equal(1, status)
    assert.matches(("of process %d, which runs and serves at %s"):format(
      serving.pid, url), why, 1, true)
    assert.equal(serving.pid .. "\n", command.content(file))
    local text
    status, text = command.run("ctrl", "status", "--pid", file, "--store",
                               folder .. "/one.db")
    assert.equal(0, status)
    assert.matches("^running as process " .. serving.pid, text)
    command.file("server.pid", "1\n")  -- another server's by now
    assert.equal(0, os.execute("kill " .. serving.pid))
    assert.is_true(command.eventually(function()
      return command.is_gone(serving.pid)
    end))
    assert.equal("1\n", command.content(file))
  end)

  it("is not taken for a later process with that number", function()
    local file = command.file("stale.pid", process.pid() .. "\n")
    command.file("stale.pid.state", process.pid() .. " 1 http://h:1\n")
    local status, text = command.run("ctrl", "status", "--pid", file, "--store",
                                     command.folder() .. "/ctrl.db")
    assert.equal(1, status)
    assert.matches("^not running from ", text)
  end)

  it("is what ctrl topology knows the server of a shared store by", function()
    if not there() then return end
    if not redis.is_there() then return pending(redis.needs) end
    redis.start()
    local status, text, why = command.shell(([[
      export XDG_STATE_HOME='%s' store='%s'
      perigee ctrl start --store "$store" --listen http://127.0.0.1:0 &&
      perigee ctrl topology get --json --store "$store"
      perigee ctrl stop --store "$store"]]):format(command.folder(),
        "redis+unix:" .. redis.path(cases)))
    assert.equal(0, status, why)
    assert.matches('\n{"actual":%[%],"wanted":{}}\n$', text)
  end)
end)

describe("commands that ask a control server", function()
  it("need a token that may read, and no more", function()
    if not there() then return end
    server = control.start()
    local reading = address "read"
    local worker = command.start("serve", "--name", "far", "--registry",
      address "register", command.file("calc.lua",
      "return { name = 'calc', methods = { max = math.max } }"))
    assert.matches("^serving calc as far ", worker:read())
    local status, text = command.run("call", "far", "calc.max", "1", "2",
                                     "--registry", reading)
    assert.equal(0, status)
    assert.equal("2\n", text)
    status, text = command.run("registry", "status", "--registry", reading)
    assert.equal(0, status)
    assert.equal(1, (text:find("the control server at " .. server.url, 1,
                               true)))
    local without
    assert.is_true(command.eventually(function()        -- it notices soon
      without = { command.run("agents", "--registry", server.url) }
      return without[1] == 1
    end))
    assert.matches("a bearer token is needed; .*%?token=file:PATH", without[3])
    local list = cjson.decode(server:command "token list --json")
    assert.equal(2, #list)
    assert.is_nil(list[1].hash)
  end)

  it("are told what stores there are", function()
    if not there() then return end
    local status, _, why = command.run("ctrl", "serve", "--store",
                                       "mysql://127.0.0.1")
    assert.equal(2, status)
    assert.matches("%-%-store is the path of a file, or an address of redis://",
                   why)
  end)

  it("show no password of a store's, whatever is in it", function()
    if not there() then return end
    local function shown(store)
      local status, text = command.run("ctrl", "status", "--store", store)
      assert.equal(1, status)
      local _, json = command.run("ctrl", "status", "--json", "--store", store)
      return text, json
    end
    for _, secret in ipairs { "hidden", "hid/den", "hid@den", "/hid/d@en",
                              "//hidden" } do
      for _, scheme in ipairs { "redis", "rediss", "etcd" } do
        local text, json = shown(scheme .. "://:" .. secret .. "@127.0.0.1:1")
        assert.matches("127.0.0.1", text, 1, true)
        assert.not_matches("hid", text .. json)
      end
    end
    assert.not_matches("hid", (shown "redis://h:1?password=hid/de@n"))
    assert.matches("redis+unix:///run/a@b/c.sock",
                   (shown "redis+unix:///run/a@b/c.sock?ttl=1"), 1, true)
  end)
end)

describe("perigee ctrl serve", function()
  it("does not serve with a limit that lets nothing through", function()
    if not there() then return end
    for _, words in ipairs { "--rate x", "--rate -1", "--patience 0",
                             "--connections 0", "--head 0", "--body 1.5" } do
      local name, value = words:match "^(%S+) (%S+)$"
      local status, text, why = command.shell(("perigee ctrl serve --store "
        .. "'%s/ctrl.db' --listen http://127.0.0.1:0 %s"):format(
          command.folder(), words))
      assert.equal(2, status, words)
      assert.equal("", text)
      assert.matches(('perigee ctrl serve: %s: "%s" is no number from '):format(
        name, value), why, 1, true)
    end
  end)
end)

describe("perigee ctrl topology", function()
  it("says who is to be connected, and tells who is", function()
    if not there() then return end
    server = control.start()
    local function topology(...)
      return command.run("ctrl", "topology", ...)
    end
    local admin = address "admin"
    local function at(...) return "--registry", admin, ... end
    local status, text, why = topology("get", at())
    assert.equal(0, status, why)
    assert.equal("", text)
    assert.equal("perigee ctrl topology get: nobody is to be connected in "
      .. "scope cli\n", why)
    status, text = topology("put", at("--edge", "b,a", "--edge", "a,c",
                                      "--mesh", "a,b"))
    assert.equal(0, status)
    assert.equal(2, select(2, text:gsub("absent +%- +nobody is called", "")))
    local file = command.file("topology.json", '{"mesh":["x","y"]}')
    status, text = topology("put", at("--json", file))
    assert.equal(0, status)
    assert.same({
      wanted = { mesh = { "x", "y" } },
      actual = { { ends = { "x", "y" }, dials = "x", state = "absent",
                   absent = { "x", "y" } } } }, cjson.decode(text))
    assert.equal('{"actual":[],"wanted":{}}\n',
                 select(2, topology("put", at("--none", "--json"))))
    for _, words in ipairs { { "--mesh", "a,*" },
                             { "--none", "--edge", "a,b" } } do
      assert.equal(2, (topology("put", at(unpack(words)))), words[1])
    end
    assert.equal(2, (topology("get", "--registry", "redis://h")))
    local wrong = { topology("put", at(command.file("wrong.json", "[1]"))) }
    assert.equal(1, wrong[1])
    assert.matches("the body must be an object in JSON", wrong[3], 1, true)
    local none = { topology("get", "--store", command.folder() .. "/x.db") }
    assert.equal(1, none[1])
    assert.matches("no server runs from", none[3], 1, true)
  end)

  it("is not taken away by a slip", function()
    if not there() then return end
    server = control.start()
    local admin = address "admin"
    local function put(...)
      return command.run("ctrl", "topology", "put", "--registry", admin, ...)
    end
    assert.equal(0, (put("--edge", "a,b")))
    local function refused(why, ...)
      local status, text, told = put(...)
      assert.equal(2, status, why)
      assert.equal("", text)
      assert.matches(why, told, 1, true)
    end
    refused('a topology has edges and mesh, and no "edgez"',
            command.file("slip.json", '{"edgez":[["a","c"]]}'))
    local nobody = "that connects nobody: --none says so"
    refused(nobody, command.file("empty.json", '{"edges":[],"mesh":["a"]}'))
    refused(nobody, "--mesh", "a,a")
    refused(nobody, "--edge", "a,a")
    local _, text = command.run("ctrl", "topology", "get", "--registry", admin,
                                "--json")
    assert.same({ edges = { { "a", "b" } } }, cjson.decode(text).wanted)
  end)
end)
