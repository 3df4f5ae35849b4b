-- SPDX-License-Identifier: Apache-2.0
--- Tells the service manager of this process how it is, as sd_notify(3) does:
-- that it is ready, that it is ending, and that its loop still turns (a unit's
-- WatchdogSec=). The manager names its socket in the environment's
-- NOTIFY_SOCKET; without that, nothing is told. Each message is one datagram,
-- which is sent at once or not at all: nothing here waits.
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"

local ffi = require "ffi"

local M = {}

-- busted loads modules again into the same Lua state.
if not pcall(ffi.typeof, "struct perigee_notify_path") then ffi.cdef [[
  struct perigee_notify_path { uint16_t family; char path[108]; };
  int perigee_notify_socket(int, int, int) __asm__("socket");
  long perigee_notify_send(int, const void *, size_t, int, const void *,
                           unsigned) __asm__("sendto");
]] end

local C = ffi.C
local AF_UNIX, SOCK_DGRAM, SOCK_CLOEXEC = 1, 2, 0x80000
local MSG_DONTWAIT, MSG_NOSIGNAL = 0x40, 0x4000
local FAMILY = 2                        -- bytes before the path

-- The manager's address and its length, from "/PATH" or "@NAME"; nil if there
-- is none. "@" stands for a name that is in no folder.
local function manager()
  local path = os.getenv "NOTIFY_SOCKET"
  if not path or not path:find "^[/@]." or #path >= 108 then return nil end
  local address = ffi.new "struct perigee_notify_path"
  address.family = AF_UNIX
  ffi.copy(address.path, (path:gsub("^@", "\0")), #path)
  return address, FAMILY + #path
end

--- Sends lines such as "STATUS=draining" to the manager. True; false if this
-- process has no manager that listens; or nil and an error.
function M.send(text)
  local address, length = manager()
  if not address then return false end
  local fd = C.perigee_notify_socket(AF_UNIX, SOCK_DGRAM + SOCK_CLOEXEC, 0)
  local sent = fd >= 0 and C.perigee_notify_send(fd, text, #text,
    MSG_DONTWAIT + MSG_NOSIGNAL, address, length)
  local number = ffi.errno()
  if fd >= 0 then native.close(fd) end
  if sent == #text then return true end
  return nil, errors.new("unsupported", ("telling the service manager at %s: "
    .. "the system's error %d"):format(os.getenv "NOTIFY_SOCKET", number))
end

-- ---- The watchdog ----------------------------------------------------------

-- Seconds within which the manager wants to hear of this process; nil if it
-- does not.
local function patience()
  local whose = tonumber(os.getenv "WATCHDOG_PID")
  local microseconds = tonumber(os.getenv "WATCHDOG_USEC")
  if whose and whose ~= native.pid() then return nil end
  return microseconds and microseconds > 0 and microseconds * 1e-6 or nil
end

local timer

local function beat(seconds)
  if not timer then return end
  M.send "WATCHDOG=1"
  timer = signals.new(1, function() beat(seconds) end)
  timer.at = loop.now() + seconds * 1e9
  timers.add(timer)
end

--- Says that the process is ready, and from then on, if the manager has a
-- watchdog, that it lives: twice in the time that the unit sets, by a timer of
-- the loop. A handler that never returns thus has the process restarted.
-- Returns as M.send.
function M.ready()
  local fine, err = M.send "READY=1"
  local seconds = fine and patience()
  if seconds and not timer then
    timer = true
    beat(seconds / 2)
  end
  return fine, err
end

--- Says that the process is about to end. The watchdog goes on meanwhile.
function M.stopping() return M.send "STOPPING=1" end

return M
