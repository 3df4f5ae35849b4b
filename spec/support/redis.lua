-- SPDX-License-Identifier: Apache-2.0
-- A Redis server for one spec: a process that listens at a Unix socket, and
-- also at a TCP port of this host if one is given; or several, at TCP ports. It
-- writes nothing outside of the spec's folder, and ends with the spec.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

local M = { needs = "redis-server or perigee/control.so" }
local started = 0

local Server = {}
Server.__index = Server

local function runs(command)
  return os.execute(command .. " >/dev/null 2>&1") == 0
end

function M.is_there()
  return runs "command -v redis-server"
    and package.searchpath("perigee.control", package.cpath) ~= nil
end

--- The path of its socket, for this process and its children. Each server has
-- its own path, since a process has one registry per address.
function M.path(of)
  return ("%s/redis%s.sock"):format(of.folder, os.getenv "PERIGEE_SPEC_REDIS")
end

--- Its address, in the form of option `registry`. Names expire fast.
function M.address(of, options)
  return ("redis+unix:%s?ttl=%g&timeout=%g%s"):format(M.path(of),
    1.5 * of.slow, 5 * of.slow, options or "")
end

function M.start(...)
  started = started + 1
  ffi.C.spec_setenv("PERIGEE_SPEC_REDIS", tostring(started), 1)
  local server = setmetatable({ path = M.path(cases), more = { ... } }, Server)
  os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  server:begin()
  return server
end

--- Starts redis-server with the words that f(port) gives.
function M.serve_with(f)
  os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  local port = sockets.free_port()
  local server = setmetatable({ port = port, words = f(port) }, Server)
  server:begin()
  return server
end

--- A server at a TCP port of its own, with further options.
function M.serve(more)
  return M.serve_with(function(port)
    return { "--port", tostring(port), "--bind", "127.0.0.1", "--save", "",
      "--appendonly", "no", "--dir", cases.folder, "--dbfilename",
      port .. ".rdb", "--loglevel", "warning", unpack(more or {}) }
  end)
end

--- Starts it, or starts it again.
function Server:begin()
  self:spawn()
  assert(cases.eventually(function() return self:ask "PING" == "PONG" end,
                          30 * cases.slow))
end

function Server:spawn()
  self.process = process.spawn { "redis-server",
    unpack(self.words or { "--port", "0", "--unixsocket", self.path, "--save",
      "", "--appendonly", "no", "--dir", cases.folder, "--loglevel", "warning",
      unpack(self.more) }) }
end

--- The output of redis-cli for a command, without the last newline.
function Server:ask(command)
  local pipe = io.popen(("timeout %d redis-cli %s '%s' %s 2>&1"):format(
    20 * cases.slow, self.path and "-s" or "-p", self.path or self.port,
    command))
  local text = pipe:read "*a"
  pipe:close()
  return (text:gsub("\n$", ""))
end

--- Follows what the server is asked, from now on: returns a process with
-- words(), the commands so far in their order, and asked(), them as a set.
function Server:monitor()
  local path = cases.folder .. "/monitor"
  local monitor = process.spawn { "sh", "-c", ("exec redis-cli %s '%s' MONITOR "
    .. "> '%s'"):format(self.path and "-s" or "-p", self.path or self.port,
                        path) }
  local function text()
    local file = io.open(path)
    local all = file and file:read "*a" or ""
    if file then file:close() end
    return all
  end
  function monitor.words()
    local list = {}
    for line in text():gmatch "[^\n]+" do
      local word = line:match '%] "(%w+)"'
      if word and not line:find "ACL" then list[#list + 1] = word:lower() end
    end
    return list
  end
  function monitor.asked()
    local set = {}
    for _, word in ipairs(monitor.words()) do set[word] = true end
    return set
  end
  cases.await(function() return text():find "OK" end)
  return monitor
end

function Server:kill()
  self.process:kill()
  if self.path then os.remove(self.path) end
end

return M
