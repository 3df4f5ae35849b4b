-- SPDX-License-Identifier: Apache-2.0
-- progress = "thread": while a target computes for long and does not poll, its
-- memory can be read and written, and it sends heartbeats.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local SIZE = 2 ^ 20

-- Serves compute(), which creates the file with .begun after its name, computes
-- until there is a file with .stop, and returns the region's first and last
-- bytes.
local function server(child, perigee_, ffi_, progress, file)
  local size = 2 ^ 20
  local agent = assert(child.cases.agent("worker", { progress = progress }))
  local own = ffi_.new("uint8_t[?]", size)
  agent.engine:register(own, size, { name = "own", access = "rw" })
  local shared = agent.engine:alloc(size, { name = "shared", access = "rw" })
  ffi_.fill(own, size, 0x11)
  ffi_.fill(shared.pointer, size, 0x11)
  local process_ = require "spec.support.process"
  local function compute()
    local limit, x = process_.now() + 60, 1
    assert(io.open(file .. ".begun", "w")):close()
    repeat
      for i = 1, 1e5 do x = (x * 31 + i) % 65521 end
      local stop = io.open(file .. ".stop")
      if stop then stop:close() end
    until stop or process_.now() > limit
    return own[0], own[size - 1], x
  end
  agent:serve {
    name = "x", version = 1,
    methods = {
      compute = compute,
      same = function(x) return x end,
      raw = { raw = true, function(request)
        local before = ffi_.string(request.pointer, request.length)
        compute()
        assert(ffi_.string(request.pointer, request.length) == before)
        return request
      end },
      fork = function()
        local core = require("perigee.native").C
        local pid = ffi_.C.spec_fork()
        if pid == 0 then
          local status = core.perigee_poll(agent.engine.handle, nil, 0)
          core.perigee_engine_close(agent.engine.handle)
          ffi_.C.spec_exit(status == core.PERIGEE_FORKED and 0 or 1)
        end
        local status_ = ffi_.new("int[1]", -1)
        ffi_.C.spec_waitpid(pid, status_, 0)
        return status_[0]
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("an engine", function()
  local engine, session, here, proxy, file

  before_each(function() file = os.tmpname() end)
  after_each(function()
    cases.cleanup()
    for _, ending in ipairs { "", ".begun", ".stop" } do
      os.remove(file .. ending)
    end
  end)

  local function begin(progress)
    process.start(server, progress, file):expect "ready"
    local agent
    proxy, agent = cases.proxy("x", { timeout = 60 })
    engine, session = agent.engine, assert(agent:session("worker"))
    here = engine:alloc(2 * SIZE)
  end

  -- Waits until the target has begun to compute; it does so until stop().
  local function begun()
    assert.is_true(cases.eventually(function()
      local f = io.open(file .. ".begun")
      if f then f:close() end
      return f ~= nil
    end, 20))
  end

  local function computing()
    local future = proxy.async:compute()
    begun()
    return future
  end

  local function stop(future)
    assert.is_false(future:done())
    assert(io.open(file .. ".stop", "w")):close()
  end

  local function moved(region, value, timeout)
    local out, back = here:slice(0, SIZE), here:slice(SIZE, SIZE)
    out:fill(value)
    local done, err = session:write { from = out, to = region:slice(0, SIZE),
                                      timeout = timeout }:wait()
    if not done then return nil, err end
    back:fill(0)
    done, err = session:read { from = region:slice(0, SIZE), to = back,
                               timeout = timeout }:wait()
    return done and back:string() == string.char(value):rep(SIZE), err
  end

  it("with a thread answers reads and writes as it computes", function()
    begin "thread"
    local future = computing()
    for value, name in ipairs { "own", "shared" } do
      local region = assert(session:region(name))
      for _ = 1, 5 do assert.is_true(moved(region, value)) end
    end
    stop(future)
    local first, last = future:wait(60)
    assert.same({ 1, 1 }, { first, last })
    assert.equal(5, (proxy:same(5)))
  end)

  it("without one answers when it has computed", function()
    begin "poll"
    local region = assert(session:region "own")
    if session:explain().transport == "verbs" then
      pending "a device needs nobody"
      return
    end
    local future = computing()
    local done, err = moved(region, 7, 0.2)
    assert.is_nil(done)
    assert.equal("timeout", err.kind)
    stop(future)
    assert(future:wait(60))
    assert.is_true(moved(region, 8))
  end)

  it("leaves what a handler looks at where it is", function()
    begin "thread"
    local region = assert(session:region "own")
    local text = cases.bytes(5000, 1)
    local future = proxy.async:raw(text)
    begun()
    for _ = 1, 30 do
      assert.is_true(moved(region, 3))
    end
    stop(future)
    assert.is_true(future:wait(60) == text)
  end)

  it("takes calls that come as it computes, and answers them in order",
     function()
    begin "thread"
    local region = assert(session:region "own")
    local future = computing()
    local calls = {}
    for i = 1, 200 do calls[i] = proxy.async:same(i) end
    assert.is_true(moved(region, 4))
    stop(future)
    for i = 1, 200 do assert.equal(i, (calls[i]:wait(60))) end
  end)

  it("takes turns with its thread", function()
    begin "thread"
    for i = 1, math.max(200, 1e5 * cases.scale) do
      assert.equal(i, (proxy:same(i)))
    end
  end)

  it("closes as its thread works", function()
    for round = 1, 10 do
      local mine = cases.engine { progress = "thread" }
      local listener = assert(mine:listen(cases.address("close" .. round)))
      local region = mine:alloc(4096, { name = "r", access = "rw" })
      local other = cases.engine()
      local session_ = assert(other:connect(listener.address))
      local remote = assert(session_:region "r")
      local futures = {}
      local slice = other:alloc(4096):slice()
      for i = 1, 20 do
        futures[i] = session_:read { from = remote:slice(0, 4096), to = slice }
      end
      process.usleep(round * 3e-4)
      mine:close()
      for i = 1, 20 do
        futures[i]:wait(5)
        assert.is_true(futures[i]:done())
      end
      assert.is_truthy(region)
      other:close()
    end
  end)

  it("ends with the program, closed or not", function()
    local child = process.start(function(child, perigee_)
      perigee_.engine { progress = "thread" }
      child.say "ready"
    end):expect "ready"
    assert.same({ "exit", 0 }, { child:wait(5) })
  end)

  it("has no thread in a forked child", function()
    begin "thread"
    for _ = 1, 10 do assert.equal(0, (proxy:fork())) end
    assert.is_true(moved(assert(session:region "own"), 9))
  end)

  it("says what progress may be", function()
    assert.has_error(function() perigee.engine { progress = true } end)
    assert.has_error(function() perigee.engine { progress = "threads" } end)
  end)
end)

-- Two network namespaces serve as two hosts.
describe("heartbeats between hosts", function()
  local space = "perigee-progress-" .. process.pid()
  local ends = { "pga" .. process.pid(), "pgb" .. process.pid() }
  local net = ("10.213.%d."):format(process.pid() % 250)
  local dead = 2 * math.min(2, cases.slow)

  local function sh(command)
    return os.execute(("{ " .. command .. "; } >/dev/null 2>&1")
      :gsub("SPACE", space):gsub("HERE", ends[1]):gsub("THERE", ends[2])
      :gsub("NET", net)) == 0
  end

  after_each(function()
    cases.cleanup()
    sh "ip link del HERE; ip netns del SPACE"
  end)

  local function computer(child, perigee_, _, progress, address, dead_)
    dead_ = tonumber(dead_)
    local engine = assert(perigee_.engine {
      progress = progress, dead_after = dead_, insecure = true })
    local listener = assert(engine:listen(address))
    child.say "ready"
    local session = assert(listener:accept(10))
    child.say "accepted"
    local process_ = require "spec.support.process"
    local limit = process_.now() + 3 * dead_
    while process_.now() < limit do end
    child.say(session:explain().state)
    child.hear()
  end

  -- Whether the session is open after the peer computed for three times
  -- dead_after.
  local function survives(progress)
    local address = "tcp://" .. net .. "2:7471"
    local child = process.spawn { "ip", "netns", "exec", space, "luajit",
                                  "spec/support/child.lua", progress, address,
                                  tostring(dead) }
    local code = string.dump(computer)
    child:write(#code .. "\n" .. code)
    child:expect "ready"
    local engine = cases.engine { dead_after = dead }
    local session = assert(engine:connect(address, { transport = "tcp" }))
    child:expect("accepted", 10, function() perigee.sleep(0.001) end)
    local lost
    child:read(60, function()
      perigee.sleep(0.01)
      lost = lost or session:explain().state ~= "open"
    end)
    return not lost
  end

  for progress, what in pairs { thread = "go on by a thread",
                                poll = "stop without one" } do
    it(what .. ", as a peer computes", function()
      if (os.getenv "PERIGEE_TRANSPORT" or "tcp") ~= "tcp" then
        pending "this is about TCP"
      elseif not sh([[ip netns add SPACE &&
          ip link add HERE type veth peer name THERE &&
          ip link set THERE netns SPACE && ip addr add NET1/24 dev HERE &&
          ip link set HERE up && ip -n SPACE addr add NET2/24 dev THERE &&
          ip -n SPACE link set THERE up && ip -n SPACE link set lo up]]) then
        pending "there are no network namespaces to be had (root, iproute2)"
      else
        assert.equal(progress == "thread", survives(progress))
      end
    end)
  end
end)
