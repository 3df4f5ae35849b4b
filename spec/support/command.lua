-- SPDX-License-Identifier: Apache-2.0
-- The command `perigee` as a user runs it, in processes of their own, with a
-- registry of names in a folder that is removed by clean().
local process = require "spec.support.process"

local M = {}

local here = io.popen "pwd":read "*l"
M.path = here .. "/lua/perigee/cli/perigee"

local LIMIT = 60 * process.slow         -- seconds that a command may take

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

function M.folder()
  if not M.made then
    local pipe = io.popen "mktemp -d /tmp/perigee-cli.XXXXXX"
    M.made = pipe:read "*l"
    pipe:close()
  end
  return M.made
end

-- Writes a file there; returns its path.
function M.file(name, text)
  local path = M.folder() .. "/" .. name
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  return path
end

function M.content(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text
end

local ENVIRONMENT = { "env", "-u", "PERIGEE_REGISTRY", "-u",
                      "PERIGEE_TRANSPORT", "PERIGEE_SCOPE=cli" }

local function line_of(words)
  local all = {}
  for _, word in ipairs(ENVIRONMENT) do all[#all + 1] = word end
  all[#all + 1] = "XDG_RUNTIME_DIR=" .. M.folder()
  for _, word in ipairs(words) do all[#all + 1] = quoted(word) end
  return table.concat(all, " ")
end

-- Runs a shell's line in which "perigee" is the command; returns its status,
-- its output and its errors.
function M.shell(line)
  local errors = M.folder() .. "/stderr"
  local script = ('perigee() { %s "$@"; }\n%s'):format(
    line_of { "timeout", tostring(LIMIT), M.path }, line)
  local pipe = io.popen(("bash -c %s 2>%s; echo \" status $?\""):format(
    quoted(script), quoted(errors)))
  local text = pipe:read "*a"
  pipe:close()
  local output, status = text:match "^(.*) status (%d+)\n$"
  return tonumber(status), output, M.content(errors)
end

-- Runs `perigee` with these words.
function M.run(...)
  local words = { ... }
  for i, word in ipairs(words) do words[i] = quoted(word) end
  return M.shell("perigee " .. table.concat(words, " "))
end

-- A shell's line that becomes `perigee` with these words.
function M.line(...) return "exec " .. line_of { M.path, ... } end

-- Starts `perigee` with these words, with its errors among its output.
function M.start(...)
  return process.spawn { "sh", "-c", M.line(...) .. " 2>&1" }
end

-- Starts `perigee run` of a script with these words, and waits until it has
-- printed "ready".
function M.run_script(name, text, ...)
  local child = M.start("run", M.file(name, text), ...)
  repeat
    local line = assert(child:read(30 * process.slow))
  until line:find "ready$"
  return child
end

-- Waits until f() is true; false after half a minute of a fast machine.
function M.eventually(f)
  local limit = process.now() + 30 * process.slow
  repeat
    if f() then return true end
    process.usleep(0.005)
  until process.now() > limit
  return false
end

-- Is a process that was started in a loop which its signals stop in order?
function M.is_running(started)
  local status = M.content(("/proc/%d/status"):format(started.pid)) or ""
  local caught = tonumber(status:match "SigCgt:%s+%x*(%x%x%x%x)" or "0", 16)
  return status:find "^Name:%s+luajit" ~= nil
    and bit.band(caught, 0x4000) ~= 0           -- SIGTERM
end

-- Has a process ended, reaped or not?
function M.is_gone(pid)
  local status = M.content(("/proc/%d/status"):format(pid))
  return not status or status:find "State:%s+[ZX]" ~= nil
end

function M.clean()
  process.cleanup()
  if M.made then os.execute("rm -rf '" .. M.made .. "'") end
  M.made = nil
end

return M
