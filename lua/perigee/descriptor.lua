-- SPDX-License-Identifier: Apache-2.0
--- Waits on the loop for file descriptors of the program's own. It is for
-- libraries that talk to other servers (Redis, etcd) without blocking. It is an
-- inner module, `require "perigee.descriptor"`; programs that only call and
-- transfer do not need it.
--
-- A descriptor is a number: that of a socket, a pipe or anything else that
-- epoll takes. It should not block (O_NONBLOCK). The program goes on owning it.
-- Several tasks may wait for the same one, in both directions. The first open
-- engine watches it (`perigee_watch` in C); when that engine is closed, another
-- one does.
--
-- A caller that waits again and again for one descriptor may have the engine go
-- on watching it between the waits (`kept`). Each wait costs a system call less
-- then; and much less if the descriptor is an epoll, as the kernel looks at all
-- that is in one whenever the engine begins to watch it.
--
-- Call `descriptor.forget` before closing a descriptor that is kept, or that a
-- task may wait for. Otherwise those waits go on until their timeout, and with
-- a debug build of the core the process aborts.
-- @module descriptor

--   state     it has                                    the engine
--   none      no entry                                  does not watch it
--   watched   an entry, with a side for each direction  watches it for those
--             with waits                                directions
--   kept      an entry without waits                    watches it as before
--   quiet     the same                                  has it, and is quiet
--
--   none    -> watched   the first wait
--   watched -> watched   a direction gets its first wait or loses its last: it
--                        is watched for the present ones from then on
--   watched -> none      no wait is left: all are ready, timed out, forgotten
--   watched -> kept      the same, of one that is to be kept
--   kept    -> quiet     READY, which nobody has waited for
--   kept, quiet -> watched   a wait
--   kept, quiet -> none      it is forgotten
--
-- A READY event that was polled before such a change has an older serial number
-- and is dropped; the core reports what is still ready again.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"

local band, pcall = bit.band, pcall
local C = native.C
local READABLE, WRITABLE = C.PERIGEE_READABLE, C.PERIGEE_WRITABLE
local WANTED = { [READABLE] = "readable", [WRITABLE] = "writable" }
local state = loop.state

local M = {}

-- Entries by descriptor: { fd, engine, serial, watched = has the engine got it?
-- bits = the directions that the engine watches, kept, [READABLE] and
-- [WRITABLE] = { future, n = how many waits } or false }.
local entries = {}
local serial = 0

local function doing(fd, bit)
  return ("waiting for descriptor %d to be %s"):format(fd, WANTED[bit])
end

-- ---- Entries ---------------------------------------------------------------

local function finish(entry, bit, ...)
  local side = entry[bit]
  entry[bit] = false
  if side then futures.settle(side.future, ...) end
end

-- Ends all waits.
local function finish_both(entry, kind, why)
  for bit in pairs(WANTED) do
    finish(entry, bit, nil,
           errors.new(kind, doing(entry.fd, bit) .. ": " .. why))
  end
end
jit.off(finish_both)

local function unwatch(entry)
  local handle = entry.engine.handle
  if handle and entry.watched then C.perigee_unwatch(handle, entry.fd) end
  entry.bits, entry.watched = 0, false
end

local function forget(entry)
  unwatch(entry)
  entries[entry.fd] = nil
end

-- Forgets an entry that the engine does not watch as it should.
local function fail(entry, kind, why)
  forget(entry)
  finish_both(entry, kind, why)
end

-- Has the engine watch the descriptor for these directions; returns a status.
local function watch_for(entry, bits)
  local f = entry.watched and C.perigee_rewatch or C.perigee_watch
  serial = serial + 1
  entry.serial, entry.bits = serial, bits
  local status = f(entry.engine.handle, entry.fd, bits, serial)
  entry.watched = status >= 0
  return status
end

-- Does so for those that have waits.
local function watch(entry)
  local bits = (entry[READABLE] and READABLE or 0)
    + (entry[WRITABLE] and WRITABLE or 0)
  if bits == entry.bits then return 0 end
  if bits > 0 then return watch_for(entry, bits) end
  if not entry.kept then forget(entry) end
  return 0
end

-- Does the same; if it fails, all waits for the descriptor end with the error.
local function update(entry)
  local status = watch(entry)
  if status < 0 then
    fail(entry, errors.kind(status), native.detail(entry.engine.handle))
  end
end

-- Has the engine report nothing while nobody waits, as READY comes again at
-- each poll.
local function rest(entry)
  if watch_for(entry, 0) < 0 then forget(entry) end
end

loop.on[C.PERIGEE_EVENT_READY] = function(engine, event)
  local entry = entries[tonumber(event.descriptor)]
  if not entry or entry.engine ~= engine
    or entry.serial ~= tonumber(event.code) then
    return
  end
  local ready = event.flags
  if not entry[READABLE] and not entry[WRITABLE] then return rest(entry) end
  if band(ready, READABLE) ~= 0 then finish(entry, READABLE, true) end
  if band(ready, WRITABLE) ~= 0 then finish(entry, WRITABLE, true) end
  update(entry)
end

-- Calls f for each entry; f may remove it.
local function each(f)
  local list = {}
  for _, entry in pairs(entries) do list[#list + 1] = entry end
  for _, entry in ipairs(list) do f(entry) end
end
jit.off(each)

--- Has another engine watch what engine, which was closed, has watched.
function M.leave(engine)
  each(function(entry)
    if entry.engine ~= engine then return end
    local other = state.engines[1]
    entry.bits, entry.watched = 0, false
    if not other then return fail(entry, "closed", "the engine was closed") end
    entry.engine = other
    update(entry)
  end)
end

-- A stop drops the tasks that wait, so their waits are ended here.
loop.dropped[#loop.dropped + 1] = function()
  each(function(entry)
    fail(entry, "closed", "the loop was stopped")
  end)
end

-- ---- Waiting ---------------------------------------------------------------

local function is_descriptor(value)
  if not check.is_count(value) or value >= 2 ^ 31 then
    return "a descriptor, an integer of at least 0"
  end
end

local function check_wait(fd, timeout, kept, name)
  check.value(fd, is_descriptor, name .. "'s descriptor", 3)
  if timeout ~= nil then
    check.value(timeout, check.seconds, name .. "'s timeout", 3)
  end
  if kept ~= nil then check.value(kept, check.boolean, name .. "'s kept", 3) end
  loop.check_wait(3)
end

-- Adds a wait in one direction. Returns its entry and side; or nil and an
-- error.
local function join(fd, bit, kept)
  local entry = entries[fd]
  if not entry then
    local engine = state.engines[1]
    if not engine then
      return nil, errors.new("closed", doing(fd, bit) .. ": no engine is open")
    end
    entry = { fd = fd, engine = engine, serial = 0, bits = 0, watched = false,
              kept = false, [READABLE] = false, [WRITABLE] = false }
    entries[fd] = entry
  end
  entry.kept = entry.kept or kept == true
  local side = entry[bit] or { future = futures.new(), n = 0 }
  entry[bit] = side
  local status = watch(entry)
  if status < 0 then
    fail(entry, "closed", "it was closed, or cannot be watched")
    return nil, errors.from(status, doing(fd, bit), entry.engine.handle)
  end
  side.n = side.n + 1
  return entry, side
end

local function leave(entry, bit, side)
  side.n = side.n - 1
  if side.n == 0 and entry[bit] == side then
    entry[bit] = false
    update(entry)
  end
end

-- With a timeout of 0 it handles what is known to have happened, once.
local function wait_for(entry, future, timeout)
  local ended = loop.wait(future, loop.deadline(timeout))
  if not ended and timeout == 0 then loop.refresh(entry.engine) end
  return future.ended
end

local function wait(fd, timeout, bit, kept)
  local entry, side = join(fd, bit, kept)
  if not entry then return nil, side end
  local fine, ended = pcall(wait_for, entry, side.future, timeout)
  leave(entry, bit, side)
  if not fine then
    errors.pass(ended)
    error(ended, 0)
  end
  if ended then return futures.results(side.future) end
  if state.stopping then
    return nil, errors.new("closed", doing(fd, bit)
      .. ": the loop was stopped")
  end
  return nil, errors.new("timeout", ("%s: it was not within %g s")
    :format(doing(fd, bit), timeout))
end

--- Waits until reading a descriptor (or accepting at it) would not block: there
-- is data, or its end, or an error that reading reports. The next wait reports
-- again the data that is left unread.
-- @function descriptor.readable
-- @tparam number fd
-- @tparam[opt] number timeout seconds, 0 to look without waiting; default: no
--   limit
-- @tparam[opt] boolean kept the engine goes on watching it until
--   `descriptor.forget`, which has to come before its close
-- @treturn boolean true; or nil and an error. Raises if fd is not open
-- @errors `timeout`; `cancelled`: it was forgotten; `unsupported`: files and
--   folders, which are always ready; `no_memory`: the engine watches as many as
--   its option `watched` allows
-- @waits yes
-- @usage
-- local ffi, descriptor = require "ffi", require "perigee.descriptor"
-- ffi.cdef "int eventfd(unsigned int first, int flags); int close(int fd);"
-- local fd = ffi.C.eventfd(1, 0)
-- print(descriptor.readable(fd, 1))                            --> true
-- ffi.C.close(fd)
function M.readable(fd, timeout, kept)
  check_wait(fd, timeout, kept, "readable")
  return wait(fd, timeout, READABLE, kept)
end

--- Waits until writing to a descriptor would not block, or a connect that was
-- begun has ended. Otherwise as `descriptor.readable`.
-- @function descriptor.writable
-- @tparam number fd
-- @tparam[opt] number timeout seconds, 0 to look without waiting; default: no
--   limit
-- @tparam[opt] boolean kept the engine goes on watching it until
--   `descriptor.forget`, which has to come before its close
-- @treturn boolean true; or nil and an error. Raises if fd is not open
-- @errors `timeout`, `cancelled`, `unsupported`, `no_memory`, as of
--   `descriptor.readable`
-- @waits yes
-- @usage
-- local ffi, descriptor = require "ffi", require "perigee.descriptor"
-- ffi.cdef "int eventfd(unsigned int first, int flags); int close(int fd);"
-- local fd = ffi.C.eventfd(0, 0)
-- print(descriptor.writable(fd, 1))                            --> true
-- ffi.C.close(fd)
function M.writable(fd, timeout, kept)
  check_wait(fd, timeout, kept, "writable")
  return wait(fd, timeout, WRITABLE, kept)
end

--- Ends all waits for a descriptor with `cancelled`. Does nothing if there are
-- none. It may be waited for again.
-- @function descriptor.cancel
-- @tparam number fd
-- @waits no
-- @usage
-- local ffi, descriptor = require "ffi", require "perigee.descriptor"
-- ffi.cdef "int eventfd(unsigned int first, int flags); int close(int fd);"
-- local fd = ffi.C.eventfd(0, 0)
-- local reader = perigee.spawn(descriptor.readable, fd)
-- perigee.sleep(0.01)
-- descriptor.cancel(fd)
-- print(select(2, reader:wait()).kind)                         --> cancelled
-- ffi.C.close(fd)
function M.cancel(fd)
  check.value(fd, is_descriptor, "cancel's descriptor")
  local entry = entries[fd]
  if not entry then return end
  finish_both(entry, "cancelled", "it was cancelled")
  update(entry)
end

--- Does the same, and has the engine watch it no more. Call it before the
-- descriptor is closed.
-- @function descriptor.forget
-- @tparam number fd
-- @waits no
-- @usage
-- local ffi, descriptor = require "ffi", require "perigee.descriptor"
-- ffi.cdef "int eventfd(unsigned int first, int flags); int close(int fd);"
-- local fd = ffi.C.eventfd(0, 0)
-- local reader = perigee.spawn(descriptor.readable, fd)
-- perigee.sleep(0.01)
-- descriptor.forget(fd)
-- ffi.C.close(fd)
-- print(select(2, reader:wait()).kind)                         --> cancelled
function M.forget(fd)
  check.value(fd, is_descriptor, "forget's descriptor")
  local entry = entries[fd]
  if entry then fail(entry, "cancelled", "it was forgotten") end
end

return M
