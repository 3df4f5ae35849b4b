-- SPDX-License-Identifier: Apache-2.0
--- The output of commands on stdout. An output that nobody reads ends the
-- command without a word; one that cannot be written to is an error.
local failure = require "perigee.cli.failure"
local json = require "perigee.cli.json"
local printable = require "perigee.runtime.printable"

local EPIPE = 32

local M = {}

local function checked(fine, why, code)
  if fine then return end
  if code == EPIPE then failure.quietly(failure.UNREAD) end
  failure.failed("writing the output: %s", why)
end

--- Waits, in a task, until nobody reads a pipe on stdout any more; returns at
-- once if stdout is no pipe. For commands that may have nothing to write for
-- long.
function M.unread()
  local ffi = require "ffi"
  if not pcall(function() return ffi.C.perigee_cli_readlink end) then
    ffi.cdef [[
      long perigee_cli_readlink(const char *, char *, size_t)
        __asm__("readlink");
    ]]
  end
  local path = ffi.new "char[64]"
  if ffi.C.perigee_cli_readlink("/proc/self/fd/1", path, 63) < 5
    or ffi.string(path, 5) ~= "pipe:" then
    return false
  end
  -- Nothing can be read from this end: it is ready for its error alone.
  return require "perigee.descriptor".readable(1) == true
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
