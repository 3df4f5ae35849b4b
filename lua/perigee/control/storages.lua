-- SPDX-License-Identifier: Apache-2.0
--- Opens a server's store, named by its option --store: the path of a file, or
-- the address of Redis or etcd, as that of a registry.
local M = {}

local SCHEMES = {
  redis = "redis", rediss = "redis", ["redis+unix"] = "redis",
  ["redis+sentinel"] = "redis", ["rediss+sentinel"] = "redis",
  etcd = "etcd", etcds = "etcd",
}

--- Is it the address of a store that servers share?
function M.is_shared(where)
  return SCHEMES[where:match "^([%w+]+):/" or ""] ~= nil
end

--- The store at an address (control/redis); or nil, a kind and why.
function M.shared(address)
  local scheme = SCHEMES[address:match "^([%w+]+):"]
  local fine, module = pcall(require, "perigee.control." .. scheme)
  if not fine then return nil, "unsupported", module:match "^[^\n]*" end
  local store, why = module.open(address)
  if store then return store end
  return nil, "protocol", "it must be " .. why
end

--- The address without what only its user may know. A user or a password may
-- have any character but "?" as it is (registry/address); a path has none.
function M.shown(where)
  if not M.is_shared(where) then return where end
  local plain = where:gsub("%?.*$", "")
  if plain:find "^redis%+unix:///" then return plain end
  return (plain:gsub("//.*@", "//"))
end

-- A vault that is known. Waits.
local function vault_at(address)
  local store, kind, why = M.shared(address)
  if not store then return nil, kind, why end
  local vault = require("perigee.control.vault").new(store)
  local fine
  fine, kind, why = vault:fetch()
  if fine then return vault end
  vault:close()
  return nil, kind, why
end

--- The storage of tokens (control/file): or nil, a kind and why. Waits for one
-- that is shared.
function M.tokens(where)
  if M.is_shared(where) then return vault_at(where) end
  return require("perigee.control.file").open(where)
end

return M
