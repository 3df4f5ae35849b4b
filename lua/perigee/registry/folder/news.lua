-- SPDX-License-Identifier: Apache-2.0
--- News of the names in a folder, by inotify. One task for each folder reads
-- which names have something new, while somebody asks for it and for some
-- seconds after.
--
-- A name is told again some milliseconds later, and later still: the kernel
-- tells of a process that dies just before it lets go of the name.
local changes = require "perigee.registry.changes"
local descriptors = require "perigee.descriptor"
local errors = require "perigee.errors"
local loop = require "perigee.loop"
local native = require "perigee.native"
local signals = require "perigee.signal"
local tasks = require "perigee.task"
local timers = require "perigee.timers"

local ffi = require "ffi"
local C = native.C

local M = {}

local LINGER = 5                        -- seconds without anybody who asks
local AGAIN = { 10e6, 100e6, 1e9 }      -- nanoseconds
local BYTES = 16384

local buffer = native.bytes_t(BYTES)
local open = {}                         -- by path

-- ---- Telling ---------------------------------------------------------------

-- Notes name once more when its next time has come.
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

-- Reads what is new; false if the folder has gone, or some of it was lost.
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
    local ready, err = descriptors.readable(watch.fd, LINGER)
    if open[watch.path] ~= watch then return end
    local timeout = not ready and err.kind == "timeout"
    if not ready and not timeout or ready and not read(watch)
      or timeout and not watch.changes:is_wanted() then
      close(watch, "closed", "its folder has gone")
    end
  end
end

-- Tasks are not resumed after a stop.
loop.dropped[#loop.dropped + 1] = function()
  local all = {}
  for _, watch in pairs(open) do all[#all + 1] = watch end
  for _, watch in ipairs(all) do
    close(watch, "closed", "the loop was stopped")
  end
end

--- The watch of a folder, the one there is, or a new one: its field `changes`
-- tells (registry/changes.lua). Or nil, a kind and why.
function M.open(path)
  if open[path] then return open[path] end
  local fd = C.perigee_names_watch(path)
  if fd < 0 then return nil, errors.kind(fd), errors.text(fd) end
  local watch = { path = path, fd = fd, again = {},
                  changes = changes.new(path) }
  open[path] = watch
  tasks.spawn(run, watch)
  return watch
end

return M
