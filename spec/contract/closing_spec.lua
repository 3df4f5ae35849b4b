-- SPDX-License-Identifier: Apache-2.0
-- Closing: idempotent, children first, a fence for regions; and forks.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  agent.engine:alloc(2 ^ 16, { name = "lent", access = "rw" })
  agent:serve {
    name = "x", version = 1,
    methods = {
      same = function(x) return x end,
      sleep = function(seconds) perigee_.sleep(seconds) end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("close", function()
  before_each(function() process.start(server):expect("ready") end)
  after_each(cases.cleanup)

  it("is idempotent for every object", function()
    local engine = cases.engine()
    local region = engine:alloc(4096, { name = "r", access = "rw" })
    local words = ffi.new("uint8_t[64]")
    local foreign = engine:register(words, 64)
    local listener = assert(engine:listen(cases.address("close")))
    local proxy, agent = cases.proxy("x", { timeout = 5 })
    local session = assert(agent:session("worker"))
    for _, object in ipairs { region, foreign, listener, session, agent,
                              engine } do
      object:close()
      object:close()
    end
    assert.is_false((pcall(function() return proxy:same(1) end))
      and proxy:same(1) == 1)
  end)

  it("of an agent ends its calls in closed", function()
    local proxy, agent = cases.proxy("x", { timeout = 5 })
    local futures = {}
    for i = 1, 10 do futures[i] = proxy.async:sleep(3) end
    perigee.sleep(0.01)
    agent:close()
    for i = 1, 10 do
      assert.is_true(futures[i]:done())
      local got, err = futures[i]:wait(0)
      assert.is_nil(got)
      assert.equal("closed", err.kind)
    end
    local got, err = proxy:same(1)
    assert.is_nil(got)
    assert.equal("closed", err.kind)
    assert.is_false(err.sent)
  end)

  it("of a session ends the peer's calls in peer_lost", function()
    local agent = assert(cases.agent("parent"))
    agent:serve { name = "y", version = 1, methods = {
      sleep = function() perigee.sleep(60) end } }
    local child = process.start(function(child)
      local own = assert(child.cases.agent())
      local proxy = assert(own:proxy("parent", "y", { timeout = 20 }))
      local future = proxy.async:sleep()
      child.say("called")
      local got, err = future:wait(20)
      child.say(tostring(got), err.kind)
    end)
    child:expect("called", 30, function() perigee.sleep(0.001) end)
    perigee.sleep(0.02)
    agent:close()
    child:expect("nil peer_lost")
  end)

  it("of an engine goes children first", function()
    local engine = cases.engine()
    local region = engine:alloc(4096, { name = "r" })
    local listener = assert(engine:listen(cases.address("first")))
    local slice = region:slice(0, 10)
    engine:close()
    assert.is_false((pcall(function() return slice.pointer[0] end)))
    assert.is_false((pcall(function() return region:slice(0, 1) end)))
    local none = select(2, pcall(function() return listener:accept(0.01) end))
    assert.is_true(not none or type(none) == "string")
    listener:close()
    region:close()
  end)

  it("of a listener frees its address at once", function()
    local engine = cases.engine()
    for _ = 1, 50 do
      local listener = assert(engine:listen(cases.address("again")))
      local none, err = engine:listen(cases.address("again"))
      assert.is_nil(none)
      assert.equal("name_taken", err.kind)
      listener:close()
    end
  end)

  it("of an agent frees its name at once", function()
    for _ = 1, 50 do
      local agent = assert(cases.agent("freed"))
      local none, err = cases.agent("freed")
      assert.is_nil(none)
      assert.equal("name_taken", err.kind)
      agent:close()
    end
  end)

  it("of a stopped engine's futures does not hang", function()
    local engine = cases.engine()
    local accepting = engine:listen(cases.address("hang"))
    local future = perigee.spawn(function() return accepting:accept(5) end)
    perigee.sleep(0.01)
    engine:close()
    local got, err = future:wait(1)
    assert.is_nil(got)
    assert.equal("closed", err.kind)
  end)
end)

describe("closing a region", function()
  local child, session, engine, remote, here

  before_each(function()
    child = process.start(function(worker)
      local own = worker.cases.engine()
      local region = own:alloc(2 ^ 24, { name = "r", access = "rw" })
      local again = region
      local listener = assert(own:listen(worker.cases.address()))
      worker.say("ready")
      assert(listener:accept(10))
      while true do
        local line = worker.attend()
        if line == "close" then
          worker.say(tostring(again:close(5)))
        elseif line == "alloc" then
          again = own:alloc(2 ^ 24, { name = "r", access = "rw" })
          again:slice(0, 10):fill(9)
          worker.say("made")
        end
      end
    end):expect("ready")
    engine, session = cases.connect()
    remote = assert(session:region("r"))
    here = cases.alloc(engine, 2 ^ 24)
  end)
  after_each(cases.cleanup)

  it("is a fence, after which its old handle is stale", function()
    local one = { from = here:slice(0, 10), to = remote:slice(0, 10) }
    assert(session:write(one):wait(5))
    child:tell("close")
    child:expect("true")
    local done, err = session:write(one):wait(5)
    assert.is_nil(done)
    assert.equal("stale", err.kind)
    local none
    none, err = session:region("r")
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
  end)

  it("does not make a later one of the same name answer for it", function()
    local one = { from = remote:slice(0, 10), to = here:slice(0, 10) }
    assert(session:read(one):wait(5))
    child:tell("close")
    child:expect("true")
    child:tell("alloc")
    child:expect("made")
    local done, err = session:read(one):wait(5)
    assert.is_nil(done)
    assert.equal("stale", err.kind)
    assert.equal(0, cases.byte(here:slice(0, 1)))
    local new = assert(session:region("r"))
    assert(session:read { from = new:slice(0, 10),
                          to = here:slice(0, 10) }:wait(5))
    assert.equal(9, cases.byte(here:slice(0, 1)))
  end)
end)

describe("a region under traffic", function()
  after_each(cases.cleanup)

  it("is left by its peers when close returns", function()
    local engine = cases.engine()
    local listener = assert(engine:listen(cases.address()))
    local child = process.start(function(child, perigee_)
      local own = child.cases.engine()
      local session = assert(own:connect(child.cases.address()))
      local here = own:alloc(2 ^ 24)
      while true do
        local remote = session:region("busy")
        if not remote then break end
        local err
        child.say("at it")
        repeat
          local _, why = session:write { from = here:slice(0, 2 ^ 24),
                                         to = remote:slice(0, 2 ^ 24) }:wait(5)
          err = why
          perigee_.sleep(0)
        until err
        child.say(err.kind)
        child.attend()
      end
      child.say("gone")
    end)
    local pump = function() perigee.sleep(0.001) end
    local region = engine:alloc(2 ^ 24, { name = "busy", access = "w" })
    assert(listener:accept(5))
    for round = 1, 10 do
      child:expect("at it", 30, pump)
      perigee.sleep(0.003 * round)
      assert.is_true(region:close(5))
      child:expect("stale", 30, pump)
      if round < 10 then
        region = engine:alloc(2 ^ 24, { name = "busy", access = "w" })
      end
      child:tell("")
    end
    child:expect("gone", 30, pump)
  end)
end)

describe("a program that just ends", function()
  after_each(cases.cleanup)

  local ways = {
    ["by returning"] = function(child)
      child.cases.agent("ending")
      child.say("made")
      child.hear()
    end,
    ["by os.exit"] = function(child)
      child.cases.agent("ending")
      child.cases.agent()
      child.say("made")
      child.hear()
      os.exit(0)
    end,
    ["by os.exit that closes its Lua state"] = function(child)
      child.cases.agent("ending")
      child.say("made")
      child.hear()
      os.exit(0, true)
    end,
    ["by an error in run"] = function(child, perigee_)
      child.cases.agent("ending")
      child.say("made")
      child.hear()
      pcall(perigee_.run, function() error("of main") end)
    end,
  }

  for way, f in pairs(ways) do
    it(way .. " leaves nothing in the registry's folder", function()
      local child = process.start(f):expect("made")
      child:tell("")
      assert.same({ "exit", 0 }, { child:wait(5) })
      local pipe = io.popen(("find '%s' ! -type d"):format(cases.folder))
      assert.equal("", pipe:read("*a"))
      pipe:close()
    end)
  end
end)

describe("after a fork", function()
  after_each(cases.cleanup)

  it("every use is an error in the child, none in the parent", function()
    process.start(server):expect("ready")
    local child = process.start(function(child, _, ffi_)
      ffi_.cdef "int fork(void); int waitpid(int, int *, int);"
      local agent = assert(child.cases.agent())
      local proxy = assert(agent:proxy("worker", "x",
        { timeout = 5 * child.cases.slow }))
      assert(proxy:same(1) == 1)
      local pid = ffi_.C.fork()
      if pid == 0 then
        local fine, got, err = pcall(function() return proxy:same(2) end)
        child.say(tostring(fine), tostring(fine and got or "raised"),
                  type(err))
        os.exit(0)
      end
      ffi_.C.waitpid(pid, nil, 0)
      child.say("parent", proxy:same(3))
    end)
    local line = assert(child:read())
    assert.is_truthy(line:find("^false raised") or line:find("^true nil"))
    child:expect("parent 3")
  end)

  it("the child's own engines work, and the parent's memory raises", function()
    local child = process.start(function(child, perigee_, ffi_)
      ffi_.cdef "int fork(void); int waitpid(int, int *, int);"
      local cases_ = child.cases
      local engine, other = cases_.engine(), cases_.engine()
      local listener = assert(other:listen(cases_.address("parent")))
      local near = assert(engine:connect(cases_.address("parent"),
                                         { timeout = 5 }))
      local far = assert(listener:accept(5))
      local region = cases_.alloc(other, 64, { name = "r", access = "rw" })
      local future = far:recv(region:slice(0, 8))
      local function say_error(f)
        local _, message = pcall(f)
        child.say((tostring(message):gsub("^.-: ", "", 1)))
      end
      local pid = ffi_.C.fork()
      if pid == 0 then
        local slice = region:slice(0, 8)
        say_error(function() slice:string() end)
        say_error(function() slice:write "x" end)
        say_error(function() slice:fill(1) end)
        local one, two = cases_.engine(), cases_.engine()
        local own = assert(two:listen(cases_.address("child")))
        local dialed = assert(one:connect(cases_.address("child"),
                                          { timeout = 5 }))
        local accepted = assert(own:accept(5))
        -- CUDA does not work in a forked child.
        local got = accepted:recv(two:alloc(8):slice())
        assert(dialed:send(one:alloc(8):slice()):wait(5))
        child.say("child", assert(got:wait(5)))
        say_error(function() future:wait(5) end)
        say_error(function() perigee_.wait_all({ future }, 5) end)
        os.exit(0)
      end
      ffi_.C.waitpid(pid, nil, 0)
      assert(near:send(cases_.alloc(engine, 8):slice()):wait(5))
      child.say("parent", assert(future:wait(5)))
    end)
    for _, what in ipairs { "string", "write", "fill" } do
      child:expect(("slice:%s: region \"r\" belongs to the parent process")
        :format(what))
    end
    child:expect("child 8")
    for _ = 1, 2 do
      child:expect("this engine belongs to the parent process; make another")
    end
    child:expect("parent 8")
  end)
end)
