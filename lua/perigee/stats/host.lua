-- SPDX-License-Identifier: Apache-2.0
--- Finds the stats files of this user's agents on this host. An agent's file is
-- in its scope's folder, also if its name is in a registry elsewhere; then the
-- file has the name of the agent's place.
local entries = require "perigee.registry.folder.entries"
local folder = require "perigee.registry.folder"
local stats = require "perigee.stats"

local M = {}

local function none() end

-- The folder registry of a registry's URL; of nil, or of one that is elsewhere,
-- the host's own.
local function registry_of(url)
  local root = url and url:match "^folder:(/.*)"
  return root and folder.at(root) or folder
end

--- The path of a scope's folder. url: the registry's, or nil.
function M.folder(url, scope) return registry_of(url):path(scope) end

--- The scopes that have a folder on this host, sorted.
function M.scopes(url)
  local list = {}
  for scope in entries.scopes(registry_of(url):path "") or none do
    list[#list + 1] = scope
  end
  table.sort(list)
  return list
end

--- The paths of the stats files that the agents of a scope may have, sorted:
-- of dead ones, too; `last`: those of their former owners.
function M.paths(url, scope, last)
  local list, path = {}, M.folder(url, scope)
  for place in entries.names(path) or none do
    list[#list + 1] = ("%s/%s.stats%s"):format(path, place,
                                               last and ".last" or "")
  end
  table.sort(list)
  return list
end

--- Reads the stats of the agent with that name, by `look`: perigee.stats.head,
-- or read, the default.
-- @treturn table as that has it, and the file's path; or nil and a sentence
function M.read(url, scope, name, last, look)
  look = look or stats.read
  local path = ("%s/%s.stats"):format(M.folder(url, scope), name)
  if last then path = path .. ".last" end
  local told, why = look(path)
  if told then return told, path end
  for _, each in ipairs(M.paths(url, scope, last)) do
    local head = stats.head(each)       -- the rest of a file is long
    local other = head and head.name == name and look(each)
    if other then return other, each end
  end
  return nil, why
end

jit.off(true, true)             -- its loops over pairs(), see check.lua

return M
