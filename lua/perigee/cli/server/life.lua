-- SPDX-License-Identifier: Apache-2.0
--- The life of commands that serve in the background: options --log, --pid and
-- --config, start, status and stop. given.pid (process.lua) says which server
-- is meant.
local failure = require "perigee.cli.failure"
local files = require "perigee.cli.server.files"

local PATIENCE = 30                     -- seconds

local M = {}

--- Adds the options of a server. log, pid: where these files are by default.
function M.options(parser, log, pid)
  parser:option("--log", "The file that its messages are added to; by default "
                .. log .. "."):argname "FILE"
  parser:option("--pid", "The file that holds its process's number while it "
                .. "runs, beside FILE.state, from which stop and status know "
                .. "it; by default " .. pid .. "."):argname "FILE"
  parser:option("--config", "A file with lines NAME VALUE of these options.")
    :argname "FILE"
end

--- Adds the option that says which one is meant.
function M.which(parser)
  parser:option("--pid", "The file that start was given."):argname "FILE"
end

--- Has the library's messages go to a file; without a path, to stderr.
function M.log_to(path)
  local log = require "perigee.runtime.log"
  if not path then return log.to() end
  local file, why = io.open(path, "a")
  if not file then failure.failed("opening --log: %s", why) end
  file:setvbuf "line"
  log.to(function(line) return file:write(line) end)
end

--- Says that this process serves at url, until the process forgets it.
function M.tell(given, url)
  local told, why = require "perigee.cli.server.process".tell(given.pid, url)
  if not told then failure.failed("writing --pid: %s", why) end
end

-- ---- start -----------------------------------------------------------------

-- Adds an option as words for the shell.
local function add(words, name, value)
  if type(value) == "table" then
    for _, each in ipairs(value) do add(words, name, each) end
  elseif value == true then
    words[#words + 1] = "--" .. name
  elseif type(value) == "number" then
    words[#words + 1] = ("--%s=%.17g"):format(name, value)
  elseif value then
    words[#words + 1] = "--" .. name .. "=" .. files.quoted(value)
  end
end

-- The command line of a server with these options. The background server reads
-- secrets from their files again, because others see command lines.
local function command(given, names)
  local words = { "setsid", "luajit", files.quoted(arg[0]),
                  given.path:match "^perigee (%S+)", "serve" }
  for _, name in ipairs(names) do
    local key = files.field(name)
    if not given.configured[key] then add(words, name, given[key]) end
  end
  return table.concat(words, " ")
end

-- How long a log is that a server is about to write to. It may have messages of
-- servers before.
local function length_of(path)
  local log, why = io.open(path, "a")
  if not log then failure.failed("opening --log: %s", why) end
  local length = log:seek "end"
  log:close()
  return length
end

-- The last line of a log behind so many bytes.
local function last_line(path, length)
  local file, last = io.open(path), nil
  if not file then return nil end
  file:seek("set", length)
  for line in file:lines() do last = line end
  file:close()
  return last
end

local function spawn(process, given, names)
  local pipe = io.popen(("%s </dev/null >/dev/null 2>>%s & echo $!"):format(
    command(given, names), files.quoted(given.log)))
  local pid = tonumber(pipe:read "*l")
  pipe:close()
  return process.of(pid)
end

-- Why a server that was started does not serve. length: of its log before.
local function fail_start(process, given, started, length)
  if process.runs(started) then
    failure.failed("it has not served within %d s; process %d goes on, with "
                   .. "its messages in %s", PATIENCE, started.pid, given.log)
  end
  local last = last_line(given.log, length) or "it ended without a word"
  failure.failed("%s", (last:gsub("^perigee %l+ serve: ", "")))
end

--- Starts a server in the background by `serve` and the options of these names,
-- which are complete, and tells where it serves.
function M.start(given, names)
  local process = require "perigee.cli.server.process"
  local found = process.find(given.pid)
  if found then
    failure.failed("it runs already, as process %d at %s", found.pid,
                   found.url)
  end
  local length = length_of(given.log)
  local started = spawn(process, given, names)
  process.eventually(PATIENCE, function()
    found = process.find(given.pid)
    return found or not process.runs(started)
  end)
  if not found then fail_start(process, given, started, length) end
  local out = require "perigee.cli.out"
  out.line("%s", found.url)
  out.finish()
end

-- ---- status, stop ----------------------------------------------------------

--- Tells whether it runs. what: of --json, besides `running`, `pid` and `url`;
-- from: what says which one is meant. Returns the exit status.
function M.status(given, what, from)
  local out = require "perigee.cli.out"
  local found = require "perigee.cli.server.process".find(given.pid)
  if given.json then
    what.running, what.pid = found ~= nil, found and found.pid
    what.url = found and found.url
    out.json(what)
  elseif found then
    out.line("running as process %d at %s, from %s", found.pid, found.url, from)
  else
    out.line("not running from %s", from)
  end
  out.finish()
  return found and 0 or 1
end

--- Ends it, and returns when it has ended. from: as of M.status.
function M.stop(given, from)
  local process = require "perigee.cli.server.process"
  local found = process.find(given.pid)
  if not found then failure.failed("no server runs from %s", from) end
  process.stop(found)
  local gone = process.eventually(PATIENCE, function()
    return not process.runs(found)
  end)
  if not gone then
    failure.failed("process %d does not end", found.pid)
  end
end

return M
