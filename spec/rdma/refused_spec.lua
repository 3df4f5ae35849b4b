-- SPDX-License-Identifier: Apache-2.0
-- Access that a peer did not grant or has revoked, or for which it has no room:
-- each gives one typed error, no memory is touched, and the session goes on.
-- (verbs_errors_test.c checks that a device refuses a wrong key.)
local cases = require "spec.support.cases"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local SIZE = 2 ^ 20

-- Does what its parent says; its region "box" can be closed and made again.
local function peer(child, _, _, rdma)
  local size = 2 ^ 20
  local engine = child.cases.engine { rdma = rdma, hello_timeout = 90 }
  local box = engine:alloc(size, { name = "box", access = "rw" })
  local seen = engine:alloc(size, { name = "seen", access = "r" })
  local small = engine:alloc(4096)
  seen:slice(0, size):fill(7)
  local listener = assert(engine:listen(child.cases.address()))
  child.say("ready")
  local session = assert(listener:accept(20))
  local commands = {}
  function commands.close() assert(box:close(20)) end
  function commands.open()
    box = engine:alloc(size, { name = "box", access = "rw" })
  end
  function commands.recv(length)
    local got, err = session:recv(small:slice(0, tonumber(length))):wait(20)
    child.say(got or err.kind)
  end
  function commands.sum()
    local text, bad = seen:slice(0, size):string(), 0
    if text ~= ("\7"):rep(size) then bad = 1 end
    child.say("bad", bad)
  end
  for line in child.attend do
    local name, value = line:match("^(%a+) ?(%S*)")
    commands[name](value)
    child.say("done")
  end
end

describe("a peer over RDMA", function()
  local sides, why = weather.anywhere "qps=2 stripe=64K"
  if not sides then return pending(why) end
  local child, session, here

  before_each(function()
    child = process.start(peer, sides.far):expect("ready", 20)
    local engine = cases.engine(weather.options(sides.near))
    here = engine:alloc(4 * SIZE)
    session = assert(engine:connect(cases.address(), { transport = "verbs" }))
  end)
  after_each(cases.cleanup)

  local function fails(future, kind)
    local got, err = weather.ended(future)
    assert.is_nil(got)
    assert.equal(kind, err.kind, tostring(err))
    return tostring(err)
  end

  local function works(remote)
    weather.well(session:write { from = here:slice(0, SIZE):fill(3),
                                 to = remote:slice(0, SIZE) })
    weather.well(session:read { from = remote:slice(0, SIZE),
                                to = here:slice(SIZE, SIZE):fill(0) })
    assert.is_true(here:slice(SIZE, SIZE):string() == ("\3"):rep(SIZE))
  end

  it("that closed a region is stale there, and may open it anew", function()
    local remote = assert(session:region("box"))
    works(remote)
    for _ = 1, 3 do
      local under_way = {}
      for i = 1, 4 do
        under_way[i] = session:write { from = here:slice(0, SIZE),
                                       to = remote:slice(0, SIZE) }
      end
      child:tell "close"
      child:expect("done", 30)
      for _, future in ipairs(under_way) do
        local got, err = weather.ended(future)
        assert(got or err.kind == "stale", tostring(err))
      end
      fails(session:write { from = here:slice(0, 64),
                            to = remote:slice(0, 64) }, "stale")
      fails(session:read { from = remote:slice(0, SIZE),
                           to = here:slice(0, SIZE) }, "stale")
      local none, err = session:region("box")
      assert.is_nil(none)
      assert.equal("not_found", err.kind)
      child:tell "open"
      child:expect("done", 30)
      remote = assert(session:region("box"))
      works(remote)
    end
  end)

  it("lets nobody write where it only granted to read", function()
    local seen = assert(session:region("seen"))
    assert.matches("does not let us write", fails(session:write {
      from = here:slice(0, SIZE), to = seen:slice(0, SIZE) }, "denied"))
    weather.well(session:read { from = seen:slice(0, SIZE),
                                to = here:slice(0, SIZE) })
    assert.is_true(here:slice(0, SIZE):string() == ("\7"):rep(SIZE))
    child:tell "sum"
    child:expect("bad 0", 20)
  end)

  it("is not reached outside of its region", function()
    local remote = assert(session:region("box"))
    assert.has_error(function() remote:slice(SIZE - 8, 16) end)
    assert.has_error(function()
      remote:slice(0, 64, { count = 2, stride = SIZE })
    end)
    works(remote)
  end)

  it("with too small a buffer is told, and takes the next", function()
    for _, size in ipairs { 200, 3000, SIZE } do
      child:tell("recv 100")
      assert.is_truthy(fails(session:send(here:slice(0, size)), "too_large"))
      child:expect("too_large", 20):expect("done", 20)
      child:tell("recv 4096")
      weather.well(session:send(here:slice(0, 100)))
      child:expect("100", 20):expect("done", 20)
    end
    works(assert(session:region("box")))
  end)
end)
