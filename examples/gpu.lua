-- SPDX-License-Identifier: Apache-2.0
-- Shared by the gpu_*.lua examples: their options, bytes to be checked, and an
-- end with status 77 where there is no such GPU. `common` is common.lua.
local NO_DEVICE = 77

local HELP = [[
luajit %s [OPTION...]

Runs a driver and a worker, each with memory of a GPU.

  --kind KIND        the driver's kind of memory: "cuda:0" (default), "host"
  --peer-kind KIND   the worker's kind (that of --kind)
%s  --help             this

Exit status: 0; 1 if anything went wrong; 77 where there is no such GPU.
]]

local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local bit, ffi = require "bit", require "ffi"
local perigee = require "perigee"

-- A worker has its role and the driver's id in front of them.
local words = { select(common.role and 3 or 1, unpack(arg)) }

local M = { common = common }

local UNITS = { [""] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30 }

local function value_of(name, text, default)
  if type(default) ~= "number" then return text end
  local digits, unit = text:match("^(%d+)([KMG]?)$")
  if not digits or tonumber(digits) < 1 then
    error(("--%s takes a number, as in 4 or 16K"):format(name), 0)
  end
  return tonumber(digits) * UNITS[unit]
end

local function help(own)
  local lines = {}
  for i, option in ipairs(own) do
    lines[i] = ("  --%-16s %s (%s)\n"):format(option[1] .. " N", option[3],
                                              option[2])
  end
  io.write(HELP:format(arg[0], table.concat(lines)))
  os.exit(0)
end

local function options(own)
  local given = { kind = "cuda:0", ["peer-kind"] = "" }
  for _, option in ipairs(own) do given[option[1]] = option[2] end
  for i = 1, #words, 2 do
    local name, text = (words[i] or ""):match("^%-%-(.+)$"), words[i + 1]
    if name == "help" then help(own) end
    if not name or given[name] == nil or not text then
      error(("%s is no option, or wants a value; --help"):format(words[i]), 0)
    end
    given[name] = value_of(name, text, given[name])
  end
  if given["peer-kind"] == "" then given["peer-kind"] = given.kind end
  return given
end

-- Ends the example with the reason if there is no such memory.
local function want(kind)
  local engine = perigee.engine {}
  local region, err = engine:alloc(4096, { kind = kind })
  if not region then
    print(tostring(err))
    local missing = err.kind == "unsupported" or err.kind == "not_found"
    os.exit(missing and NO_DEVICE or 1)
  end
  engine:close()
end

-- Runs driver(kind, options) with a process that runs worker(kind, options),
-- each with its kind of memory. own: further options, whose values are numbers:
-- a list of { name, default, what it is }.
function M.main(driver, worker, own)
  local fine, given = pcall(options, own or {})
  if not fine then
    io.stderr:write(given, "\n")
    os.exit(1)
  end
  if not common.role then
    want(given.kind)
    want(given["peer-kind"])
  end
  common.main(function() driver(given.kind, given) end, {
    worker = function() worker(given["peer-kind"], given) end,
  }, { "worker" }, unpack(words))
end

-- Returns bytes that do not repeat, others for each seed, as a string:
-- slice:write() copies it into memory that the CPU cannot touch.
function M.bytes(length, seed)
  local numbers = ffi.new("uint32_t[?]", length / 4 + 1)
  for i = 0, length / 4 do numbers[i] = bit.bxor(i, seed * 0x1234567) end
  return ffi.string(numbers, length)
end

return M
