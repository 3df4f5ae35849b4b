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

-- Returns the text of rows, with a line of the columns' names before them.
function M.text(columns, rows)
  local lines = { table.concat(columns, ",") }
  for _, row in ipairs(rows) do
    local cells = {}
    for i, name in ipairs(columns) do cells[i] = cell(row[name]) end
    lines[#lines + 1] = table.concat(cells, ",")
  end
  return table.concat(lines, "\n") .. "\n"
end

-- Returns true, or nil and why the file could not be written.
function M.write(path, key, rows)
  local file, message = io.open(path, "w")
  if not file then return nil, message end
  file:write(M.text({ key, unpack(json.FIELDS) }, rows))
  return file:close()
end

return M
