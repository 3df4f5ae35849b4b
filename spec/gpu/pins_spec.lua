-- SPDX-License-Identifier: Apache-2.0
-- Copies between a GPU and host memory: by slots at first, then directly, once
-- the driver has registered the host memory of a region that is used again.
local cases = require "spec.support.cases"
local cuda = require "spec.support.cuda"
local process = require "spec.support.process"

local MIB = 2 ^ 20

local function owner(child, its, ffi)
  ffi.cdef "int mincore(void *, size_t, unsigned char *);"
  local function pages_of(slice)
    local there, count = ffi.new("unsigned char[?]", slice.length / 4096), 0
    assert(ffi.C.mincore(slice.pointer, slice.length, there) == 0)
    for i = 0, slice.length / 4096 - 1 do count = count + there[i] % 2 end
    return count
  end
  local engine = its.engine {}
  local listener = assert(engine:listen(child.cases.address()))
  local gpu = assert(engine:alloc(2 ^ 23, { name = "gpu", access = "rw",
                                            kind = "cuda:0" }))
  local host = assert(engine:alloc(2 ^ 23, { name = "host", access = "rw" }))
  host:slice():fill(7)
  host:slice(3 * 2 ^ 20, 5):write "bytes"
  local plain = assert(engine:alloc(2 ^ 20, { name = "plain", access = "r" }))
  plain:slice():fill(9)
  local sparse = assert(engine:alloc(2 ^ 23, { name = "sparse",
                                               access = "rw" }))
  sparse:slice(0, 2 ^ 20):fill(6)
  its.spawn(function()
    while listener:accept(100) do end
  end)
  child.say "ready"
  for order in child.attend do
    if order == "close" then
      child.say(tostring(host:close()))
    elseif order == "large" then
      local large = assert(engine:alloc(40 * 2 ^ 20, { name = "large",
                                                       access = "rw" }))
      large:slice():fill(4)
      child.say "filled"
    elseif order == "pages" then
      child.say(tostring(pages_of(sparse:slice())))
    else
      child.say((order == "gpu" and gpu or host):slice(3 * 2 ^ 20, 5):string())
    end
  end
end

describe("a copy between a GPU and host memory", function()
  after_each(cases.cleanup)

  local child, engine, session

  before_each(function()
    child = process.start(owner)
    child:expect "ready"
    engine, session = cases.connect()
    assert(engine:alloc(4096, { kind = "cuda:0" }))   -- uses the GPU
  end)

  -- Copies, registrations and what they undo while f runs.
  local function counted(f)
    local names, before = { "cuMemcpyAsync", "cuMemHostRegister",
                            "cuMemHostUnregister" }, {}
    for i, name in ipairs(names) do before[i] = cuda.count(name) end
    f()
    for i, name in ipairs(names) do before[i] = cuda.count(name) - before[i] end
    return unpack(before)
  end

  local function writes(from, to)
    return function()
      assert(session:write { from = from, to = to }:wait(10))
    end
  end

  it("goes through slots once, and directly when it is made again", function()
    local gpu = assert(session:region "gpu")
    local here = engine:alloc(8 * MIB)
    here:slice(3 * MIB, 5):write "bytes"
    local write = writes(here:slice(0, 8 * MIB), gpu:slice(0, 8 * MIB))
    assert.same({ 64, 0, 0 }, { counted(write) })
    local copies, registered = counted(write)
    assert.is_true(registered == 2 or registered == 3)  -- pieces of 4 MiB
    assert.is_true(copies <= 3)
    assert.same({ copies, 0, 0 }, { counted(write) })
    child:tell "gpu"
    child:expect "bytes"
    assert.same({ 0, 0, registered }, { counted(function() here:close() end) })
  end)

  it("is not registered if it is short, or lies in short memory", function()
    local gpu = assert(session:region "gpu")
    local short = engine:alloc(MIB / 2)
    local write = writes(short:slice(0, MIB / 2), gpu:slice(0, MIB / 2))
    for _ = 1, 3 do assert.same({ 4, 0, 0 }, { counted(write) }) end
  end)

  it("is refused where the driver does, and goes through slots", function()
    cuda.set "fail=cuMemHostRegister@1:801"
    local gpu = assert(session:region "gpu")
    local here = engine:alloc(2 * MIB)
    local write = writes(here:slice(0, 2 * MIB), gpu:slice(0, 2 * MIB))
    for _ = 1, 3 do assert.equal(16, (counted(write))) end
    cuda.set "fail=none@0:0"
  end)

  it("is made from strided memory, too", function()
    local gpu = assert(session:region "gpu")
    local here, back = engine:alloc(4 * MIB), engine:alloc(MIB)
    for i = 0, 7 do here:slice(i * MIB / 2, 5):write("row " .. i) end
    local rows = here:slice(0, MIB / 8, { count = 8, stride = MIB / 2 })
    for _ = 1, 3 do writes(rows, gpu:slice(0, MIB))() end
    assert(session:read { from = gpu:slice(0, MIB), to = back:slice(0, MIB) }
      :wait(10))
    for i = 0, 7 do
      assert.equal("row " .. i, back:slice(i * MIB / 8, 5):string())
    end
  end)

  it("is made to a peer's host memory without the peer's help", function()
    local host = assert(session:region "host")
    local here = engine:alloc(4 * MIB, { kind = "cuda:0" })
    here:slice(3 * MIB, 5):write "bytes"
    child:signal "STOP"
    local write = writes(here:slice(0, 4 * MIB), host:slice(0, 4 * MIB))
    assert.same({ 32, 0, 0 }, { counted(write) })
    local copies, registered = counted(write)
    assert.is_true(registered > 0 and copies <= 2)
    assert.same({ copies, 0, 0 }, { counted(write) })
    child:signal "CONT"
    child:tell "host"
    child:expect "bytes"
    local before = cuda.count "cuMemHostUnregister"
    session:close()
    assert.is_true(cases.eventually(function()
      return cuda.count "cuMemHostUnregister" - before == registered
    end))
  end)

  local function reads(from, to)
    return function()
      assert(session:read { from = from, to = to }:wait(10))
    end
  end

  it("is made from a peer's host memory without the peer's help", function()
    local host = assert(session:region "host")
    local here = engine:alloc(MIB, { kind = "cuda:0" })
    child:signal "STOP"
    local read = reads(host:slice(3 * MIB, MIB), here:slice(0, MIB))
    assert.same({ 8, 0, 0 }, { counted(read) })
    assert.equal("bytes\7", here:slice(0, 6):string())
    here:slice():fill(0)
    local copies, registered = counted(read)
    assert.is_true(registered > 0 and copies == registered)
    assert.equal("bytes\7", here:slice(0, 6):string())
    assert.equal("\7\7", here:slice(MIB - 2, 2):string())
    assert.same({ copies, 0, 0 }, { counted(read) })
    child:signal "CONT"
    session:close()
  end)

  it("is made so once all of many pages were looked at", function()
    child:tell "large"
    child:expect "filled"
    local large = assert(session:region "large")
    local here = engine:alloc(40 * MIB, { kind = "cuda:0" })
    child:signal "STOP"
    reads(large:slice(), here:slice())()
    assert.equal("\4\4", here:slice(40 * MIB - 2, 2):string())
    child:signal "CONT"
  end)

  it("is made from memory that the peer lets nobody write", function()
    local plain = assert(session:region "plain")
    local here = engine:alloc(MIB, { kind = "cuda:0" })
    child:signal "STOP"
    local read = reads(plain:slice(0, MIB), here:slice(0, MIB))
    assert.same({ 8, 0, 0 }, { counted(read) })
    local copies, registered = counted(read)
    assert.is_true(registered > 0 and copies == registered)
    assert.equal("\9\9", here:slice(MIB - 2, 2):string())
    child:signal "CONT"
  end)

  it("is made by the peer from memory that it has not touched", function()
    local sparse = assert(session:region "sparse")
    local here = engine:alloc(MIB, { kind = "cuda:0" })
    local function items()
      return tonumber(session:explain().lanes.cuda:match "(%d+) items")
    end
    reads(sparse:slice(MIB / 2, MIB), here:slice(0, MIB))()
    assert.equal("\6\0", here:slice(MIB / 2 - 1, 2):string())
    assert.equal(0, items())
    child:tell "pages"
    local pages = tonumber((child:read()))
    assert.is_true(pages >= 256 and pages < 1024, pages)
    -- What is there is read in place. Around it nothing is pinned.
    child:signal "STOP"
    local read = reads(sparse:slice(0, MIB), here:slice(0, MIB))
    for _ = 1, 3 do assert.same({ 8, 0, 0 }, { counted(read) }) end
    child:signal "CONT"
    assert.equal(3, items())
    child:tell "pages"
    child:expect(tostring(pages))
  end)

  for _, faults in ipairs { false, "seed=1 delay=20ms" } do
    it("is not there for who reads what the peer closes meanwhile"
       .. (faults and ", with faults" or ""), function()
      cuda.set "slow=300000"
      engine = cases.engine { faults = faults or nil }
      session = assert(engine:connect(cases.address(), { timeout = 5 }))
      local here = engine:alloc(4096, { kind = "cuda:0" })
      cuda.set "slow=20"
      local host = assert(session:region "host")
      local future = session:read { from = host:slice(0, 4096),
                                    to = here:slice(0, 4096) }
      child:tell "close"
      child:expect "true"
      local ok, err = future:wait(10)
      assert.is_nil(ok)
      assert.equal("stale", err.kind)
    end)
  end

  it("goes through slots where the device registers none", function()
    for _, attribute in ipairs { 99, 91 } do
      cuda.set("without=" .. attribute)
      engine, session = cases.connect()
      assert(engine:alloc(4096, { kind = "cuda:0" }))
      local gpu, here = assert(session:region "gpu"), engine:alloc(4 * MIB)
      local write = writes(here:slice(0, 4 * MIB), gpu:slice(0, 4 * MIB))
      for _ = 1, 3 do assert.same({ 32, 0, 0 }, { counted(write) }) end
      cuda.set "without=0"
    end
  end)

  it("is looked at seldom if it takes long", function()
    cuda.set "slow=300000"                    -- of streams made from now on
    engine, session = cases.connect()
    local here = engine:alloc(4096, { kind = "cuda:0" })
    cuda.set "slow=20"
    local gpu, before = assert(session:region "gpu"), engine:stats().sleeps
    writes(here:slice(0, 4096), gpu:slice(0, 4096))()
    local sleeps = engine:stats().sleeps - before
    assert.is_true(sleeps > 10, sleeps)
    assert.is_true(sleeps < 600, sleeps)      -- looks of 50 us were 6,000
  end)
end)
