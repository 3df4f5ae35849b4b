-- SPDX-License-Identifier: Apache-2.0
-- What happened between two looks at an agent's stats file, also if the file is
-- replaced, cut, or full of somebody else's bytes.
local cases = require "spec.support.cases"
local command = require "spec.support.command"
local ffi = require "ffi"
local perigee = require "perigee"
local planted = require "spec.support.planted_stats"
local sample = require "perigee.stats.sample"
local view = require "perigee.cli.top.view"

local agent, caller, proxy, path, copy

local function write(text)
  local file = assert(io.open(copy, "wb"))
  file:write(text)
  file:close()
end

local function path_of(one)
  return (one.address:match "^unix:(.*)%.sock$") .. ".stats"
end

before_each(function()
  agent, caller = assert(cases.agent()), assert(cases.agent())
  agent:serve { name = "s", methods = {
    f = function(text) return text end,
    fail = function() error("told to", 0) end,
    wait = function(seconds)
      if seconds > 0 then perigee.sleep(seconds) end
    end,
  } }
  proxy = assert(caller:proxy(agent.name, "s"))
  proxy:f ""
  path, copy = path_of(agent), os.tmpname()
end)

after_each(function()
  os.remove(copy)
  cases.cleanup()
end)

local function near(number, of)
  assert.is_true(math.abs(of - number) < 1e-6 * number + 1e-6,
                 ("%g is not %g"):format(of, number))
end

describe("an agent between two looks", function()
  it("has done nothing at the first one", function()
    local one = sample.new(path)
    assert.is_true(one:look())
    assert.equal(agent.name, one.name)
    assert.is_nil(one.seconds)
    assert.same({ 0, 0, 1, { "shm" } },
                { one.served, one.sent, one.sessions, one.transports })
    assert.is_true(one.memory > 2 ^ 20)
    one:look()
    assert.is_true(one.seconds > 0)
    assert.same({ 0, 0, 0 }, { one.served, one.sent, one.failures })
  end)

  it("has what its sessions without a row of their own did", function()
    local file = planted.new("a", "s")
    file.head.others_open, file.sums.bytes_sent = 3, 1000
    write(planted.bytes(file))
    local one = sample.new(copy)
    one:look()
    assert.same({ 3, 0 }, { one.sessions, one.sent })
    file.sums.bytes_sent = 1500
    write(planted.bytes(file))
    one:look()
    near(500, one.sent * one.seconds)
  end)

  it("has made and served calls, of which some failed", function()
    local one, two = sample.new(path), sample.new(path_of(caller))
    one:look()
    two:look()
    one:look_closely(true)
    for _ = 1, 100 do proxy:f(("x"):rep(1000)) end
    for _ = 1, 7 do proxy:fail() end
    one:look()
    two:look()
    near(107, one.served * one.seconds)
    near(107, two.called * two.seconds)
    near(7, one.failures * one.seconds)
    near(7, two.failures * two.seconds)
    assert.is_true(one.received * one.seconds >= 1e5)
    near(one.received * one.seconds, two.sent * two.seconds)
    assert.is_true(one.served_p50 > 0 and one.served_p50 <= one.served_p99)
    assert.same({}, { one.called_p50, two.served_p50 })
    local by = {}
    for _, each in ipairs(one:methods_now()) do by[each.method] = each end
    near(100, by.f.calls * one.seconds)
    assert.equal(101, by.f.total)
    near(7, by.fail.failures * one.seconds)
    assert.is_true(by.f.p50 <= by.f.p99)
    local session = one:sessions_now()[1]
    assert.same({ caller.name, "shm", "open" },
                { session.peer, session.transport, session.state })
    near(107, session.served * one.seconds)
    one:look()
    assert.same({ 0, 0, 0 }, { one.served, one.failures, one.received })
    assert.is_nil(one.p50)
  end)

  it("took as long for its calls as those took that ended since", function()
    local one = sample.new(path)
    for _ = 1, 400 do proxy:wait(0) end
    one:look()
    for _ = 1, 3 do
      proxy:wait(0.01)
      one:look()
      assert.is_true(one.p50 > 9e6)
    end
  end)

  it("has all of a session that opened since, also in a used row", function()
    local one = sample.new(path)
    one:look()
    local other = assert(cases.agent())
    assert(other:proxy(agent.name, "s")):f(("x"):rep(3000))
    one:look()
    assert.is_true(one.received * one.seconds >= 3000)
    local head = ffi.new "struct perigee_stats_head"
    local bytes = command.content(path)
    ffi.copy(head, bytes, ffi.sizeof(head))
    local at = tonumber(head.sessions.offset) + head.sessions.row
    write(bytes)
    one = sample.new(copy)
    one:look()
    write(bytes:sub(1, at) .. "\99" .. bytes:sub(at + 2))     -- another's id
    one:look()
    assert.is_true(one.received * one.seconds >= 3000)
  end)

  it("has what its sessions did until they ended, and once", function()
    local one = sample.new(path)
    one:look()
    proxy:f(("x"):rep(5000))
    caller:close()
    local received = 0
    assert.is_true(cases.eventually(function()
      one:look()
      received = received + one.received * one.seconds
      return one.sessions == 0
    end))
    for _ = 1, 3 do
      one:look()
      received = received + one.received * one.seconds
    end
    assert.is_true(received >= 5000 and received < 9000)
    assert.equal("ended", one:sessions_now()[1].state)
  end)

  it("begins anew with another life of its name", function()
    write(command.content(path))
    local one = sample.new(copy)
    one:look()
    for _ = 1, 50 do proxy:f "" end
    local head = ffi.new "struct perigee_stats_head"
    local bytes = command.content(path)
    ffi.copy(head, bytes, ffi.sizeof(head))
    head.epoch = head.epoch + 1
    write(ffi.string(head, ffi.sizeof(head)) .. bytes:sub(ffi.sizeof(head) + 1))
    one:look()
    assert.is_nil(one.seconds)
    assert.equal(0, one.served)
  end)

  it("is none without a file, or with one that is none", function()
    local one = sample.new(copy)
    for _, text in ipairs { "", "x", ("x"):rep(10000), "perigee\1" } do
      write(text)
      assert.is_false(one:look())
    end
    os.remove(copy)
    assert.is_false(one:look())
    os.execute(("ln -s %s %s"):format(path, copy))
    assert.is_false(one:look())
    os.execute(("rm %s; mkfifo %s"):format(copy, copy))
    assert.is_false(one:look())
  end)
end)

-- What `perigee top` shows of it fits in a terminal, and is ASCII.
local function show(one, detail)
  one.calls = one.called + one.served + one.others
  local model = { agents = { list = { one }, by_path = {} }, sort = "l",
                  filter = "", top = 0, interval = 1, detail = detail and one }
  for _, size in ipairs { { 80, 24 }, { 20, 10 }, { 300, 60 } } do
    local lines = view.lines(model, size[1], size[2])
    assert.is_true(#lines <= size[2])
    for _, line in ipairs(lines) do
      assert.is_true(#line.text <= size[1])
      assert.is_nil(line.text:find "[^ -~]")
    end
  end
end

-- Looks at the file, and at all that it tells.
local function look(one)
  if not one:look() then return end
  assert.is_true(one.served >= 0 and one.sent >= 0 and one.failures >= 0)
  assert.is_true(#one:sessions_now() <= 1024)
  assert.is_true(#one:methods_now() <= 1024)
  show(one, false)
  show(one, true)
end

describe("a look at a file that somebody else wrote", function()
  it("ends where the file does", function()
    local bytes, one = command.content(path), sample.new(copy)
    one:look_closely(true)
    for _, length in ipairs { #bytes, 100, 4096, 5000, 20000, 40000, 200000,
                              #bytes - 1, #bytes } do
      write(bytes:sub(1, length))
      look(one)
    end
  end)

  it("raises nothing, whatever the bytes", function()
    for _ = 1, 40 do proxy:f "" end
    local bytes, one = command.content(path), sample.new(copy)
    one:look_closely(true)
    for spoiled in planted.spoiled(bytes, 12) do
      write(spoiled)
      look(one)
      look(one)
    end
  end)

  it("knows rows of another length", function()
    local bytes = command.content(path)
    local head = ffi.new "struct perigee_stats_head"
    ffi.copy(head, bytes, ffi.sizeof(head))
    local one = sample.new(copy)
    write(bytes)
    one:look()
    local at, row = tonumber(head.sessions.offset), head.sessions.row
    head.sessions.offset, head.sessions.row = #bytes, row + 40
    write(ffi.string(head, ffi.sizeof(head)) .. bytes:sub(ffi.sizeof(head) + 1)
          .. bytes:sub(at + 1, at + row) .. ("\255"):rep(40))
    one:look()
    assert.equal(1, one.sessions)
    assert.equal(caller.name, one:sessions_now()[1].peer)
    head.sessions.row = 64
    write(ffi.string(head, ffi.sizeof(head)) .. bytes:sub(ffi.sizeof(head) + 1)
          .. bytes:sub(at + 1, at + 64))
    one:look()
    assert.equal(1, #one:sessions_now())
  end)
end)
