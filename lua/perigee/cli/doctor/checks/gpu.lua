-- SPDX-License-Identifier: Apache-2.0
--- GPUs and their driver, as moves of GPU memory need them.
local units = require "perigee.runtime.units"
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, warning = verdict.ok, verdict.note, verdict.warning

local NVIDIA, DISPLAY = "0x10de", "0x03"
local NOTHING = "not needed: there is no NVIDIA GPU"

local function version(machine)
  local text = machine:read "/proc/driver/nvidia/version"
  return text and (text:match "%s(%d+%.%d+[%.%d]*)%s" or "unknown"), text
end

local function pci(machine)
  local count = 0
  for _, path in ipairs(machine:glob "/sys/bus/pci/devices/*") do
    if machine:read(path .. "/vendor") == NVIDIA
      and (machine:read(path .. "/class") or ""):sub(1, 4) == DISPLAY then
      count = count + 1
    end
  end
  return count
end

local function models(machine)
  local list = {}
  for _, path in ipairs(machine:glob "/proc/driver/nvidia/gpus/*/information")
  do
    local text = machine:read(path) or ""
    list[#list + 1] = text:match "Model:%s*([^\n]*)"
  end
  return table.concat(list, ", ")
end

local function driver(machine)
  local number = version(machine)
  if number then
    local names = models(machine)
    return ok(("NVIDIA %s%s"):format(number, names ~= "" and ": " .. names
      or ""))
  end
  local count = pci(machine)
  if count == 0 then return ok "no NVIDIA GPU" end
  return warning(("%d NVIDIA GPUs, but no driver"):format(count),
    "install it, or load it", "sudo modprobe nvidia")
end

local function let_in(machine)
  if machine:contained() then
    return "start the container with docker's --gpus all, or what is as much "
      .. "elsewhere"
  end
  return "install the driver's library", "sudo apt-get install libcuda1"
end

-- The name of CUDA's driver library that the environment gives, or nil.
local function named(machine)
  local name = machine:getenv "PERIGEE_CUDA_LIBRARY"
  return name ~= "" and name or nil
end

-- Returns whether a process may expect CUDA here.
local function expected(machine)
  return version(machine) ~= nil or named(machine) ~= nil
end

local function library(machine)
  local name = named(machine) or "libcuda.so.1"
  local found, why = machine:library(name)
  if found then
    local cuda = machine:cuda_version(found)
    return ok(name .. (cuda and ", CUDA " .. cuda or ""))
  end
  if named(machine) then
    return warning(("PERIGEE_CUDA_LIBRARY: %s cannot be loaded: %s"):format(
      name, why), "correct it, or do without", "unset PERIGEE_CUDA_LIBRARY")
  end
  if not version(machine) then return ok(NOTHING) end
  return warning("libcuda.so.1 cannot be loaded: " .. why, let_in(machine))
end

-- The files that a process opens to use a GPU.
local function device_files(machine)
  local files = { "/dev/nvidiactl", "/dev/nvidia-uvm" }
  for _, path in ipairs(machine:glob "/dev/nvidia[0-9]*") do
    files[#files + 1] = path
  end
  return files
end

local function access(machine)
  if not version(machine) then return ok(NOTHING) end
  local verdicts, files = {}, device_files(machine)
  for _, path in ipairs(files) do
    if not machine:may(path, "") then
      verdicts[#verdicts + 1] = warning(path .. " is not there", "make it",
        "sudo nvidia-modprobe -u -c 0")
    elseif not machine:may(path, "rw") then
      verdicts[#verdicts + 1] = warning(path .. " may not be opened",
        "let its user open it", "sudo chmod 666 " .. path)
    end
  end
  return #verdicts > 0 and verdicts or ok(table.concat(files, ", "))
end

-- ---- What CUDA shows -------------------------------------------------------

-- Returns the first file of a GPU that may not be opened.
local function forbidden(machine)
  for _, path in ipairs(device_files(machine)) do
    if not machine:may(path, "rw") then return path end
  end
end

local function described(gpu, alone)
  local text = ("%s: %s, %s"):format(gpu.device,
    gpu.name ~= "" and gpu.name or "without a name",
    units.format_size(gpu.memory))
  if #gpu.nics > 0 then
    text = text .. ", near " .. table.concat(gpu.nics, " and ")
  end
  if alone then return text end
  return text .. (#gpu.reaches > 0
    and ", reaches " .. table.concat(gpu.reaches, ", ")
    or ", reaches no other GPU itself")
end

-- A variable hides all GPUs from a driver that works; a file that may not be
-- opened, also in another way.
local function none(machine, works, why)
  local visible = works and machine:getenv "CUDA_VISIBLE_DEVICES"
  if visible then
    return warning(("CUDA shows no GPU, and CUDA_VISIBLE_DEVICES is %q"):format(
      visible), "name a GPU that is there, or do without",
      "unset CUDA_VISIBLE_DEVICES")
  end
  local path = version(machine) and forbidden(machine)
  if path then
    return warning(("CUDA shows no GPU (%s); %s is not there, or may not be "
      .. "opened"):format(why, path), "see what is said of access")
  end
  return warning("CUDA shows no GPU: " .. why,
    "see whether nvidia-smi shows one: it tells why the driver does not work",
    "nvidia-smi")
end

local function devices(machine)
  if not expected(machine) then return ok(NOTHING) end
  if not machine:library(named(machine) or "libcuda.so.1") then
    return verdict.unknown "CUDA's driver library cannot be loaded"
  end
  local list, why = machine:gpus()
  if not list or #list == 0 then
    return none(machine, list, tostring(why):match "^[^\n]*")
  end
  local verdicts = {}
  for i, gpu in ipairs(list) do
    verdicts[i] = ok(described(gpu, #list == 1))
  end
  return verdicts
end

-- A NIC reaches a GPU's memory by nvidia-peermem, or by dma-buf, which takes
-- the driver's open flavour on Linux 5.12 or later.
local function peers(machine)
  local number, text = version(machine)
  if not number then return ok(NOTHING) end
  if #machine:glob "/sys/class/infiniband/*" == 0 then
    return ok "not needed: there is no RDMA device"
  end
  if machine:may("/sys/module/nvidia_peermem", "") then
    return ok "nvidia-peermem"
  end
  local release = machine:read "/proc/sys/kernel/osrelease" or ""
  local major, minor = release:match "^(%d+)%.(%d+)"
  if text:find "Open Kernel Module"
    and major and tonumber(major) * 1000 + tonumber(minor) >= 5012 then
    return ok "dma-buf"
  end
  return note("neither nvidia-peermem nor dma-buf", "load the module",
    "sudo modprobe nvidia-peermem")
end

return {
  { name = "driver", look = driver,
    why = "A region of kind cuda is memory of a GPU, by its driver" },
  { name = "library", look = library,
    why = "CUDA is found at run time; one build serves machines with and "
      .. "without a GPU" },
  { name = "access", look = access,
    why = "A process opens the GPU's files itself" },
  { name = "devices", look = devices,
    why = "A process has the GPUs that CUDA shows it, and no others" },
  { name = "NICs", look = peers,
    why = "A NIC that reaches a GPU's memory itself spares the way through the "
      .. "host's" },
}
