-- SPDX-License-Identifier: Apache-2.0
--- Files of commands that serve in the background (`perigee ctrl`,
-- `perigee cache`): where they are by default, and what --config reads: lines
-- of an option's name without dashes, and its value. The command line goes
-- first.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local failure = require "perigee.cli.failure"

local M = {}

--- A word for the shell.
function M.quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function state_folder()
  local state = os.getenv "XDG_STATE_HOME"
  if state and state:sub(1, 1) == "/" then return state .. "/perigee" end
  local home = os.getenv "HOME"
  if home and home:sub(1, 1) == "/" then
    return home .. "/.local/state/perigee"
  end
end

--- The folder perigee of $XDG_STATE_HOME or ~/.local/state, which may not be
-- there. instead: the option that names another place.
function M.folder(instead)
  local folder = state_folder()
  if folder then return folder end
  failure.misuse("there is no home folder; give %s PATH", instead)
end

--- The same, made if need be.
function M.made_folder(instead)
  local folder = M.folder(instead)
  os.execute("mkdir -p -m 700 " .. M.quoted(folder) .. " 2>/dev/null")
  return folder
end

--- An absolute path.
function M.absolute(path)
  if path:sub(1, 1) == "/" then return path end
  local pipe = assert(io.popen "pwd -P")
  path = pipe:read "*l" .. "/" .. path
  pipe:close()
  return path
end

--- The key of an option among what was given.
function M.field(name) return (name:gsub("-", "_")) end

-- ---- --config --------------------------------------------------------------

--- Kinds of options: f(text) returns the value, or nil and what is wrong. `all`
-- is of an option that may be given again.
function M.text(text) return text end
function M.flag(text) return text ~= "no" end
function M.all(text) return text end

local function set(given, name, kind, text)
  local key = M.field(name)
  local value, why = kind(text)
  if value == nil then return why end
  if kind == M.all then
    if given[key] and given[key][1] and not given.configured[key] then
      return
    end
    value = { unpack(given[key] or {}) }
    value[#value + 1] = text
  elseif given[key] ~= nil then
    return
  end
  given.configured[key] = true
  given[key] = value
end

--- Reads the file that given.config names, if any: sets what was not given.
-- known: kinds by the options' names. given.configured tells what is from
-- there.
function M.read_config(given, known)
  given.configured = {}
  if not given.config then return end
  local file, why = io.open(given.config)
  if not file then failure.misuse("reading --config: %s", why) end
  local n = 0
  for line in file:lines() do
    n = n + 1
    local name, value = line:match "^%s*([%w-]+)%s*=?%s*(.-)%s*$"
    if name and known[name] then
      why = set(given, name, known[name], value)
      if why then failure.misuse("%s:%d: %s", given.config, n, why) end
    elseif not line:find "^%s*#" and not line:find "^%s*$" then
      failure.misuse("%s:%d: there is no option of that name", given.config, n)
    end
  end
  file:close()
end

return M
