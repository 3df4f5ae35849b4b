-- SPDX-License-Identifier: Apache-2.0
-- The machine that the numbers were measured on.

local process = require "bench.lib.process"

local M = {}

local function first_match(path, pattern)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text:match(pattern)
end

local CACHES = "/sys/devices/system/cpu/cpu0/cache/index%d/%s"

-- Returns the sizes of the first core's caches of data, as in "L1 48K, L2
-- 2048K".
local function caches()
  local list = {}
  for index = 0, 9 do
    local level = first_match(CACHES:format(index, "level"), "%d+")
    local size = first_match(CACHES:format(index, "size"), "%d+%a*")
    local kind = first_match(CACHES:format(index, "type"), "%a+")
    if level and size and kind ~= "Instruction" then
      list[#list + 1] = ("L%s %s"):format(level, size)
    end
  end
  return #list > 0 and table.concat(list, ", ") or "unknown"
end

function M.describe(options)
  return {
    cpu = first_match("/proc/cpuinfo", "model name%s*:%s*([^\n]+)")
          or "unknown",
    cores = process.cores(),
    caches = caches(),
    kernel = first_match("/proc/sys/kernel/osrelease", "[^\n]+") or "unknown",
    memory_kib = tonumber(first_match("/proc/meminfo", "MemTotal:%s*(%d+)")),
    luajit = jit.version,
    driver_core = options.pin[1],
    worker_core = options.pin[2],
    date = os.date "!%Y-%m-%dT%H:%M:%SZ",
  }
end

return M
