-- SPDX-License-Identifier: Apache-2.0
--- A GPU that CUDA shows this process, as `perigee.devices { kind = "gpu" }`
-- lists it. Texts are "" where nothing is known.
--
-- * `kind`: "gpu"
-- * `device`: "cuda:0", the kind of memory that `Engine:alloc` takes
-- * `index`: 0 of "cuda:0"
-- * `name`: "NVIDIA H100 80GB HBM3"
-- * `uuid`: "GPU-8f2b0c1d-...", by which CUDA_VISIBLE_DEVICES can name it
-- * `memory`: bytes, all of them; 0 if unknown
-- * `capability`: its compute capability, "9.0"
-- * `pci`: "0000:3b:00.0"
-- * `numa`: node, -1 if unknown
-- * `nics`: names of the RDMA devices that are nearest to it, at most 4. These
--   share most of their way on the PCI bus with it, and among equals are of its
--   NUMA node
-- * `reaches`: a list of the devices whose memory it can access by itself, as
--   "cuda:1"
-- @classmod Gpu
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"

local ffi = require "ffi"
local C = native.C

local M = {}

local gpus_t = ffi.typeof("struct perigee_gpu[?]")
local GPU_SIZE = ffi.sizeof("struct perigee_gpu")
local MOST = 64                         -- a machine has no more

local function nics(gpu)
  local names = {}
  for i = 0, 3 do
    local name = ffi.string(gpu.nics[i])
    if name ~= "" then names[#names + 1] = name end
  end
  return names
end

local function reaches(gpu)
  local devices = {}
  for i = 0, MOST - 1 do
    if bit.band(gpu.reaches, bit.lshift(1ULL, i)) ~= 0 then
      devices[#devices + 1] = "cuda:" .. i
    end
  end
  return devices
end

local function capability(gpu)
  return gpu.major > 0 and ("%d.%d"):format(gpu.major, gpu.minor) or ""
end

local function plain(gpu)
  return {
    kind = "gpu", device = "cuda:" .. gpu.index, index = gpu.index,
    name = ffi.string(gpu.name), uuid = ffi.string(gpu.uuid),
    memory = tonumber(gpu.memory), capability = capability(gpu),
    pci = ffi.string(gpu.pci), numa = gpu.numa, nics = nics(gpu),
    reaches = reaches(gpu),
  }
end

--- Lists all; where there is none, with the reason as the second result.
function M.list(sysfs)
  local list, gpus = gpus_t(MOST), {}
  local count = C.perigee_gpus(sysfs, list, GPU_SIZE, MOST)
  if count < 0 then return nil, errors.from(count, "listing GPUs") end
  for i = 0, math.min(count, MOST) - 1 do gpus[i + 1] = plain(list[i]) end
  return gpus, count == 0 and native.detail(nil) or nil
end

return M
