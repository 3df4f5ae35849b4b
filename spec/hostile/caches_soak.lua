-- SPDX-License-Identifier: Apache-2.0
-- caches_soak.lua MINUTES [SEED]: the checker of caches
-- (spec/support/cache_checker.lua) over each transport of PERIGEE_HOSTILE ("shm
-- tcp"), with memory alone, with a file and memory that outlives the cache, and
-- with three caches whose hot keys have copies; for as long each. Ends with a
-- non-zero status if it has found a fault.
local minutes, seed = tonumber(arg[1]), tonumber(arg[2])
if not minutes then
  io.stderr:write "caches_soak.lua MINUTES [SEED]\n"
  os.exit(2)
end
seed = seed or os.time() % 2 ^ 30 + 1

-- Engines of this process and of all that it starts read the transport here.
local ffi = require "ffi"
local cases = require "spec.support.cases"
local checker = require "spec.support.cache_checker"

local transports = {}
for name in (os.getenv "PERIGEE_HOSTILE" or "shm tcp"):gmatch "%S+" do
  transports[#transports + 1] = name
end

local wrong = 0

local function run(name, kind)
  ffi.C.spec_setenv("PERIGEE_TRANSPORT", name, 1)
  local faults, told = checker.run(minutes * 20 / #transports, seed, nil,
                                    kind == "file" and kind, kind == "several")
  print(("%s, %s, seed %d: %d faults; gets, hits and errors of each reader: %s")
    :format(name, kind, seed, #faults, told))
  io.stdout:flush()
  for i = 1, math.min(#faults, 20) do print("  " .. faults[i]) end
  wrong = wrong + #faults
  cases.cleanup()
end

for _, name in ipairs(transports) do
  for _, kind in ipairs { "memory", "file", "several" } do run(name, kind) end
end
os.exit(wrong == 0 and 0 or 1)
