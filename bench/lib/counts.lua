-- SPDX-License-Identifier: Apache-2.0
-- The recorded instructions of operations (bench/counts.json), and what has
-- grown since. The file is
--   { setting: { compiler, libc, ... },
--     operations: { NAME: { caller, server, functions: { NAME: COUNT } } } }

local cjson = require "cjson"

local M = {}

M.MOST = 0.03      -- growth that is let pass
local SHOWN = 8    -- functions that are told

function M.read(path)
  local file, message = io.open(path)
  if not file then return nil, message end
  local fine, recorded = pcall(cjson.decode, file:read "*a")
  file:close()
  if not fine then return nil, ("%s: %s"):format(path, recorded) end
  return recorded
end

local function sorted(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- Encodes with a line for each value, so that differences can be read.
local function encode(value, indent)
  if type(value) ~= "table" then return cjson.encode(value) end
  local lines, inner = {}, indent .. "  "
  for i, name in ipairs(sorted(value)) do
    lines[i] = ("%s%s: %s"):format(inner, cjson.encode(name),
                                   encode(value[name], inner))
  end
  return ("{\n%s\n%s}"):format(table.concat(lines, ",\n"), indent)
end

function M.write(path, recorded)
  local file = assert(io.open(path, "w"))
  file:write(encode(recorded, ""), "\n")
  assert(file:close())
end

function M.total(one) return one.caller + one.server end

-- Returns what of the setting differs, as a sentence; nil if nothing does.
function M.differs(was, is)
  local parts = {}
  for _, name in ipairs(sorted(was)) do
    if was[name] ~= is[name] then
      parts[#parts + 1] = ("%s is %s, was %s"):format(name, is[name] or "none",
                                                      was[name])
    end
  end
  if #parts > 0 then return table.concat(parts, "; ") end
end

-- Returns the functions that have grown, those that grew most first, as a list
-- of { name, was, is }.
function M.grown(was, is)
  local list = {}
  for _, name in ipairs(sorted(is)) do
    local before = was[name] or 0
    if is[name] > before then list[#list + 1] = { name, before, is[name] } end
  end
  table.sort(list, function(a, b) return a[3] - a[2] > b[3] - b[2] end)
  return list
end

local function tell_grown(was, is, tell)
  for i, one in ipairs(M.grown(was.functions, is.functions)) do
    if i > SHOWN then break end
    tell(("    %+d %s (%d, was %d)"):format(one[3] - one[2], one[1], one[3],
                                            one[2]))
  end
end

-- Compares one operation; returns whether it is fine.
local function compare_one(name, was, is, tell)
  if not was then
    tell(("failed: %s is not recorded (--update)"):format(name))
    return false
  end
  local times = M.total(is) / M.total(was)
  local text = ("%s: %d instructions (caller %d, server %d), was %d, %+.2f %%")
    :format(name, M.total(is), is.caller, is.server, M.total(was),
            100 * (times - 1))
  if times <= 1 + M.MOST then
    tell(text .. (times < 1 - M.MOST and ": record it (--update)" or ""))
    return true
  end
  tell(("failed: %s; more than %g %%. What grew:"):format(text, 100 * M.MOST))
  tell_grown(was, is, tell)
  return false
end

-- Compares counts with the recorded ones, by name; tells a line for each.
-- Returns how many are fine and how many are not.
function M.compare(recorded, counts, tell)
  local fine, failed = 0, 0
  for _, name in ipairs(sorted(counts)) do
    if compare_one(name, recorded[name], counts[name], tell) then
      fine = fine + 1
    else
      failed = failed + 1
    end
  end
  return fine, failed
end

return M
