-- SPDX-License-Identifier: Apache-2.0
--- Perigee itself: LuaJIT, the core, and the kernel.
local verdict = require "perigee.cli.doctor.verdict"

local ok, note = verdict.ok, verdict.note
local warning, problem = verdict.warning, verdict.problem

local function luajit(machine)
  local compiles = machine.compiles
  if compiles == nil then compiles = jit.status() end
  local found = ("%s, %s, %s"):format(jit.version, jit.arch,
    compiles and "compiler on" or "compiler off")
  if not compiles then
    return warning(found, "start LuaJIT without -joff, on a processor that "
      .. "it compiles for")
  end
  if not machine:module "string.buffer" then
    return problem(found .. ", without string.buffer",
      "install a LuaJIT 2.1 of 2021 or later", "sudo apt-get install luajit")
  end
  return ok(found)
end

-- Libraries that the core is linked to, and the packages that have them.
local PACKAGES = { libsodium = "libsodium23", libcares = "libc-ares2",
                   libcrypto = "libssl3" }

local function core(machine)
  local native, why = machine:module "perigee.native"
  if native then
    return ok(("%s, ABI %d"):format(native.path, native.C.perigee_abi()))
  end
  local needed = PACKAGES[why:match "(lib%a+)%.so[%d.]*: cannot open" or ""]
  if needed then
    return problem(why:match "^[^\n]*", "install the library that it needs",
      "sudo apt-get install " .. needed)
  end
  return problem(why:match "^[^\n]*", "build and install it again, in its "
    .. "source tree", "make && sudo make install")
end

-- Judges the object that speaks to Redis, etcd and control servers; most
-- programs do without it.
local function servers(machine)
  local native, why = machine:module "perigee.net.native"
  if native then return ok "control.so loads" end
  return note(why:match "^[^\n]*", "nothing, where names are in a folder of "
    .. "this host's; else install what it names")
end

-- Opens an engine as a program would, with all settings of the environment.
local function engine(machine)
  if not machine:module "perigee.native" then
    return verdict.unknown "the core is not there"
  end
  local fine, why = machine:try()
  if fine then return ok "opens, and allocates" end
  return problem(why:match "^[^\n]*", "do what it says, or look at what else "
    .. "is a problem here")
end

-- pidfd_open needs Linux 5.3, F_SEAL_FUTURE_WRITE 5.1.
local function kernel(machine)
  local release = machine:read "/proc/sys/kernel/osrelease"
  local major, minor = (release or ""):match "^(%d+)%.(%d+)"
  if not major then return verdict.unknown "/proc is not there" end
  if tonumber(major) * 1000 + tonumber(minor) < 5003 then
    return problem("Linux " .. release, "run Linux 5.3 or later")
  end
  return ok("Linux " .. release)
end

return {
  { name = "LuaJIT", look = luajit,
    why = "Calls of half a microsecond are compiled Lua; interpreted they take "
      .. "many times as long" },
  { name = "core", look = core,
    why = "The data path is C: nothing runs without perigee/core.so of the "
      .. "same version as the Lua modules" },
  { name = "servers", look = servers,
    why = "Names in Redis, etcd or a control server want perigee/control.so" },
  { name = "engine", look = engine,
    why = "Without an engine nothing runs" },
  { name = "kernel", look = kernel,
    why = "Shared memory is sealed, and a peer's death is noticed, by calls "
      .. "that older kernels lack" },
}
