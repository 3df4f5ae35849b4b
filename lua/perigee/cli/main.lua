-- SPDX-License-Identifier: Apache-2.0
--- The command line: `perigee COMMAND`. A command is a module with name,
-- summary, configure(parser), which adds its options, and run(options), which
-- returns the exit status: 0 if all is fine, 1 if not. A wrong command line is
-- 2.
--
-- Nothing here needs the core, so a command can run, and tell what is wrong,
-- where the core does not load.
local COMMANDS = { require "perigee.cli.doctor" }

local VERSION = require "perigee.version"
local MISUSE = 2

local function version()
  local loaded, native = pcall(require, "perigee.native")
  return ("perigee %s (%s, %s)"):format(VERSION,
    loaded and "ABI " .. native.C.perigee_abi() or "its core is not found",
    jit.version)
end

local function say_version()
  print(version())
  os.exit(0)
end

local function parser_of(argparse)
  local parser = argparse("perigee",
    "Remote memory and calls between processes.")
    :command_target "command"
    :help_max_width(80)
  parser:flag("--version", "Tell the version and exit."):action(say_version)
  for _, command in ipairs(COMMANDS) do
    command.configure(parser:command(command.name)
      :summary(command.summary):description(command.description))
  end
  return parser
end

local function misused(message)
  io.stderr:write("perigee: ", message, "; perigee --help tells what there ",
                  "is\n")
  return MISUSE
end

local function run(arguments)
  local there, argparse = pcall(require, "argparse")
  if not there then
    io.stderr:write("perigee: the command line needs lua-argparse: ",
      "apt-get install lua-argparse, or luarocks --lua-version=5.1 install ",
      "argparse\n")
    return MISUSE
  end
  local fine, given = parser_of(argparse):pparse(arguments)
  if not fine then return misused(given) end
  for _, command in ipairs(COMMANDS) do
    if command.name == given.command then return command.run(given) end
  end
end

return run
