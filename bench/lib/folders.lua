-- SPDX-License-Identifier: Apache-2.0
-- Private folders of benches, for sockets and files. The process that makes one
-- holds a lock on it (flock), which goes with the process, however that ends.
-- The bench that makes the next one removes those that nobody holds any more.

local bit = require "bit"
local ffi = require "ffi"

ffi.cdef [[
typedef struct { uint64_t inode; int64_t offset; unsigned short length;
                 unsigned char type; char name[256]; } perigee_bench_entry;
void *perigee_bench_opendir(const char *) __asm__("opendir");
perigee_bench_entry *perigee_bench_readdir(void *) __asm__("readdir");
int perigee_bench_closedir(void *) __asm__("closedir");
char *perigee_bench_mkdtemp(char *) __asm__("mkdtemp");
int perigee_bench_mkdir(const char *, unsigned) __asm__("mkdir");
int perigee_bench_open(const char *, int, ...) __asm__("open");
int perigee_bench_close(int) __asm__("close");
int perigee_bench_flock(int, int) __asm__("flock");
]]

local C = ffi.C
local O_DIRECTORY, O_NOFOLLOW, O_CLOEXEC = 0x10000, 0x20000, 0x80000
if ffi.arch == "arm64" then O_DIRECTORY, O_NOFOLLOW = 0x4000, 0x8000 end
local LOCK_EX, LOCK_NB = 2, 4
local PREFIX = "perigee-bench."

local M = {}

local held = {} -- descriptors of this process's folders, by path

-- Returns the names of what is in a folder; none, if it cannot be read.
function M.entries(path)
  local names, folder = {}, C.perigee_bench_opendir(path)
  if folder == nil then return names end
  while true do
    local entry = C.perigee_bench_readdir(folder)
    if entry == nil then break end
    names[#names + 1] = ffi.string(entry.name)
  end
  C.perigee_bench_closedir(folder)
  return names
end

-- Returns a descriptor of the folder that holds its lock, or nil if another has
-- it, or there is no such folder of ours.
local function lock(path)
  local fd = C.perigee_bench_open(path, bit.bor(O_DIRECTORY, O_NOFOLLOW,
                                                O_CLOEXEC))
  if fd < 0 then return nil end
  if C.perigee_bench_flock(fd, LOCK_EX + LOCK_NB) == 0 then return fd end
  C.perigee_bench_close(fd)
end

local function remove(path, fd)
  os.execute(("rm -rf '%s'"):format(path))
  C.perigee_bench_close(fd)
end

-- Removes the folders of processes that have ended.
local function sweep(parent)
  for _, name in ipairs(M.entries(parent)) do
    if name:match "^perigee%-bench%.%w+$" then
      local path = parent .. "/" .. name
      local fd = lock(path)
      if fd then remove(path, fd) end
    end
  end
end

-- Makes a folder and returns its path. parent: where (XDG_RUNTIME_DIR or /tmp).
function M.new(parent)
  parent = parent or os.getenv "XDG_RUNTIME_DIR" or "/tmp"
  sweep(parent)
  while true do -- again where another's sweep came before the lock
    local path = parent .. "/" .. PREFIX .. "XXXXXX"
    local template = ffi.new("char[?]", #path + 1, path)
    if C.perigee_bench_mkdtemp(template) == nil then
      error(("no folder can be made in %s"):format(parent), 0)
    end
    path = ffi.string(template)
    held[path] = lock(path)
    if held[path] then return path end
  end
end

-- Makes a folder in one of this process's; returns its path.
function M.inside(folder, name)
  local path = folder .. "/" .. name
  if C.perigee_bench_mkdir(path, 448) ~= 0 then -- 0700
    error(("no folder can be made in %s"):format(folder), 0)
  end
  return path
end

-- Removes a folder that this process has made, and all that is in it.
function M.remove(path)
  if held[path] then remove(path, held[path]) end
  held[path] = nil
end

return M
