-- SPDX-License-Identifier: Apache-2.0
--- The command line: `perigee COMMAND`. Each command is a module, named in
-- COMMANDS, with
--
-- * `name`, `summary` (a line of the list), `description`
-- * `configure(parser)`: adds its arguments and options (optional)
-- * `run(given)`: does it; returns the exit status (nil for 0), or nil and what
--   went wrong. Misuse is raised by `failure.misuse`
-- * `commands`: in place of `run`, a list of such tables, for a command that
--   has commands of its own (`perigee registry acl`)
-- * `passes_on`: all that follows its first argument is that program's
--
-- Exit statuses: 0, all is fine; 1, the world's doing; 2, misuse; 128 and a
-- signal's number, also of SIGPIPE: nobody reads the output.
--
-- Loading a command needs neither the core nor lua-cjson: what it needs it
-- requires when it runs. So --help and `perigee doctor` work where the core
-- does not load.
local lists = require "perigee.cli.lists"
local stats = require "perigee.cli.stats"

local COMMANDS = {
  require "perigee.cli.serve",
  require "perigee.cli.run",
  require "perigee.cli.call",
  require "perigee.cli.lookup",
  require "perigee.cli.describe",
  lists.agents,
  lists.services,
  lists.regions,
  require "perigee.cli.watch",
  require "perigee.cli.explain",
  require "perigee.cli.top",
  stats.stats,
  stats.sessions,
  stats.autopsy,
  require "perigee.cli.health",
  require "perigee.cli.metrics",
  require "perigee.cli.log",
  require "perigee.cli.ping",
  require "perigee.cli.devices",
  require "perigee.cli.nics",
  require "perigee.cli.trace",
  require "perigee.cli.registry",
  require "perigee.cli.doctor",
  require "perigee.cli.completion",
  require "perigee.cli.ctrl",
  require "perigee.cli.cache",
}

local ffi = require "ffi"

local VERSION = require "perigee.version"
local failure = require "perigee.cli.failure"
local printable = require "perigee.runtime.printable"

local function version()
  local loaded, native = pcall(require, "perigee.native")
  return ("perigee %s (%s, %s)"):format(VERSION,
    loaded and "ABI " .. native.C.perigee_abi() or "its core is not found",
    jit.version)
end

-- Ends the program with a text on stdout.
local function say(text)
  os.exit(failure.caught("perigee", function()
    local out = require "perigee.cli.out"
    out.write(text, "\n")
    out.finish()
  end))
end

local function say_version() say(version()) end

-- argparse does not look whether it could write the help.
local function check_help(parser)
  parser._options[parser._help_option_idx]:action(function()
    say(parser:get_help())
  end)
end

-- ---- The commands' parsers -------------------------------------------------

-- What is wrong with the value of an option is told with the option's name.
local function name_values(parser)
  for _, option in ipairs(parser._options) do
    local convert, name = option._convert, option._aliases[#option._aliases]
    if type(convert) == "function" then
      option:convert(function(text)
        local value, why = convert(text)
        if value ~= nil then return value end
        return nil, why and ("%s: %s"):format(name, why)
      end)
    end
  end
end

local function add(parser, command, path)
  local own = parser:command(command.name):summary(command.summary)
    :description(command.description or command.summary)
  path = path .. " " .. command.name
  own:action(function(given)            -- the innermost command comes first
    given.chosen = given.chosen or command
    given.path = given.path or path
  end)
  check_help(own)
  if command.configure then command.configure(own) end
  name_values(own)
  for _, each in ipairs(command.commands or {}) do add(own, each, path) end
  command.parser = own
end

local function parser_of(argparse)
  local parser = argparse("perigee",
    "Remote memory and calls between processes.")
    :help_max_width(80)
  check_help(parser)
  parser:flag("--version", "Tell the version and exit."):action(say_version)
  for _, command in ipairs(COMMANDS) do add(parser, command, "perigee") end
  return parser
end

-- ---- The arguments ---------------------------------------------------------

local function takes_value(parser, word)
  for _, option in ipairs(parser._options) do
    for _, alias in ipairs(option._aliases) do
      if alias == word then return option._maxargs > 0 end
    end
  end
end

-- Puts "--" behind the first argument of a command that passes on the rest, so
-- that options there are left to the program which that argument names.
local function passed_on(arguments, parser)
  local list, i = { arguments[1] }, 2
  while arguments[i] and arguments[i] ~= "--" and not list.done do
    local word = arguments[i]
    list[#list + 1], i = word, i + 1
    if word:sub(1, 1) ~= "-" then
      list[#list + 1], list.done = "--", true
    elseif takes_value(parser, word) and arguments[i] then
      list[#list + 1], i = arguments[i], i + 1
    end
  end
  for k = i, #arguments do list[#list + 1] = arguments[k] end
  return list
end

-- A number below 0 is an argument: no option begins with a digit. The blank
-- before it changes neither a number nor JSON.
local function words(arguments)
  local list = {}
  for i, word in ipairs(arguments) do
    list[i] = word:find "^%-%.?%d" and " " .. word or word
  end
  for _, command in ipairs(COMMANDS) do
    if command.name == list[1] and command.passes_on then
      return passed_on(arguments, command.parser)
    end
  end
  return list
end

-- ---- Running ---------------------------------------------------------------

-- The command of a list that has a name.
local function named(list, name)
  for _, command in ipairs(list or {}) do
    if command.name == name then return command end
  end
end

-- The command that was asked for, as far as it can be told.
local function asked(arguments)
  local path, command = "perigee", { commands = COMMANDS }
  for _, word in ipairs(arguments) do
    command = named(command.commands, word)
    if not command then break end
    path = path .. " " .. word
  end
  return path
end

local function misused(message, arguments)
  local command = asked(arguments)
  message = message:gsub('" (%-%.?%d)', '"%1', 1)         -- see words()
  io.stderr:write(command, ": ", printable.lines(message), "; ", command,
                  " --help tells what there is\n")
  return failure.MISUSE
end

if not pcall(function() return ffi.C.perigee_cli_signal end) then
  ffi.cdef "void *perigee_cli_signal(int, void *) __asm__(\"signal\");"
end

local SIGINT, SIG_DFL = 2, ffi.cast("void *", 0)

-- LuaJIT makes an error of Ctrl-C, with a traceback.
local function end_at_interrupt() ffi.C.perigee_cli_signal(SIGINT, SIG_DFL) end

-- Runs the command that was chosen, and sees to it that what it wrote is
-- written: at the end of the process nobody would be told. What a program of
-- the user writes is the program's.
local function run(given)
  local status, message = given.chosen.run(given)
  if not given.chosen.passes_on then require "perigee.cli.out".finish() end
  return status, message
end

return function(arguments)
  end_at_interrupt()
  local there, argparse = pcall(require, "argparse")
  if not there then
    io.stderr:write("perigee: the command line needs lua-argparse: ",
      "apt-get install lua-argparse, or luarocks --lua-version=5.1 install ",
      "argparse\n")
    return failure.MISUSE
  end
  local parser = parser_of(argparse)
  local fine, given = parser:pparse(words(arguments))
  if not fine then return misused(given, arguments) end
  given.root = parser
  return failure.caught(given.path, run, given)
end
