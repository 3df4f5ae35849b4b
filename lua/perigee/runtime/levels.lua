-- SPDX-License-Identifier: Apache-2.0
--- The levels of messages, and the settings of a log: PERIGEE_LOG and what
-- `perigee log` asks for. The ranks are those of native/stats.h.
local M = {}

M.NAMES = { "error", "warning", "info", "debug" }

--- The rank of a level: an error's is 1, and a log that has a rank has all
-- messages up to it.
M.RANKS = { error = 1, warning = 2, info = 3, debug = 4 }

local FORMATS = { text = true, json = true }

--- Reads a setting such as "json", "debug" or "json,info".
-- @treturn string "text" or "json", and the rank, 0 if it has no level; or nil
--   and a sentence
function M.parse(setting)
  local format, rank = "text", 0
  for word in setting:gmatch "[^,%s]+" do
    local name = word:lower()
    name = name == "warn" and "warning" or name
    if FORMATS[name] then
      format = name
    elseif M.RANKS[name] then
      rank = M.RANKS[name]
    else
      return nil, ("%q has to be text or json, and error, warning, info or "
        .. "debug, as \"json,debug\""):format(setting)
    end
  end
  return format, rank
end

return M
