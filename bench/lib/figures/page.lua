-- SPDX-License-Identifier: Apache-2.0
-- The page of figures: tables of echoes, of calls, and of Perigee beside its
-- floors, as Markdown. A ratio that is behind, and a cliff, are bold.

local rows_of = require "bench.lib.figures.rows"
local text = require "perigee.bench.table"

local M = {}

local HEAD = [[
# Figures

`make figures` writes this file and its two pictures. It was measured on
%s (%d cores, caches %s, Linux %s,
%s), %s.

Times are p50 in microseconds, of one call or transfer. All that stands in one
row has taken turns on the same two cores, in echoes each for %g s in all, and
bytes are checked; [running.md](running.md#the-table-figureslua) tells how. A
rival is the quickest path of another system (%s). A ratio is
Perigee's time over the other's: below 1 Perigee wins, and above 1 it is bold.
]]

local PICTURES = [[

![Time of an echo over its size](%s-time.svg)

![Perigee's time over the best rival's](%s-ratio.svg)
]]

local ECHOES = [[

## Echoes over %s

%s
`line` is the time of a cache line from one core to the other and back, in ns,
while the row was measured. `twice` is the time for twice the bytes over the
time for these, where a line took about the same time; above %g it is bold. A
floor is a bare C program.

]] .. "| size | line | raw | in place | best rival | | raw / rival | in \z
       place / rival | floor, raw | raw / floor | floor, in place | in \z
       place / floor | twice, raw | twice, in place |\n|"
  .. ("---|"):rep(14) .. "\n"

local CALLS = [[

## Calls and transfers over shared memory

`M/s` is millions of calls a second: there a ratio below 1 is bold.

| what | size | Perigee | beside | | ratio |
|---|---|---|---|---|---|
]]

local ALONE = [[

## Beside the floor alone

| what | size | p50 | p99 | floor's p50 | ratio |
|---|---|---|---|---|---|
]]

-- The rows of rpc.lua and transfer.lua: words, mode, size or nil.
local LINES = {
  { "typed add(a, b)", "typed" },
  { "call to a server that sleeps", "sleeping" },
  { "connect, until a call can be made", "connect" },
  { "one-sided write", "write", 8 },
  { "one-sided read", "read", 8 },
  { "one-sided write", "write", 2 ^ 24 },
  { "one-sided read", "read", 2 ^ 24 },
  { "one-sided write, prepared", "prepared_write", 8 },
  { "one-sided read, prepared", "prepared_read", 8 },
}

local function line(...)
  return "| " .. table.concat({ ... }, " | ") .. " |\n"
end

local function time(value) return value and text.number(value) or "" end

-- A ratio, bold if what is shown of it is beyond the limit, if there is one.
-- below: on the other side of it.
local function times(value, limit, below)
  if not value then return "" end
  local shown = ("%.2f x"):format(value)
  local seen = tonumber(("%.2f"):format(value))
  local bad = limit and (below and seen < limit or not below and seen > limit)
  return bad and "**" .. shown .. "**" or shown
end

-- ---- Tables ----------------------------------------------------------------

-- Returns a sentence for raw or inplace echoes, "" if there is nothing to say.
local function sentence(echoes, way, name)
  local told = rows_of.summary(echoes, way)
  if not told then return "" end
  local step = told.step
    and ("; twice the bytes take at most %.2f x (from %s on), and more than \z
          %g x from %d sizes on"):format(told.step, text.size(told.step_size),
                                         rows_of.CLIFF, told.cliffs)
    or ""
  return ("%s: at or below the best rival at %d of %d sizes, %.2f x of it by \z
           the geometric mean, at most %.2f x (%s)%s.\n"):format(name,
    told.ahead, told.count, told.mean, told.ratio, text.size(told.ratio_size),
    step)
end

-- Returns what is to be said of echoes by a path in short, as lines.
function M.short(echoes)
  return sentence(echoes, "raw", "Raw") .. sentence(echoes, "inplace",
                                                    "In place")
end

local function echo_line(one)
  return line(text.size(one.size), one.line and ("%.0f"):format(one.line) or "",
    time(one.raw), time(one.inplace), time(one.rival), one.name or "",
    times(one.raw_ratio, 1),
    times(one.inplace_ratio, 1), time(one.floor), times(one.raw_floor),
    time(one.floor_inplace), times(one.inplace_floor),
    times(one.raw_twice, rows_of.CLIFF),
    times(one.inplace_twice, rows_of.CLIFF))
end

local function add_echoes(parts, echoes, title)
  if #echoes == 0 then return end
  parts[#parts + 1] = ECHOES:format(title, M.short(echoes), rows_of.CLIFF)
  for _, one in ipairs(echoes) do parts[#parts + 1] = echo_line(one) end
end

local function add_calls(parts, calls)
  if #calls == 0 then return end
  parts[#parts + 1] = CALLS
  for _, one in ipairs(calls) do
    parts[#parts + 1] = line(one.what, text.size(one.size),
      time(one.ours) .. " " .. one.unit, time(one.theirs), one.name or "",
      times(one.ratio, 1, one.more))
  end
end

local function alone_of(rows, mode, size)
  for _, row in ipairs(rows) do
    if not row.peer and (row.mode or row.operation) == mode
       and (not size or row.size == size) then
      return row
    end
  end
end

local function add_alone(parts, rows)
  local lines = {}
  for _, each in ipairs(LINES) do
    local row = alone_of(rows, each[2], each[3])
    if row then
      lines[#lines + 1] = line(each[1], each[3] and text.size(each[3]) or "",
        time(tonumber(row.p50_us)), time(tonumber(row.p99_us)),
        time(tonumber(row.floor_p50_us)), times(tonumber(row.ratio)))
    end
  end
  if #lines == 0 then return end
  parts[#parts + 1] = ALONE .. table.concat(lines)
end

-- Returns the page. measured: machine (machine.lua), days (in words), seconds
-- (of each peer in a row of echoes), rivals (their versions, in words), name
-- (of the pictures, less their endings), rows (of all documents), shm and tcp
-- (echoes).
function M.text(measured)
  local machine = measured.machine
  local parts = { HEAD:format(machine.cpu, machine.cores, machine.caches,
    machine.kernel, machine.luajit, measured.days, measured.seconds,
    measured.rivals) }
  if #measured.shm + #measured.tcp > 0 then
    parts[2] = PICTURES:format(measured.name, measured.name)
  end
  add_echoes(parts, measured.shm, "shared memory")
  add_echoes(parts, measured.tcp, "TCP, loopback")
  add_calls(parts, rows_of.calls(measured.rows))
  add_alone(parts, measured.rows)
  return table.concat(parts)
end

return M
