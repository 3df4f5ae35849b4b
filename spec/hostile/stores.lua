-- SPDX-License-Identifier: Apache-2.0
-- The stores of names to which hostile runs give trouble, and a way to them
-- that can be cut.
--
-- A store has start(), which starts its server and returns it, and
-- address(server, place), the option `registry` of agents who ask at a place
-- (nil: all its own). Without `ttl` names have none. A server may have
--
--   place          where it listens ("HOST:PORT"), if a way to it can be cut
--   processes()    those that may be stopped
--   cut()          breaks all connections
--   restart()      kills one of its processes and starts it again; it keeps
--                  what it was given
--   lose()         after this it may have forgotten names that it gave
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local etcd = require "spec.support.etcd"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local M = {}

local TTL = 2 * cases.slow

--- The stores that there are here, by name.
M.all = {
  folder = { start = function() return {} end,
             address = function() return nil end },
}

local function local_place(port) return ("127.0.0.1:%d"):format(port) end

-- ---- Redis -----------------------------------------------------------------

local function start_redis()
  local server = redis.serve()
  server.place = local_place(server.port)
  function server:processes() return { self.process } end
  function server:cut() self:ask "CLIENT KILL TYPE normal" end
  function server:lose()
    if math.random(2) == 1 then return self:ask "FLUSHALL" end
    self.process:close()
    self:begin()
  end
  return server
end

if redis.is_there() then
  M.all.Redis = { ttl = TTL, start = start_redis,
    address = function(server, place)
      return ("redis://%s?ttl=%g&timeout=1"):format(place or server.place, TTL)
    end }
end

-- ---- etcd ------------------------------------------------------------------

-- The TTL is more than three times the longest election, as names need it
-- (lua/perigee/registry/README.md).
local LEASE = math.ceil(3 * cases.slow)
local ELECTION = { "--heartbeat-interval", "30", "--election-timeout", "300" }

local function start_etcd(n)
  local cluster = etcd.start { n = n, words = ELECTION }
  cluster.place = cluster.hosts[1]
  function cluster:processes() return self.servers end
  function cluster:restart()
    local i = math.random(self.n)
    self.servers[i]:close()
    self:begin(i)
  end
  return cluster
end

local function add_etcd(name, n)
  M.all[name] = { ttl = LEASE, start = function() return start_etcd(n) end,
    address = function(cluster, place)
      return ("etcd://%s?ttl=%d&timeout=%g"):format(
        place or table.concat(cluster.hosts, ","), LEASE, n)
    end }
end

if etcd.is_there() then
  add_etcd("etcd", 1)
  add_etcd("etcd of three", 3)
end

-- ---- The control server ----------------------------------------------------

-- People come by another address, for which they find no token of their user.
local function start_control()
  local server = control.start { "--insecure" }
  server.place = local_place(server.port)
  function server:processes() return { self.process } end
  function server:restart()
    self.process:close()
    self:begin()
  end
  return server
end

if control.is_there() then
  M.all["control server"] = { ttl = TTL, start = start_control,
    address = function(server, place)
      return ("http://%s/?ttl=%g&timeout=1"):format(place or server.place, TTL)
    end }
end

--- Names of those that start fast, for specs.
M.quick = {}
for name in pairs(M.all) do
  if name ~= "etcd of three" then M.quick[#M.quick + 1] = name end
end
table.sort(M.quick)

-- ---- The way ---------------------------------------------------------------

-- Passes on what comes at a port to a place. "cut" breaks all connections.
local function relay(child, _, _, place)
  local sockets = require "spec.net.sockets"
  local door, port = sockets.listen "127.0.0.1"
  local other, all = {}, { 0, door }
  local function close(fd)
    for i = #all, 3, -1 do
      if all[i] == fd or all[i] == other[fd] then table.remove(all, i) end
    end
    sockets.close(fd)
    sockets.close(other[fd])
    other[other[fd]], other[fd] = nil, nil
  end
  local function welcome()
    local one = sockets.accept(door)
    local two = sockets.dial("tcp://" .. place)
    if not two then return sockets.close(one) end
    other[one], other[two] = two, one
    all[#all + 1], all[#all + 2] = one, two
  end
  child.say(port)
  while true do
    for _, fd in ipairs(sockets.readable(all, 1)) do
      if fd == door then
        welcome()
      elseif fd == 0 then
        assert(child.hear() == "cut")
        while all[3] do close(all[3]) end
      elseif other[fd] then
        local text = sockets.receive(fd)
        if text == "" or text and not sockets.send(other[fd], text) then
          close(fd)
        end
      end
    end
  end
end

--- Starts a way to a place: a process with its own `place`, which is cut by
-- tell "cut".
function M.way(place)
  local way = process.start(relay, place)
  way.place = local_place(assert(way:read(30 * cases.slow)))
  return way
end

return M
