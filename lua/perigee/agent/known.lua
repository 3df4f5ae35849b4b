-- SPDX-License-Identifier: Apache-2.0
--- Names that an agent knows without asking its registry: those that its
-- watches tell, and else those of the registry's last answer. A watch's names
-- are as good as an answer while the watch hears from the registry. All others
-- may be out of date, and are given away only as copies whose field `stale` is
-- true.
local entries = require "perigee.registry.entry"

local M = {}

local MOST = 4096                       -- answers that are kept

--- Returns what an agent that was just made knows.
function M.new() return { entries = {}, count = 0 } end

--- Notes that name has this entry (nil: that nobody has it).
function M.note(agent, name, entry)
  local known = agent.known
  local before = known.entries[name]
  if known.count >= MOST and entry and not before then
    known.entries, known.count, before = {}, 0, nil
  end
  known.entries[name] = entry
  known.count = known.count + (entry and 1 or 0) - (before and 1 or 0)
end

--- Notes a list of entries.
function M.note_all(agent, list)
  for _, entry in ipairs(list) do M.note(agent, entry.name, entry) end
end

--- The entry of name that a watch has told of, if that watch is up to date.
function M.watched(agent, name)
  for watch in pairs(agent.watches) do
    if watch.known[name] and not (watch.over or watch.err or watch.full) then
      return watch.known[name]
    end
  end
end
jit.off(M.watched)

--- The last entry of name that is known, however old; or nil.
function M.last(agent, name)
  for watch in pairs(agent.watches) do
    if watch.known[name] then return watch.known[name] end
  end
  return agent.known.entries[name]
end
jit.off(M.last)

--- A copy of entry that is marked as stale.
function M.stale(entry)
  local copy = {}
  for field, value in pairs(entry) do copy[field] = value end
  copy.stale = true
  return copy
end
jit.off(M.stale)

--- Copies of all entries that are known and match filter, by name.
function M.stale_list(agent, filter)
  local all, list = {}, {}
  for name, entry in pairs(agent.known.entries) do all[name] = entry end
  for watch in pairs(agent.watches) do
    for name, entry in pairs(watch.known) do all[name] = entry end
  end
  for _, entry in pairs(all) do list[#list + 1] = M.stale(entry) end
  return entries.select(list, filter)
end
jit.off(M.stale_list)

return M
