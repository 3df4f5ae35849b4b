-- SPDX-License-Identifier: Apache-2.0
--- The token that a control server has for the user whose process it is. It is
-- new with each life of the server. It lies in a file that only this user can
-- read, in the folder of names (folder/where). The file is named after the
-- address at which the server listens:
--
--   .ctrl-ADDRESS-PORT
--
-- So programs of this user find it by the server's URL, and nobody has to tell
-- them. It is told to servers on this host alone, and to the very address that
-- it is for: another user may listen at the same port of another one.
local where = require "perigee.registry.folder.where"

local M = {}

-- Only who has a control server's address needs its library.
local function private() return require "perigee.net.private" end

local function path_of(base, address, port)
  return ("%s/.ctrl-%s-%d"):format(base, address, port)
end

-- ---- The server's side -----------------------------------------------------

--- Keeps a server's token. Returns the file's path; or nil, a kind and why.
function M.keep(address, port, text)
  local base, kind, why = where.made()
  if not base then return nil, kind, why end
  local path = path_of(base, address, port)
  local fine
  fine, kind, why = private().write(path, text .. "\n")
  if not fine then return nil, kind, why end
  return path
end

--- Removes it, unless another server has written its own there meanwhile.
function M.forget(path, text)
  if private().read(path) == text .. "\n" then os.remove(path) end
end

-- ---- The clients' side -----------------------------------------------------

-- For a host in a URL: the addresses at which a server may listen there, and
-- the host by which each is reached.
local FOUR, SIX = "127.0.0.1", "[::1]"
local LOCAL = { { "127.0.0.1", FOUR }, { "::1", SIX }, { "0.0.0.0", FOUR },
                { "::", SIX } }

local function places(host)
  if host == "localhost" then return LOCAL end
  if host == SIX then return { { "::1", SIX }, { "::", SIX } } end
  if host:find "^127%.%d+%.%d+%.%d+$" then
    return { { host, host }, { "0.0.0.0", host }, { "::", host } }
  end
  return {}
end

-- A folder in which others may write may have another user's files.
local function is_private(base)
  return where.system.look(base) == "own" and where.folder(base)
end

--- The token for a server (a URL, SCHEME://HOST:PORT), or nil; and the URL at
-- which to ask the server. That URL has an address in place of localhost,
-- unless a certificate identifies the server.
function M.find(url)
  local scheme, host, port = url:match "^(https?)://(.*):(%d+)$"
  if not scheme then return nil, url end
  local base = where.base()
  if not is_private(base) then return nil, url end
  for _, place in ipairs(places(host:lower())) do
    local text = private().read(path_of(base, place[1], port))
    local token = text and text:match "^(%S+)\n$"
    if token and scheme == "https" then return token, url end
    if token then return token, ("http://%s:%s"):format(place[2], port) end
  end
  return nil, url
end

return M
