-- SPDX-License-Identifier: Apache-2.0
-- Messages and immediates: they match receives in order, land where the
-- receiver says, and wait no longer than their timeout.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LENGTH = 2 ^ 26

-- Does what its parent says, one line at a time.
local function peer(child)
  local length = 2 ^ 26
  local engine = child.cases.engine()
  local region = child.cases.alloc(engine, length,
                                   { name = "box", access = "rw" })
  local listener = assert(engine:listen(child.cases.address()))
  child.say("ready")
  local session = assert(listener:accept(10))
  local commands = {}
  function commands.recv(size, timeout)
    local n, err = session:recv(region:slice(0, size)):wait(timeout or 10)
    child.say(n or err.kind)
  end
  function commands.send(size, value)
    region:slice(0, size):fill(value)
    local done, err = session:send(region:slice(0, size)):wait(10)
    child.say(done and "sent" or err.kind)
  end
  function commands.imm()
    local value, err = session:recv_imm():wait(10)
    child.say(value or err.kind, child.cases.byte(region:slice(0, 1)))
  end
  function commands.imms(count)
    local futures, values = {}, {}
    for i = 1, count do futures[i] = session:recv_imm() end
    child.say("posted")
    for i = 1, count do values[i] = assert(futures[i]:wait(10)) end
    child.say(unpack(values))
  end
  function commands.echo(count)
    for _ = 1, count do
      local n = assert(session:recv(region:slice(0, length)):wait(10))
      assert(session:send(region:slice(0, n)):wait(10))
    end
    child.say("echoed")
  end
  function commands.byte(offset)
    child.say(child.cases.byte(region:slice(offset, 1)))
  end
  function commands.rest() -- hears what its peer has said
    require("perigee").sleep(0.05)
    child.say("rested")
  end
  for line in child.attend do
    local name, a, b = line:match("^(%a+) ?(%S*) ?(%S*)")
    commands[name](tonumber(a), tonumber(b))
  end
end

describe("a message", function()
  local engine, session, child, here

  before_each(function()
    child = process.start(peer):expect("ready")
    engine, session = cases.connect()
    here = cases.alloc(engine, 2 * LENGTH)
  end)
  after_each(cases.cleanup)

  it("goes and comes at every size", function()
    local sizes = { unpack(cases.sizes) }
    sizes[#sizes + 1] = LENGTH
    child:tell("echo " .. #sizes)
    for round, size in ipairs(sizes) do
      local out, back = here:slice(0, size), here:slice(LENGTH, LENGTH)
      local text = cases.bytes(size, round)
      out:write(text)
      local receive = session:recv(back)
      assert.is_true((session:send(out):wait(10)))
      assert.equal(size, (receive:wait(10)))
      assert.is_true(back:slice(0, size):string() == text, size)
    end
    child:expect("echoed")
  end)

  it("waits for its receive", function()
    local future = session:send(here:slice(0, 100))
    perigee.sleep(0.05)
    assert.is_false(future:done())
    child:tell("recv 100")
    assert.is_true((future:wait(5)))
    child:expect("100")
  end)

  it("without a receive ends in timeout", function()
    local future = session:send(here:slice(0, 100), { timeout = 0.05 })
    local done, err = future:wait(5)
    assert.is_nil(done)
    assert.equal("timeout", err.kind)
    perigee.sleep(0.01) -- tells the peer, which must know before it receives
    child:tell("rest")
    child:expect("rested")
    child:tell("recv 100 1")
    assert(session:send(here:slice(0, 50)):wait(5))
    child:expect("50")
  end)

  it("that is longer than its receive is too_large to both", function()
    for _, size in ipairs { 11, cases.EAGER + 1, 2 ^ 20 } do
      child:tell("recv 10")
      local done, err = session:send(here:slice(0, size)):wait(5)
      assert.is_nil(done)
      assert.equal("too_large", err.kind)
      child:expect("too_large")
      child:tell("byte 10")
      child:expect("0")
    end
    child:tell("recv 10")
    assert(session:send(here:slice(0, 10)):wait(5))
    child:expect("10")
  end)

  it("matches receives in order", function()
    local futures = {}
    for i = 1, 50 do
      futures[i] = session:recv(here:slice(i * 1000, 1000))
    end
    for i = 1, 50 do
      child:tell(("send %d %d"):format(i * 7, i))
      child:expect("sent", 5, function() perigee.sleep(0) end)
    end
    for i = 1, 50 do
      assert.equal(i * 7, (futures[i]:wait(5)))
      assert.equal(i, cases.byte(here:slice(i * 1000, 1)))
    end
  end)

  it("that is not there lets a receive end in timeout", function()
    local future = session:recv(here:slice(0, 100), { timeout = 0.05 })
    local done, err = future:wait(5)
    assert.is_nil(done)
    assert.equal("timeout", err.kind)
    local again = session:recv(here:slice(0, 100))
    child:tell("send 9 1")
    assert.equal(9, (again:wait(5)))
  end)

  it("can be taken back, and so can a receive", function()
    local receive = session:recv(here:slice(0, 100))
    receive:cancel()
    local _, err = receive:wait(1)
    assert.equal("cancelled", err.kind)
    local send = session:send(here:slice(0, 100))
    send:cancel()
    _, err = send:wait(1)
    assert.equal("cancelled", err.kind)
    local again = session:recv(here:slice(200, 100))
    child:tell("send 8 5")
    assert.equal(8, (again:wait(5)))
    assert.equal(5, cases.byte(here:slice(200, 1)))
    assert.equal(0, cases.byte(here:slice(0, 1)))
  end)
end)

describe("a write with immediate", function()
  local engine, session, child, here, box

  before_each(function()
    child = process.start(peer):expect("ready")
    engine, session = cases.connect()
    here = cases.alloc(engine, LENGTH)
    box = assert(session:region("box"))
  end)
  after_each(cases.cleanup)

  it("arrives after all of its data, at every size", function()
    local sizes = { unpack(cases.sizes) }
    sizes[#sizes + 1] = 2 ^ 24
    for round, size in ipairs(sizes) do
      here:slice(0, size):fill(round)
      child:tell("imm")
      assert(session:write_imm({ from = here:slice(0, size),
                                 to = box:slice(0, size) }, round):wait(10))
      local want = size > 0 and round or 0
      child:expect(round .. " " .. want)
    end
  end)

  it("keeps order and value", function()
    child:tell("imms 100")
    child:expect("posted")
    local values = {}
    for i = 1, 100 do
      values[i] = i % 10 == 0 and 2 ^ 32 - i or i * i
      assert(session:write_imm({ from = here:slice(0, 8),
                                 to = box:slice(0, 8) }, values[i]):wait(5))
    end
    child:expect(table.concat(values, " "))
  end)

  it("is refused with a value that is none", function()
    for _, value in ipairs { -1, 0.5, 2 ^ 70, "7", false } do
      assert.has_error(function()
        session:write_imm({ from = here:slice(0, 8), to = box:slice(0, 8) },
                          value)
      end)
    end
  end)

  it("that never comes ends recv_imm in timeout", function()
    local got, err = session:recv_imm({ timeout = 0.05 }):wait(5)
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
  end)
end)

describe("an immediate that came before its sender's end", function()
  local near, far, here, box

  before_each(function()
    local engine, other = cases.engine(), cases.engine()
    local listener = assert(other:listen(cases.address()))
    near = assert(engine:connect(cases.address(), { timeout = 5 }))
    far = assert(listener:accept(5))
    here = cases.alloc(engine, 64)
    cases.alloc(other, 64, { name = "box", access = "rw" })
    box = assert(near:region "box")
    for value = 7, 9 do
      assert(near:write_imm({ from = here:slice(), to = box:slice() }, value)
        :wait(5))
    end
  end)
  after_each(cases.cleanup)

  local function lose()
    near:close()
    assert.equal("peer_lost", select(2, far:ended():wait(5)).kind)
  end

  it("is received after it, in order", function()
    assert.equal(7, (far:recv_imm():wait(5)))
    lose()
    perigee.sleep(0.05)
    for value = 8, 9 do assert.equal(value, (far:recv_imm():wait(5))) end
    for _ = 1, 2 do
      assert.equal("peer_lost", select(2, far:recv_imm():wait(5)).kind)
    end
  end)

  it("goes with the session that is closed", function()
    lose()
    far:close()
    assert.equal("peer_lost", select(2, far:recv_imm():wait(5)).kind)
  end)
end)

-- Both sides are of this process: a long message goes on only while it waits.
describe("a message that its sender gives up on its way", function()
  local near, far, from, to

  before_each(function()
    local engine, other = cases.engine(), cases.engine()
    local listener = assert(other:listen(cases.address()))
    near = assert(engine:connect(cases.address(), { timeout = 5 }))
    far = assert(listener:accept(5))
    from = cases.alloc(engine, LENGTH + 4096)
    to = cases.alloc(other, 2 * LENGTH)
  end)
  after_each(cases.cleanup)

  local function receive(number, length)
    return far:recv(to:slice(number * 64, length or 64))
  end

  local function send(text)
    from:slice(LENGTH, #text):write(text)
    return near:send(from:slice(LENGTH, #text))
  end

  local function received(number, future)
    local length = assert(future:wait(10))
    return to:slice(number * 64, length):string()
  end

  -- Cancels messages. None is whole after 1 ms, unless a thread or a GPU goes
  -- on with them; then this may return false.
  local may_be_whole = os.getenv "PERIGEE_SPEC_PROGRESS"
    or cases.memory:find "^cuda"
  local function gives_up(...)
    for _, future in ipairs { ... } do future:cancel() end
    for _, future in ipairs { ... } do
      local length, err = future:wait(10)
      if length and may_be_whole then return false end
      assert.is_nil(length, "it came whole")
      assert.equal("cancelled", err.kind)
    end
    return true
  end

  it("leaves its receive first in line, and those behind it in order",
     function()
    local receives, lost, texts = {}, {}, { "next", "and next", "and last" }
    for i = 1, 3 do receives[i] = receive(i, LENGTH) end
    for i = 1, 2 do lost[i] = near:send(from:slice(0, LENGTH)) end
    perigee.sleep(0.001)
    if not gives_up(unpack(lost)) then return end
    for i = 1, 3 do send(texts[i]):wait(10) end
    for i = 1, 3 do assert.equal(texts[i], received(i, receives[i])) end
  end)

  it("ends its receive if a later one has had the next message", function()
    local first, second = receive(1, LENGTH), receive(2)
    local lost = near:send(from:slice(0, LENGTH))
    assert(send("second"):wait(10))
    assert.equal("second", received(2, second))
    local third = send("third")
    if not gives_up(lost) then return end
    local _, err = first:wait(10)
    assert.equal("cancelled", err.kind)
    assert.matches("its sender gave the message up", err.message)
    assert.is_false(third:done())
    assert.equal("third", received(3, receive(3)))
    assert(third:wait(10))
  end)
end)
