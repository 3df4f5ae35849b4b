-- SPDX-License-Identifier: Apache-2.0
--- The machine as checks see it. Every path goes through a prefix, and every
-- other question is a method or a field that can be replaced, so that specs
-- can make up machines. A question that cannot be answered gives nil, never an
-- error.
local ffi = require "ffi"

if not pcall(ffi.typeof, "struct perigee_cli_statx") then ffi.cdef [[
  struct perigee_cli_statx {
    uint32_t mask, block;
    uint64_t attributes;
    uint32_t links, uid, gid;
    uint16_t mode, pad;
    uint64_t inode, size, rest[26];
  };
  struct perigee_cli_space {
    unsigned long block, fragment, blocks, unused, available, rest[16];
  };
  struct perigee_cli_glob {
    size_t count;
    char **paths;
    size_t rest[16];
  };
  int perigee_cli_statx(int, const char *, int, unsigned,
                        struct perigee_cli_statx *) __asm__("statx");
  int perigee_cli_statvfs(const char *, struct perigee_cli_space *)
    __asm__("statvfs");
  int perigee_cli_glob(const char *, int, void *, struct perigee_cli_glob *)
    __asm__("glob");
  void perigee_cli_globfree(struct perigee_cli_glob *) __asm__("globfree");
  int perigee_cli_access(const char *, int) __asm__("access");
  long perigee_cli_readlink(const char *, char *, size_t) __asm__("readlink");
  struct perigee_cli_bytes { void *pointer; size_t length; };
  long perigee_cli_pull(int, const struct perigee_cli_bytes *, unsigned long,
                        const struct perigee_cli_bytes *, unsigned long,
                        unsigned long) __asm__("process_vm_readv");
  int perigee_cli_getpid(void) __asm__("getpid");
  int perigee_cli_cuda(int *) __asm__("cuDriverGetVersion");
  unsigned perigee_cli_geteuid(void) __asm__("geteuid");
  extern char **perigee_cli_environ __asm__("environ");
]] end

local C = ffi.C
local AT_FDCWD, AT_SYMLINK_NOFOLLOW, BASIC = -100, 0x100, 0x7ff
local KINDS = { [0x4] = "folder", [0x8] = "file", [0xa] = "link",
                [0xc] = "socket", [0x2] = "device" }
local MODES = { r = 4, w = 2, x = 1 }

local Machine = {}
Machine.__index = Machine

-- Returns this process's environment: an array of names, and their values by
-- name.
local function environment()
  local list, entry = {}, C.perigee_cli_environ
  while entry ~= nil and entry[0] ~= nil do
    local name, value = ffi.string(entry[0]):match "^([^=]+)=(.*)$"
    if name then
      list[#list + 1] = name
      list[name] = value
    end
    entry = entry + 1
  end
  return list
end

--- Returns this machine, or a made-up one: fields may have root (prefix of
-- every path), environment (as above), uid, and any method.
function Machine.new(fields)
  local self = setmetatable({ root = "" }, Machine)
  for name, value in pairs(fields or {}) do self[name] = value end
  self.uid = self.uid or C.perigee_cli_geteuid()
  self.environment = self.environment or environment()
  return self
end
jit.off(Machine.new)

-- ---- Files ----------------------------------------------------------------

--- Returns all of a file, without the blanks at its end.
function Machine:read(path)
  local text = self:contents(path)
  return text and (text:gsub("%s+$", ""))
end

--- Returns all of a file's bytes, or nil.
function Machine:contents(path)
  local file = io.open(self.root .. path, "r")
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text
end

function Machine:number(path)
  return tonumber(self:read(path) or nil)
end

--- Returns "madvise" of "always [madvise] never".
function Machine:chosen(path)
  return (self:read(path) or ""):match "%[([^%]]+)%]"
end

--- Returns { kind, mode, uid, size, inode } of a path; links are not followed.
function Machine:stat(path)
  local entry = ffi.new "struct perigee_cli_statx"
  if C.perigee_cli_statx(AT_FDCWD, self.root .. path, AT_SYMLINK_NOFOLLOW,
                         BASIC, entry) ~= 0 then
    return nil
  end
  return { kind = KINDS[bit.rshift(entry.mode, 12)] or "other",
           mode = bit.band(entry.mode, 0xfff), uid = entry.uid,
           size = tonumber(entry.size), inode = tonumber(entry.inode) }
end

--- Returns where a symbolic link leads; nil: it is none.
function Machine:link(path)
  local text = ffi.new "char[4096]"
  local length = C.perigee_cli_readlink(self.root .. path, text, 4096)
  return length > 0 and ffi.string(text, length) or nil
end

--- Returns whether this process may do all of `what`, letters of "rwx", with
-- the path; "" asks only whether it exists.
function Machine:may(path, what)
  local mode = 0
  for letter in what:gmatch "." do mode = mode + MODES[letter] end
  return C.perigee_cli_access(self.root .. path, mode) == 0
end

--- Returns the paths that match a shell's pattern, sorted.
function Machine:glob(pattern)
  local found, list = ffi.new "struct perigee_cli_glob", {}
  if C.perigee_cli_glob(self.root .. pattern, 0, nil, found) ~= 0 then
    return list
  end
  for i = 0, tonumber(found.count) - 1 do
    list[i + 1] = ffi.string(found.paths[i]):sub(#self.root + 1)
  end
  C.perigee_cli_globfree(found)
  return list
end

--- Returns the bytes of a file system, all and free.
function Machine:space(path)
  local space = ffi.new "struct perigee_cli_space"
  if C.perigee_cli_statvfs(self.root .. path, space) ~= 0 then return nil end
  local unit = tonumber(space.fragment)
  return tonumber(space.blocks) * unit, tonumber(space.available) * unit
end

-- ---- This process ---------------------------------------------------------

function Machine:getenv(name)
  return self.environment[name]
end

--- Returns the soft and the hard limit of that name in /proc/self/limits.
function Machine:limit(name)
  for line in (self:read "/proc/self/limits" or ""):gmatch "[^\n]+" do
    if line:sub(1, #name) == name then
      local soft, hard = line:sub(#name + 1):match "^%s+(%S+)%s+(%S+)"
      return soft == "unlimited" and math.huge or tonumber(soft),
             hard == "unlimited" and math.huge or tonumber(hard)
    end
  end
end

--- Returns the value of a line of /proc/self/status.
function Machine:status(name)
  return (self:read "/proc/self/status" or ""):match(name .. ":%s*([^\n]*)")
end

--- Returns whether this process has that capability (a number).
function Machine:capable(number)
  local digits = self:status "CapEff"
  local at = digits and #digits - math.floor(number / 4)
  local digit = at and at >= 1 and tonumber(digits:sub(at, at), 16)
  return digit and bit.band(digit, bit.lshift(1, number % 4)) ~= 0 or false
end

--- Returns whether processes may read each other's memory, as far as one
-- process can find out alone.
function Machine:can_pull()
  local bytes = ffi.new "char[2]"
  local from = ffi.new("struct perigee_cli_bytes", bytes, 1)
  local to = ffi.new("struct perigee_cli_bytes", bytes + 1, 1)
  return C.perigee_cli_pull(C.perigee_cli_getpid(), to, 1, from, 1, 0) == 1
end

--- Returns whether this is a container, as far as can be told.
function Machine:contained()
  return self:may("/.dockerenv", "") or self:may("/run/.containerenv", "")
    or self:getenv "KUBERNETES_SERVICE_HOST" ~= nil
end

-- ---- Libraries ------------------------------------------------------------

--- Loads a shared library by its name; nil and why if that fails.
function Machine:library(name)
  local found, library = pcall(ffi.load, name)
  if found then return library end
  return nil, tostring(library)
end

--- Returns "12.4" of CUDA's driver, as library() gives it.
function Machine:cuda_version(library)
  local number = ffi.new "int[1]"
  if library.perigee_cli_cuda(number) ~= 0 then return nil end
  return ("%d.%d"):format(number[0] / 1000, number[0] % 1000 / 10)
end

--- Loads a module of Perigee that needs the core; nil and why if that fails.
function Machine:module(name)
  local found, module = pcall(require, name)
  if found then return module end
  return nil, tostring(module)
end

local function open(engine, options)
  -- no tail call, so that errors name this line
  local made, err = engine(options)
  return made, err
end

--- Opens an engine with those options and allocates memory that peers could
-- map. Returns true, or nil and why that fails.
function Machine:try(options)
  local perigee, why = self:module "perigee"
  if not perigee then return nil, why end
  perigee.log = function() end          -- the checks report instead of the log
  local fine, engine, err = pcall(open, perigee.engine, options)
  if not fine or not engine then
    return nil, (tostring(err or engine):gsub("^.-making an engine: ", ""))
  end
  fine, why = pcall(function()
    assert(engine:alloc(4096, { access = "r" }))
  end)
  engine:close()
  return fine or nil, tostring(why)
end

-- The seconds that an agent's registry takes to answer.
local function asked(agent, seconds)
  local native = require "perigee.native"
  local began = native.clock()
  local list, err = agent:list { limit = 1, timeout = seconds }
  if not list then return nil, err.message, err.kind end
  return (native.clock() - began) * 1e-9
end

--- Asks the registry at an address for an entry of a scope, as a program would.
-- Returns how many seconds the answer takes, and where the registry is; or nil,
-- why there is none within so many seconds, and the kind of that.
function Machine:ask_registry(address, scope, seconds)
  local perigee, why = self:module "perigee"
  if not perigee then return nil, why end
  perigee.log = function() end          -- the checks report instead of the log
  local fine, agent, err = pcall(open, perigee.agent, {
    name = false, registry = address, scope = scope })
  if not fine then return nil, (tostring(agent):gsub("^[^\n]-:%d+: ", "")) end
  if not agent then return nil, tostring(err) end
  local took, kind
  took, why, kind = asked(agent, seconds)
  local where = agent.registry.target
  agent:close()
  if took then return took, where and where.text or address end
  return nil, why, kind
end

-- What perigee.devices does, of a kind; nil and why if that fails.
local function devices_of(machine, kind)
  local devices, why = machine:module "perigee.engine.devices"
  if not devices then return nil, why end
  local sysfs = machine.root ~= "" and machine.root .. "/sys" or nil
  local fine, list, err = pcall(devices.list, { kind = kind, sysfs = sysfs })
  if not fine then return nil, tostring(list) end
  return list, type(err) == "table" and err.message or err
end

--- Returns the RDMA ports; nil and why if that fails.
function Machine:ports() return devices_of(self, "rdma") end

--- Returns the GPUs that CUDA shows this process, and where there is none, why;
-- nil and why if that fails. CUDA's driver is initialized.
function Machine:gpus() return devices_of(self, "gpu") end

return Machine
