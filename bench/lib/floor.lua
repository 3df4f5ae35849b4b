-- SPDX-License-Identifier: Apache-2.0
-- Runs the C floors in short bursts and reads their samples.

local histogram = require "perigee.bench.histogram"
local process = require "bench.lib.process"

local M = {}

local NOT_RUN = 77

-- The folder into which `make` puts the floors; the bench sets it from its own
-- place.
M.folder = "build/bench"

local function parse(text)
  local variants = {}
  for what, ns, count in text:gmatch "sample (%S+) %d+ (%S+) (%d+)\n" do
    local pool = variants[what] or histogram.new()
    pool:add(tonumber(ns), tonumber(count))
    variants[what] = pool
  end
  return variants
end

-- Runs one burst and returns { what = histogram }; or nil and why, if the floor
-- says that this machine cannot run it. The arguments are words before the
-- size.
function M.burst(program, options, arguments, seconds, size)
  local path = M.folder .. "/" .. program
  local command = { path, "--samples", "--seconds", seconds,
                    "--pin", options.pin[1] .. "," .. options.pin[2] }
  for _, word in ipairs(arguments) do command[#command + 1] = word end
  command[#command + 1] = ("%d"):format(size)
  local child = assert(process.spawn(command))
  local text = child:rest()
  local variants, status = parse(text), child:wait()
  if status == NOT_RUN then return nil, text:match "not run: [^\n]*" end
  if status ~= 0 or not next(variants) then
    error(("%s failed with status %d; has `make` been run?")
          :format(path, status), 0)
  end
  return variants
end

-- Returns a floor as the function burst(seconds) that rounds.lua calls.
function M.of(program, options, arguments, size)
  return function(seconds)
    return M.burst(program, options, arguments, seconds, size)
  end
end

return M
