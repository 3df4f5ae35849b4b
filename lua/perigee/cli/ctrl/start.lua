-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl start`: a server in the background.
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.ctrl.options"

local PATIENCE = 30                     -- seconds

local M = {
  name = "start",
  summary = "Serve in the background.",
  description = "Starts a server in the background, and returns when it "
    .. "serves. perigee ctrl stop ends it.",
  configure = options.server,
}

local NAMES = { "listen", "store", "tls-cert", "tls-key", "log", "pid",
                "name", "config" }

-- The command line of a server with these options. The background server reads
-- secrets from their files again, because others see command lines.
local function command(given)
  local words = { "setsid", "luajit", options.quoted(arg[0]), "ctrl", "serve" }
  for _, name in ipairs(NAMES) do
    local key = name:gsub("-", "_")
    local value = given[key]
    if value and not (given.configured or {})[key] then
      words[#words + 1] = "--" .. name .. "=" .. options.quoted(value)
    end
  end
  for _, limit in ipairs(options.LIMITS) do
    local value = given[(limit[1]:gsub("-", "_"))]
    if value then words[#words + 1] = ("--%s=%d"):format(limit[1], value) end
  end
  if given.insecure then words[#words + 1] = "--insecure" end
  return table.concat(words, " ")
end

local function last_line(path)
  local file, last = io.open(path), nil
  if not file then return "it ended at once" end
  for line in file:lines() do last = line end
  file:close()
  return last or "it ended at once"
end

function M.run(given)
  options.check_libraries()
  local process = require "perigee.cli.ctrl.process"
  options.complete(given)
  given.log = given.log or given.beside .. ".log"
  local found = process.find(given.pid)
  if found then
    failure.failed("it runs already, as process %d at %s", found.pid,
                   found.url)
  end
  local pipe = io.popen(("%s </dev/null >/dev/null 2>>%s & echo $!"):format(
    command(given), options.quoted(given.log)))
  local pid = tonumber(pipe:read "*l")
  pipe:close()
  local started = process.of(pid)
  process.eventually(PATIENCE, function()
    found = process.find(given.pid)
    return found or not process.runs(started)
  end)
  if not found then failure.failed("%s", last_line(given.log)) end
  local out = require "perigee.cli.out"
  out.line("%s", found.url)
  out.finish()
end

return M
