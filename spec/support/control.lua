-- SPDX-License-Identifier: Apache-2.0
-- A control server for one spec: a process with a file of its own, at a free
-- port of this host, that ends with the spec.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local M = {}
local started = 0

local Server = {}
Server.__index = Server

local LONG = 60 * cases.slow

function M.is_there()
  return package.searchpath("perigee.control", package.cpath) ~= nil
    and pcall(require, "argparse") and pcall(require, "cjson")
end

local COMMAND = "lua/perigee/cli/perigee"

local function pump() perigee.sleep(0.001) end

-- Starts the process. It gets the port that it had before.
function Server:begin()
  local words = { "luajit", COMMAND, "ctrl", "serve", "--store", self.store,
                  "--listen", ("%s://%s:%d"):format(self.scheme, self.host,
                                                    self.port),
                  "--log", self.store .. ".log", unpack(self.more) }
  if self.before ~= "" then
    words = { "sh", "-c", self.before .. 'exec "$@"', "sh", unpack(words) }
  end
  self.process = process.spawn(words)
  self.url = assert(self.process:read(LONG, pump))
  self.port = tonumber(self.url:match ":(%d+)$")
end

--- The address of the last one, for this process and its children, in the form
-- of option `registry`. Names expire fast.
function M.address(of, options)
  return ("%s/?ttl=%g&timeout=%g%s"):format(os.getenv "PERIGEE_SPEC_CONTROL",
    1.5 * of.slow, 20 * of.slow, options or "")
end

--- Starts one. more: options of the command, and `host`, where it listens;
-- before: what the shell does first.
function M.start(more, scheme, before)
  started = started + 1
  os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  local server = setmetatable({
    store = ("%s/control%d.db"):format(cases.folder, started), port = 0,
    scheme = scheme or "http", host = more and more.host or "127.0.0.1",
    more = more or {}, before = before or "" }, Server)
  server:begin()
  ffi.C.spec_setenv("PERIGEE_SPEC_CONTROL", server.url, 1)
  return server
end

function Server:kill()
  self.process:kill()
end

--- What the command prints, without the last newline.
function Server:command(words)
  local pipe = io.popen(("luajit %s ctrl %s --store '%s' 2>/dev/null"):format(
    COMMAND, words, self.store))
  local text = pipe:read "*a"
  pipe:close()
  return (text:gsub("\n$", ""))
end

return M
