-- SPDX-License-Identifier: Apache-2.0
--- `perigee doctor`: what usually goes wrong on a machine, and what to do about
-- each. It changes nothing, needs no root, and takes milliseconds; a registry
-- that is a server is asked, for two seconds at most, and CUDA's driver, if
-- there is one, is started.
local Machine = require "perigee.cli.doctor.machine"
local address = require "perigee.cli.doctor.address"
local json = require "perigee.cli.doctor.json"
local text = require "perigee.cli.doctor.text"
local verdict = require "perigee.cli.doctor.verdict"

local ffi = require "ffi"

local GROUPS = {
  { "program", require "perigee.cli.doctor.checks.program" },
  { "settings", require "perigee.cli.doctor.checks.settings" },
  { "memory", require "perigee.cli.doctor.checks.memory" },
  { "processor", require "perigee.cli.doctor.checks.processor" },
  { "one host", require "perigee.cli.doctor.checks.host" },
  { "network", require "perigee.cli.doctor.checks.network" },
  { "network", require "perigee.cli.doctor.checks.listen" },
  { "RDMA", require "perigee.cli.doctor.checks.rdma" },
  { "GPU", require "perigee.cli.doctor.checks.gpu" },
}

local M = {
  name = "doctor",
  summary = "Check what usually goes wrong, and say what to do.",
  description = "Checks what usually goes wrong on a machine, and says what "
    .. "to do about each. Changes nothing. The exit status is 0 if all is "
    .. "fine, 1 if something needs attention, 2 if it was not asked well.",
}

function M.configure(parser)
  parser:flag("--json", "Print one JSON document instead of text.")
  parser:option("--listen", "An address that a program is to listen at, as "
                .. "in tcp://0.0.0.0:7471: can it? May be given again.")
    :argname "ADDRESS":count "*":convert(address.parse)
end

-- Runs a check. An error in one check must not hide the others.
local function look(check, machine)
  local fine, verdicts = pcall(check.look, machine)
  if not fine then
    return { verdict.unknown("this check failed: " .. tostring(verdicts)) }
  end
  return verdicts.status and { verdicts } or verdicts
end

--- Runs all checks on a machine and returns an array of verdicts, which also
-- have group, name and why. addresses: those of --listen, parsed.
function M.examine(machine, addresses)
  machine.addresses = addresses or {}
  local verdicts = {}
  for _, group in ipairs(GROUPS) do
    for _, check in ipairs(group[2]) do
      for _, found in ipairs(look(check, machine)) do
        found.group, found.name, found.why = group[1], check.name, check.why
        if found.command and machine.uid == 0 then
          found.command = found.command:gsub("sudo ", "")
        end
        verdicts[#verdicts + 1] = found
      end
    end
  end
  return verdicts
end

-- Is stdout a terminal that may be given colours?
local function has_colours()
  if not pcall(function() return ffi.C.perigee_cli_isatty end) then
    ffi.cdef "int perigee_cli_isatty(int) __asm__(\"isatty\");"
  end
  return ffi.C.perigee_cli_isatty(1) == 1
    and (os.getenv "NO_COLOR" or "") == "" and os.getenv "TERM" ~= "dumb"
end

function M.run(given)
  local verdicts = M.examine(Machine.new(), given.listen)
  local out = require "perigee.cli.out"
  local write = given.json and json or text
  local fine, why = write(verdicts, {
    write = function(_, ...) out.write(...) end }, has_colours())
  if not fine then
    io.stderr:write("perigee doctor: ", why, "\n")
    return 2
  end
  return verdict.rank[verdict.worst(verdicts)] >= verdict.rank.warning and 1
    or 0
end

return M
