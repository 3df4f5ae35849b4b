-- SPDX-License-Identifier: Apache-2.0
--- The storage of a server that has a file of its own, by SQLite. A storage has
--
--   load(f)          calls f(scope, collection, name, revision, ttl, text) for
--                    each record; ttl: its lease in milliseconds, or 0
--   set(...)         the same values: a record that is to be kept
--   unset(scope, collection, name)
--                    a record that is not
--   discard()        forgets what was set and unset since the last commit
--   commit(n)        true once all since the last commit is durable, and n as
--                    the server's revision; or nil, a kind and why, and nothing
--                    since then is kept
--   revision()       that of the last commit
--   all_tokens(), add_token(token), revoke_token(id)
--                    tokens { id, hash, scope, role, note, revoked }
--   trim()           gives memory back that it can do without
--   written()        a number that changes when another process has written
--   close()
--
-- Another process may open the same file, to make tokens: SQLite lets one write
-- after the other.
local stores = require "perigee.net.store"

local M = {}

local SCHEMA = [[
  PRAGMA foreign_keys = ON;
  CREATE TABLE IF NOT EXISTS records (
    scope TEXT NOT NULL, collection TEXT NOT NULL, name TEXT NOT NULL,
    revision INTEGER NOT NULL, ttl INTEGER NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (scope, collection, name)) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS counters (
    name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
  INSERT OR IGNORE INTO counters VALUES ('revision', 0), ('format', 1);
  CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, scope TEXT NOT NULL,
    role TEXT NOT NULL, note TEXT NOT NULL, revoked INTEGER NOT NULL
  ) WITHOUT ROWID;
]]

local STATEMENTS = {
  begin = "BEGIN IMMEDIATE",
  finish = "COMMIT",
  count = "UPDATE counters SET value = ?1 WHERE name = 'revision'",
  counted = "SELECT value FROM counters WHERE name = ?1",
  put = "INSERT OR REPLACE INTO records VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
  remove = "DELETE FROM records WHERE scope = ?1 AND collection = ?2 "
    .. "AND name = ?3",
  all = "SELECT scope, collection, name, revision, ttl, text FROM records",
  version = "PRAGMA data_version",
  tokens = "SELECT id, hash, scope, role, note, revoked FROM tokens "
    .. "ORDER BY id",
  new_token = "INSERT INTO tokens VALUES (?1, ?2, ?3, ?4, ?5, 0)",
  revoke = "UPDATE tokens SET revoked = 1 WHERE id = ?1",
}

local File = {}
File.__index = File

local function prepare(file)
  for name, sql in pairs(STATEMENTS) do
    local made, kind, why = file.store:prepare(sql)
    if not made then return nil, kind, why end
    file.sql[name] = made
  end
  return true
end
jit.off(prepare)

local function number(statement, ...)
  local value
  local fine, kind, why = statement:each("n", function(n) value = n end, ...)
  if not fine then return nil, kind, why end
  return value
end

local function begin(file)
  local fine, kind, why = file.store:run(SCHEMA)
  if fine then fine, kind, why = prepare(file) end
  if not fine then return nil, kind, why end
  local format = number(file.sql.counted, "format")
  if format ~= 1 then
    return nil, "version", file.store.path .. " is of another version"
  end
  file.last, kind, why = number(file.sql.counted, "revision")
  return file.last and file, kind, why
end

--- Opens the file at path. Returns the storage; or nil, a kind and why.
function M.open(path)
  local store, kind, why = stores.open(path)
  if not store then return nil, kind, why end
  local file = setmetatable({ store = store, sql = {}, writes = {} }, File)
  local fine
  fine, kind, why = begin(file)
  if fine then return file end
  store:close()
  return nil, kind, why
end

--- Has no other server use it: true; or nil, a kind and why.
function File:own() return self.store:own() end

function File:revision() return self.last end

function File:load(f)
  return self.sql.all:each("tttnnt", f)
end

-- A write is its statement's parameters, and the statement.
function File:set(scope, collection, name, revision, ttl, text)
  self.writes[#self.writes + 1] = {
    scope, collection, name, revision, ttl, text, statement = self.sql.put }
end

function File:unset(scope, collection, name)
  self.writes[#self.writes + 1] = {
    scope, collection, name, statement = self.sql.remove }
end

local function run_all(file, writes, revision)
  local fine, kind, why = file.sql.begin:run()
  for _, write in ipairs(writes) do
    if fine then fine, kind, why = write.statement:run_with(write, #write) end
  end
  if fine then fine, kind, why = file.sql.count:run(revision) end
  if fine then fine, kind, why = file.sql.finish:run() end
  return fine, kind, why
end

function File:discard() self.writes = {} end

function File:commit(revision)
  local writes = self.writes
  self.writes = {}
  local fine, kind, why = run_all(self, writes, revision)
  if fine then
    self.last = revision
    return true
  end
  self.store:run "ROLLBACK"             -- fails if nothing has begun
  return nil, kind, why
end

-- ---- Tokens ----------------------------------------------------------------

--- A list of { id, hash, scope, role, note, revoked }; or nil, a kind and why.
function File:all_tokens()
  local list = {}
  local fine, kind, why = self.sql.tokens:each("tttttn",
    function(id, hash, scope, role, note, revoked)
      list[#list + 1] = { id = id, hash = hash, scope = scope, role = role,
                          note = note, revoked = revoked ~= 0 }
    end)
  if not fine then return nil, kind, why end
  return list
end

function File:add_token(token)
  return self.sql.new_token:run(token.id, token.hash, token.scope, token.role,
                            token.note)
end

--- True, also if it was revoked before or never was.
function File:revoke_token(id)
  return self.sql.revoke:run(id)
end

function File:written()
  return (number(self.sql.version))
end

function File:trim() self.store:run "PRAGMA shrink_memory" end

function File:close()
  self.store:close()
end

return M
