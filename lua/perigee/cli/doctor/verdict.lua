-- SPDX-License-Identifier: Apache-2.0
--- The verdicts of checks about the machine. A check is a table:
--
--   name   two words
--   why    a sentence: what it matters for
--   look   function (machine), returns a verdict, or an array of them
--
-- and a verdict is a table, made by the functions below:
--
--   status    "ok"; "note": nothing is broken, but this is worth knowing;
--             "warning": something will be slow, refused or small;
--             "problem": something that Perigee needs does not work
--   found     what was found, without a full stop
--   fix       a sentence: what to do about it, nil where nothing is
--   command   the exact command that does it, nil where none can be told;
--             written with sudo where it takes root
local M = {}

--- From best to worst.
M.STATUSES = { "ok", "note", "warning", "problem" }

M.rank = {}
for rank, status in ipairs(M.STATUSES) do
  M.rank[status] = rank
  M[status] = function(found, fix, command)
    return { status = status, found = found, fix = fix, command = command }
  end
end

--- A verdict for what cannot be found out here, as in a container that hides
-- it. text says where the check looked.
function M.unknown(text)
  return M.note("unknown: " .. text)
end

--- Returns the worst status of a list of verdicts.
function M.worst(verdicts)
  local worst = 1
  for _, verdict in ipairs(verdicts) do
    worst = math.max(worst, M.rank[verdict.status])
  end
  return M.STATUSES[worst]
end

return M
