-- SPDX-License-Identifier: Apache-2.0
--- Parts of registries' addresses: users, hosts and options.
local log = require "perigee.runtime.log"
local percent = require "perigee.runtime.percent"

local M = {}

--- Replaces %XX by the character it stands for.
function M.plain(text)
  return text and percent.decode(text)
end

--- Splits "USER:PASSWORD@REST": returns user and password, each nil if it is
-- not there, and the rest. A password alone is ":PASSWORD@".
function M.user(text)
  local who, rest = text:match "^(.*)@(.*)$"
  if not who then return nil, nil, text end
  local user, password = who:match "^([^:]*):(.*)$"
  user = M.plain(user or who)
  return user ~= "" and user or nil, M.plain(password), rest
end

--- Reads "HOST:PORT" or "[HOST]:PORT", where each may be missing: returns the
-- host as a URL has it, and the port; nil if it is neither.
function M.host(text, port)
  local name, given = text:match "^(%[[%x:.%%]+%]):?(%d*)$"
  if not name then name, given = text:match "^([%w._-]*):?(%d*)$" end
  port = tonumber(given) or port
  if not name or port < 1 or port > 65535 then return nil end
  return name ~= "" and name or "localhost", port
end

local function is_here(host)
  return host == "localhost" or host == "[::1]" or host == "::1"
    or host:find "^127%.%d+%.%d+%.%d+$" ~= nil
end

--- Warns of a secret that goes to other hosts in the clear. what: its name,
-- such as "the token for X"; hosts: a list; instead: the way to hide it.
function M.warn(what, hosts, instead)
  for _, host in ipairs(hosts) do
    if not is_here(host:lower()) then
      return log.write("warning", ("%s goes to %s as it is, and who sees it on "
        .. "the way can use it, too; use %s"):format(what, host, instead))
    end
  end
end

-- The value of an option of a kind; nil if it is none.
local function value_of(kind, text)
  if kind == "text" then return M.plain(text) end
  local number = kind and tonumber(text)
  local fine = number and number >= 0 and number < 2 ^ 31
    and (kind ~= "seconds" or number > 0)
    and (kind ~= "number" or number % 1 == 0)
  return fine and number or nil
end

--- Reads "name=value&name=value" into a table. kinds: "seconds", "number" (a
-- whole one) or "text" by name. Returns whether all of it is known and valid.
function M.options(text, kinds, into)
  for name, given in text:gmatch "([^&=]+)=?([^&]*)" do
    local value = value_of(kinds[name], given)
    if value == nil then return false end
    into[name] = value
  end
  return true
end

return M
