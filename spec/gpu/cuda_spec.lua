-- SPDX-License-Identifier: Apache-2.0
-- Memory of kind "cuda", by the fake driver of this folder (libcuda_fake.c):
-- what a program is told where there is no driver, no device, or no memory, and
-- what becomes of its operations when a device breaks. The contract's specs run
-- on this memory, too (make check-gpu).
local cases = require "spec.support.cases"
local process = require "spec.support.process"

local ffi = require "ffi"

ffi.cdef [[
  int spec_gpu_setenv(const char *, const char *, int) __asm__("setenv");
]]

local FAKE = os.getenv "PERIGEE_BUILD" .. "/spec/libcuda_fake.so"

describe("memory of kind cuda", function()
  local before = os.getenv "PERIGEE_CUDA_LIBRARY"

  local function set(name, value)
    ffi.C.spec_gpu_setenv(name, value, 1)
  end

  after_each(function()
    cases.cleanup()
    set("PERIGEE_CUDA_LIBRARY", before or "")
    set("FAKE_CUDA", "")
  end)

  -- Starts a child with a driver that is set so.
  local function with(settings, f, ...)
    set("PERIGEE_CUDA_LIBRARY", settings and FAKE or "/no/such/library.so")
    set("FAKE_CUDA", settings or "")
    return process.start(f, ...)
  end

  -- Says the kind of the error of an allocation, and its text.
  local function allocate(child, perigee, _, kind, length)
    local engine = perigee.engine {}
    local region, err = engine:alloc(tonumber(length) or 4096, { kind = kind })
    child.say(region and region.kind or err.kind)
    child.say(region and "" or tostring(err):gsub("\n", " "))
  end

  local function told(settings, kind, length)
    local child = with(settings, allocate, kind, length)
    return child:read(), child:read()
  end

  it("has a kind with the number of its device, and no pointer", function()
    local child = with("", function(child, perigee)
      local engine = perigee.engine {}
      local region = engine:alloc(2 ^ 22, { kind = "cuda:1", name = "kv" })
      local slice = region:slice(100, 50)
      child.say(region.kind, slice.kind, region.pointer, slice.pointer)
      child.say(slice.address - region.address, region.address > 2 ^ 20)
      slice:write("hello", 10)
      child.say(slice:slice(10, 5):string(), region:slice(0, 4):string() ==
        "\0\0\0\0")
      region:close()
      child.say(region.address, slice.address)
      child.say(engine:alloc(4096).kind)
    end)
    child:expect "cuda:1 cuda:1 nil nil"
    child:expect "100 true"
    child:expect "hello true"
    child:expect "nil nil"
    child:expect "host"
  end)

  it("has all pages once it is allocated, so it may be populated", function()
    local child = with("", function(child, perigee)
      child.say(perigee.engine {}:alloc(100, { kind = "cuda:0",
                                               populate = true }).kind)
    end)
    child:expect "cuda:0"
  end)

  it("is the first device without a number", function()
    assert.equal("cuda:0", (told("", "cuda")))
  end)

  it("is unsupported without a driver, which is named", function()
    local kind, text = told(nil, "cuda:0")
    assert.equal("unsupported", kind)
    assert.matches("/no/such/library.so", text, 1, true)
  end)

  it("is unsupported without a device, in the driver's words", function()
    local kind, text = told("devices=0", "cuda:0")
    assert.equal("unsupported", kind)
    assert.matches("CUDA_ERROR_NO_DEVICE", text, 1, true)
  end)

  it("is unsupported by a driver that is too old, and says why", function()
    local kind, text = told("no=cuMemMap", "cuda:0")
    assert.equal("unsupported", kind)
    assert.matches("too old: it has no cuMemMap", text, 1, true)
    kind, text = told("without=122", "cuda:0")
    assert.equal("unsupported", kind)
    assert.matches("cuStreamWriteValue64", text, 1, true)
  end)

  it("is unsupported in a child of a process that has some", function()
    local child = with("", function(child, perigee, ffi_)
      ffi_.cdef "int fork(void); int waitpid(int, int *, int);"
      assert(perigee.engine {}:alloc(4096, { kind = "cuda:0" }))
      local pid = ffi_.C.fork()
      if pid == 0 then
        local _, err = perigee.engine {}:alloc(4096, { kind = "cuda:0" })
        child.say(err and err.kind)
        child.say(tostring(err))
        os.exit(0)
      end
      ffi_.C.waitpid(pid, nil, 0)
      assert(perigee.engine {}:alloc(4096, { kind = "cuda:0" }))
      child.say "parent"
    end)
    child:expect "unsupported"
    assert.matches("does not work in a forked child", child:read(), 1, true)
    child:expect "parent"
  end)

  it("is asked for with the versions that its declarations are of", function()
    local kind, text = told("version=11060", "cuda:0")
    assert.equal("unsupported", kind)
    assert.matches("too old", text, 1, true)
    assert.equal("cuda:0", (told("version=13000", "cuda:0")))
  end)

  it("is not found for a device that there is not", function()
    local kind, text = told("", "cuda:2")
    assert.equal("not_found", kind)
    assert.matches("CUDA shows 2 devices, not number 2", text, 1, true)
  end)

  it("comes from cuMemAlloc where a device has no virtual memory", function()
    assert.equal("cuda:0", (told("without=102", "cuda:0", 100000)))
    local child = with("without=102", function(child, perigee)
      local region = perigee.engine {}:alloc(5000, { kind = "cuda:0" })
      child.say(region:slice():string() == ("\0"):rep(5000))
    end)
    child:expect "true"
  end)

  it("is no_memory if the device has none, once and again", function()
    -- The second try, after Lua's collection, succeeds.
    assert.equal("cuda:0", (told("fail=cuMemCreate@1:2", "cuda:0")))
    local kind, text = told("fail=cuMemMap@1:999", "cuda:0")
    assert.equal("unsupported", kind)
    assert.matches("allocating memory of the device", text, 1, true)
  end)

  it("is found to be so when it is registered", function()
    local child = with("", function(child, perigee, ffi_)
      local engine = perigee.engine {}
      local first = engine:alloc(8192, { kind = "cuda:1" })
      local pointer = ffi_.cast("uint8_t *", first.address + 4096)
      local again = assert(engine:register(pointer, 4096))
      child.say(again.kind, again.address - first.address)
      again:slice(0, 3):write "abc"
      child.say(first:slice(4096, 3):string())
      child.say((pcall(engine.register, engine, pointer, 4096,
                       { kind = "host" })))
    end)
    child:expect "cuda:1 4096"
    child:expect "abc"
    child:expect "false"
  end)

  it("loads no driver in a process that does not ask for it", function()
    local child = with("", function(child, perigee, ffi_)
      local engine = perigee.engine {}
      engine:alloc(4096)
      local buffer = ffi_.new("uint8_t[4096]")
      engine:register(ffi_.cast("uint8_t *", buffer), 4096)
      local file = io.open "/proc/self/maps"
      child.say(file:read "*a":find "libcuda" == nil)
      engine:alloc(4096, { kind = "cuda:0" })
      file = io.open "/proc/self/maps"
      child.say(file:read "*a":find "libcuda" ~= nil)
    end)
    child:expect "true"
    child:expect "true"
  end)

  it("ends what it carries in `closed` when its device breaks", function()
    local child = with("fail=stream@40:700", function(child, perigee)
      local engine = perigee.engine {}
      local address = "unix:" .. child.cases.folder .. "/broken.sock"
      os.execute("mkdir -p -m 700 '" .. child.cases.folder .. "'")
      local listener = assert(engine:listen(address))
      local other = perigee.engine {}
      local host = other:alloc(2 ^ 20)
      local device = engine:alloc(2 ^ 20, { kind = "cuda:0", name = "kv",
                                            access = "rw" })
      local session = assert(other:connect(address))
      assert(listener:accept(5))
      local remote = assert(session:region "kv")
      local fine, ok, err = 0
      repeat
        ok, err = session:write { from = host:slice(), to = remote:slice() }
          :wait(10)
        fine = fine + (ok and 1 or 0)
      until not ok or fine == 100
      child.say(fine < 100, err and err.kind)
      -- Host memory of the same session goes on.
      engine:alloc(4096, { name = "host", access = "rw" })
      local plain = assert(session:region "host")
      child.say((session:write { from = host:slice(0, 4096),
                                 to = plain:slice() }:wait(10)))
      child.say(device.kind)
      os.execute("rm -rf '" .. child.cases.folder .. "'")
    end)
    child:expect "true closed"
    child:expect "true"
    child:expect "cuda:0"
  end)
end)
