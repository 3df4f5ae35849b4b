-- SPDX-License-Identifier: Apache-2.0
-- Words for a command line of the shell.

local M = {}

-- Returns words, each in quotes, in one string.
function M.quoted(words)
  local parts = {}
  for i, word in ipairs(words) do
    parts[i] = "'" .. word:gsub("'", "'\\''") .. "'"
  end
  return table.concat(parts, " ")
end

return M
