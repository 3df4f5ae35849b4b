-- SPDX-License-Identifier: Apache-2.0
-- A control server for one spec: a process with a file of its own, or over a
-- store, at a free port of this host, that ends with the spec.
--
-- With PERIGEE_SPEC_STORE=redis or etcd in the environment all are over a store
-- of that kind that is started besides (make control-stores).
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local M = { needs = "perigee/control.so, lua-argparse or lua-cjson" }
local started = 0

local Server = {}
Server.__index = Server

local LONG = 60 * cases.slow

function M.is_there()
  return package.searchpath("perigee.control", package.cpath) ~= nil
    and pcall(require, "argparse") and pcall(require, "cjson")
end

--- Does the environment ask for a store?
function M.is_over_store()
  return (os.getenv "PERIGEE_SPEC_STORE" or "") ~= ""
end

-- Starts the store that the environment asks for; its address, or nil.
local function asked_for()
  if not M.is_over_store() then return nil end
  local store = require("spec.support." .. os.getenv "PERIGEE_SPEC_STORE")
  store.start()
  return (store.address(cases):gsub("ttl=[%d.]+&", ""))
end

local COMMAND = "lua/perigee/cli/perigee"

local function pump() perigee.sleep(0.001) end

-- Starts the process. It gets the port that it had before.
function Server:begin()
  local words = { "luajit", COMMAND, "ctrl", "serve", "--store",
                  self.address or self.store, "--pid", self.store .. ".pid",
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
-- of option `registry`. Names expire fast; later where a store counts, which
-- does so also while the server has no time for renewals.
function M.address(of, options)
  return ("%s/?ttl=%g&timeout=%g%s"):format(os.getenv "PERIGEE_SPEC_CONTROL",
    (M.is_over_store() and 8 or 1.5) * of.slow, 20 * of.slow, options or "")
end

--- Starts one. more: options of the command, and `host`, where it listens;
-- before: what the shell does first; address: that of a store, instead of a
-- file.
function M.start(more, scheme, before, address)
  started = started + 1
  os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  local server = setmetatable({
    store = ("%s/control%d.db"):format(cases.folder, started), port = 0,
    scheme = scheme or "http", host = more and more.host or "127.0.0.1",
    more = more or {}, before = before or "",
    address = address or asked_for() }, Server)
  server:begin()
  ffi.C.spec_setenv("PERIGEE_SPEC_CONTROL", server.url, 1)
  return server
end

function Server:kill()
  self.process:kill()
end

--- The output of the command, without the last newline.
function Server:command(words)
  local pipe = io.popen(("luajit %s ctrl %s --store '%s' 2>/dev/null"):format(
    COMMAND, words, self.address or self.store))
  local text = pipe:read "*a"
  pipe:close()
  return (text:gsub("\n$", ""))
end

return M
