-- SPDX-License-Identifier: Apache-2.0
-- The registries over which a suite runs, by name, each started per test.
local board = require "spec.support.board"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local etcd = require "spec.support.etcd"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local M = { all = {} }

-- The needs of each: `start` starts its server, `address` is the value of
-- option `registry` for a running one, given what the test knows (cases).
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
  return etcd.address(of, ("&ttl=%d"):format(math.ceil(4 * of.slow)))
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

--- The names in a list of entries, as a text.
function M.names_in(list)
  local text = {}
  for i, entry in ipairs(assert(list)) do text[i] = entry.name end
  return table.concat(text, " ")
end

--- The names that an agent lists, as a text; "" if it cannot.
function M.names(agent) return M.names_in(agent:list() or {}) end

--- Has an agent watch: returns a list to which each change is added, as "KIND
-- NAME", one of the changes' entries at the same places, and the watch.
function M.watched(agent, filter)
  local told, entries = {}, {}
  local watch = assert(agent:watch(filter or {}, function(change)
    told[#told + 1] = change.kind .. " " .. change.entry.name
    entries[#told] = change.entry
  end))
  return told, entries, watch
end

--- A process that takes and gives back names, and calls others, with the
-- registry where (process.start(backends.person, where)). It is told "hold
-- NAME", "call NAME", and "share" (a region "kv"), and says "yes" or an error's
-- kind; or "close", and says "closed".
function M.person(child, _, _, where)
  local registry = require("spec.support.backends").registry(where, child.cases)
  local agent
  local function say(got, err) child.say(got and "yes" or err.kind) end
  child.say("ready")
  for line in child.attend do
    local word, name = line:match "^(%w+) ?(.*)$"
    if word == "hold" then
      local err
      agent, err = child.cases.agent(name, {
        registry = registry, kind = "person", services = { {
          name = "x", methods = { same = function(x) return x end } } } })
      say(agent, err)
    elseif word == "share" then
      say(agent.engine:alloc(64, { name = "kv", access = "rw" }))
    elseif word == "close" then
      if agent then agent:close() end
      child.say("closed")
    elseif word == "call" then
      local proxy, err = agent:proxy(name, "x", { timeout = 20 })
      say(proxy and proxy:same(7) == 7, err)
    end
  end
end

return M
