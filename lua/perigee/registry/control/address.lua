-- SPDX-License-Identifier: Apache-2.0
--- Addresses of control servers:
--
--   http://HOST[:PORT][,HOST[:PORT]...][/][?OPTIONS]
--   https://...                                    the same, over TLS
--
-- OPTIONS are ttl=SECONDS, timeout=SECONDS, token=TOKEN or token=file:PATH, and
-- for TLS ca=FILE, cert=FILE and key=FILE, joined by &. Characters with a
-- meaning in an address are written as %XX.
local M = {}

local WANTED = "http://HOST:PORT or https://HOST:PORT, of several joined by "
  .. "commas, with ttl, timeout, token, ca, cert or key behind a ?"
local PORT = 7470
local NUMBERS = { ttl = true, timeout = true }
local TEXTS = { token = true, ca = true, cert = true, key = true }

local function plain(text)
  return (text:gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

local function read_options(text, options)
  for name, value in text:gmatch "([^&=]+)=?([^&]*)" do
    local number = NUMBERS[name] and tonumber(value)
    local fine = number and number > 0 and number < 2 ^ 31
    if not TEXTS[name] and not fine then return nil end
    options[name] = number or plain(value)
  end
  return true
end

-- "HOST", "HOST:PORT", "[::1]:PORT"; with the port.
local function with_port(text)
  local host, port = text:match "^(%[[%x:.]+%]):?(%d*)$"
  if not host then host, port = text:match "^([%w._-]+):?(%d*)$" end
  if not host then return nil end
  port = port == "" and PORT or tonumber(port)
  return port < 65536 and ("%s:%d"):format(host, port)
end

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
    local host = with_port(each)
    if not host then return nil, WANTED end
    table.insert(target.servers, scheme .. "://" .. host)
  end
  if not read_options(options, target) then return nil, WANTED end
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
