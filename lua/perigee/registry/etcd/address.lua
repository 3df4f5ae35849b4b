-- SPDX-License-Identifier: Apache-2.0
--- Addresses of etcd clusters:
--
--   etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][?OPTIONS]
--   etcds://...                                    the same, over TLS
--
-- OPTIONS are ttl=SECONDS, timeout=SECONDS, user=USER, password=PASSWORD, and
-- for TLS ca=FILE, cert=FILE and key=FILE, joined by &. Characters with a
-- meaning in an address are written as %XX.
local parts = require "perigee.registry.address"

local M = {}

local PORT = 2379
local WANTED = "etcd://HOST:PORT,HOST:PORT or etcds://"
local OPTIONS = { ttl = "seconds", timeout = "seconds", user = "text",
                  password = "text", ca = "text", cert = "text", key = "text" }

-- Reads the hosts into target.urls and target.text. Returns whether all are
-- valid.
local function read_hosts(text, scheme, target)
  local shown = {}
  for each in (text .. ","):gmatch "([^,]*)," do
    local host, port = parts.host(each, PORT)
    if not host then return false end
    table.insert(target.hosts, host)
    shown[#shown + 1] = ("%s:%d"):format(host, port)
    target.urls[#shown] = ("%s://%s"):format(scheme, shown[#shown])
  end
  target.text = "etcd at " .. table.concat(shown, ", ")
  return true
end

--- Parses an address: returns a target { text, urls, hosts, tls, user,
-- password }, with `ttl` and `timeout` if given; or nil and what the address
-- should be.
function M.read(address)
  local scheme, rest, options = address:match "^(%w+)://([^?]*)%??(.*)$"
  if not scheme then return nil, WANTED end
  local target = { urls = {}, hosts = {} }
  local user, password, hosts = parts.user(rest)
  target.user, target.password = user, password
  hosts = hosts:gsub("/$", "")
  if not read_hosts(hosts, scheme == "etcds" and "https" or "http", target) then
    return nil, WANTED
  end
  if not parts.options(options, OPTIONS, target) then
    return nil, WANTED .. ", with ttl, timeout, user, password, ca, cert or "
      .. "key behind a ?"
  end
  target.tls = { ca = target.ca, cert = target.cert, key = target.key }
  return target
end

return M
