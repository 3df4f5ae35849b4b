-- SPDX-License-Identifier: Apache-2.0
-- `perigee serve FILE`: what files may return, and how it ends.
local command = require "spec.support.command"
local ffi = require "ffi"
local manager = require "spec.support.manager"

after_each(command.clean)

local function serve(text, ...)
  local words = { ... }
  words[#words + 1] = command.file("serve.lua", text)
  return command.start("serve", unpack(words))
end

local CALC = "{ name = 'calc', methods = { add = function(a, b) return a + b "
  .. "end } }"

-- Says whether an agent of that name adds.
local function adds(name)
  local status, text = command.run("call", name, "calc.add", "1", "2")
  return status == 0 and text == "3\n"
end

describe("perigee serve", function()
  it("serves a service", function()
    local server = serve("return " .. CALC, "--name", "one")
    assert.matches("^serving calc as one in scope cli ", server:read())
    assert.is_true(adds "one")
  end)

  it("serves a list of services", function()
    local server = serve("return { " .. CALC .. ", { name = 'more', methods = "
      .. "{} } }", "--name", "one")
    assert.matches("^serving calc and more as one ", server:read())
    assert.is_true(adds "one")
  end)

  it("serves by the options of perigee.agent, its own first", function()
    local server = serve("return { name = ..., scope = 'else', services = { "
      .. CALC .. " } }", "--scope", "cli", "--listen", "tcp://127.0.0.1:0")
    assert.matches("^serving calc as %S+ in scope cli at unix:%S+ "
      .. "tcp://127.0.0.1:%d+;", server:read())
  end)

  it("leaves what follows the file to the file", function()
    local path = command.file("serve.lua", "print(...) return { name = (...), "
      .. "services = { " .. CALC .. " } }")
    local server = command.start("serve", path, "mine", "--name", "x", "-1")
    server:expect "mine\t--name\tx\t-1"
    assert.matches("^serving calc as mine ", server:read())
  end)

  it("serves an agent that the file made, returned or not", function()
    for _, last in ipairs { "return agent", "" } do
      local server = serve("local agent = assert(require 'perigee'.agent { name"
        .. " = 'own', services = { " .. CALC .. " } }) " .. last)
      assert.matches("^serving calc as own ", server:read())
      assert.is_true(adds "own")
      server:signal "TERM"
      assert.same({ "exit", 0 }, { server:wait() })
    end
  end)

  it("runs a file that serves by itself", function()
    local server = serve("local perigee = require 'perigee' perigee.spawn("
      .. "print, 'up') assert(perigee.serve { name = 'own', services = { "
      .. CALC .. " } }) print 'over'")
    server:expect "up"
    assert.is_true(adds "own")
    server:signal "TERM"
    server:expect "over"
    assert.same({ "exit", 0 }, { server:wait() })
  end)

  it("lets calls that are under way end at SIGTERM", function()
    local server = serve([[
      local perigee = require "perigee"
      return { name = "slow", services = { { name = "work", methods = {
        begin = function()
          print "begun"
          io.stdout:flush()
          perigee.sleep(2.5)            -- longer than a plain stop takes
          return "done"
        end,
      } } } }]])
    assert.matches("^serving work as slow ", server:read())
    local caller = command.start("call", "slow", "work.begin")
    server:expect "begun"
    server:signal "TERM"
    assert.same({ "exit", 0 }, { server:wait() })
    assert.equal('"done"', (caller:read()))
    assert.same({ "exit", 0 }, { caller:wait() })
  end)

  it("tells a service manager that it serves, and that it ends", function()
    local path = command.folder() .. "/notify"
    local fd = manager.open(path)
    ffi.C.spec_setenv("NOTIFY_SOCKET", path, 1)
    local server = serve("return " .. CALC)
    ffi.C.unsetenv "NOTIFY_SOCKET"
    assert.equal("READY=1", manager.hear(fd))
    assert.matches("^serving calc ", server:read())
    server:signal "TERM"
    assert.equal("STOPPING=1", manager.hear(fd))
    assert.same({ "exit", 0 }, { server:wait() })
    manager.close(fd)
  end)

  it("ends at once at a second signal, or when --drain is over", function()
    for _, drain in ipairs { "1h", "10ms" } do
      local server = serve([[
        local perigee = require "perigee"
        return { name = "slow", services = { { name = "work", methods = {
          begin = function()
            print "begun"
            io.stdout:flush()
            perigee.sleep(3600)
          end,
        } } } }]], "--drain", drain)
      assert.matches("^serving work as slow ", server:read())
      local caller = command.start("call", "slow", "work.begin")
      server:expect "begun"
      server:signal "TERM"
      if drain == "1h" then server:signal "INT" end
      assert.is_string((server:wait()))
      assert.matches("^perigee call: calling work.begin of slow: ",
                     caller:read())
      assert.same({ "exit", 1 }, { caller:wait() })
    end
  end)

  it("says what is wrong with a file", function()
    for text, case in pairs {
      ["return 7"] = { 2, "returned a number; it has to return a service" },
      ["local x"] = { 2, "returned nothing and serves nothing" },
      ["error 'no luck'"] = { 1, "serve.lua failed: .-: no luck\nstack" },
      ["x ="] = { 1, "serve.lua:1: unexpected symbol" },
      ["return { nome = 'x' }"] = { 2, 'has no option "nome"' },
      ["return { name = 'a/b' }"] = { 2, "option name of perigee.agent must" },
    } do
      local status, _, errors = command.run("serve",
                                            command.file("serve.lua", text))
      assert.equal(case[1], status, text)
      assert.matches("^perigee serve: .-" .. case[2], errors)
    end
    local status, _, errors = command.run("serve", "/nowhere.lua")
    assert.equal(2, status)
    assert.equal("perigee serve: cannot open /nowhere.lua: No such file or "
      .. "directory\n", errors)
  end)

  it("says who has the name", function()
    local first = serve("return " .. CALC, "--name", "one")
    assert.matches("^serving", first:read())
    local status, _, errors = command.run("serve", "--name", "one",
                                          command.folder() .. "/serve.lua")
    assert.equal(1, status)
    assert.matches("taking the name one in scope cli: process %d+ .- holds it;"
      .. " choose another name", errors)
  end)

  it("advises by what was sought, and not by the kind of failure", function()
    local file = command.file("serve.lua", "return " .. CALC)
    local first = serve("return " .. CALC, "--listen", "tcp://127.0.0.1:0")
    local taken = first:read():match "tcp://127.0.0.1:%d+"
    for words, why in pairs {
      ["PERIGEE_SECRET=file:/none perigee serve"] =
        "the secret's file /none cannot be read: No such file or directory",
      ["PERIGEE_REGISTRY=redis://127.0.0.1:1 PERIGEE_SECRET=file:/none "
        .. "perigee serve"] =
        "the secret's file /none cannot be read: No such file or directory",
      ["PERIGEE_SECRET=0123456789abcdef0123456789abcdef perigee serve "
        .. "--listen tcp://192.0.2.1:9"] =
        "cannot listen at tcp://192.0.2.1:9: this host has no such address",
      ["perigee serve --listen " .. taken] = taken .. " is in use by another "
        .. "listener; take another port, or stop the other one",
    } do
      local status, _, errors = command.shell(words .. " " .. file)
      assert.equal(1, status, words)
      assert.equal(why .. "\n", errors:sub(-#why - 1))
    end
  end)
end)
