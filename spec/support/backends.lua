-- SPDX-License-Identifier: Apache-2.0
-- The registries over which a suite runs: each by its name, started for a test.
local board = require "spec.support.board"
local cases = require "spec.support.cases"
local process = require "spec.support.process"

local M = { all = { "folder", "folder elsewhere", "board" } }

--- The registry, once it is there; nil for the default.
function M.registry(where, of)
  if where == "board" then return board.registry(of) end
  if where == "folder elsewhere" then
    return ("folder:%s/elsewhere"):format(of.folder)
  end
end

--- Begins one; what it gives is for option `registry` of agents.
function M.start(where)
  if where == "board" then
    process.start(board.serve):expect("ready", 30 * cases.slow)
  end
  return M.registry(where, cases)
end

--- Ends it.
function M.stop() end

return M
