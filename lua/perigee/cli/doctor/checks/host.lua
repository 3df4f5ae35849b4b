-- SPDX-License-Identifier: Apache-2.0
--- Checks that processes of one host can find and reach each other.
local units = require "perigee.runtime.units"
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, problem = verdict.ok, verdict.note, verdict.problem

local CAP_SYS_PTRACE = 19
local LONGEST_PATH, LONGEST_NAME = 107, 64
local GROUP_AND_OTHERS = 0x3f

-- ---- The registry's folder ------------------------------------------------

-- The address of the registry that programs will ask; nil: the host's folder.
local function registry_address(machine)
  local address = machine:getenv "PERIGEE_REGISTRY" or ""
  return address ~= "" and address or nil
end

-- Returns the folder, and the preferred one if another is used; or nil and
-- why.
local function registry_folder(machine)
  local named = (registry_address(machine) or ""):match "^folder:(/.*)$"
  if named then return (named:gsub("(.)/+$", "%1")) end
  local registry, why = machine:module "perigee.registry.folder"
  if not registry then return nil, why:match "^[^\n]*" end
  return registry.base {
    getenv = function(name) return machine:getenv(name) end,
    uid = machine.uid,
    host = function()
      return machine:read "/proc/sys/kernel/hostname" or ""
    end,
    look = function(path)
      local entry = machine:stat(path)
      local own = entry and entry.kind == "folder" and entry.uid == machine.uid
      return own and "own" or entry and "other" or "missing"
    end,
  }
end

-- Returns what is wrong with an existing folder; nil if nothing is.
local function entry_verdict(machine, path, entry)
  if entry.kind ~= "folder" then
    return problem(("%s is no folder but a %s"):format(path, entry.kind),
      "remove it", "rm " .. path)
  end
  if entry.uid ~= machine.uid then
    return problem(("%s belongs to user %d, this is user %d"):format(path,
      entry.uid, machine.uid), "remove it as that user, or name another folder",
      "export XDG_RUNTIME_DIR=/run/user/" .. machine.uid)
  end
  if bit.band(entry.mode, GROUP_AND_OTHERS) ~= 0 then
    return problem(("%s has mode %04o, open to others"):format(path,
      entry.mode), "close it to others", "chmod 700 " .. path)
  end
end

-- A folder that does not exist yet will be made, with its parents.
local function missing(machine, path)
  local above = path
  repeat
    above = above:match "^(.*)/[^/]*$"
  until above == "" or machine:may(above, "")
  above = above ~= "" and above or "/"
  if machine:may(above, "wx") then return ok(path .. ", made when needed") end
  return problem(("%s is not there, and %s may not be written to"):format(path,
    above), "name a folder that may be, by XDG_RUNTIME_DIR or TMPDIR",
    "unset XDG_RUNTIME_DIR")
end

-- Counts names left over by processes that died without releasing them. A held
-- name has a lock on its file (native/host/name.c), which /proc/locks shows;
-- taking the lock to find out could make a process fail that takes the name.
-- Returns nil if there is no /proc/locks.
local function left_over(machine, sockets)
  local locks = machine:read "/proc/locks"
  if not locks then return nil end
  local locked, count = {}, 0
  for inode in locks:gmatch ":(%d+) %d+ %w+" do
    locked[tonumber(inode)] = true
  end
  for _, socket in ipairs(sockets) do
    local entry = machine:stat((socket:gsub("%.sock$", ".lock")))
    if not (entry and locked[entry.inode]) then count = count + 1 end
  end
  return count
end

-- Returns "3 names, 1 of them left over by processes that died".
local function names_in(machine, scope)
  local sockets = machine:glob(scope .. "/*.sock")
  local count = left_over(machine, sockets)
  return ("%s, %d names%s"):format(scope, #sockets, count and count > 0
    and (", %d of them left over by processes that died"):format(count) or "")
end

local function of_folder(machine)
  local path, other = registry_folder(machine)
  if not path then return verdict.unknown(other) end
  local scope = path .. "/" .. (machine:getenv "PERIGEE_SCOPE" or "default")
  for _, folder in ipairs { path, scope } do
    local entry = machine:stat(folder)
    local wrong = entry and entry_verdict(machine, folder, entry)
    if wrong then return wrong end
  end
  if other then
    return note(("%s, as %s is another user's, or was"):format(
      names_in(machine, scope), other),
      "name a folder that nobody else can make, for all agents",
      "export XDG_RUNTIME_DIR=/run/user/" .. machine.uid)
  end
  if not machine:stat(path) then return missing(machine, path) end
  return ok(names_in(machine, scope))
end

local PATIENCE = 2                      -- seconds

-- A registry that is a server.
local function server(machine, address)
  local took, where, kind = machine:ask_registry(address,
    machine:getenv "PERIGEE_SCOPE" or "default", PATIENCE)
  if took then
    return ok(("%s answers in %s"):format(where, units.format_time(took)))
  elseif kind == "denied" then
    return problem(where, "have PERIGEE_REGISTRY say as whom it is asked: "
      .. "USER:PASSWORD@ before the host, or ?token=file:PATH, and ca=FILE "
      .. "with TLS")
  end
  return problem(where:match "^[^\n]*", "start it, correct PERIGEE_REGISTRY, "
    .. "or do without", "unset PERIGEE_REGISTRY")
end

-- The sockets of agents are in the folder, wherever their names are.
local function registry(machine)
  local address = registry_address(machine)
  if not address or address:find "^folder:" then return of_folder(machine) end
  local sockets = of_folder(machine)
  sockets.found = "sockets in " .. sockets.found
  return { server(machine, address), sockets }
end

local function path_length(machine)
  local path, why = registry_folder(machine)
  if not path then return verdict.unknown(why) end
  local scope = machine:getenv "PERIGEE_SCOPE" or "default"
  local room = LONGEST_PATH - #("%s/%s/.sock"):format(path, scope)
  local found = ("room for %d bytes of an agent's name"):format(
    math.max(0, math.min(room, LONGEST_NAME)))
  if room >= LONGEST_NAME then return ok(found) end
  local judge = room >= 24 and note or problem
  return judge(found, "name a folder with a shorter path by XDG_RUNTIME_DIR, "
    .. "or a shorter scope", "export XDG_RUNTIME_DIR=/run/user/" .. machine.uid)
end

local function relative(machine)
  local verdicts = {}
  for _, name in ipairs { "XDG_RUNTIME_DIR", "TMPDIR" } do
    local path = machine:getenv(name)
    if path and path ~= "" and path:sub(1, 1) ~= "/" then
      verdicts[#verdicts + 1] = note(("%s is %q, which does not begin with /, "
        .. "and is ignored"):format(name, path), "unset it", "unset " .. name)
    end
  end
  return verdicts
end

-- ---- Copying once ---------------------------------------------------------

local function pulling(machine)
  if not machine:can_pull() then
    return note("process_vm_readv is refused, as by a filter of system calls",
      "let the container's seccomp profile allow it")
  end
  local scope = machine:number "/proc/sys/kernel/yama/ptrace_scope"
  if not scope then return ok "allowed (no Yama here)" end
  local found = "kernel.yama.ptrace_scope = " .. scope
  if scope == 0 then return ok(found) end
  if scope < 3 and machine:capable(CAP_SYS_PTRACE) then
    return ok(found .. ", but this process may (CAP_SYS_PTRACE)")
  end
  if scope == 3 then
    return note(found .. ", which stays until the next start",
      "set it to 0 in /etc/sysctl.d, and restart the machine")
  end
  return note(found, "allow it, where processes of one user trust each other",
    "sudo sysctl -w kernel.yama.ptrace_scope=0")
end

return {
  { name = "registry", look = registry,
    why = "Agents find each other by a registry: that of PERIGEE_REGISTRY, or "
      .. "a folder of this host's that is their user's alone" },
  { name = "path length", look = path_length,
    why = "A socket's path has 107 bytes at most, and longer names are "
      .. "refused" },
  { name = "folders", look = relative,
    why = "Agents that are given different folders do not find each other" },
  { name = "copying once", look = pulling,
    why = "Payloads of 16 KiB to 4 MiB are copied once instead of twice if one "
      .. "process may read another's memory" },
}
