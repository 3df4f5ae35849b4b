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
    for _, name in ipairs { "driver", "library", "access", "NICs" } do
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
