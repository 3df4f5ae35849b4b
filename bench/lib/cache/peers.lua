-- SPDX-License-Identifier: Apache-2.0
-- Mode peers of bench/cache.lua: get and put beside other caches, each in its
-- best documented mode (the heads of bench/peers/cache_* say which). The bench
-- starts their servers on the cache's core and their clients on its own, in
-- turns with Perigee, and ends them. A row's floor is the peer's time.
local folders = require "bench.lib.folders"
local floor = require "bench.lib.floor"
local gets = require "bench.lib.cache.gets"
local histogram = require "perigee.bench.histogram"
local process = require "bench.lib.process"
local puts = require "bench.lib.cache.puts"
local rounds = require "bench.lib.rounds"

local M = {}

-- START: seconds until a server is there; LATE: that a burst may take more.
local START, LATE = 20, 60
local MIB = 2 ^ 20
local BYTES = 512 * MIB                 -- of a peer's values

-- ---- Programs --------------------------------------------------------------

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- Words that start a program on a core (nil: on any), without its output, which
-- goes to a file.
local function on(core, log, words)
  local list = core and { "taskset", "-c", core } or {}
  for _, word in ipairs { "sh", "-c", 'exec "$@" > "$0" 2>&1', log } do
    list[#list + 1] = word
  end
  for _, word in ipairs(words) do list[#list + 1] = word end
  return list
end

-- A server that listens at a Unix socket once that is there.
local function unix_server(program, words_of)
  return function(self, given, folder)
    if not process.installed(program) then
      return nil, ("%s is not there; install the package %s"):format(
        program, self.package)
    end
    self.at = folder .. "/" .. self.name
    self.children = { assert(process.spawn(on(given.pin[2], self.at .. ".log",
                                              words_of(self.at)))) }
    local limit = process.now() + START * 1e9
    while not exists("/proc/" .. self.children[1].pid .. "/stat")
      or os.execute(("test -S '%s'"):format(self.at)) ~= 0 do
      if process.now() > limit or self.children[1]:wait(true) then
        return nil, program .. " did not start"
      end
      process.sleep(0.02)
    end
    return true
  end
end

local function client_of(program)
  return function(self, given, size)
    local path = floor.folder .. "/peers/" .. program
    if not exists(path) then
      return nil, path .. " is not there: run make peers"
    end
    return { path, "--at", self.at, "--pin",
             given.pin[1] .. "," .. given.pin[2], ("%d"):format(size) }
  end
end

local PYTHON = floor.folder .. "/../compare/venv/bin/"
local MOONCAKE = (arg[0]:match ".*/" or "./") .. "peers/cache_mooncake.py"

-- A master, which knows where what is, and a server with memory.
local function mooncake_server(self, given, folder)
  if not exists(PYTHON .. "mooncake_master") then
    return nil, "Mooncake is not there: run make compare-deps mooncake"
  end
  local port = 20000 + process.pid() * 2 % 12000
  local cores = given.pin[1] .. "," .. given.pin[2]
  self.at = "127.0.0.1:" .. port
  self.children = { assert(process.spawn(on(cores, folder .. "/master.log", {
    PYTHON .. "mooncake_master", "-rpc_address", "127.0.0.1", "-rpc_port", port,
    "-metrics_host", "127.0.0.1", "-metrics_port", port + 1 }))) }
  process.sleep(2)                      -- its clients do not try again
  self.children[2] = assert(process.spawn { "taskset", "-c", cores, "sh", "-c",
    'exec "$@" 2> "$0"', folder .. "/server.log", PYTHON .. "python", MOONCAKE,
    "server", self.at, BYTES })
  repeat
    local line, late = self.children[2]:line(START)
    if line == "ready" then return true end
  until late or not line
  return nil, "Mooncake's server did not start"
end

local function mooncake_client(self, given, size)
  return { "taskset", "-c", given.pin[1] .. "," .. given.pin[2], "sh", "-c",
           'exec "$@" 2> /dev/null', "sh", PYTHON .. "python", MOONCAKE,
           "client", self.at, ("%d"):format(size) }
end

local PEERS = {
  { name = "redis", package = "redis-server", client = client_of "cache_redis",
    server = unix_server("redis-server", function(at)
      return { "redis-server", "--port", "0", "--unixsocket", at, "--save", "",
               "--appendonly", "no", "--daemonize", "no" }
    end) },
  { name = "memcached", package = "memcached",
    client = client_of "cache_memcached",
    server = unix_server("memcached", function(at)
      return { "memcached", "-u", os.getenv "USER" or "root", "-s", at, "-m",
               BYTES / MIB, "-I", "16m" }
    end) },
  { name = "mooncake", client = mooncake_client, server = mooncake_server },
}

-- ---- Bursts ----------------------------------------------------------------

-- Waits until the client says so; it may print other lines before.
local function is_ready(client)
  repeat
    local line = client:line(START)
    if line == "ready" then return true end
  until not line
end

-- Returns the floor of one kind of call ("get", "put"); or nil and why.
local function floor_of(peer, given, size, what)
  local words, why = peer.client(peer, given, size)
  if not words then return nil, why end
  local client = assert(process.spawn(words))
  peer.clients[#peer.clients + 1] = client
  if not is_ready(client) then
    return nil, peer.name .. "'s client did not start"
  end
  return function(seconds)
    local pool = histogram.new()
    client:tell(("%s %g\n"):format(what, seconds))
    while true do
      local line = client:line(seconds + LATE)
      if line == "end" then return { [peer.name] = pool } end
      if not line then error(peer.name .. "'s client has failed", 0) end
      local ns, count = line:match "^sample %S+ %d+ (%S+) (%d+)$"
      if ns then pool:add(tonumber(ns), tonumber(count)) end
    end
  end
end

local function stop(list)
  while #list > 0 do table.remove(list):stop() end
end

-- ---- Rows ------------------------------------------------------------------

-- The calls that are compared: the name, the peer's, and Perigee's step.
local CALLS = {
  { "get", "get", function(run, size)
    return gets.getting(run, "map", size)
  end },
  { "get_new", "get", function(run, size)
    return gets.getting(run, "new", size)
  end },
  { "put", "put", function(run, size)
    return puts.putting(run, run.side:client(true), size)
  end },
}
-- Perigee's time over the peer's, for values up to 64 KiB and above.
local SHORT, LONG, LONG_FROM = { 1 / 20, 1 / 50 }, { 1 / 3, 1 / 5 }, 65537

local function compare(run, peer, why, size, rows)
  for _, call in ipairs(CALLS) do
    local floors, reason
    if why then
      reason = why
    else
      floors, reason = floor_of(peer, run.given, size, call[2])
    end
    local goal = size < LONG_FROM and SHORT or LONG
    local row = { mode = call[1] .. "/" .. peer.name, size = size, window = 1,
                  reach = goal[1], beyond = goal[2] }
    rows[#rows + 1] = rounds.measure(row, run.given, call[3](run, size), floors,
                                     reason)
    stop(peer.clients)
  end
end

--- Measures a size beside each peer; returns rows.
function M.measure(run, size)
  local rows, folder = {}, folders.new()
  for _, peer in ipairs(PEERS) do
    peer.children, peer.clients = {}, {}
    local fine, message = pcall(function()
      local there, why = peer.server(peer, run.given, folder)
      compare(run, peer, not there and why or nil, size, rows)
    end)
    stop(peer.clients)
    stop(peer.children)
    if not fine then error(message, 0) end
  end
  os.execute(("rm -rf '%s'"):format(folder))
  return rows
end

return M
