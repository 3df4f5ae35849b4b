-- SPDX-License-Identifier: Apache-2.0
--- Why a session is not over something better, in words, by the codes in its
-- row of a stats file (enum perigee_stats_why in native/stats.h).
local native = require "perigee.native"
require "perigee.stats.file"            -- declares the codes

local C = native.C

local M = {}

local REASONS = {
  [C.PERIGEE_STATS_WHY_ASKED] = "another transport was asked for",
  [C.PERIGEE_STATS_WHY_APART] = "the peer is on another host",
  [C.PERIGEE_STATS_WHY_NOT_OFFERED] = "the peer does not offer it",
  [C.PERIGEE_STATS_WHY_USER] = "the peer runs as another user",
  [C.PERIGEE_STATS_WHY_RETURNED] = "the session could not move to it",
  [C.PERIGEE_STATS_WHY_STAYED] = "the session did not move to it",
  [C.PERIGEE_STATS_WHY_BARE] =
    "it neither encrypts nor has MACs, and that is asked for",
  [C.PERIGEE_STATS_WHY_NONE_HERE] = "no device here can be used",
  [C.PERIGEE_STATS_WHY_NO_SOCKET] = "it needs a socket",
  [C.PERIGEE_STATS_WHY_SECOND] = "it comes second for this engine",
  [C.PERIGEE_STATS_WHY_UNFIT] = "this system cannot have it",
}

-- A later version has more reasons.
local function reason(code)
  return REASONS[code] or ("for reason %d"):format(code)
end

-- For each transport that would be better, as `form` has it.
local function told(row, form, shm, verbs)
  local list = {}
  if row.not_shm ~= 0 then
    list[1] = form:format(shm, reason(row.not_shm))
  end
  if row.not_verbs ~= 0 then
    list[#list + 1] = form:format(verbs, reason(row.not_verbs))
  end
  return list
end

--- Why a row (struct perigee_stats_session) has a transport that is not the
-- best one: "not shm (the peer is on another host), not verbs (no device here
-- can be used)"; "" if there is none that is better, or the row is of a version
-- that does not tell.
function M.text(row)
  return table.concat(told(row, "not %s (%s)", "shm", "verbs"), ", ")
end

--- The same as a sentence: "Not over shared memory: the peer is on another
-- host. Not over RDMA: no device here can be used."
function M.sentence(row)
  return table.concat(told(row, "Not over %s: %s.", "shared memory", "RDMA"),
                      " ")
end

return M
