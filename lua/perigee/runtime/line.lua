-- SPDX-License-Identifier: Apache-2.0
--- A message of the log as a line of text or of JSON. No message can look like
-- two: in text its further lines are indented, in JSON they are escapes. The
-- message is printable already (printable.lua), so it is UTF-8 and has no other
-- control characters than tabs and newlines.
local native = require "perigee.native"

local M = {}

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n",
                  ["\t"] = "\\t" }

local function quoted(text)
  return '"' .. text:gsub('["\\\n\t]', ESCAPES) .. '"'
end

-- RFC 3339, in UTC.
local function time(form)
  local now = native.wall()
  return (os.date("!%Y-%m-%dT%H:%M:%S", math.floor(now / 1e9))
          .. form):format(math.floor(now / 1e6) % 1000)
end

--- The text of a message. stamped: its time stands before it, and not whose it
-- is.
function M.text(one, stamped)
  return ("%s%s: %s%s\n"):format(stamped and time "Z " or "perigee: ",
    one.level, one.trace and ("[trace %s] "):format(one.trace) or "",
    (one.message:gsub("\n", "\n  ")))
end

--- The JSON of a message: one object, on one line.
function M.json(one)
  local parts = { ('{"time":"%s","level":"%s","message":%s'):format(
    time ".%03dZ", one.level, quoted(one.message)) }
  for _, name in ipairs { "agent", "scope", "trace", "span" } do
    if one[name] then
      parts[#parts + 1] = ('"%s":%s'):format(name, quoted(one[name]))
    end
  end
  parts[#parts + 1] = ('"pid":%d}\n'):format(native.pid())
  return table.concat(parts, ",")
end

return M
