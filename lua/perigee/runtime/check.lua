-- SPDX-License-Identifier: Apache-2.0
--- Checks of what callers pass in. Each raises at the caller's caller, saying
-- what was wrong: misuse is an error, never a result.
--
-- A schema maps option names to a check: a function (value) that returns
-- nothing if value is fine, else what it has to be, and optionally what a
-- message tells of the value in place of the value itself.
local printable = require "perigee.runtime.printable"
local sorted = require "perigee.runtime.sorted"

local M = {}

local floor = math.floor

function M.is_count(value)
  return type(value) == "number" and value >= 0 and value <= 2 ^ 53
    and floor(value) == value
end

function M.count(value)
  if not M.is_count(value) then return "an integer of at least 0" end
end

--- Seconds; math.huge means no limit.
function M.seconds(value)
  if type(value) ~= "number" or value ~= value or value < 0 then
    return "seconds, a number of at least 0 (math.huge for no limit)"
  end
end

function M.string(value)
  if type(value) ~= "string" then return "a string" end
end

--- Texts that the core reads up to a zero.
function M.whole(value)
  if type(value) ~= "string" or value:find("%z") then
    return "a string without a zero byte"
  end
end

--- Texts that registries can tell: JSON has no others.
function M.text(value)
  if printable.utf8(value) ~= value then return "a text in UTF-8" end
end

--- Secrets. A message does not show one. The core would read it only up to a
-- zero byte.
function M.secret(value)
  if type(value) ~= "string" then return "a string", type(value) end
  if value:find("\0", 1, true) then
    return "a string without zero bytes (write it in hexadecimal, or to a "
      .. "file)", "one that has some"
  end
end

function M.table(value)
  if type(value) ~= "table" then return "a table" end
end

function M.boolean(value)
  if type(value) ~= "boolean" then return "true or false" end
end

function M.callable(value)
  if type(value) ~= "function" then return "a function" end
end

--- Names of agents and scopes.
function M.name(value)
  if type(value) ~= "string" or #value < 1 or #value > 64
    or not value:match("^[%w_:-][%w._:-]*$") then
    return "1 to 64 of letters, digits and . _ : - without a leading dot"
  end
end

--- Characters of a rendezvous' key at most, which is a part of names.
M.KEY = 40

--- Keys of rendezvous.
function M.key(value)
  if M.name(value) or #value > M.KEY then
    return ("at most %d letters, digits and . _ : -"):format(M.KEY)
  end
end

-- A text as error messages show it, without the passwords in addresses.
local function shown(text)
  text = text:gsub(":.*@", ":...@")     -- there may be an @ in it
  text = text:gsub("password=[^&]*", "password=...")
  return ("%q"):format((text:gsub("token=[^&]*", "token=...")))
end

--- Raises unless value passes check. what names the value in the message.
function M.value(value, check, what, level)
  local wanted, got = check(value)
  if wanted then
    got = got or type(value) == "number" and tostring(value)
      or type(value) == "string" and shown(value) or type(value)
    error(("%s must be %s, not %s"):format(what, wanted, got),
          (level or 2) + 1)
  end
  return value
end

--- Raises unless options is nil or a table of schema's options only. Returns
-- the options, an empty table for nil.
function M.options(options, schema, what, level)
  level = (level or 2) + 1
  if options == nil then return {} end
  if type(options) ~= "table" then
    error(("the options of %s must be a table, not %s")
      :format(what, type(options)), level)
  end
  for name, value in pairs(options) do
    local check = schema[name]
    if not check then
      error(("%s has no option %q; it has %s"):format(what, tostring(name),
              table.concat(sorted(schema), ", ")), level)
    end
    M.value(value, check, ("option %s of %s"):format(name, what), level)
  end
  return options
end
-- This LuaJIT (2022-03) compiles loops over pairs(), and sometimes wrongly:
-- with -Ohotloop=1 one loop never ended and another crashed. No function with
-- such a loop is on a hot path, so none of them is compiled.
jit.off(M.options)

-- Is the option after `last` (nil: the first) right? Returns its name, too;
-- nil: there is none.
local function next_is_right(options, schema, last)
  local name, value = next(options, last)
  if name == nil then return true end
  local check = schema[name]
  return check ~= nil and not check(value), name
end

--- The same for calls on hot paths: what has two options at most is checked
-- without a loop over pairs, by code that is compiled.
function M.few(options, schema, what, level)
  if type(options) == "table" then
    local right, name = next_is_right(options, schema)
    if right and name then
      right, name = next_is_right(options, schema, name)
    end
    if right and name then right = next(options, name) == nil end
    if right then return options end
  end
  return M.options(options, schema, what, level) -- a tail call, no level more
end

local function bare(raised)
  return (tostring(raised):gsub("^[^:]*:%d+: ", ""))
end

local function dotted(what, name, level)
  error(("%s:%s is called with a colon, not with a dot"):format(what, name),
        level + 1)
end
M.dotted = dotted

--- Has methods of a class raise where they are called on something else, as by
-- a dot: without this some would wait for ever. names: with blanks between.
function M.colons(class, what, names)
  for name in names:gmatch "%S+" do
    local f = class[name]
    class[name] = function(self, ...)
      if type(self) ~= "table" or type(self[name]) ~= "function" then
        dotted(what, name, 2)
      end
      return f(self, ...)
    end
  end
end

--- Raises at level the message of a misuse error of the library that a pcall
-- has caught, without the position in it.
function M.blame(raised, level)
  error(bare(raised), (level or 2) + 1)
end

--- The text "file:line: " of level, for misuse that is found later.
function M.line(level)
  return select(2, pcall(error, "", level + 2))
end

--- The message of such an error with line, which M.line gave, as its position.
function M.blamed(raised, line)
  return line .. bare(raised)
end

--- Nanoseconds for the core: negative for no limit.
function M.nanoseconds(seconds)
  if seconds > 9e9 then return -1 end
  return seconds * 1e9
end

return M
