-- SPDX-License-Identifier: Apache-2.0
--- The verdicts as text of 80 columns: what was found, and below it, where it
-- is not fine, why that matters and what to do. Commands are never broken.
local verdict = require "perigee.cli.doctor.verdict"

local WIDTH, NAME, DETAIL = 80, 11, 31
local COLOURS = { ok = "32", note = "36", warning = "33", problem = "31" }

-- Wraps a text into lines that fit behind `indent` blanks, which the first
-- line does not have.
local function wrapped(text, indent)
  local lines, current = {}, ""
  for word in text:gmatch "%S+" do
    if current ~= "" and indent + #current + 1 + #word > WIDTH then
      lines[#lines + 1], current = current, word
    else
      current = current == "" and word or current .. " " .. word
    end
  end
  lines[#lines + 1] = current
  return table.concat(lines, "\n" .. (" "):rep(indent))
end

local function coloured(status, colour)
  local padded = ("%-7s"):format(status)
  if not colour then return padded end
  return ("\27[%sm%s\27[0m"):format(COLOURS[status], padded)
end

local function write_details(found, output)
  local indent = (" "):rep(NAME)
  output:write(indent, wrapped(found.why .. ".", NAME), "\n")
  output:write(indent, wrapped("To do: " .. found.fix .. (found.command
    and ":" or "."), NAME), "\n")
  if found.command then output:write(indent, "  ", found.command, "\n") end
end

local function write_verdict(found, output, colour)
  output:write("  ", coloured(found.status, colour), "  ",
    ("%-" .. DETAIL - NAME - 1 .. "s "):format(found.name),
    wrapped(found.found, DETAIL), "\n")
  if found.fix then write_details(found, output) end
end

-- Returns "2 warnings (locked memory, LuaJIT), 3 notes, 20 ok".
local function summary(verdicts)
  local parts = {}
  for i = #verdict.STATUSES, 1, -1 do
    local status, names = verdict.STATUSES[i], {}
    for _, found in ipairs(verdicts) do
      if found.status == status then names[#names + 1] = found.name end
    end
    local plural = (#names == 1 or status == "ok") and "" or "s"
    local listed = verdict.rank[status] >= verdict.rank.warning
      and (" (%s)"):format(table.concat(names, ", ")) or ""
    if #names > 0 then
      parts[#parts + 1] = ("%d %s%s%s"):format(#names, status, plural, listed)
    end
  end
  return table.concat(parts, ", ")
end

--- Writes them, coloured if colour is true.
return function(verdicts, output, colour)
  local group
  for _, found in ipairs(verdicts) do
    if found.group ~= group then
      output:write(group and "\n" or "", found.group, "\n")
      group = found.group
    end
    write_verdict(found, output, colour)
  end
  output:write("\n", wrapped(summary(verdicts), 0), "\n")
  return true
end
