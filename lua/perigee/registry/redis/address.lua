-- SPDX-License-Identifier: Apache-2.0
--- Addresses of Redis servers:
--
--   redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE][?OPTIONS]
--   rediss://...                                   the same, over TLS
--   redis+unix:/PATH[?OPTIONS]
--
-- OPTIONS are ttl=SECONDS, timeout=SECONDS, db=DATABASE, user=USER,
-- password=PASSWORD, and for TLS ca=FILE, cert=FILE and key=FILE, joined by &.
-- A password alone is ":PASSWORD@". Characters with a meaning in an address are
-- written as %XX.
local M = {}

local WANTED = "redis://HOST:PORT/DATABASE, rediss:// or redis+unix:/PATH"
local NUMBERS = { ttl = true, timeout = true, db = true }
local TEXTS = { ca = true, cert = true, key = true, user = true,
                password = true }

local function plain(text)
  return text and (text:gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

-- Reads text into options. True, or nil and what the address should be.
local function read_options(text, options)
  for name, value in text:gmatch "([^&=]+)=?([^&]*)" do
    local number = NUMBERS[name] and tonumber(value)
    local fine = number and number < 2 ^ 31
      and (number > 0 or name == "db" and number == 0)
      and (name ~= "db" or number % 1 == 0)
    if not TEXTS[name] and not fine then
      return nil, WANTED .. ", with ttl, timeout, db, user, "
        .. "password, ca, cert or key behind a ?"
    end
    options[name] = number or plain(value)
  end
  return true
end

local function read_host(rest, target)
  local who, where = rest:match "^(.*)@(.*)$"
  where = where or rest
  local host, database = where:match "^([^/]*)/?(%d*)$"
  if not host then return nil end
  local name, port = host:match "^%[(.*)%]:?(%d*)$"
  if not name then name, port = host:match "^([^:]*):?(%d*)$" end
  if not name then return nil end
  if who then
    local user, password = who:match "^([^:]*):(.*)$"
    target.user, target.password = plain(user or who), plain(password)
    if target.user == "" then target.user = nil end
  end
  target.host = name ~= "" and name or "localhost"
  target.port = tonumber(port) or 6379
  target.database = tonumber(database)
  return target.port < 65536
end

--- Parses an address: returns a target (redis/connection.lua), with `ttl` and
-- `timeout` if given; or nil and what the address should be.
function M.read(address)
  local scheme, rest, options = address:match "^([%w+]+):([^?]*)%??(.*)$"
  local target = { tls = scheme == "rediss" }
  if scheme == "redis+unix" then
    target.path = rest:match "^/[^/].*$" or rest:match "^//(/.*)$"
    if not target.path then return nil, WANTED end
  elseif rest:sub(1, 2) ~= "//" or not read_host(rest:sub(3), target) then
    return nil, WANTED
  end
  local fine, why = read_options(options, target)
  if not fine then return nil, why end
  target.database = target.db or target.database
  target.text = target.path and "Redis at " .. target.path
    or ("Redis at %s:%d"):format(target.host, target.port)
  return target
end

return M
