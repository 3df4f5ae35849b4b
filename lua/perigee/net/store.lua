-- SPDX-License-Identifier: Apache-2.0
--- A file of SQLite's. Functions return nil, a kind of error and why if they
-- fail.
local control = require "perigee.net.native"
local errors = require "perigee.runtime.errors"

local ffi = require "ffi"
local C = control.C

local M = {}

local out_t = ffi.typeof "struct perigee_store *[1]"
local length = control.length_t()

local Store, Statement = {}, {}
Store.__index, Statement.__index = Store, Statement

local function why_of(store)
  return ("%s: %s"):format(store.path,
                           ffi.string(C.perigee_store_why(store.file)))
end

--- Opens the file at path, or makes it.
function M.open(path)
  local out = out_t()
  local status = C.perigee_store_open(out, path)
  local store = setmetatable({ file = out[0], path = path }, Store)
  if status >= 0 then return store end
  local why = out[0] ~= nil and why_of(store) or errors.text(status)
  C.perigee_store_close(out[0])
  return nil, errors.kind(status), why
end

--- Has no other process own it until it is closed: `name_taken` if one does.
function Store:own()
  local status = C.perigee_store_own(self.file, self.path .. ".lock")
  if status >= 0 then return true end
  return nil, errors.kind(status), why_of(self)
end

--- Runs statements that give no rows.
function Store:run(sql)
  local status = C.perigee_store_run(self.file, sql)
  if status >= 0 then return true end
  return nil, errors.kind(status), why_of(self)
end

--- Prepares a statement.
function Store:prepare(sql)
  local made = C.perigee_store_prepare(self.file, sql)
  if made ~= nil then
    return setmetatable({ raw = made, store = self }, Statement)
  end
  return nil, "system", why_of(self)
end

function Store:close()
  if self.file then C.perigee_store_close(self.file) end
  self.file = false
end

-- ---- Statements ------------------------------------------------------------

-- The first n parameters, in a loop that can be compiled.
local function bind(raw, list, n)
  for i = 1, n do
    local value = list[i]
    local status
    if type(value) == "number" then
      status = C.perigee_statement_number(raw, i, value)
    else
      status = C.perigee_statement_text(raw, i, value, #value)
    end
    if status < 0 then return status end
  end
  return 0
end

local function failed(statement, status)
  local why = why_of(statement.store)
  C.perigee_statement_reset(statement.raw)
  return nil, errors.kind(status), why
end

--- Runs it with these parameters, texts and integers, and without rows.
function Statement:run(...) return self:run_with({ ... }, select("#", ...)) end

--- The same with the first n of a list.
function Statement:run_with(list, n)
  local status = bind(self.raw, list, n)
  if status >= 0 then status = C.perigee_statement_step(self.raw) end
  if status < 0 then return failed(self, status) end
  C.perigee_statement_reset(self.raw)
  return true
end

local function column(statement, i, kind)
  if kind == "n" then
    return tonumber(C.perigee_statement_integer(statement.raw, i))
  end
  local text = C.perigee_statement_column(statement.raw, i, length)
  return text ~= nil and ffi.string(text, length[0]) or nil
end

--- Runs it with these parameters, and calls f for each row. kinds: a letter for
-- each column, t (text) or n (a number).
function Statement:each(kinds, f, ...)
  local status = bind(self.raw, { ... }, select("#", ...))
  while status >= 0 do
    status = C.perigee_statement_step(self.raw)
    if status ~= 1 then break end
    local row = {}
    for i = 1, #kinds do row[i] = column(self, i - 1, kinds:sub(i, i)) end
    f(unpack(row, 1, #kinds))
  end
  if status < 0 then return failed(self, status) end
  C.perigee_statement_reset(self.raw)
  return true
end

return M
