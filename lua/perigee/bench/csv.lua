-- SPDX-License-Identifier: Apache-2.0
-- The rows as comma-separated values with a header line.

local json = require "perigee.bench.json"

local M = {}

local function cell(value)
  if value == nil then return "" end
  if type(value) == "number" then return ("%.9g"):format(value) end
  value = tostring(value)
  if not value:find '[",\n]' then return value end
  return '"' .. value:gsub('"', '""') .. '"'
end

-- Returns true, or nil and why the file could not be written.
function M.write(path, key, rows)
  local file, message = io.open(path, "w")
  if not file then return nil, message end
  local columns = { key, unpack(json.FIELDS) }
  file:write(table.concat(columns, ","), "\n")
  for _, row in ipairs(rows) do
    local cells = {}
    for i, name in ipairs(columns) do cells[i] = cell(row[name]) end
    file:write(table.concat(cells, ","), "\n")
  end
  return file:close()
end

return M
