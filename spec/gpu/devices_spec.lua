-- SPDX-License-Identifier: Apache-2.0
-- perigee.devices { kind = "gpu" }, by the fake driver of this folder and a
-- made-up /sys.
local cases = require "spec.support.cases"
local fake_sysfs = require "spec.rdma.fake_sysfs"
local perigee = require "perigee"
local process = require "spec.support.process"

local ffi = require "ffi"

pcall(ffi.cdef, [[
  int spec_gpu_setenv(const char *, const char *, int) __asm__("setenv");
]])

local FAKE = os.getenv "PERIGEE_BUILD" .. "/spec/libcuda_fake.so"

-- The fake's devices, and bridges above them.
local FIRST, SECOND = "0000:17:00.0", "0000:18:00.0"
local ROOT, FAR = "pci0000:15", "pci0000:ea"
local SWITCH = ROOT .. "/0000:15:01.0/0000:16:00.0"

describe("perigee.devices of kind gpu", function()
  local before = { os.getenv "PERIGEE_CUDA_LIBRARY", os.getenv "PERIGEE_NICS" }
  local sys

  local function set(name, value)
    ffi.C.spec_gpu_setenv(name, value or "", 1)
  end

  before_each(function() sys = fake_sysfs() end)
  after_each(function()
    cases.cleanup()
    sys:remove()
    set("PERIGEE_CUDA_LIBRARY", before[1])
    set("PERIGEE_NICS", before[2])
    set("FAKE_CUDA")
  end)

  -- Starts a child with a driver that is set so; without settings, with none.
  local function with(settings, f, ...)
    set("PERIGEE_CUDA_LIBRARY", settings and FAKE or "/no/such/library.so")
    set("FAKE_CUDA", settings)
    return process.start(f, ...)
  end

  -- Says the number of devices, and a field of each; or the kind of the error.
  -- Then what else is told.
  local function list(child, perigee_, _, root, field)
    local gpus, why = perigee_.devices { kind = "gpu", sysfs = root }
    local words = {}
    for i, gpu in ipairs(gpus or {}) do
      local value = gpu[field]
      words[i] = type(value) == "table" and table.concat(value, ",")
        or tostring(value)
    end
    child.say(gpus and #gpus or why.kind, table.concat(words, " "))
    child.say((tostring(why or ""):gsub("\n", " ")))
  end

  local function told(settings, field)
    local child = with(settings, list, sys.root, field or "device")
    return child:read(), child:read()
  end

  it("tells what each is", function()
    sys:pci(FIRST, SWITCH, 1)
    sys:nic("mlx5_0", "0000:19:00.0", SWITCH, 1)
    local child = with("", function(child, perigee_, _, root)
      local gpus = assert(perigee_.devices { kind = "gpu", sysfs = root })
      local names = {}
      for name in pairs(gpus[1]) do names[#names + 1] = name end
      table.sort(names)
      child.say(table.concat(names, " "))
      local gpu = gpus[1]
      child.say(gpu.kind, gpu.device, gpu.index, gpu.name)
      child.say(gpu.uuid)
      child.say(gpu.memory, gpu.capability, gpu.pci, gpu.numa)
      child.say(#gpu.nics, gpu.nics[1], #gpu.reaches, gpu.reaches[1])
      child.say(#gpus, gpus[2].device, gpus[2].index, gpus[2].pci,
                gpus[2].numa, #gpus[2].nics)
    end, sys.root)
    child:expect("capability device index kind memory name nics numa pci "
      .. "reaches uuid")
    child:expect "gpu cuda:0 0 Fake GPU"
    local uuid = "^GPU"
    for _, digits in ipairs { 8, 4, 4, 4, 12 } do
      uuid = uuid .. "%-" .. ("[0-9a-f]"):rep(digits)
    end
    assert.matches(uuid .. "$", child:read())
    child:expect(2 ^ 34 .. " 1.1 " .. FIRST .. " 1")
    child:expect "1 mlx5_0 1 cuda:1"
    child:expect("2 cuda:1 1 " .. SECOND .. " -1 0")
  end)

  it("lists what CUDA_VISIBLE_DEVICES shows, by the numbers of this process",
    function()
      assert.equal("2 0000:1a:00.0 " .. FIRST,
                   (told("devices=4 visible=3,0", "pci")))
      assert.equal("2 cuda:0 cuda:1", (told("devices=4 visible=3,0")))
    end)

  it("tells which others each reaches", function()
    assert.equal("3 cuda:1,cuda:2 cuda:0,cuda:2 cuda:0,cuda:1",
                 (told("devices=3", "reaches")))
    assert.equal("2  ", (told("peers=0", "reaches")))
  end)

  -- ---- NICs -----------------------------------------------------------------

  it("tells the NICs behind the same bridge before those of the same root",
    function()
      sys:pci(FIRST, SWITCH .. "/0000:17:01.0")
      sys:pci(SECOND, FAR)
      sys:nic("a", "0000:25:00.0", ROOT .. "/0000:15:02.0")
      sys:nic("b", "0000:26:00.0", SWITCH .. "/0000:17:02.0")
      sys:nic("c", "0000:ea:00.0", FAR)
      assert.equal("2 b c", (told("", "nics")))
      sys:remove "b"
      assert.equal("2 a c", (told("", "nics")))
    end)

  it("tells those of the GPU's NUMA node first where no bridge is shared",
    function()
      sys:pci(FIRST, ROOT, 0)
      sys:pci(SECOND, FAR, 1)
      sys:nic("a", "0000:40:00.0", "pci0000:40", 1)
      sys:nic("b", "0000:50:00.0", "pci0000:50", 0)
      sys:nic("c", "0000:60:00.0", "pci0000:60")
      assert.equal("2 b a", (told("", "nics")))
      -- A bridge that is shared says more than a node.
      sys:nic("d", "0000:16:00.0", ROOT)
      assert.equal("2 d a", (told("", "nics")))
    end)

  it("tells four of those that are equally near, each of them once", function()
    sys:pci(FIRST, SWITCH)
    sys:port("mlx5_1", 2)
    for i = 10, 1, -1 do
      sys:nic("mlx5_" .. i, ("0000:19:%02x.0"):format(i), SWITCH)
    end
    assert.equal("1 mlx5_1,mlx5_2,mlx5_3,mlx5_4", (told("devices=1", "nics")))
  end)

  it("tells no NIC in software, and none that PERIGEE_NICS hides", function()
    sys:pci(FIRST, SWITCH)
    sys:port("rxe0", 1)
    assert.equal("1 ", (told("devices=1", "nics")))
    sys:nic("near", "0000:19:00.0", SWITCH)
    sys:nic("far", "0000:ea:00.0", FAR)
    set("PERIGEE_NICS", "far")
    assert.equal("1 far", (told("devices=1", "nics")))
  end)

  it("tells no NIC for a GPU that sysfs does not show", function()
    sys:nic("a", "0000:19:00.0", SWITCH)
    assert.equal("1 ", (told("devices=1", "nics")))
    assert.equal("1 -1", (told("devices=1", "numa")))
  end)

  -- ---- None, and failures ---------------------------------------------------

  it("is empty without a driver, and says why", function()
    local count, why = told(nil)
    assert.equal("0 ", count)
    assert.matches("/no/such/library.so", why, 1, true)
  end)

  it("is empty without a device, in the driver's words", function()
    for _, settings in ipairs { "devices=0", "visible=", "visible=-1" } do
      local count, why = told(settings)
      assert.equal("0 ", count, settings)
      assert.matches("CUDA_ERROR_NO_DEVICE", why, 1, true)
    end
  end)

  it("is unsupported by a driver that does not work, in its words", function()
    local kind, why = told "fail=cuInit@1:803"
    assert.equal("unsupported ", kind)
    assert.matches("CUDA cannot be initialized: CUDA_ERROR", why, 1, true)
    kind, why = told "no=cuMemMap"
    assert.equal("unsupported ", kind)
    assert.matches("too old: it has no cuMemMap", why, 1, true)
    kind, why = told "fail=cuDeviceGetCount@1:3"
    assert.equal("unsupported ", kind)
    assert.matches("counting devices: CUDA_ERROR", why, 1, true)
    kind, why = told "fail=cuDeviceGet@1:3"
    assert.equal("unsupported ", kind)
    assert.matches("cuda:0: finding a device: CUDA_ERROR", why, 1, true)
  end)

  it("leaves empty what the driver does not answer", function()
    for field, settings in pairs {
      name = "fail=cuDeviceGetName@1:3", uuid = "fail=cuDeviceGetUuid@1:3",
      pci = "fail=cuDeviceGetPCIBusId@1:3",
    } do
      local count = told("devices=1 " .. settings, field)
      assert.equal("1 ", count, field)
    end
    assert.equal("1 0", (told("devices=1 fail=cuDeviceTotalMem@1:3", "memory")))
    assert.equal("1 ", (told("devices=1 fail=cuDeviceGetAttribute@1:3",
                             "capability")))
    assert.matches("^2  ", (told("fail=cuDeviceCanAccessPeer@1:3", "reaches")))
  end)

  it("raises for other kinds, for other options, and for wrong NICs", function()
    local function wrong(options, text)
      local fine, message = pcall(function() perigee.devices(options) end)
      assert.is_false(fine)
      assert.matches("devices_spec.lua:%d+: ", message)
      assert.matches(text, message, 1, true)
    end
    wrong({ kind = "tpu" }, 'must be "rdma" or "gpu", not "tpu"')
    wrong({ kind = 1 }, 'must be "rdma" or "gpu"')
    wrong({ kind = "gpu", state = "active" }, 'no option "state"')
    wrong({ kind = "gpu", sysfs = 1 }, "must be a string")
    set("PERIGEE_NICS", "../a")
    local child = with("", function(child, perigee_)
      local fine, message = pcall(perigee_.devices, { kind = "gpu" })
      child.say(fine, message:match "PERIGEE_NICS[^:]*")
    end)
    child:expect "false PERIGEE_NICS in the environment"
  end)

  -- ---- What it leaves alone -------------------------------------------------

  it("makes no context, and loads no driver before it is asked", function()
    local child = with("", function(child, perigee_, ffi_, path)
      ffi_.cdef "uint64_t fake_cuda_count(const char *);"
      perigee_.devices()
      perigee_.devices { kind = "rdma" }
      local maps = io.open "/proc/self/maps"
      child.say(maps:read "*a":find "libcuda" == nil)
      perigee_.devices { kind = "gpu" }
      local fake = ffi_.load(path)
      child.say(tonumber(fake.fake_cuda_count "cuInit"),
                tonumber(fake.fake_cuda_count "cuDevicePrimaryCtxRetain"),
                tonumber(fake.fake_cuda_count "cuCtxPushCurrent"))
    end, FAKE)
    child:expect "true"
    child:expect "1 0 0"
  end)

  -- Those of other versions of the header have other sizes.
  it("fills a C program's list as far as it goes", function()
    local child = with("devices=3", function(child, _, ffi_)
      local C = require "perigee.native".C
      local size = ffi_.sizeof "struct perigee_gpu"
      local function at(from, offset) return ffi_.string(from + offset) end
      for _, each in ipairs { size + 16, 96 } do
        local bytes = ffi_.new("char[?]", 3 * each, ("x"):rep(3 * each))
        local typed = ffi_.cast("struct perigee_gpu *", bytes)
        child.say(C.perigee_gpus(nil, typed, each, 2), at(bytes, 0),
                  at(bytes, each), bytes[2 * each] == ("x"):byte())
        child.say(each < size or at(bytes, size) == "")
      end
      child.say(C.perigee_gpus(nil, nil, size, 0),
                C.perigee_gpus(nil, nil, size, 1) == C.PERIGEE_INVALID,
                C.perigee_gpus(nil, nil, 0, 0) == C.PERIGEE_INVALID)
    end)
    for _ = 1, 2 do
      child:expect "3 Fake GPU Fake GPU true"
      child:expect "true"
    end
    child:expect "3 true true"
  end)

  it("changes nothing for kind rdma", function()
    sys:nic("mlx5_0", "0000:19:00.0", SWITCH, 1)
    local ports = assert(perigee.devices { sysfs = sys.root })
    assert.equal(1, #ports)
    assert.same(ports, perigee.devices { sysfs = sys.root, kind = "rdma" })
    assert.is_nil(ports[1].kind)
  end)
end)

-- By the driver that PERIGEE_CUDA_LIBRARY names; "": the real one.
describe("the GPUs of this machine", function()
  after_each(cases.cleanup)

  it("are told in full", function()
    local child = process.start(function(child, perigee_)
      local gpus = assert(perigee_.devices { kind = "gpu" })
      child.say(#gpus)
      for i, gpu in ipairs(gpus) do
        child.say(gpu.index == i - 1 and gpu.name ~= "",
          #gpu.uuid == 40 and gpu.memory > 2 ^ 28,
          gpu.capability:match "^%d+%.%d$" ~= nil,
          gpu.pci:match "^%x%x%x%x:%x%x:%x%x%.0$" ~= nil)
      end
    end)
    local count = tonumber(child:read())
    if count == 0 then return pending("there is no GPU") end
    for _ = 1, count do child:expect "true true true true" end
  end)
end)
