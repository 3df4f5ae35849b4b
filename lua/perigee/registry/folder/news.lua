-- SPDX-License-Identifier: Apache-2.0
--- News of the names in a folder, by inotify. One task for each folder reads
-- which names have something new, while somebody asks for it and for some
-- seconds after, and numbers them. A revision is one of these numbers, with a
-- text that no other watch has: who comes with another's is told all.
--
-- A name is told again some milliseconds later, and later still: the kernel
-- tells of a process that dies just before it lets go of the name.
local descriptors = require "perigee.descriptor"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local native = require "perigee.native"
local signals = require "perigee.signal"
local tasks = require "perigee.task"
local timers = require "perigee.timers"

local ffi = require "ffi"
local C = native.C

local M = {}

local KEPT = 1024                       -- changes that can be told again
local LINGER = 5                        -- seconds without anybody who asks
local AGAIN = { 10e6, 100e6, 1e9 }      -- nanoseconds
local BYTES = 16384

local buffer = native.bytes_t(BYTES)
local open = {}                         -- by path
local opened = 0

-- ---- Telling ---------------------------------------------------------------

local function settle_all(watch, ...)
  local waiting = watch.waiting
  watch.waiting = {}
  for _, future in ipairs(waiting) do futures.settle(future, ...) end
end

local function note(watch, name)
  watch.at = watch.at + 1
  watch.log[watch.at] = name
  watch.log[watch.at - KEPT] = nil
end

local function tell(watch)
  settle_all(watch, true)
end

-- Notes name once more when its next time has come.
local function later(watch, name, step)
  local before = watch.again[name]
  if before then timers.remove(before) end
  watch.again[name] = nil
  if not AGAIN[step] then return end
  local signal = signals.new(1, function()
    note(watch, name)
    later(watch, name, step + 1)
    tell(watch)
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
  settle_all(watch, nil, kind, why)
end
jit.off(close)

-- Reads what is new; false if the folder has gone, or some of it was lost.
local function read(watch)
  local length = tonumber(C.perigee_names_changed(watch.fd, buffer, BYTES))
  if length < 0 then return false end
  for name in ffi.string(buffer, length):gmatch "[^\n]+" do
    note(watch, name)
    later(watch, name, 1)
  end
  if length > 0 then tell(watch) end
  return true
end

local function is_wanted(watch)
  for _, future in ipairs(watch.waiting) do
    if not future.ended then return true end
  end
  return false
end

local function run(watch)
  while open[watch.path] == watch do
    local ready, err = descriptors.readable(watch.fd, LINGER)
    if open[watch.path] ~= watch then return end
    local timeout = not ready and err.kind == "timeout"
    if not ready and not timeout or ready and not read(watch)
      or timeout and not is_wanted(watch) then
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

--- The watch of a folder: the one there is, or a new one; or nil, a kind and
-- why.
function M.open(path)
  if open[path] then return open[path] end
  local fd = C.perigee_names_watch(path)
  if fd < 0 then return nil, errors.kind(fd), errors.text(fd) end
  opened = opened + 1
  local watch = { path = path, fd = fd, at = 0, log = {}, waiting = {},
                  again = {}, id = ("%d.%d"):format(native.pid(), opened) }
  open[path] = watch
  tasks.spawn(run, watch)
  return watch
end

-- ---- Asking ----------------------------------------------------------------

--- The revision that is now.
function M.revision(watch)
  return ("%s:%d"):format(watch.id, watch.at)
end

--- The names that have something new since a revision, perhaps none, each once;
-- nil if that cannot be told.
function M.since(watch, revision)
  local id, from = revision:match "^(.*):(%d+)$"
  from = tonumber(from)
  if id ~= watch.id or from > watch.at or watch.at - from > KEPT then
    return nil
  end
  local names, seen = {}, {}
  for at = from + 1, watch.at do
    local name = watch.log[at]
    if not seen[name] then names[#names + 1], seen[name] = name, true end
  end
  return names
end

--- A future of true, when there is something new; or nil, a kind and why.
function M.next(watch)
  local future = futures.new(false, "watching " .. watch.path)
  watch.waiting[#watch.waiting + 1] = future
  return future
end

return M
