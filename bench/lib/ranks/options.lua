-- SPDX-License-Identifier: Apache-2.0
-- The options of transfer.lua that are of many ranks.

local options = require "bench.lib.options"
local shapes = require "bench.lib.ranks.shape"

local M = {}

local function offsets(text)
  if shapes.PLACES[text] then return text end
  return nil, "offsets are same, spread or random"
end

--- Adds the options of the aggregated bench.
function M.add(parser)
  parser:option("--ranks", "Many ranks at once: starts N of them here, unless "
                .. "a launcher (torchrun, mpirun, srun) has.")
    :argname "N":convert(options.whole)
  parser:option("--num-iteration", "Of ranks: operations of each row, in "
                .. "place of --seconds."):argname "N":convert(options.whole)
  parser:option("--offsets", "Of ranks: where in the region operations go: "
                .. "same, spread, random.")
    :convert(offsets):default "spread"
  parser:option("--shape", "Of ranks: blocks of a KV cache, as in "
                .. "kv:layers=61,blocks=256,block=16K,stride=32K.")
    :convert(function(text) return shapes.parse(text, options.size) end)
  parser:option("--engine", "The --shape moved by another system: nixl, "
                .. "mooncake, ucx, or a peer of bench/compare.lua by name.")
  parser:option("--wait", "Of ranks: seconds for all to come.")
    :convert(tonumber):default "30"
  parser:option("--port", "Of ranks on several hosts: where rank 0 listens "
                .. "(one above MASTER_PORT, or 29471).")
    :convert(options.whole)
  parser:option("--parent"):hidden(true):convert(options.whole)
end

return M
