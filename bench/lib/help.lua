-- SPDX-License-Identifier: Apache-2.0
--- --help of benches without a parser of options: their head comment.
local M = {}

-- The comment at the head of a script, without its licence.
local function head(path)
  local lines = {}
  for line in io.lines(path) do
    local text = line:match "^%-%- ?(.*)$"
    if not text then break end
    if not text:find "^SPDX" then lines[#lines + 1] = text end
  end
  return table.concat(lines, "\n")
end

--- Prints it and ends the process, if the command line asks for it.
function M.asked()
  for _, word in ipairs(arg) do
    if word == "--help" or word == "-h" then
      print(head(arg[0]))
      os.exit(0)
    end
  end
end

return M
