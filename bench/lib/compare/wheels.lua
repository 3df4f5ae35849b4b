-- SPDX-License-Identifier: Apache-2.0
-- Wheels from PyPI, for the peers of a comparison that are Python programs, in
-- a virtual environment of their own. A wheel that is there in the wanted
-- version is not fetched again, so an installation that was broken off goes on
-- where it was.

local quoted = require "bench.lib.shell".quoted

local M = {}

-- Prints those of the words "NAME==VERSION" behind it that are not there.
local MISSING = [[
import importlib.metadata as metadata, sys
for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    try:
        there = metadata.version(name)
    except metadata.PackageNotFoundError:
        there = None
    if there is None or version not in ("", there):
        print(wanted)
]]

-- What pip says where nothing answers.
local SILENCE = { "NewConnectionError", "NameResolutionError", "Max retries",
                  "Temporary failure in name", "Network is unreachable",
                  "ConnectTimeout", "Connection refused", "ProxyError" }

-- Runs a command of the shell; returns whether it ended well, and what it said.
local function run(command)
  local pipe = io.popen(("{ %s; } 2>&1 </dev/null; echo $?"):format(command))
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.-)(%d+)\n$"
  return status == "0", said
end

-- Returns those of the wheels that the environment in that folder has not.
function M.missing(folder, wheels)
  local fine, said = run(quoted { folder .. "/bin/python", "-c", MISSING,
                                  unpack(wheels) })
  if not fine then return wheels end
  local list = {}
  for word in said:gmatch "[^\n]+" do list[#list + 1] = word end
  return list
end

-- Returns the command that installs them. alone: without what they say that
-- they need; target: not into the environment, but into this folder.
function M.command(folder, wheels, alone, target)
  local words = { folder .. "/bin/python", "-m", "pip", "install", "--quiet",
                  "--disable-pip-version-check", "--only-binary=:all:",
                  "--retries=1", "--timeout=20" }
  if alone then words[#words + 1] = "--no-deps" end
  if target then
    words[#words + 1], words[#words + 2] = "--upgrade", "--target=" .. target
  end
  for _, wheel in ipairs(wheels) do words[#words + 1] = wheel end
  return quoted(words)
end

-- Returns why pip failed, of what it said.
function M.reason(said)
  for _, words in ipairs(SILENCE) do
    if said:find(words, 1, true) then
      return "the package index does not answer: is there a network?"
    end
  end
  local told
  for line in said:gmatch "ERROR: ([^\n]+)" do told = line end
  return told or said:match "([^\n]+)%s*$" or "pip said nothing"
end

-- Makes the environment; one that was left half made is made again.
local function make(folder)
  if run(quoted { folder .. "/bin/python", "-m", "pip", "--version" }) then
    return true
  end
  local fine, said = run(quoted { "python3", "-m", "venv", "--clear", folder })
  return fine, M.reason(said)
end

-- Installs those that are missing, or all into a folder of their own, target;
-- returns true, or nil and why not.
function M.install(folder, wheels, alone, target)
  local list = target and wheels or M.missing(folder, wheels)
  if #list == 0 then return true end
  local fine, why = make(folder)
  if not fine then return nil, why end
  local said
  fine, said = run(M.command(folder, list, alone, target))
  if not fine then return nil, M.reason(said) end
  return true
end

return M
