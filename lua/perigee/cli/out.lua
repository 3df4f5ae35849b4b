-- SPDX-License-Identifier: Apache-2.0
--- What commands write on stdout. An output that nobody reads ends the command
-- without a word; one that cannot be written to is an error.
local failure = require "perigee.cli.failure"
local json = require "perigee.cli.json"
local printable = require "perigee.cli.printable"

local EPIPE = 32

local M = {}

local function checked(fine, why, code)
  if fine then return end
  if code == EPIPE then failure.quietly() end
  failure.failed("writing the output: %s", why)
end

--- Writes bytes as they are.
function M.write(...) checked(io.stdout:write(...)) end

--- Sees to it that all is written. Called at the end, and after each line of a
-- stream.
function M.finish() checked(io.stdout:flush()) end

--- Writes a line of text, control characters escaped.
function M.line(...)
  M.write(printable.line((...):format(select(2, ...))), "\n")
end

--- Writes a value as one line of JSON.
function M.json(value) M.write(json.encode(value), "\n") end

--- Writes rows, lists of texts, as columns below their headings.
function M.columns(headings, rows)
  local widths, all = {}, { headings }
  for _, row in ipairs(rows) do all[#all + 1] = row end
  for _, row in ipairs(all) do
    for i = 1, #headings do
      row[i] = printable.line(row[i] == nil and "-" or row[i])
      widths[i] = math.max(widths[i] or 0, #row[i])
    end
  end
  for _, row in ipairs(all) do
    local parts = {}
    for i = 1, #headings do
      parts[i] = row[i] .. (" "):rep(widths[i] - #row[i])
    end
    M.write((table.concat(parts, "  "):gsub(" +$", "")), "\n")
  end
end

return M
