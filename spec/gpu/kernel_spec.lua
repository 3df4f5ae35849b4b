-- SPDX-License-Identifier: Apache-2.0
-- Many small pieces of a GPU's memory: by a kernel where that was found to be
-- the fastest way, or where PERIGEE_CUDA_COPIES asks for it. The fake's kernel
-- is done in C; what the real one's text does is cuda_kernel_test.c's.
local cases = require "spec.support.cases"
local pieces = require "spec.support.pieces"
local process = require "spec.support.process"

local ffi = require "ffi"

ffi.cdef [[
  int spec_kernel_setenv(const char *, const char *, int) __asm__("setenv");
]]

local function set(name, value)
  ffi.C.spec_kernel_setenv(name, value, 1)
end

describe("many pieces of a GPU's memory", function()
  after_each(function()
    cases.cleanup()
    set("PERIGEE_CUDA_COPIES", "")
    set("FAKE_CUDA", "")
  end)

  -- Starts an owner, and a child that moves, by a driver that is set so.
  local function with(copies, settings, f, ...)
    process.start(pieces.owner):expect "ready"
    set("PERIGEE_CUDA_COPIES", copies)
    set("FAKE_CUDA", settings)
    return process.start(f, ...)
  end

  -- Writes a layout of 61 x 64 blocks again and again, each time that it is
  -- told to, and says what the driver was asked for.
  local function layouts(child, its)
    local many = require "spec.support.pieces"
    local session, here, there, engine = many.connect()
    local function layout(base)
      return its.layout { base = base:slice(), block = 1024,
                          dims = { { 61, 2 ^ 17 }, { 64, 2 ^ 11 } } }
    end
    local move = session:prepare_write { from = layout(here),
                                         to = layout(there) }
    for order in child.attend do
      local counts = many.counted(function()
        assert(move:post():wait(30))
      end)
      if order == "check" then
        many.check(session, there, engine, many.rows(61, 64, 1024))
      end
      child.say(counts.cuLaunchKernel or 0, counts.pieces or 0,
                counts.cuMemcpy2DAsync or 0)
      child.say(session:explain().lanes.cuda:match "; (cuda:0.*)$")
    end
  end

  -- Has it written until the session tells of it what the pattern says.
  local function until_told(child, pattern)
    local told
    cases.await(function()
      child:tell "again"
      child:read()
      told = child:read()
      return told:match(pattern)
    end)
    return told
  end

  -- Each copy takes so long that a kernel is found to be faster than four of
  -- them, however busy the cores are.
  it("goes by a kernel with one launch, once that was tried", function()
    local child = with("", "slow=1000", layouts)
    local told = until_told(child, "by a kernel where")
    assert.equal("cuda:0 (Fake GPU): pieces of up to 64 KiB go by a kernel "
      .. "where there are 4, others by cuMemcpyAsync", told)
    child:tell "check"
    child:expect "1 3904 0"
    child:expect(told)
  end)

  it("goes without it until it is compiled, which nobody waits for", function()
    local child = with("", "compile=100000000", layouts)
    for _ = 1, 2 do
      child:tell "check"
      child:expect "0 0 61"
      child:expect("cuda:0 (Fake GPU): pieces go by cuMemcpyAsync, while a "
        .. "kernel is tried")
    end
    child:kill()                    -- to close its engine waits for the thread
  end)

  it("goes without it where it is slower, and says so", function()
    local child = with("", "version=12080 kernel=20000", layouts)
    local told = until_told(child, "slower")
    assert.equal("cuda:0 (Fake GPU): pieces go by cuMemcpyBatchAsync, as a "
      .. "kernel is slower", told)
    child:tell "check"
    child:expect "0 0 61"
  end)

  it("goes without it where it does not compile, and says why", function()
    local child = with("", "fail=cuModuleLoadData@1:218", layouts)
    local told = until_told(child, "not by a kernel")
    assert.matches("compiling it: CUDA_ERROR_OF_THE_FAKE", told, 1, true)
    child:tell "check"
    child:expect "0 0 61"
  end)

  it("goes without it where there is no memory for its tables", function()
    local child = with("kernel", "fail=cuMemHostAlloc@2:2", layouts)
    assert.matches("pinning its tables: CUDA_ERROR_OUT_OF_MEMORY",
                   until_told(child, "not by a kernel"), 1, true)
    child:tell "check"
    child:expect "0 0 61"
  end)

  it("goes without it where there is no memory to try it", function()
    local child = with("", "fail=cuMemAlloc@1:2", layouts)
    assert.matches("memory to try it: CUDA_ERROR_OUT_OF_MEMORY",
                   until_told(child, "not by a kernel"), 1, true)
    child:tell "check"
    child:expect "0 0 61"
  end)

  it("goes without it once it cannot be launched", function()
    local child = with("kernel", "fail=cuLaunchKernel@2:701", layouts)
    child:tell "check"
    child:expect "1 3904 0"
    child:expect("cuda:0 (Fake GPU): pieces go by a kernel, as asked by "
      .. "PERIGEE_CUDA_COPIES")
    child:tell "check"
    child:expect "1 0 61"           -- refused, and once more without it
    child:read()
    child:tell "check"
    child:expect "0 0 61"
    assert.matches("not by a kernel: launching it: ", child:read(), 1, true)
  end)

  it("ends in `closed` if the device breaks", function()
    local child = with("kernel", "", function(child)
      local many = require "spec.support.pieces"
      local session, here, there = many.connect()
      require "spec.support.cuda".set "fail=stream@1:700"
      local fine, err = many.write(session, here, there,
                                   many.rows(2, 64, 100))
      child.say(fine, err.kind)
    end)
    child:expect "nil closed"
  end)

  -- Moves lists of pieces of any length and alignment, and says by what.
  local function lists(child)
    local many = require "spec.support.pieces"
    local session, here, there, engine = many.connect()
    local function moved(list)
      local counts = many.counted(function()
        assert(many.write(session, here, there, list))
      end)
      many.check(session, there, engine, list)
      local zero = engine:alloc(many.ROOM, { kind = "cuda:0" })
      assert(session:write { from = zero:slice(), to = there:slice() }:wait(30))
      zero:close()
      return counts
    end
    for seed = 1, 4 do
      local counts = moved(many.random(700, 5000, seed))
      child.say(counts.pieces or 0, counts.entries or 0,
                counts.cuMemcpyAsync or 0)
      counts = moved(many.random(40, 150000, seed))
      child.say(counts.pieces or 0, counts.entries or 0,
                counts.cuMemcpyAsync or 0)
    end
  end

  for name, case in pairs {
    ["the kernel"] = { "kernel", "", "700 0 0", "40 0 0" },
    ["the driver's batches"] = { "batch", "version=12080", "0 700 0",
                                 "0 40 0" },
    ["batches that the driver has not"] = { "batch", "", "0 0 700", "0 0 40" },
    ["batches that the driver refuses"] =
      { "batch", "version=12080 fail=cuMemcpyBatchAsync@1:801", "0 0 700",
        "0 0 40" },
    ["single copies"] = { "loop", "version=12080", "0 0 700", "0 0 40" } } do
    it("goes by " .. name .. " if it is asked for that", function()
      local child = with(case[1], case[2], lists)
      for _ = 1, 4 do
        child:expect(case[3])
        child:expect(case[4])
      end
    end)
  end

  -- The trial's own batches come once the kernel is compiled.
  it("goes by no more batches once one was refused beside a trial", function()
    local child = with("", "version=12080 kernel=20000 compile=100000 "
      .. "fail=cuMemcpyBatchAsync@1:801", function(child)
        local many = require "spec.support.pieces"
        local session, here, there = many.connect()
        local told
        repeat
          assert(many.write(session, here, there, many.random(700, 5000, 1)))
          told = session:explain().lanes.cuda:match "; (cuda:0.*)$"
        until not told:match "is tried"
        child.say(told)
      end)
    child:expect("cuda:0 (Fake GPU): pieces go by cuMemcpyAsync, as a kernel "
      .. "is slower")
  end)

  it("is asked for by no other word", function()
    set("PERIGEE_CUDA_COPIES", "kernels")
    local engine = cases.engine()
    local _, why = pcall(engine.alloc, engine, 4096, { kind = "cuda:0" })
    assert.matches("PERIGEE_CUDA_COPIES is none of kernel, batch, loop",
                   tostring(why), 1, true)
  end)

  it("has no kernel compiled, nor a thread, for fewer", function()
    local child = with("", "", function(child)
      local many = require "spec.support.pieces"
      local session, here, there = many.connect()
      local counts = many.counted(function()
        for _ = 1, 10 do
          assert(many.write(session, here, there, many.random(4, 5000, 1)))
        end
      end)
      child.say(counts.cuModuleLoadData, counts.cuMemcpyAsync)
      child.say(session:explain().lanes.cuda:match "; (cuda:0.*)$")
    end)
    child:expect "nil 40"
    child:expect "cuda:0 (Fake GPU): pieces go by cuMemcpyAsync"
  end)

  it("may be closed while the kernel is tried", function()
    process.start(pieces.owner):expect "ready"
    local session, here, there, engine = pieces.connect()
    assert(pieces.write(session, here, there, pieces.random(30, 5000, 1)))
    engine:close()
    assert.is_nil(here.address)
  end)
end)
