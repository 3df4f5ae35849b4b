-- SPDX-License-Identifier: Apache-2.0
-- What a comparison prints: a block for each mode and size as it is measured,
-- and at the end a table of ratios with a column for each peer.

local figures = require "bench.lib.compare.figures"
local text = require "perigee.bench.table"

local M = {}

local WIDTH = 34
local COLUMNS_OF_RATIOS = 7
local COLUMNS = {
  { "mean", "mean_us", 9 }, { "p50", "p50_us", 9 }, { "p99", "p99_us", 9 },
  { "GB/s", "gb_per_s", 7 }, { "calls/s", "calls_per_s", 9, 0 },
  { "cpu c", "cpu_client_us", 8 }, { "cpu s", "cpu_server_us", 8 },
  { "MiB", "memory_mib", 7 }, { "ratio", "ratio", 8, 2 },
}
local OF_PIECES = {
  { "least", "least_us", 9 }, { "p50", "p50_us", 9 }, { "GB/s", "gb_per_s", 7 },
  { "caller", "caller_us", 9 }, { "post", "post_us", 9 },
  { "ratio", "ratio", 8, 2 }, { "of post", "post_ratio", 8, 2 },
}

local function columns_of(mode)
  return mode:find "%-pieces$" and OF_PIECES or COLUMNS
end

local function cell(value, width) return ("%" .. width .. "s"):format(value) end

-- "echo, 64K", "pipelined, 64, 64 under way", "fanout, 1K, to 8"
function M.title(work)
  local size = text.size(work.size)
  if work.mode == "pipelined" then
    return ("pipelined, %s, %d under way"):format(size, work.under)
  elseif work.mode == "paced" then
    return ("paced, %s, %d calls/s"):format(size, work.under)
  elseif work.mode == "fanout" then
    return ("fanout, %s, to %d"):format(size, work.under)
  elseif work.shape then
    local kv = work.shape
    return ("%s, %d x %d of %s"):format(work.mode, kv.layers, kv.blocks,
                                        text.size(kv.block))
  end
  return ("%s, %s"):format(work.mode, size)
end

function M.header(work)
  local line = { ("%-" .. WIDTH .. "s"):format(M.title(work)) }
  for _, column in ipairs(columns_of(work.mode)) do
    line[#line + 1] = cell(column[1], column[3])
  end
  return table.concat(line, " ")
end

local function marks(row)
  local all = {}
  if row.floor then
    all[#all + 1] = row.checked == 0 and "a floor, no byte is looked at"
                    or "a floor"
  end
  if row.one_core then all[#all + 1] = "one core" end
  if row.bursts_kept == 0 then all[#all + 1] = "the cores never settled" end
  if row.others > 0.1 and not row.floor then -- its processes may have ended
    all[#all + 1] = ("others took %.0f %% of a core"):format(row.others * 100)
  end
  return #all > 0 and "  (" .. table.concat(all, "; ") .. ")" or ""
end

-- The peer, what carries its bytes, and whether its two sides sleep or poll.
local function name_of(row)
  return ("%-" .. WIDTH .. "s"):format(("%-20s %-5s %s"):format(
    row.peer, row.path or "-", row.waits or ""))
end

function M.line(row)
  local name = name_of(row)
  if row.why then
    return name .. " - " .. row.why
           .. (row.install and ("; to install: " .. row.install) or "")
  end
  local line = { name }
  for _, column in ipairs(columns_of(row.mode)) do
    line[#line + 1] = cell(text.number(row[column[2]], column[4]), column[3])
  end
  return table.concat(line, " ") .. marks(row)
end

-- Returns of one mode the peers that have a ratio anywhere, in the order of the
-- rows, the sizes, and the ratios by size and peer.
local function by_size(rows, mode)
  local names, seen, sizes, by, any = {}, {}, {}, {}, {}
  for _, row in ipairs(rows) do
    if row.mode == mode then
      if not seen[row.peer] then names[#names + 1] = row.peer end
      seen[row.peer], any[row.peer] = true, any[row.peer] or row.ratio
    end
    if row.mode == mode and row.ratio then
      if not by[row.size] then
        by[row.size] = {}
        sizes[#sizes + 1] = row.size
      end
      by[row.size][row.peer] = row.ratio
    end
  end
  for k = #names, 1, -1 do
    if not any[names[k]] then table.remove(names, k) end
  end
  return names, sizes, by
end

-- Adds a line for each size with the peers from `first` to `last`.
local function add_ratios(lines, names, shown, sizes, by, first, last)
  local head = { cell("size", 6) }
  local function title(i) return shown[names[i]] or names[i] end
  local function width(i) return math.max(7, #title(i)) end
  for i = first, last do head[#head + 1] = cell(title(i), width(i)) end
  lines[#lines + 1] = table.concat(head, " ")
  for _, size in ipairs(sizes) do
    local line = { cell(text.size(size), 6) }
    for i = first, last do
      line[#line + 1] = cell(text.number(by[size][names[i]], 2), width(i))
    end
    lines[#lines + 1] = table.concat(line, " ")
  end
end

-- Returns the rows' ratios of one mode as lines, with a column for each peer.
-- shown: other titles of columns, by peer, or nil.
function M.ratios(rows, mode, shown)
  local names, sizes, by = by_size(rows, mode)
  if #names < 2 then return {} end
  local lines = { ("%s: %s over that of %s"):format(
    mode, figures.MEANINGS[mode] or figures.MEANINGS.echo, names[1]) }
  for first = 2, #names, COLUMNS_OF_RATIOS do
    add_ratios(lines, names, shown or {}, sizes, by, first,
               math.min(#names, first + COLUMNS_OF_RATIOS - 1))
  end
  return lines
end

return M
