-- SPDX-License-Identifier: Apache-2.0
--- Changes of the names in a folder, by inotify. One task for each folder reads
-- which names have changed, as long as a future waits for changes and for some
-- seconds after.
--
-- Each change of a name is reported again after some milliseconds, and twice
-- more later, because the kernel reports the death of a process just before it
-- releases the lock of the name.
local changes = require "perigee.registry.changes"
local descriptors = require "perigee.descriptor"
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"
local timers = require "perigee.runtime.timers"

local ffi = require "ffi"
local C = native.C

local M = {}

local LINGER = 5                        -- seconds without a waiting future
local AGAIN = { 10e6, 100e6, 1e9 }      -- nanoseconds before each repetition
local BYTES = 16384

local buffer = native.bytes_t(BYTES)
local open = {}                         -- by path

-- ---- Telling ---------------------------------------------------------------

-- Sets the timer that notes name again for this step and starts the next step.
local function later(watch, name, step)
  local before = watch.again[name]
  if before then timers.remove(before) end
  watch.again[name] = nil
  if not AGAIN[step] then return end
  local signal = signals.new(1, function()
    watch.changes:note(name)
    later(watch, name, step + 1)
    watch.changes:tell(true)
  end)
  signal.at = loop.now() + AGAIN[step]
  watch.again[name] = signal
  timers.add(signal)
end

-- ---- Watching --------------------------------------------------------------

local function close(watch, kind, why)
  if open[watch.path] ~= watch then return end
  open[watch.path] = nil
  descriptors.forget(watch.fd)
  C.perigee_names_unwatch(watch.fd)
  for _, signal in pairs(watch.again) do timers.remove(signal) end
  watch.changes:tell(nil, kind, why)
end
jit.off(close)

-- Reads the changes. False if the folder is gone, or some changes were lost.
local function read(watch)
  local length = tonumber(C.perigee_names_changed(watch.fd, buffer, BYTES))
  if length < 0 then return false end
  for name in ffi.string(buffer, length):gmatch "[^\n]+" do
    watch.changes:note(name)
    later(watch, name, 1)
  end
  if length > 0 then watch.changes:tell(true) end
  return true
end

local function run(watch)
  while open[watch.path] == watch do
    local ready, err = descriptors.readable(watch.fd, LINGER, true)
    if open[watch.path] ~= watch then return end
    local timeout = not ready and err.kind == "timeout"
    if not ready and not timeout or ready and not read(watch)
      or timeout and not watch.changes:is_wanted() then
      close(watch, "closed", "its folder has gone")
    end
  end
end

-- Tasks are not resumed after a stop, so their watches are closed.
loop.dropped[#loop.dropped + 1] = function()
  local all = {}
  for _, watch in pairs(open) do all[#all + 1] = watch end
  for _, watch in ipairs(all) do
    close(watch, "closed", "the loop was stopped")
  end
end

--- The existing watch of a folder, or a new one; or nil, a kind and why. Its
-- field `changes` is a list of changes (registry/changes.lua).
function M.open(path)
  if open[path] then return open[path] end
  local fd = C.perigee_names_watch(path)
  if fd < 0 then return nil, errors.told(fd) end
  local watch = { path = path, fd = fd, again = {},
                  changes = changes.new(path) }
  open[path] = watch
  tasks.spawn(run, watch)
  return watch
end

return M
