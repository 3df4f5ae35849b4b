-- SPDX-License-Identifier: Apache-2.0
--- Numbers of at most five characters, and tables that fit in a terminal. All
-- texts are ASCII, so that a byte is a column also where there is no UTF-8.
local printable = require "perigee.runtime.printable"

local M = {}

-- ---- Texts ------------------------------------------------------------------

local function hex(c) return ("\\x%02x"):format(c:byte()) end

--- A text of others on one line, in ASCII.
function M.plain(text)
  return (printable.line(text):gsub("[\128-\255]", hex))
end

--- A text that is too long for so many columns without its middle: names often
-- differ at their ends.
function M.cut(text, width)
  if #text <= width then return text end
  if width < 2 then return text:sub(1, width) end
  local last = math.floor((width - 1) / 2)
  return ("%s~%s"):format(text:sub(1, width - 1 - last), text:sub(#text - last
                                                                  + 1))
end

-- ---- Numbers ----------------------------------------------------------------

-- A number with three digits at most, by the first unit that it is below.
local function scaled(value, step, units, last)
  for i = 1, #units do
    if value < 999.5 then
      local short = value < 9.95 and value % 1 ~= 0 and "%.1f" or "%.0f"
      return short:format(value) .. units[i]
    end
    value = value / step
  end
  return last
end

local COUNTS = { "", "k", "M", "G", "T" }
local SIZES = { "", "K", "M", "G", "T" }
local TIMES = { "ns", "us", "ms" }

--- A number: "12", "1.2k". nil: "-", as below.
function M.count(value)
  if not value then return "-" end
  if value > 0 and value < 0.05 then return "<0.1" end
  return scaled(value, 1000, COUNTS, ">999T")
end

--- Bytes: "12", "1.2K", which are 1229 bytes.
function M.size(value)
  return value and scaled(value, 1024, SIZES, ">999T") or "-"
end

--- Nanoseconds: "850ns", "1.2ms", "75s".
function M.time(ns)
  if not ns then return "-" end
  return scaled(ns, 1000, TIMES) or M.seconds(ns / 1e9)
end

local SPANS = { { 99.5, 1, "s" }, { 5970, 60, "m" }, { 171000, 3600, "h" } }

--- Seconds: "75s", "12m", "30h", "12d".
function M.seconds(value)
  if not value then return "-" end
  if value < 9.95 then return ("%.1fs"):format(value) end
  for _, span in ipairs(SPANS) do
    if value < span[1] then return ("%.0f%s"):format(value / span[2],
                                                     span[3]) end
  end
  local days = value / 86400
  return days < 9999 and ("%.0fd"):format(days) or ">999d"
end

-- ---- Tables -----------------------------------------------------------------

-- The columns of a list that fit, by their ranks; the rest of the width is for
-- the first one, which has at least `least`, or all that it wants before an
-- additional column has any.
local function chosen(columns, width, wanted)
  local by_rank, fits, first = {}, {}, columns[1]
  for i = 2, #columns do by_rank[i - 1] = columns[i] end
  table.sort(by_rank, function(a, b) return a.rank < b.rank end)
  local left = width
  for _, column in ipairs(by_rank) do
    local least = column.additional and wanted or first.least
    if left - least < column.width + 1 then break end
    left = left - column.width - 1
    fits[column] = true
  end
  return fits, math.max(0, math.min(wanted, left))
end

local function cell(text, column, width)
  text = M.cut(text, width)
  local blanks = (" "):rep(width - #text)
  return column.left and text .. blanks or blanks .. text
end

local function longest(column, rows)
  local width = #column.label
  for _, row in ipairs(rows) do width = math.max(width, #column.of(row)) end
  return width
end

--- A table that fits in so many columns: its headings, and f(row), the text of
-- a row.
-- columns: a list of { label, width, rank (the lowest are the last to be left
-- out), additional (whether it is left out where the first one would be cut),
-- left (whether it begins at the left), of(row): its text }; the first one is
-- always there and has `least` in place of width and rank
function M.table(columns, rows, width)
  local first = columns[1]
  local fits, own = chosen(columns, width, longest(first, rows))
  local function line(f)
    local parts = { cell(f(first), first, own) }
    for i = 2, #columns do
      local column = columns[i]
      if fits[column] then
        parts[#parts + 1] = cell(f(column), column, column.width)
      end
    end
    return (table.concat(parts, " "):sub(1, width))
  end
  return line(function(column) return column.label end), function(row)
    return line(function(column) return column.of(row) end)
  end
end

--- As many of the texts of a list as fit in so many columns, side by side.
function M.beside(list, width)
  local text = ""
  for _, each in ipairs(list) do
    local more = text == "" and each or text .. "  " .. each
    if #more > width then break end
    text = more
  end
  return text == "" and (list[1] or ""):sub(1, width) or text
end

return M
