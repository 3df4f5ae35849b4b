-- SPDX-License-Identifier: Apache-2.0
-- The registries over which a suite runs, by name, each started per test.
local board = require "spec.support.board"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local etcd = require "spec.support.etcd"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local M = { all = {} }

-- What each needs: `start` starts its server, `address` is the value of option
-- `registry` for a running one, given what the test knows (cases).
local backends = {}

local function backend(name, there, one)
  if not there then return end
  M.all[#M.all + 1], backends[name] = name, one
end

local function nothing() end

backend("folder", true, { start = nothing, address = nothing })
backend("folder elsewhere", true, { start = nothing, address = function(of)
  return ("folder:%s/elsewhere"):format(of.folder)
end })
backend("board", true, { start = function()
  process.start(board.serve):expect("ready", 30 * cases.slow)
end, address = board.registry })
backend("Redis", redis.is_there(), redis)
backend("etcd", etcd.is_there(), { start = etcd.start, address = function(of)
  return etcd.address(of, "&ttl=4")
end })
backend("control server", control.is_there(), control)

--- The value of option `registry` for a running one; nil for the default.
function M.registry(where, of) return backends[where].address(of) end

--- Starts a registry; returns the value for option `registry` of agents.
function M.start(where)
  backends[where].start()
  return M.registry(where, cases)
end

--- The agent of that name with registry, and options besides; or nil, an error.
function M.take(registry, name, options)
  local all = { registry = registry }
  for key, value in pairs(options or {}) do all[key] = value end
  return cases.agent(name, all)
end

return M
