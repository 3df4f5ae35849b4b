-- SPDX-License-Identifier: Apache-2.0
--- Opens stats files (native/stats.h) that are read often, or written, and
-- reads parts of them. Anybody of this user may have written the file, and may
-- cut it at any time: so it is read, not mapped, and it is opened only if it is
-- a regular file of this user.
local ffi = require "ffi"
local native = require "perigee.native"

if not pcall(ffi.sizeof, "struct perigee_stats_head") then
  ffi.cdef(require "perigee.stats.cdef")
end

if not pcall(ffi.typeof, "struct perigee_stats_statx") then ffi.cdef [[
  struct perigee_stats_statx {
    uint32_t mask, block_size;
    uint64_t attributes;
    uint32_t links, uid, gid;
    uint16_t mode, spare;
    uint64_t inode, size;
    uint8_t rest[208];
  };
  int perigee_stats_statx(int, const char *, int, unsigned,
    struct perigee_stats_statx *) __asm__("statx");
  int perigee_stats_open(const char *, int) __asm__("open");
  long perigee_stats_pread(int, void *, size_t, int64_t) __asm__("pread");
  long perigee_stats_pwrite(int, const void *, size_t, int64_t)
    __asm__("pwrite");
  int perigee_stats_close(int) __asm__("close");
  unsigned perigee_stats_geteuid(void) __asm__("geteuid");
  size_t perigee_stats_strnlen(const char *, size_t) __asm__("strnlen");
]] end

local C, S = ffi.C, native.C
local number = tonumber

local M = {}

-- A link, and a pipe that nobody writes to, are not waited for.
local FLAGS = 0x20000 + 0x800 + 0x80000  -- O_NOFOLLOW, O_NONBLOCK, O_CLOEXEC
local WRITES = 2                        -- O_RDWR
local AT_CWD, AT_EMPTY_PATH, BASIC, ENOENT = -100, 0x1000, 0x7ff, 2
if jit.arch:find "^arm" then FLAGS = 0x8000 + 0x800 + 0x80000 end

local told_of = ffi.new "struct perigee_stats_statx"

local function is_regular() return bit.band(told_of.mode, 0xf000) == 0x8000 end

--- Whether there is something else than a regular file, as a pipe, for which
-- whoever opens it would wait.
function M.is_other(path)
  return C.perigee_stats_statx(AT_CWD, path, 0, BASIC, told_of) == 0
    and not is_regular()
end

--- Opens it, to be written, too, if `writes`: a descriptor, and its length; or
-- nil and why. nil alone: there is none.
function M.open(path, writes)
  local file = C.perigee_stats_open(path, FLAGS + (writes and WRITES or 0))
  if file < 0 then
    if ffi.errno() == ENOENT then return nil end
    return nil, "it cannot be opened"
  end
  local fine = C.perigee_stats_statx(file, "", AT_EMPTY_PATH, BASIC,
                                     told_of) == 0
  if fine and is_regular() and told_of.uid == C.perigee_stats_geteuid() then
    return file, number(told_of.size)
  end
  C.perigee_stats_close(file)
  return nil, "it is no regular file of this user"
end

M.close = C.perigee_stats_close

--- Reads so many bytes from an offset on; returns how many there were.
function M.read(file, into, length, offset)
  return math.max(0, number(C.perigee_stats_pread(file, into, length, offset)))
end

--- Writes so many bytes at an offset: whether all were.
function M.write(file, from, length, offset)
  return C.perigee_stats_pwrite(file, from, length, offset) == length
end

local MAGIC = "perigee\1"

--- Reads the head, of type struct perigee_stats_head: true; or nil and why.
function M.read_head(file, head)
  if M.read(file, head, ffi.sizeof(head), 0) < ffi.sizeof(head) then
    return nil, "it is cut"
  elseif ffi.string(head.magic, 8) ~= MAGIC then
    return nil, "it is no stats file, or not whole yet"
  elseif head.version ~= S.PERIGEE_STATS_VERSION then
    return nil, ("it is of version %d"):format(head.version)
  end
  return true
end

--- The bytes of a text that may have no end.
function M.text(field, size)
  return ffi.string(field, C.perigee_stats_strnlen(field, size))
end

return M
