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

local M = {}

local WANTED = "http://HOST:PORT or https://HOST:PORT, of several joined by "
  .. "commas, with ttl, timeout, token, ca, cert or key behind a ?"
local PORT = 7470
local OPTIONS = { ttl = "seconds", timeout = "seconds", token = "text",
                  ca = "text", cert = "text", key = "text" }

local function read_token(target)
  local path = target.token and target.token:match "^file:(.*)$"
  if not path then return true end
  local file = io.open(path)
  target.token = file and file:read "*l"
  if file then file:close() end
  return target.token ~= nil
end

--- Parses an address: { servers (a list of URLs), tls, ttl, timeout, token,
-- text }; or nil and what the address should be.
function M.read(address)
  local scheme, hosts, options = address:match "^(https?)://([^/?]*)/?%??(.*)$"
  if not scheme then return nil, WANTED end
  local target = { servers = {} }
  for each in (hosts .. ","):gmatch "([^,]*)," do
    local host, port = parts.host(each, PORT)
    if not host or each == "" then return nil, WANTED end
    table.insert(target.servers, ("%s://%s:%d"):format(scheme, host, port))
  end
  if not parts.options(options, OPTIONS, target) then return nil, WANTED end
  if not read_token(target) then
    return nil, "one whose token's file can be read"
  end
  if target.token and target.token:find "[^%w_.~+/=-]" then
    return nil, "one whose token has no other characters than a token has"
  end
  target.tls = { ca = target.ca, cert = target.cert, key = target.key }
  target.text = "the control server at " .. table.concat(target.servers, ", ")
  return target
end

return M
