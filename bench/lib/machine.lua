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

function M.describe(options)
  return {
    cpu = first_match("/proc/cpuinfo", "model name%s*:%s*([^\n]+)")
          or "unknown",
    cores = process.cores(),
    kernel = first_match("/proc/sys/kernel/osrelease", "[^\n]+") or "unknown",
    memory_kib = tonumber(first_match("/proc/meminfo", "MemTotal:%s*(%d+)")),
    luajit = jit.version,
    driver_core = options.pin[1],
    worker_core = options.pin[2],
    date = os.date "!%Y-%m-%dT%H:%M:%SZ",
  }
end

return M
