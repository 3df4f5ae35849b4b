-- SPDX-License-Identifier: Apache-2.0
-- A Redis master with replicas and Sentinels for one spec: processes at TCP
-- ports of this host. They write only to the spec's folder, and end with the
-- spec.
local cases = require "spec.support.cases"
local redis = require "spec.support.redis"

local M = {}

local Group = {}
Group.__index = Group

local function follower(master)
  return redis.serve { "--repl-diskless-sync-delay", "0",
    master and "--replicaof", master and "127.0.0.1 " .. master.port }
end

local CONFIG = [[
port %d
bind 127.0.0.1
dir %s
loglevel warning
sentinel monitor %s 127.0.0.1 %d %d
sentinel down-after-milliseconds %s %d
sentinel failover-timeout %s 6000
]]

local function sentinel(group, quorum)
  return redis.serve_with(function(port)
    local name = group.name
    local path = ("%s/sentinel%d.conf"):format(cases.folder, port)
    local file = assert(io.open(path, "w"))
    file:write(CONFIG:format(port, cases.folder, name, group.servers[1].port,
                             quorum, name, 2000 * cases.slow, name))
    file:close()
    return { path, "--sentinel" }
  end)
end

-- ---- Groups ----------------------------------------------------------------

local function field(text, name)
  return tonumber(("\n" .. text):match("\n" .. name .. "\n(%d+)"))
end

-- Do all Sentinels know each other and the replicas?
local function is_ready(group)
  for _, one in ipairs(group.sentinels) do
    local text = one:ask("SENTINEL MASTER " .. group.name)
    if field(text, "num%-other%-sentinels") ~= #group.sentinels - 1
      or field(text, "num%-slaves") ~= #group.servers - 1 then
      return false
    end
  end
  return true
end

--- Starts a group of so many `servers` (2), of which the first is the master,
-- and `sentinels` (1).
function M.start(options)
  options = options or {}
  os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  local group = setmetatable({ name = "mymaster", servers = {},
                               sentinels = {} }, Group)
  group.servers[1] = follower()
  for i = 2, options.servers or 2 do
    group.servers[i] = follower(group.servers[1])
  end
  local all = options.sentinels or 1
  assert(cases.eventually(function()
    return group.servers[1]:ask("INFO replication")
      :find("connected_slaves:" .. #group.servers - 1, 1, true)
  end, 30 * cases.slow))
  for i = 1, all do
    group.sentinels[i] = sentinel(group, math.floor(all / 2) + 1)
  end
  assert(cases.eventually(function() return is_ready(group) end,
                          60 * cases.slow), "the Sentinels are not ready")
  return group
end

--- The server of the group that is its master, as the given Sentinel says.
function Group:master(number)
  local port = self.sentinels[number or 1]:ask(
    "SENTINEL GET-MASTER-ADDR-BY-NAME " .. self.name):match "(%d+)$"
  for _, one in ipairs(self.servers) do
    if one.port == tonumber(port) then return one end
  end
end

--- Its address, in the form of option `registry`.
function Group:address(options)
  local hosts = {}
  for i, one in ipairs(self.sentinels) do
    hosts[i] = "127.0.0.1:" .. one.port
  end
  return ("redis+sentinel://%s/%s?ttl=%g%s"):format(table.concat(hosts, ","),
    self.name, 20 * cases.slow, options or "")
end

return M
