-- SPDX-License-Identifier: Apache-2.0
--- The tokens of servers that share a store: one record of it, the JSON of
-- their list, with hashes of them alone. A vault is a storage of tokens
-- (control/file). It knows those of its last fetch().
local json = require "perigee.net.json"
local tokens = require "perigee.control.tokens"

local M = {}

local SPACE, NAME = "/tokens", "all"    -- no scope has such a name
local ATTEMPTS = 100

local Vault = {}
Vault.__index = Vault

--- The tokens in a store (control/redis), yet to be fetched.
function M.new(store)
  return setmetatable({ store = store, cell = nil, list = {}, version = false },
                      Vault)
end

local FIELDS = { "id", "hash", "scope", "role", "note" }

local function is_token(value)
  if type(value) ~= "table" then return false end
  for _, name in ipairs(FIELDS) do
    if type(value[name]) ~= "string" then return false end
  end
  return tokens.ROLES[value.role] ~= nil and type(value.revoked) == "boolean"
end

-- The tokens of a cell; nil if they are none.
local function list_of(cell)
  if not cell then return {} end
  local value = json.decode(cell.text)
  local list = type(value) == "table" and value.tokens
  if type(list) ~= "table" then return nil end
  for _, token in pairs(list) do
    if not is_token(token) then return nil end
  end
  return list
end

--- Reads them. True; or nil, a kind and why. Waits.
function Vault:fetch()
  local cell
  local fine, kind, why = self.store:read({ {
    space = SPACE, name = NAME, take = function(found) cell = found end } }, {})
  if not fine then return nil, kind, why end
  local text = cell and cell.text or ""
  if self.version == text then return true end
  local list = list_of(cell)
  if not list then return nil, "protocol", "its tokens cannot be read" end
  self.cell, self.list, self.version = cell, list, text
  return true
end

--- A value that changes with each fetch() of other tokens; false before the
-- first.
function Vault:written() return self.version end

function Vault:all_tokens()
  local list = {}
  for i, token in ipairs(self.list) do
    local copy = {}
    for name, value in pairs(token) do copy[name] = value end
    list[i] = copy
  end
  return list
end
jit.off(Vault.all_tokens)

-- Changes the list by f(list), as long as others do so, too. Waits.
local function change(vault, f)
  for _ = 1, ATTEMPTS do
    local fine, kind, why = vault:fetch()
    if not fine then return nil, kind, why end
    local list = vault:all_tokens()
    f(list)
    fine, kind, why = vault.store:write { {
      space = SPACE, name = NAME, cell = vault.cell, ttl = 0,
      text = json.encode { name = NAME, tokens = list } } }
    if fine then return vault:fetch() end
    if fine == nil then return nil, kind, why end
    vault.version = false
  end
  return nil, "timeout", "others change the tokens all the time"
end

function Vault:add_token(token)
  return change(self, function(list)
    local kept = { revoked = false }
    for _, name in ipairs(FIELDS) do
      kept[name] = token[name]
    end
    list[#list + 1] = kept
    table.sort(list, function(a, b) return a.id < b.id end)
  end)
end

function Vault:revoke_token(id)
  return change(self, function(list)
    for _, token in ipairs(list) do
      if token.id == id then token.revoked = true end
    end
  end)
end

function Vault:trim() end -- luacheck: ignore 212

function Vault:close() self.store:close() end

return M
