-- SPDX-License-Identifier: Apache-2.0
-- Made-up machines for perigee doctor: a folder takes the place of /, and
-- made-up answers the place of what no file tells. remove() deletes the folder.
local ffi = require "ffi"

local Machine = require "perigee.cli.doctor.machine"

pcall(ffi.cdef, [[
  char *spec_mkdtemp(char *) __asm__("mkdtemp");
  int spec_make_folder(const char *, unsigned) __asm__("mkdir");
  int spec_chmod(const char *, unsigned) __asm__("chmod");
  unsigned spec_geteuid(void) __asm__("geteuid");
]])

local Fake = {}
Fake.__index = Fake

local function make_folders(path, from)
  for slash in path:gmatch "()/" do
    if slash > from then
      ffi.C.spec_make_folder(path:sub(1, slash - 1), 448)
    end
  end
end

-- Writes a file and creates its folders; creates only the folders if path ends
-- in /. mode is octal text.
function Fake:put(path, text, mode)
  local full = self.root .. path
  make_folders(full, #self.root)
  if path:sub(-1) ~= "/" then
    local file = assert(io.open(full, "w"))
    file:write(tostring(text or ""), "\n")
    file:close()
  end
  if mode then ffi.C.spec_chmod(full, tonumber(mode, 8)) end
  return self
end

function Fake:set(name, value)
  table.insert(self.environment, name)
  self.environment[name] = value
  return self
end

function Fake:remove()
  assert(os.execute(("rm -rf %q"):format(self.root)))
end

-- Makes a machine of an ordinary user without any file. `fields` replace its
-- answers; forbidden[path] says what may not be done with that path.
return function(fields)
  local path = ffi.new("char[64]", "/dev/shm/perigee-doctor-XXXXXX")
  assert(ffi.C.spec_mkdtemp(path) ~= nil)
  local fake = setmetatable({ root = ffi.string(path), forbidden = {},
                              environment = {} }, Fake)
  local given = {
    root = fake.root, environment = fake.environment, compiles = true,
    uid = ffi.C.spec_geteuid(),
    library = function(_, name) return nil, name .. ": no such file" end,
    space = function() return nil end,
    may = function(self, where, what)
      local not_for = fake.forbidden[where]
      return Machine.may(self, where, "")
        and not (not_for and what:find("[" .. not_for .. "]"))
    end,
    can_pull = function() return true end,
    try = function() return true end,
    gpus = function() return {}, "CUDA's driver cannot be loaded" end,
  }
  for name, value in pairs(fields or {}) do given[name] = value end
  fake.machine = Machine.new(given)
  return fake
end
