-- SPDX-License-Identifier: Apache-2.0
-- A made-up machine, and what perigee doctor reports about it. Specs call start
-- and finish around each test.
local doctor = require "perigee.cli.doctor"
local address = require "perigee.cli.doctor.address"
local fake_machine = require "spec.support.fake_machine"

local M = {}

function M.start() M.fake = fake_machine() end

function M.finish() M.fake:remove() end

-- The findings of that group and name, an array. addresses: those of --listen.
function M.said(group, name, addresses)
  local list = {}
  for _, found in ipairs(doctor.examine(M.fake.machine, addresses)) do
    if found.group == group and found.name == name then
      list[#list + 1] = found
    end
  end
  return list
end

local function as_text(list)
  local lines = {}
  for i, found in ipairs(list) do
    lines[i] = ("  %s: %s"):format(found.status, found.found)
  end
  return table.concat(lines, "\n")
end

-- Fails unless doctor reports a finding with this status and this text, and
-- returns the finding. A finding that is "ok" must have no fix, and one that is
-- a problem must have one: the given command, if there is one (without the sudo
-- that it has for all users but root).
function M.expect(group, name, status, text, command, addresses)
  local list, one = M.said(group, name, addresses), nil
  for _, found in ipairs(list) do
    if found.status == status and found.found:find(text, 1, true) then
      one = found
    end
  end
  if not one then
    error(("%s, %s: nobody said\n  %s: %s\nbut\n%s"):format(group, name, status,
      text, as_text(list)), 2)
  end
  if status == "ok" then assert(not one.fix, one.fix) end
  if status ~= "ok" and status ~= "note" then assert(one.fix, one.found) end
  local told = one.command and one.command:gsub("sudo ", "")
  if command and told ~= command then
    error(("the command should be\n  %s\nnot\n  %s"):format(command,
      tostring(told)), 2)
  end
  return one
end

function M.listening(...)
  local list = {}
  for i, each in ipairs { ... } do list[i] = assert(address.parse(each)) end
  return list
end

-- ---- Files that many specs need ---------------------------------------------

function M.limits(line)
  M.fake:put("/proc/self/limits", "Limit   Soft Limit   Hard Limit   Units\n"
             .. line)
end

function M.capabilities(digits)
  M.fake:put("/proc/self/status", "CapEff:\t" .. digits
             .. "\nCpus_allowed_list:\t0-3")
end

-- A device with one port.
function M.rdma(name)
  local port = "/sys/class/infiniband/" .. name .. "/ports/1/"
  M.fake:put(port .. "state", "4: ACTIVE")
  M.fake:put(port .. "link_layer", "Ethernet")
end

return M
