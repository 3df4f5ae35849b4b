-- SPDX-License-Identifier: Apache-2.0
--- Loads the C core: finds perigee/core.so along package.cpath, declares the
-- public header (perigee.cdef, made by make from native/perigee.h) and checks
-- that both have the same ABI. No other module declares C types of the core or
-- loads it.
local ffi = require "ffi"

local M = {}

local function find()
  local path, tried = package.searchpath("perigee.core", package.cpath)
  if path then return path end
  error("perigee: its native core, perigee/core.so, is not on package.cpath; "
    .. "run make in the source tree, or install Perigee:" .. tried, 0)
end

-- A Lua state accepts the declarations only once, while specs load this module
-- repeatedly.
local function declare()
  if pcall(ffi.sizeof, "struct perigee_event") then return end
  local fine, text = pcall(require, "perigee.cdef")
  if not fine then
    error("perigee: its C declarations are missing; run make: " .. text, 0)
  end
  ffi.cdef(text)
  ffi.cdef [[
    int getpid(void);
    unsigned int getuid(void);
    int perigee_clock(int clock, int64_t *time) __asm__("clock_gettime");
    int perigee_nap(void *, unsigned long, int) __asm__("poll");
    int perigee_close_file(int) __asm__("close");
    long perigee_read_link(const char *, char *, size_t) __asm__("readlink");
  ]]
end

local path = find()
declare()
local C = ffi.load(path)

local abi = C.perigee_abi()
if abi ~= C.PERIGEE_ABI then
  error(("perigee: %s has ABI %d and these Lua modules have %d; install both "
    .. "from one version"):format(path, abi, C.PERIGEE_ABI), 0)
end

M.C = C
M.path = path

M.event_t = ffi.typeof("struct perigee_event")
M.events_t = ffi.typeof("struct perigee_event[?]")
M.message_t = ffi.typeof("struct perigee_message")
M.trace_t = ffi.typeof("struct perigee_trace")
M.traces_t = ffi.typeof("struct perigee_trace[?]")
M.loan_t = ffi.typeof("struct perigee_loan")
M.slice_t = ffi.typeof("struct perigee_slice")
M.slices_t = ffi.typeof("struct perigee_slice[?]")
M.messages_t = ffi.typeof("struct perigee_message[?]")
M.answers_t = ffi.typeof("struct perigee_answer[?]")
M.transfers_t = ffi.typeof("struct perigee_transfer[?]")
M.options_t = ffi.typeof("struct perigee_options")
M.info_t = ffi.typeof("struct perigee_session_info")
M.shares_t = ffi.typeof("struct perigee_shares")
M.bytes_t = ffi.typeof("uint8_t[?]")
M.immediate_t = ffi.typeof("uint64_t[1]")
M.pointer_t = ffi.typeof("uint8_t *")
M.engines_t = ffi.typeof("struct perigee_engine *[?]")

local CLOCK_REALTIME, CLOCK_MONOTONIC = 0, 1
local CLOCK_THREAD_CPUTIME_ID, CLOCK_BOOTTIME = 3, 7
local time = ffi.new("int64_t[2]")

local function read(clock)
  ffi.C.perigee_clock(clock, time)
  return tonumber(time[0]) * 1e9 + tonumber(time[1])
end

--- The system's monotonic time in nanoseconds, for when there is no engine
-- whose clock could be used.
function M.clock() return read(CLOCK_MONOTONIC) end

--- Nanoseconds since 1970, as far as the host knows.
function M.wall() return read(CLOCK_REALTIME) end

--- Nanoseconds of a clock that goes on while the host sleeps. It is for spans
-- by which other hosts count as well.
function M.uptime() return read(CLOCK_BOOTTIME) end

--- Nanoseconds of processor time that this thread has used.
function M.burnt() return read(CLOCK_THREAD_CPUTIME_ID) end

--- Sleeps for nanoseconds, 0.1 s at most, when there is no engine to wait on.
-- Returns PERIGEE_AGAIN, so that the caller checks for system signals.
function M.sleep(nanoseconds)
  ffi.C.perigee_nap(nil, 0, math.min(math.ceil(nanoseconds / 1e6), 100))
  return C.PERIGEE_AGAIN
end

local link = ffi.new("char[256]")

--- The target of a symbolic link, as text; nil if it cannot be read.
function M.link(at)
  local length = tonumber(ffi.C.perigee_read_link(at, link, 256))
  return length >= 0 and ffi.string(link, length) or nil
end

--- Closes a descriptor.
function M.close(fd) ffi.C.perigee_close_file(fd) end

--- This process's id, and its user's.
function M.pid() return ffi.C.getpid() end
function M.uid() return tonumber(ffi.C.getuid()) end

--- The core's last error text of engine (a handle, or nil), as a string.
function M.detail(engine)
  return ffi.string(C.perigee_detail(engine))
end

return M
