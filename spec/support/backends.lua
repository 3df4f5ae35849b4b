-- SPDX-License-Identifier: Apache-2.0
-- The registries over which a suite runs, by name, each started per test.
local board = require "spec.support.board"
local cases = require "spec.support.cases"
local etcd = require "spec.support.etcd"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local M = { all = { "folder", "folder elsewhere", "board" } }
if redis.is_there() then M.all[#M.all + 1] = "Redis" end
if etcd.is_there() then M.all[#M.all + 1] = "etcd" end

--- The value of option `registry` for a running one; nil for the default.
function M.registry(where, of)
  if where == "board" then return board.registry(of) end
  if where == "Redis" then return redis.address(of) end
  if where == "etcd" then
    return etcd.address(of, ("&ttl=%d"):format(math.ceil(4 * of.slow)))
  end
  if where == "folder elsewhere" then
    return ("folder:%s/elsewhere"):format(of.folder)
  end
end

--- Starts a registry; returns the value for option `registry` of agents.
function M.start(where)
  if where == "board" then
    process.start(board.serve):expect("ready", 30 * cases.slow)
  elseif where == "Redis" then
    redis.start()
  elseif where == "etcd" then
    etcd.start()
  end
  return M.registry(where, cases)
end

--- The agent of that name with registry, and options besides; or nil, an error.
function M.take(registry, name, options)
  local all = { registry = registry }
  for key, value in pairs(options or {}) do all[key] = value end
  return cases.agent(name, all)
end

return M
