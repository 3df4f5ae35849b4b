-- SPDX-License-Identifier: Apache-2.0
--- The PERIGEE_* variables of the environment, and the secret that they may
-- name.
local levels = require "perigee.runtime.levels"
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, warning, problem =
  verdict.ok, verdict.note, verdict.warning, verdict.problem

local SECRET_LEAST, SECRET_MOST = 16, 4096
local WEAK_BITS = 80

local TRANSPORTS = { auto = true, shm = true, verbs = true, tcp = true }

-- Variables of the tests, benches and builds of a source tree.
local INTERNAL = { BUILD = true, FLOORS = true, LUAJIT = true,
  LUAJIT_FLAGS = true, PRELOAD = true, RUNNING = true, SEED = true,
  SECONDS = true, SOAK = true,
  -- The variables that perigee run sets for its processes
  -- (perigee/agent/launch.lua).
  RANK = true, SIZE = true, LOCAL_RANK = true, LOCAL_SIZE = true, JOB = true }
local INTERNAL_PREFIXES = { "TEST_", "SPEC_", "RDMA_" }

local function unset(name)
  return "correct it, or do without", "unset " .. name
end

-- ---- What each variable may hold: nothing if it is fine, else what is wrong

local function check_transport(_, value)
  if not TRANSPORTS[value] then
    return ("%q is none of auto, shm, verbs, tcp"):format(value)
  end
end

local function check_scope(_, value)
  if #value > 64 or not value:match "^[%w_:-][%w._:-]*$" then
    return ("%q is no scope: 1 to 64 of letters, digits and . _ : - without a "
      .. "leading dot"):format(value)
  end
end

-- Returns why the core refuses these options, apart from all other settings of
-- the environment.
local function refused(machine, rdma, faults)
  local fine, why = machine:try {
    secret = "", advanced = { rdma = rdma, faults = faults },
  }
  if not fine then return why end
end

local function check_rdma(machine, value)
  return refused(machine, value, "")
end

local function check_faults(machine, value)
  return refused(machine, "", value)
end

-- A list of NICs hides all others, so a wrong name hides all.
local function check_nics(machine, value)
  local ports = {}
  for _, path in ipairs(machine:glob "/sys/class/infiniband/*/ports/*") do
    local name, port = path:match "infiniband/([^/]+)/ports/(%d+)$"
    ports[name], ports[name .. ":" .. port] = true, true
  end
  for name in value:gmatch "[^,%s]+" do
    if not ports[name] then
      return ("%q names %s, which is not there"):format(value, name)
    end
  end
end

-- Without the core, which reads it, nothing is known.
local function check_registry(_, value)
  local loads, registries = pcall(require, "perigee.registry")
  local wanted = loads and registries.check(value)
  if wanted then return "it has to be " .. wanted end
end

local function check_copies(_, value)
  if value ~= "kernel" and value ~= "batch" and value ~= "loop" then
    return ("%q is none of kernel, batch, loop"):format(value)
  end
end

local function check_log(_, value)
  local format, wrong = levels.parse(value)
  if not format then return wrong end
end

-- As for the registry.
local function check_trace(_, value)
  local loads, sampling = pcall(require, "perigee.runtime.sampling")
  return loads and sampling.check(value) or nil
end

local CHECKS = { TRANSPORT = check_transport, SCOPE = check_scope,
                 RDMA = check_rdma, NICS = check_nics,
                 REGISTRY = check_registry, FAULTS = check_faults,
                 CUDA_COPIES = check_copies, LOG = check_log,
                 TRACE = check_trace,
                 -- Other checks look at these (GPU, and below).
                 CUDA_LIBRARY = function() end, SECRET = function() end }

local function is_internal(name)
  for _, prefix in ipairs(INTERNAL_PREFIXES) do
    if name:sub(1, #prefix) == prefix then return true end
  end
  return INTERNAL[name]
end

local function known()
  local names = {}
  for name in pairs(CHECKS) do names[#names + 1] = "PERIGEE_" .. name end
  table.sort(names)
  return table.concat(names, ", ")
end

local function look_at(machine, variable)
  local name, value = variable:match "^PERIGEE_(.*)$", machine:getenv(variable)
  local check = CHECKS[name]
  if not check then
    if is_internal(name) then return nil end
    return warning(variable .. " means nothing to Perigee",
      "correct its name; there are " .. known(), "unset " .. variable)
  end
  local wrong = value ~= "" and check(machine, value)
  if wrong then
    return problem(variable .. ": " .. wrong, unset(variable))
  end
end

local function environment(machine)
  local verdicts, names = {}, {}
  for _, variable in ipairs(machine.environment) do
    if variable:match "^PERIGEE_" then
      verdicts[#verdicts + 1] = look_at(machine, variable)
      if CHECKS[variable:sub(9)] then names[#names + 1] = variable end
    end
  end
  if #verdicts > 0 then return verdicts end
  table.sort(names)
  return ok(#names > 0 and table.concat(names, ", ") .. " set"
    or "no PERIGEE_* is set")
end

-- Injected faults are for tests, and easily forgotten.
local function faults(machine)
  local value = machine:getenv "PERIGEE_FAULTS" or ""
  if not value:find "[^,%s]" then return ok "none asked for" end
  return warning(("PERIGEE_FAULTS is %q"):format(value), "do without, unless "
    .. "that is wanted", "unset PERIGEE_FAULTS")
end

-- ---- The secret -----------------------------------------------------------

-- A peer that dials a listener can guess secrets offline, some ten a second on
-- each core, because the library stretches them. A text has at most as many
-- bits as its length and its number of different letters allow.
local function is_weak(text)
  local seen, kinds = {}, 0
  for letter in text:gmatch "." do
    kinds = kinds + (seen[letter] and 0 or 1)
    seen[letter] = true
  end
  return kinds < 8 or #text * math.log(kinds) / math.log(2) < WEAK_BITS
end

local function weak(what, path)
  return warning(what .. ": it is short, or of few different letters",
    "take 32 random bytes", ("(umask 077; head -c 32 /dev/urandom | base64 > "
    .. "%s)"):format(path))
end

local function is_of_windows(text)
  return text:find "\r\n$" or text:find "^\239\187\191"
    or text:find "^\255\254"
end

local function secret_file(machine, path)
  local entry = machine:stat(path)
  if not entry then
    return problem(path .. " is not there, or cannot be looked at",
      "make it", ("(umask 077; head -c 32 /dev/urandom | base64 > %s)"):format(
        path))
  end
  if entry.kind ~= "file" then
    return problem(("%s is no file but a %s"):format(path, entry.kind),
      "name the file itself")
  end
  if entry.uid ~= machine.uid and entry.uid ~= 0 then
    return problem(("%s belongs to user %d, this is user %d"):format(path,
      entry.uid, machine.uid), "give it to the user who runs the program",
      ("sudo chown %d %s"):format(machine.uid, path))
  end
  if bit.band(entry.mode, 0x3f) ~= 0 then
    return problem(("%s has mode %04o, open to others"):format(path,
      entry.mode), "close it to others", "chmod 600 " .. path)
  end
  if not machine:may(path, "r") then
    return problem(path .. " may not be read", "give it to the user who runs "
      .. "the program", ("sudo chown %d %s"):format(machine.uid, path))
  end
  if entry.size < SECRET_LEAST or entry.size > SECRET_MOST + 1 then
    return problem(("%s has %d bytes, not %d to %d"):format(path, entry.size,
      SECRET_LEAST, SECRET_MOST), "write another one to it",
      "head -c 32 /dev/urandom | base64 > " .. path)
  end
  if is_of_windows(machine:contents(path) or "") then
    return problem(path .. " ends in CR LF or begins with a byte order mark, "
      .. "as editors of Windows write: it would be another secret elsewhere",
      "write it anew as plain text",
      ([[sed -i '1s/^\xef\xbb\xbf//; s/\r$//' %s]]):format(path))
  end
  if is_weak(machine:read(path) or "") then
    return weak(path .. " can be guessed", path)
  end
  return ok(path .. ", closed to others")
end

local function secret(machine)
  local value = machine:getenv "PERIGEE_SECRET"
  if not value or value == "" then
    return ok "none in the environment; needed to listen beyond loopback"
  end
  local path = value:match "^file:(.*)$"
  if path then return secret_file(machine, path) end
  if #value < SECRET_LEAST or #value > SECRET_MOST then
    return problem(("%d bytes in the environment, not %d to %d"):format(#value,
      SECRET_LEAST, SECRET_MOST), "take another one, and put it into a file",
      "(umask 077; head -c 32 /dev/urandom | base64 > ~/.perigee-secret)")
  end
  if is_weak(value) then
    return weak("in the environment itself, and can be guessed",
                "~/.perigee-secret")
  end
  return note("in the environment itself",
    "put it into a file that only its user can read, and set PERIGEE_SECRET to "
    .. "file:PATH")
end

return {
  { name = "environment", look = environment,
    why = "A variable that is misspelt is ignored, or ends the program" },
  { name = "faults", look = faults,
    why = "Faults on purpose drop, delay and cut what is sent" },
  { name = "secret", look = secret,
    why = "Both sides of a session over TCP prove that they have it; who can "
      .. "read it can be a peer" },
}
