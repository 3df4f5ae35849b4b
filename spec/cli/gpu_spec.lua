-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: GPUs and their driver.
local case = require "spec.support.doctor_case"

before_each(case.start)
after_each(case.finish)

describe("the check of GPUs", function()
  local file = "/proc/driver/nvidia/version"
  local CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  "
    .. "Tue Mar  5 22:23:56 UTC 2024"
  local OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
    .. "570.86.10  Release Build"

  it("needs nothing without one", function()
    for _, name in ipairs { "driver", "library", "access", "devices", "NICs" }
    do
      assert.equal("ok", case.said("GPU", name)[1].status, name)
    end
  end)

  it("knows the driver and the GPUs", function()
    case.fake:put(file, CLOSED)
    case.fake:put("/proc/driver/nvidia/gpus/0000:01:00.0/information",
             "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 3")
    case.expect("GPU", "driver", "ok",
      "NVIDIA 550.54.15: NVIDIA H100 80GB HBM3")
    case.fake:put(file, OPEN)
    case.expect("GPU", "driver", "ok", "NVIDIA 570.86.10")
  end)

  it("misses the driver of a GPU", function()
    case.fake:put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    case.fake:put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200")
    case.expect("GPU", "driver", "warning", "1 NVIDIA GPUs, but no driver",
           "modprobe nvidia")
  end)

  it("misses the driver's library", function()
    case.fake:put(file, CLOSED)
    case.expect("GPU", "library", "warning", "libcuda.so.1 cannot be loaded",
           "apt-get install libcuda1")
    case.fake:put("/.dockerenv", "")
    local found = case.expect("GPU", "library", "warning", "cannot be loaded")
    assert.matches("%-%-gpus all", found.fix)
    case.fake.machine.library = function() return {} end
    case.fake.machine.cuda_version = function() return "12.4" end
    case.expect("GPU", "library", "ok", "libcuda.so.1, CUDA 12.4")
  end)

  it("looks for the library that PERIGEE_CUDA_LIBRARY names", function()
    local asked = {}
    case.fake.machine.library = function(_, name)
      asked[#asked + 1] = name
      if name == "/opt/libcuda.so" then return {} end
      return nil, name .. ": no such file"
    end
    case.fake.machine.cuda_version = function() return "12.4" end
    case.fake:set("PERIGEE_CUDA_LIBRARY", "/opt/libcuda.so")
    case.expect("GPU", "library", "ok", "/opt/libcuda.so, CUDA 12.4")
    case.expect("settings", "environment", "ok", "PERIGEE_CUDA_LIBRARY set")
    case.fake:set("PERIGEE_CUDA_LIBRARY", "/nowhere.so")
    case.expect("GPU", "library", "warning",
      "PERIGEE_CUDA_LIBRARY: /nowhere.so cannot be loaded",
      "unset PERIGEE_CUDA_LIBRARY")
    case.expect("GPU", "devices", "note", "library cannot be loaded")
    case.fake:set("PERIGEE_CUDA_LIBRARY", "")
    case.expect("GPU", "library", "ok", "no NVIDIA GPU")
    case.fake:put(file, CLOSED)
    case.expect("GPU", "library", "warning", "libcuda.so.1 cannot be loaded")
    assert.equal("libcuda.so.1", asked[#asked])
  end)

  it("knows the words of PERIGEE_CUDA_COPIES", function()
    case.fake:set("PERIGEE_CUDA_COPIES", "kernel")
    case.expect("settings", "environment", "ok", "PERIGEE_CUDA_COPIES set")
    case.fake:set("PERIGEE_CUDA_COPIES", "kernels")
    case.expect("settings", "environment", "problem",
      'PERIGEE_CUDA_COPIES: "kernels" is none of kernel, batch, loop',
      "unset PERIGEE_CUDA_COPIES")
  end)

  -- A machine with a driver that loads, and what it shows.
  local function shows(list, why)
    case.fake:put(file, CLOSED)
    for _, path in ipairs { "/dev/nvidiactl", "/dev/nvidia-uvm",
                            "/dev/nvidia0" } do
      case.fake:put(path, "")
    end
    case.fake.machine.library = function() return {} end
    case.fake.machine.cuda_version = function() return "12.4" end
    case.fake.machine.gpus = function() return list, why end
  end

  local function gpu(device, fields)
    local all = { device = device, name = "NVIDIA H100", memory = 80 * 2 ^ 30,
                  nics = {}, reaches = {} }
    for name, value in pairs(fields or {}) do all[name] = value end
    return all
  end

  it("tells each that CUDA shows, and whom it reaches", function()
    shows { gpu "cuda:0" }
    case.expect("GPU", "devices", "ok", "cuda:0: NVIDIA H100, 80 GiB")
    assert.not_matches("reaches", case.said("GPU", "devices")[1].found)
    shows { gpu("cuda:0", { reaches = { "cuda:1", "cuda:2" } }),
            gpu("cuda:1", { nics = { "mlx5_0", "mlx5_1" } }),
            gpu("cuda:2", { name = "" }) }
    assert.equal(3, #case.said("GPU", "devices"))
    case.expect("GPU", "devices", "ok",
      "cuda:0: NVIDIA H100, 80 GiB, reaches cuda:1, cuda:2")
    case.expect("GPU", "devices", "ok", "cuda:1: NVIDIA H100, 80 GiB, near "
      .. "mlx5_0 and mlx5_1, reaches no other GPU itself")
    case.expect("GPU", "devices", "ok", "cuda:2: without a name")
  end)

  it("says why CUDA shows none", function()
    shows({}, "CUDA_ERROR_NO_DEVICE")
    case.expect("GPU", "devices", "warning",
      "CUDA shows no GPU: CUDA_ERROR_NO_DEVICE", "nvidia-smi")
    case.fake.forbidden["/dev/nvidia-uvm"] = "rw"
    case.expect("GPU", "devices", "warning",
      "(CUDA_ERROR_NO_DEVICE); /dev/nvidia-uvm is not there, or may not be")
    case.expect("GPU", "access", "warning", "/dev/nvidia-uvm may not be opened",
      "chmod 666 /dev/nvidia-uvm")
    case.fake:set("CUDA_VISIBLE_DEVICES", "")
    case.expect("GPU", "devices", "warning", 'CUDA_VISIBLE_DEVICES is ""',
      "unset CUDA_VISIBLE_DEVICES")
  end)

  it("blames no variable for a driver that does not work", function()
    shows(nil, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\nand more")
    case.fake:set("CUDA_VISIBLE_DEVICES", "0")
    case.expect("GPU", "devices", "warning",
      "CUDA shows no GPU: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "nvidia-smi")
  end)

  it("wants access", function()
    case.fake:put(file, CLOSED)
    case.expect("GPU", "access", "warning", "/dev/nvidia-uvm is not there")
    for _, path in ipairs { "/dev/nvidiactl", "/dev/nvidia-uvm",
                            "/dev/nvidia0" } do
      case.fake:put(path, "")
    end
    case.expect("GPU", "access", "ok", "/dev/nvidia0")
    case.fake.forbidden["/dev/nvidia0"] = "rw"
    case.expect("GPU", "access", "warning", "/dev/nvidia0 may not be opened",
           "chmod 666 /dev/nvidia0")
  end)

  it("wants a way for NICs to its memory", function()
    case.fake:put(file, CLOSED)
    case.expect("GPU", "NICs", "ok", "no RDMA device")
    case.rdma "mlx5_0"
    case.fake:put("/proc/sys/kernel/osrelease", "6.1.0")
    case.expect("GPU", "NICs", "note", "neither", "modprobe nvidia-peermem")
    case.fake:put(file, OPEN)
    case.expect("GPU", "NICs", "ok", "dma-buf")
    case.fake:put "/sys/module/nvidia_peermem/"
    case.expect("GPU", "NICs", "ok", "nvidia-peermem")
  end)
end)
