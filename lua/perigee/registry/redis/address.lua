-- SPDX-License-Identifier: Apache-2.0
--- Addresses of Redis servers:
--
--   redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE][?OPTIONS]
--   rediss://...                                   the same, over TLS
--   redis+unix:/PATH[?OPTIONS]
--   redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],.../MASTER[/DATABASE]
--   rediss+sentinel://...                          both over TLS
--
-- OPTIONS are ttl=SECONDS, timeout=SECONDS, db=DATABASE, user=USER,
-- password=PASSWORD, sentinel_user=USER, sentinel_password=PASSWORD, and for
-- TLS ca=FILE, cert=FILE and key=FILE, joined by &.
-- A password alone is ":PASSWORD@". Characters with a meaning in an address are
-- written as %XX.
local parts = require "perigee.registry.address"

local M = {}

local WANTED = "redis://HOST:PORT/DATABASE, rediss://, redis+unix:/PATH or "
  .. "redis+sentinel://HOST,HOST/MASTER"
local WITH = ", with ttl, timeout, db, user, password, sentinel_user, "
  .. "sentinel_password, ca, cert or key behind a ?"
local OPTIONS = { ttl = "seconds", timeout = "seconds", db = "number",
                  ca = "text", cert = "text", key = "text", user = "text",
                  password = "text", sentinel_user = "text",
                  sentinel_password = "text" }

local plain = parts.plain

-- Reads "NAME[:PORT]" or "[NAME][:PORT]" into a table; nil if it is neither.
local function place(text, port)
  local name, given = text:match "^%[(.*)%]:?(%d*)$"
  if not name then name, given = text:match "^([^:]*):?(%d*)$" end
  port = tonumber(given) or port
  if not name or port > 65535 then return nil end
  return { host = name ~= "" and name or "localhost", port = port }
end

local function read_server(where, target)
  local host, database = where:match "^([^/]*)/?(%d*)$"
  local found = host and place(host, 6379)
  if not found then return false end
  target.host, target.port = found.host, found.port
  target.database = tonumber(database)
  return true
end

local function read_sentinels(where, target)
  local hosts, master, database = where:match "^([^/]+)/([^/]+)/?(%d*)$"
  if not hosts then return false end
  target.master, target.database = plain(master), tonumber(database)
  target.sentinels = {}
  for host in (hosts .. ","):gmatch "([^,]*)," do
    local found = place(host, 26379)
    if not found then return false end
    table.insert(target.sentinels, found)
  end
  return not target.master:find "[%s%c]"
end

-- Gives each Sentinel its part of the options.
local function complete(target)
  for _, sentinel in ipairs(target.sentinels or {}) do
    sentinel.is_sentinel, sentinel.tls = true, target.tls
    sentinel.ca, sentinel.cert, sentinel.key = target.ca, target.cert,
                                               target.key
    sentinel.user = target.sentinel_user
    sentinel.password = target.sentinel_password
    sentinel.text = ("Sentinel at %s:%d"):format(sentinel.host, sentinel.port)
  end
end

local function text_of(target)
  if target.path then return "Redis at " .. target.path end
  if target.master then return "Redis of master " .. target.master end
  return ("Redis at %s:%d"):format(target.host, target.port)
end

local function read_rest(scheme, rest, target)
  if scheme == "redis+unix" then
    target.path = rest:match "^/[^/].*$" or rest:match "^//(/.*)$"
    return target.path ~= nil
  end
  if rest:sub(1, 2) ~= "//" then return false end
  local where
  target.user, target.password, where = parts.user(rest:sub(3))
  local read = scheme:find "+sentinel$" and read_sentinels or read_server
  return read(where, target)
end

--- Parses an address: returns a target (redis/connection.lua), with `ttl` and
-- `timeout` if given, and with `master` and `sentinels`, which are targets, if
-- Sentinels are named; or nil and what the address should be.
function M.read(address)
  local scheme, rest, options = address:match "^([%w+]+):([^?]*)%??(.*)$"
  local target = { tls = scheme:find "^rediss" ~= nil }
  if not read_rest(scheme, rest, target) then return nil, WANTED end
  if not parts.options(options, OPTIONS, target) then
    return nil, WANTED .. WITH
  end
  target.database = target.db or target.database
  complete(target)
  target.text = text_of(target)
  return target
end

return M
