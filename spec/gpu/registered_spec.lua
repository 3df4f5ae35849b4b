-- SPDX-License-Identifier: Apache-2.0
-- Memory of a GPU that the program allocated and registers: how it is told
-- from other memory, and how another process reaches it.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local ffi = require "ffi"

-- Registers 1 MiB in the midst of an allocation of 4 MiB, and accepts.
local function owner(child, its, _, options, how, progress)
  local cuda = require "spec.support.cuda"
  local memory = cuda[how](2 ^ 22)
  local engine = its.engine { progress = progress }
  local listener = assert(engine:listen(child.cases.address()))
  local region = assert(engine:register(memory + 2 ^ 20, 2 ^ 20, {
    name = "tensor", access = "rw", share = options == "share" }))
  region:slice(0, 5):write "first"
  its.spawn(function()
    while listener:accept(100) do end
  end)
  child.say("ready", region.kind)
  for order in child.attend do
    if order == "read" then
      child.say(region:slice(0, 5):string())
    elseif order == "forks" then
      for _ = 1, 200 do cuda.fork()() end
      child.say "forked"
    elseif order == "fork" then
      cuda.fork()
      child.say "forked"
    elseif order == "free" then
      cuda.free(memory)
      child.say "freed"
    else
      region:close()
      if how == "create" then
        cuda.destroy(memory, 2 ^ 22)
      else
        cuda.free(memory)         -- the fake aborts if it is open elsewhere
      end
      child.say "closed"
    end
  end
end

describe("memory of a GPU that a program allocated", function()
  after_each(cases.cleanup)

  local function starts(options, how, session_options)
    local child = process.start(owner, options, how or "malloc")
    child:expect "ready cuda:0"
    local engine = cases.engine(session_options)
    local session = assert(engine:connect(cases.address(), { timeout = 5 }))
    return child, engine, session, assert(session:region "tensor")
  end

  local cuda = require "spec.support.cuda"

  local function wrote(engine, session, tensor, text)
    local here = engine:alloc(2 ^ 16, { kind = "cuda:0" })
    here:slice(0, #text):write(text)
    local before = cuda.count "cuMemcpyAsync"
    assert(session:write { from = here:slice(0, #text),
                           to = tensor:slice(0, #text) }:wait(5))
    return cuda.count "cuMemcpyAsync" - before
  end

  it("is mapped by another process if it is shared, once", function()
    local child, engine, session, tensor = starts "share"
    local opened = cuda.count "cuIpcOpenMemHandle"
    assert.equal(1, wrote(engine, session, tensor, "other"))
    assert.equal(1, wrote(engine, session, tensor, "again"))
    assert.equal(opened + 1, cuda.count "cuIpcOpenMemHandle")
    child:tell "read"
    child:expect "again"
  end)

  it("is reached through its owner otherwise", function()
    local child, engine, session, tensor = starts()
    local opened = cuda.count "cuIpcOpenMemHandle"
    wrote(engine, session, tensor, "other")
    assert.equal(opened, cuda.count "cuIpcOpenMemHandle")
    child:tell "read"
    child:expect "other"
  end)

  -- As cudaMalloc makes it, and as torch makes expandable segments.
  for how, maker in pairs { malloc = "cudaMalloc", create = "torch" } do
    it("closes once those who mapped it have let go: " .. maker, function()
      local child, engine, session, tensor = starts("share", how)
      assert.equal(1, wrote(engine, session, tensor, "other"))
      child:tell "close"
      assert.is_nil(child:read(0.2))  -- this process has not heard of it yet
      child:expect("closed", nil, function() perigee.sleep(0.002) end)
      local err = select(2, session:write {
        from = engine:alloc(4096, { kind = "cuda:0" }):slice(0, 5),
        to = tensor:slice(0, 5) }:wait(5))
      assert.equal("stale", err.kind)
    end)

    it("closes while children that both forked live: " .. maker, function()
      local child, engine, session, tensor = starts("share", how)
      assert.equal(1, wrote(engine, session, tensor, "other"))
      child:tell "fork"
      child:expect "forked"
      finally(cuda.fork())
      child:tell "close"
      child:expect("closed", nil, function() perigee.sleep(0.002) end)
    end)

    it("closes if one that mapped it is killed: " .. maker, function()
      local child, engine, session, tensor = starts("share", how)
      local other = process.start(function(mapping, other)
        local here = other.engine {}
        local dialed = assert(here:connect(mapping.cases.address()))
        local remote = assert(dialed:region "tensor")
        local from = here:alloc(4096, { kind = "cuda:0" }):slice(0, 5)
        mapping.say(dialed:write { from = from, to = remote:slice(0, 5) }
          :wait(5))
        other.sleep(100)
      end)
      other:expect "true"
      wrote(engine, session, tensor, "other")
      session:close()
      other:kill()
      child:tell "close"
      child:expect("closed", nil, function() perigee.sleep(0.002) end)
    end)
  end

  it("is shared by an engine's thread while the program forks", function()
    local child = process.start(owner, "share", "create", "thread")
    child:expect "ready cuda:0"
    local engine = cases.engine()
    child:tell "forks"
    for _ = 1, 300 do                   -- each session is told of the memory
      local session = assert(engine:connect(cases.address(), { timeout = 20 }))
      assert(session:region "tensor")
      session:close()
    end
    child:expect "forked"
    child:tell "close"
    child:expect("closed", nil, function() perigee.sleep(0.002) end)
  end)

  it("is not mapped by a peer that would not tell that it is", function()
    local child, engine, session, tensor =
      starts("share", "create", { features = "-pairs" })
    local opened = cuda.count "cuMemImportFromShareableHandle"
    wrote(engine, session, tensor, "other")
    assert.equal(opened, cuda.count "cuMemImportFromShareableHandle")
    child:tell "read"
    child:expect "other"
    child:tell "close"
    child:expect "closed"
  end)

  it("is stale once the program has freed it", function()
    local engine = cases.engine()
    local memory = cuda.malloc(4096)
    local region = assert(engine:register(memory, 4096))
    region:slice(0, 5):write "hello"
    cuda.free(memory)
    local other = cuda.malloc(4096)           -- maybe at the same address
    local _, text = pcall(function() region:slice(0, 5):write "hello" end)
    assert.matches("freed the memory", tostring(text))
    cuda.free(other)
  end)

  it("is refused beyond its allocation, and if CUDA manages it", function()
    local engine = cases.engine()
    local memory = cuda.malloc(8192)
    assert.has_error(function() engine:register(memory, 3 * 4096) end)
    assert.has_error(function() engine:register(memory + 4096, 8192) end)
    local managed = cuda.managed(4096)
    local _, text = pcall(engine.register, engine, managed, 4096)
    assert.matches("cudaMallocManaged", tostring(text))
    cuda.free(memory)
  end)

  it("is not shown to others once the program has freed it", function()
    local child = starts "share"
    child:tell "free"
    child:expect "freed"
    local other = assert(cases.engine():connect(cases.address()))
    local region, err = other:region "tensor"
    assert.is_nil(region)
    assert.equal("stale", err.kind)
  end)

  it("is told from memory of the host by its address", function()
    local engine = cases.engine()
    local memory = cuda.malloc(4096)
    assert.equal("cuda:0", engine:register(memory, 4096).kind)
    assert.equal("host", engine:register(ffi.new "char[64]", 64).kind)
    assert.has_error(function()
      engine:register(memory, 4096, { kind = "host" })
    end)
    engine:close()
    cuda.free(memory)
  end)
end)
