-- SPDX-License-Identifier: Apache-2.0
--- Addresses of control servers:
--
--   http://HOST[:PORT][,HOST[:PORT]...][/][?OPTIONS]
--   https://...                                    the same, over TLS
--
-- OPTIONS are ttl=SECONDS, timeout=SECONDS, token=TOKEN or token=file:PATH, and
-- for TLS ca=FILE, cert=FILE and key=FILE, joined by &. Characters with a
-- meaning in an address are written as %XX.
local parts = require "perigee.registry.address"
local private = require "perigee.net.private"

local M = {}

local WANTED = "http://HOST:PORT or https://HOST:PORT, of several joined by "
  .. "commas, with ttl, timeout, token, ca, cert or key behind a ?"
local PORT = 7470
local OPTIONS = { ttl = "seconds", timeout = "seconds", token = "text",
                  ca = "text", cert = "text", key = "text" }

-- True; or nil and why the token's file cannot be read.
local function read_token(target)
  local path = target.token and target.token:match "^file:(.*)$"
  if not path then return true end
  local text, _, why = private.read(path)
  target.token = text and text:match "^[^\r\n]*"
  return text and true, why
end

--- Parses an address: { servers (a list of URLs), hosts, tls, ttl, timeout,
-- token, text }; or nil and what the address should be.
function M.read(address)
  local scheme, hosts, options = address:match "^(https?)://([^/?]*)/?%??(.*)$"
  if not scheme then return nil, WANTED end
  local target = { servers = {}, hosts = {} }
  for each in (hosts .. ","):gmatch "([^,]*)," do
    local host, port = parts.host(each, PORT)
    if not host or each == "" then return nil, WANTED end
    table.insert(target.hosts, host)
    table.insert(target.servers, ("%s://%s:%d"):format(scheme, host, port))
  end
  if not parts.options(options, OPTIONS, target) then return nil, WANTED end
  local fine, why = read_token(target)
  if not fine then
    return nil, "one whose token's file can be read by its user alone: " .. why
  end
  if target.token and target.token:find "[^%w_.~+/=-]" then
    return nil, "one whose token has no other characters than a token has"
  end
  target.tls = { ca = target.ca, cert = target.cert, key = target.key }
  target.text = "the control server at " .. table.concat(target.servers, ", ")
  return target
end

return M
