-- SPDX-License-Identifier: Apache-2.0
-- CUDA's driver, as a program of this process would use it, and what the fake
-- driver tells of itself: counts of calls. The library is that of
-- PERIGEE_CUDA_LIBRARY, so counts are those of Perigee's calls, too.
local ffi = require "ffi"

ffi.cdef [[
  uint64_t fake_cuda_count(const char *name);
  void fake_cuda_set(const char *word);
  int cuInit(unsigned);
  int cuDevicePrimaryCtxRetain(void **, int);
  int cuCtxPushCurrent_v2(void *);
  int cuCtxPopCurrent_v2(void **);
  int cuMemAlloc_v2(unsigned long long *, size_t);
  int cuMemFree_v2(unsigned long long);
  int cuMemAllocManaged(unsigned long long *, size_t, unsigned);
  typedef struct {
    int type, handles, location, device;
    void *none;
    uint8_t flags[8];
  } fake_cuda_made;
  typedef struct { int location, device, flags; } fake_cuda_access;
  int cuMemCreate(unsigned long long *, size_t, const fake_cuda_made *,
                  unsigned long long);
  int cuMemAddressReserve(unsigned long long *, size_t, size_t,
                          unsigned long long, unsigned long long);
  int cuMemMap(unsigned long long, size_t, size_t, unsigned long long,
               unsigned long long);
  int cuMemSetAccess(unsigned long long, size_t, const fake_cuda_access *,
                     size_t);
  int cuMemUnmap(unsigned long long, size_t);
  int cuMemAddressFree(unsigned long long, size_t);
  int cuMemRelease(unsigned long long);
  int fork(void);
  int prctl(int, unsigned long, unsigned long, unsigned long, unsigned long);
  unsigned sleep(unsigned);
  int kill(int, int);
  int waitpid(int, int *, int);
  void _exit(int);
]]

local driver = ffi.load(os.getenv "PERIGEE_CUDA_LIBRARY")
local M = {}
local address = ffi.typeof "unsigned long long[1]"
local context

local function enter()
  if not context then
    context = ffi.new "void *[1]"
    assert(driver.cuInit(0) == 0)
    assert(driver.cuDevicePrimaryCtxRetain(context, 0) == 0)
  end
  assert(driver.cuCtxPushCurrent_v2(context[0]) == 0)
end

local function leave()
  driver.cuCtxPopCurrent_v2(ffi.new "void *[1]")
end

local function pointer(number)
  return ffi.cast("uint8_t *", number)
end

-- Memory of the program's own on device 0, as a pointer.
function M.malloc(bytes)
  enter()
  local at = address()
  assert(driver.cuMemAlloc_v2(at, bytes) == 0)
  leave()
  return pointer(at[0])
end

-- The same as torch makes it for expandable segments: whole units of 2 MiB, of
-- which others get a descriptor.
function M.create(bytes)
  enter()
  local made, at = address(), address()
  local how = ffi.new("fake_cuda_made", { 1, 1, 1, 0 })
  assert(driver.cuMemCreate(made, bytes, how, 0) == 0)
  assert(driver.cuMemAddressReserve(at, bytes, 0, 0, 0) == 0)
  assert(driver.cuMemMap(at[0], bytes, 0, made[0], 0) == 0)
  assert(driver.cuMemRelease(made[0]) == 0)
  local access = ffi.new("fake_cuda_access", { 1, 0, 3 })
  assert(driver.cuMemSetAccess(at[0], bytes, access, 1) == 0)
  leave()
  return pointer(at[0])
end

function M.destroy(memory, bytes)
  enter()
  local at = ffi.cast("uintptr_t", memory)
  assert(driver.cuMemUnmap(at, bytes) == 0)
  assert(driver.cuMemAddressFree(at, bytes) == 0)
  leave()
end

function M.managed(bytes)
  enter()
  local at = address()
  assert(driver.cuMemAllocManaged(at, bytes, 1) == 0)
  leave()
  return pointer(at[0])
end

function M.free(memory)
  enter()
  assert(driver.cuMemFree_v2(ffi.cast("uintptr_t", memory)) == 0)
  leave()
end

-- Forks a child that calls nothing of Perigee's, as a worker of torch's data
-- loader does. It lives until this process ends, or calls the function that is
-- returned.
function M.fork()
  local pid = ffi.C.fork()
  if pid == 0 then
    ffi.C.prctl(1, 9, 0, 0, 0)    -- PR_SET_PDEATHSIG, SIGKILL
    ffi.C.sleep(1000)
    ffi.C._exit(0)
  end
  return function()
    ffi.C.kill(pid, 9)
    ffi.C.waitpid(pid, nil, 0)
  end
end

-- How often the driver's function was called in this process.
function M.count(name)
  return tonumber(driver.fake_cuda_count(name))
end

function M.set(word)
  driver.fake_cuda_set(word)
end

return M
