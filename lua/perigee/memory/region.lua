-- SPDX-License-Identifier: Apache-2.0
--- Regions: registered memory of an engine. Made by `Engine:alloc` and
-- `Engine:register`.
--
-- * `length`: bytes
-- * `kind`: of its memory: "host", or a kind and the number of a device
--   ("cuda:0")
-- * `pointer`: uint8_t * to its first byte; it keeps nothing alive. Nil if the
--   memory is not the host's, for the CPU cannot touch it
-- * `address`: the same as a number, for other libraries of its device
-- * `name`, `access`: the options that it was made with
-- * `huge`: were all its pages huge ones when it was made (option `huge`)?
-- @classmod Region

-- Regions, peers' regions and pooled blocks are owners of slices; slice.lua
-- lists the fields of an owner.
local allocators = require "perigee.memory.allocator"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local slices = require "perigee.memory.slice"

local ffi = require "ffi"
local C = native.C

local M = {}

local ACCESS = { [""] = 0, r = C.PERIGEE_READ, w = C.PERIGEE_WRITE,
                 rw = C.PERIGEE_READ + C.PERIGEE_WRITE }
local POPULATE, SHARED, HUGE, NODE = C.PERIGEE_POPULATE, C.PERIGEE_SHARED,
                                     C.PERIGEE_HUGE, C.PERIGEE_NODE
local LARGEST, UNSEEN = 2 ^ 40, 2 ^ 31
-- PRESSURE: bytes of pooled blocks before the collector is stepped. STEP: the
-- size of a step in KiB.
local PRESSURE, STEP = 8 * 2 ^ 20, 64
M.PRESSURE = PRESSURE
local region_out = ffi.typeof("struct perigee_region *[1]")

local function access(value)
  if not ACCESS[value] then return "\"\", \"r\", \"w\" or \"rw\"" end
end

--- Of a region's name.
function M.check_name(value)
  if type(value) ~= "string" or #value < 1 or #value > 255
    or value:find("%z") then
    return "1 to 255 bytes without a zero"
  end
end
local region_name = M.check_name

--- Of an option: a NUMA node's number.
function M.node(value)
  if not check.is_count(value) or value > 1023 then
    return "the number of a NUMA node, 0 to 1023"
  end
end

local OPTIONS = { name = region_name, access = access, kind = check.string,
                  share = check.boolean }
local ADOPT = { name = region_name, access = function(value)
  if value ~= "" and value ~= "r" then return "\"\" or \"r\"" end
end }
local ALLOC = { name = region_name, access = access, kind = check.string,
                share = check.boolean, populate = check.boolean,
                huge = check.boolean, node = M.node }

-- ---- Regions ---------------------------------------------------------------

local Region = { allocator = allocators.new }
Region.__index = Region

-- The finalizer that closes a region which was collected without close(). Only
-- unnamed regions are collected.
local function net(engine)
  return function(handle)
    if engine.handle then C.perigee_region_close(handle, true) end
  end
end

--- The description of a region in an agent's entry.
function M.told(region)
  return { length = region.length, access = region.access }
end

-- Lists a region under its name (1), or removes it (-1), and tells the agent,
-- which updates its registry entry.
local function list(engine, region, sign)
  engine.regions[region.name] = sign == 1 and region or nil
  if engine.agent then
    engine.agent:listed(sign, region.name, M.told(region))
  end
end

-- Raises for a name that the agent's entry cannot tell.
local function check_told(engine, options, what, level)
  if options.name and engine.agent and engine.agent:is_told() then
    check.value(options.name, check.text, what, level + 1)
  end
end

-- Nil, unless the agent's entry has no room for another named region.
local function refusal(engine, length, options)
  local name = options.name
  if not (name and engine.agent) or engine.regions[name] then return nil end
  return engine.agent:has_no_room(name, { length = length,
                                          access = options.access or "" })
end

local device_out = ffi.typeof("uint32_t[1]")

-- The kind of a region's memory; and that kind again, or false for host memory,
-- which the CPU accesses directly.
local function kind_of(handle)
  local device = device_out()
  local kind = ffi.string(C.perigee_region_kind(handle, device))
  if kind == "host" then return kind, false end
  kind = ("%s:%d"):format(kind, device[0])
  return kind, kind
end

local function adopt(engine, handle, options, keep)
  local kind, memory = kind_of(handle)
  local region = setmetatable({
    engine = engine, session = false, handle = ffi.gc(handle, net(engine)),
    closing = false,
    length = tonumber(C.perigee_region_length(handle)),
    base = C.perigee_region_pointer(handle), name = options.name,
    access = options.access or "", kind = kind, memory = memory,
    keep = keep, allocated = false, huge = not memory and options.huge or false,
  }, Region)
  region.address = tonumber(ffi.cast("uintptr_t", region.base))
  if not memory then region.pointer = region.base end
  engine.memory[region] = true
  if region.name then list(engine, region, 1) end
  return region
end

-- Lua's collector does not know how large regions are, so a full collection is
-- run each time that UNSEEN bytes have been allocated.
local function collect_unseen(engine, length)
  engine.unseen = engine.unseen + length
  if engine.unseen > UNSEEN then
    engine.unseen = 0
    collectgarbage()
  end
end

local function core_access(options)
  return ACCESS[options.access or ""] + (options.share and SHARED or 0)
    + (options.populate and POPULATE or 0) + (options.huge and HUGE or 0)
    + (options.node and NODE * (options.node + 1) or 0)
end

local function core_alloc(engine, length, options, out)
  return C.perigee_region_alloc(engine.handle, options.name, length,
    core_access(options), options.kind, out)
end

--- Allocates page-aligned, zeroed memory that peers on this host can map. A
-- peer finds a named region by `Session:region`. The region belongs to the
-- caller. It lives until `Region:close`; an unnamed one also ends when neither
-- the program, nor a slice, nor an operation refers to it any more.
-- @function Engine:alloc
-- @tparam number length bytes, at most 2^40
-- @tparam[opt] table options
-- @tparam[opt] string options.name 1 to 255 bytes, unique in the engine; peers
--   find the region by it. Of an agent's engine it is UTF-8, for its entry
--   tells it
-- @tparam[opt=""] string options.access what peers may do: "" nothing, "r"
--   read, "w" write, "rw" both
-- @tparam[opt=false] boolean options.populate true: all pages are allocated
--   before this returns. Otherwise each page is allocated when it is first
--   used, and a system that has overcommitted its memory may then kill the
--   program
-- @tparam[opt=false] boolean options.huge true: the same, and all pages are
--   huge ones of 2 MiB (Linux 6.1 or newer), whatever the system's settings for
--   transparent huge pages say; it may take some ms each. Otherwise regions of
--   2 MiB and more have such pages where the settings let them
-- @tparam[opt] number options.node the NUMA node that pages come from while it
--   has some
-- @tparam[opt="host"] string options.kind the kind of memory: "host", "cuda"
--   (an NVIDIA GPU's), or one that the engine was given. A device's number may
--   follow a colon ("cuda:1"), otherwise it is the first device
-- @tparam[opt=false] boolean options.share true: memory of a GPU may be mapped
--   by processes of this host that are told of it, or are sent a slice of it.
--   Memory with access "rw" always is. A driver cannot hold a process that maps
--   it to less than reading and writing all of it, so this trusts them to keep
--   to `access`. What is not shared goes through host memory
-- @treturn Region the region; or nil and an error
-- @errors `name_taken`; `no_memory`: more than the machine or the process's
--   control group has, or, to populate, than is free now; `too_large`: also
--   an agent's entry, if its registry takes none that tells of this name, too;
--   `unsupported`: no such kind of memory, or no huge pages; `not_found`: no
--   such device, or no memory of that node; `closed`: the engine was closed
-- @waits no; populating takes time
-- @usage
-- local cache = assert(engine:alloc(2 ^ 20, { name = "cache", access = "r" }))
-- print(cache.length, cache.access)                            --> 1048576 r
function M.alloc(engine, length, options)
  check.value(length, check.count, "a region's length", 2)
  options = check.options(options, ALLOC, "engine:alloc", 2)
  check_told(engine, options, "option name of engine:alloc", 2)
  if length > LARGEST then
    return nil, errors.new("too_large", ("allocating a region of %d bytes: a "
      .. "region has at most 2^40"):format(length))
  end
  local gone = engine:gone(("allocating a region of %d bytes"):format(length))
    or refusal(engine, length, options)
  if gone then return nil, gone end
  collect_unseen(engine, length)
  local out = region_out()
  local status = core_alloc(engine, length, options, out)
  if status == C.PERIGEE_NO_MEMORY then
    collectgarbage()                    -- frees unreferenced regions
    status = core_alloc(engine, length, options, out)
  end
  if status < 0 then
    return nil, errors.from(status, ("allocating a region of %d bytes")
      :format(length), engine.handle)
  end
  return adopt(engine, out[0], options)
end

--- Makes a region of memory that the program allocated. The memory must stay
-- valid until the region is closed. Peers do not map it: only this process
-- accesses it, on their request.
-- @function Engine:register
-- @tparam cdata pointer kept alive by the region
-- @tparam number length bytes
-- @tparam[opt] table options name, access, kind and share, as for
--   `Engine:alloc`, but without a kind it is found out. Memory of a GPU is
--   mapped by others only with `share`, whatever its access; that shows them
--   the whole allocation that it is of, and the region closes once they have
--   let go of it
-- @treturn Region the region; or nil and an error
-- @errors `name_taken`, `no_memory`, `closed`; of the kind `unsupported`,
--   `not_found`; `too_large`, as of `Engine:alloc`.
--   Raises if the memory is known to be of another kind, ends before `length`,
--   or is managed by CUDA
-- @waits no
-- @usage
-- local ffi = require "ffi"
-- local buffer = ffi.new("uint8_t[4096]")
-- local mine = assert(engine:register(buffer, 4096, { name = "mine" }))
-- mine:slice(0, 2):write "hi"
-- print(ffi.string(buffer, 2))                                 --> hi
function M.register(engine, pointer, length, options)
  if type(pointer) ~= "cdata" then
    error("engine:register takes a pointer, not a " .. type(pointer), 2)
  end
  check.value(length, check.count, "a region's length", 2)
  options = check.options(options, OPTIONS, "engine:register", 2)
  check_told(engine, options, "option name of engine:register", 2)
  local out = region_out()
  local gone = engine:gone(("registering a region of %d bytes"):format(length))
    or refusal(engine, length, options)
  if gone then return nil, gone end
  local status = C.perigee_region_register(engine.handle, options.name,
    ffi.cast("void *", pointer), length, core_access(options), options.kind,
    out)
  if status < 0 then
    return nil, errors.from(status, ("registering a region of %d bytes")
      :format(length), engine.handle)
  end
  return adopt(engine, out[0], options, pointer)
end

--- Makes a region of memory that another region has or had, maybe one of a
-- process that has ended: of the descriptor that `Region:file` gives. Its bytes
-- are there as they were. Peers of this host map the same pages. The region is
-- for reading: what is written to it here nobody else sees. With access "r",
-- nobody else can begin to write to the memory from now on.
-- @function Engine:adopt
-- @tparam number descriptor of a memfd whose size is sealed; it stays the
--   caller's
-- @tparam number length bytes
-- @tparam[opt] table options name, and access: "" or "r"
-- @treturn Region the region; or nil and an error. Raises if the descriptor is
--   no such memory, or is shorter
-- @errors `name_taken`, `no_memory`, `closed`, `too_large`
-- @waits no
-- @usage
-- local first = assert(engine:alloc(4096, { name = "first", access = "r" }))
-- first:slice(0, 5):write "hello"
-- local again = assert(engine:adopt(first:file(), 4096))
-- first:close()
-- print(again:slice(0, 5):string())                            --> hello
function M.adopt(engine, descriptor, length, options)
  check.value(descriptor, check.count, "engine:adopt's descriptor", 2)
  check.value(length, check.count, "a region's length", 2)
  options = check.options(options, ADOPT, "engine:adopt", 2)
  check_told(engine, options, "option name of engine:adopt", 2)
  local doing = ("adopting a region of %d bytes"):format(length)
  local gone = engine:gone(doing) or refusal(engine, length, options)
  if gone then return nil, gone end
  local out = region_out()
  local status = C.perigee_region_adopt(engine.handle, options.name, descriptor,
    length, ACCESS[options.access or ""], out)
  if status < 0 then return nil, errors.from(status, doing, engine.handle) end
  return adopt(engine, out[0], options)
end

--- Returns the descriptor of the region's memory, for `Engine:adopt` in this
-- process or another. It is the region's, and ends with it.
-- @function Region:file
-- @treturn number the descriptor; or nil and an error
-- @errors `unsupported`: it has none: peers may not read it, or its memory is
--   not the host's, or was registered; `closed`
-- @waits no
-- @usage
-- print(engine:alloc(4096, { access = "r" }):file() > 2)       --> true
-- print(select(2, engine:alloc(4096):file()).kind)             --> unsupported
function Region:file()
  if not self.handle then
    return nil, errors.new("closed", self:text() .. " has been closed")
  end
  local fd = C.perigee_region_file(self.handle)
  if fd >= 0 then return fd end
  return nil, errors.from(fd, "the file of " .. self:text(), nil)
end

--- A part of it. A slice outside of the region is misuse.
-- @function Region:slice
-- @tparam[opt=0] number offset bytes
-- @tparam[opt] number length bytes of each block; default: the rest
-- @tparam[opt] table options the shape, for more than one block
-- @tparam[opt=1] number options.count blocks
-- @tparam[opt] number options.stride bytes from one block's start to the next
--   one's; default: `length`
-- @treturn Slice the slice
-- @waits no
-- @usage
-- local row = region:slice(0, 64)
-- local column = region:slice(0, 4, { count = 16, stride = 64 })
-- print(row.length, column.length)                             --> 64 64
function Region:slice(offset, length, options)
  if not self.handle then error(self:text() .. " has been closed", 2) end
  return (slices.new(self, offset, length, options, 2)) -- no tail call
end

function Region:text()
  return self.name and ("region %q"):format(self.name) or "an unnamed region"
end

-- The text that a region prints as: what it is, how long, whether it is closed.
local function shown(region)
  return ("%s (%.0f bytes%s)"):format(region:text(), region.length,
                                      region.handle and "" or ", closed")
end

Region.__tostring = shown

function Region:attach()
  return nil, self:text() .. " has been closed"
end

-- Forgets the handle, which the core has freed.
function Region:ended()
  if self.closing then ffi.gc(self.closing, nil) end
  self.handle, self.closing = false, false
  self.base, self.pointer, self.address = nil, nil, nil
  self.engine.memory[self] = nil
  self.keep = nil
end

--- Closes the region and is a fence: from the first call on peers get `stale`,
-- and once it has returned true no transfer accesses the memory. Idempotent.
-- @function Region:close
-- @tparam[opt=30] number timeout seconds
-- @treturn boolean true; or nil and an error
-- @errors `timeout`: a transfer still uses it; close can be called again
-- @waits yes
-- @usage
-- print(region:close(1))                                       --> true
function Region:close(timeout)
  check.value(timeout or 30, check.seconds, "region:close's timeout")
  local handle = self.handle or self.closing
  if not handle then return true end
  self.handle, self.closing = false, handle
  local engine = self.engine
  if self.name and engine.regions[self.name] == self then
    list(engine, self, -1)
  end
  local deadline, pause = loop.deadline(timeout or 30), 2e4
  while C.perigee_region_close(handle, false) == C.PERIGEE_AGAIN do
    loop.check_wait(2)
    if loop.now() >= deadline or loop.state.stopping then
      return nil, errors.new("timeout", ("closing %s: a transfer is still "
        .. "inside"):format(self:text()))
    end
    loop.wait_signal(signals.new(1), loop.now() + pause)
    pause = math.min(2 * pause, 1e6)
    if not self.closing then return true end    -- the engine was closed
  end
  self:ended()
  return true
end

-- ---- Regions of peers ------------------------------------------------------

local Remote = {}
Remote.__index = Remote

--- Regions of peers, as `Session:region` finds them. They end with their
-- session, or when the peer closes them (`stale`): see `Remote:close`.
--
-- * `length`, `access`, `name`: as the peer made the region
-- * `identity`: a number that no other region of that name has, not even after
--   a restart of the peer
-- @classmod Remote
function M.remote(session, name, handle)
  local granted = C.perigee_remote_access(handle)
  local letters = (granted % 2 == 1 and "r" or "")
    .. (granted >= C.PERIGEE_WRITE and "w" or "")
  return setmetatable({
    session = session, engine = session.engine, name = name, handle = handle,
    length = tonumber(C.perigee_remote_length(handle)), access = letters,
    identity = tonumber(C.perigee_remote_identity(handle)),
  }, Remote)
end

-- Its session does not have it any more.
local function unlist(remote)
  local remotes, name = remote.session.remotes, remote.name
  if remotes[name] == remote then remotes[name] = nil end
  remotes[remote] = nil
end

-- Lets the core's handle go, which an operation that is under way keeps.
local function let_go(remote)
  local handle = remote.handle
  remote.handle = false
  if handle and remote.session.handle then
    unlist(remote)
    C.perigee_remote_close(handle)
  end
end

--- Takes over the handle of other, which ends: the same region found in a later
-- session, for this caller alone. The session before may still be there.
function Remote:move_to(other)
  let_go(self)
  local remotes = other.session.remotes
  unlist(other)
  self.session, self.engine, self.handle = other.session, other.engine,
                                           other.handle
  other.handle = false
  remotes[remotes[self.name] and self or self.name] = self
end

--- A part of the region, for transfers; as `Region:slice`.
-- @function Remote:slice
-- @tparam[opt=0] number offset bytes
-- @tparam[opt] number length bytes of each block; default: the rest
-- @tparam[opt] table options count and stride, as for `Region:slice`
-- @treturn Slice the slice; it has no `pointer`
-- @waits no
-- @usage
-- print(remote:slice(4096, 64).length)                         --> 64
function Remote:slice(offset, length, options)
  return (slices.new(self, offset, length, options, 2)) -- no tail call
end

Remote.__tostring = shown

function Remote:text()
  return ("region %q of %s"):format(self.name, self.session:text())
end

--- Ends the object on this side: to use it afterwards is misuse. Memory of a
-- peer of this host is mapped here until then, or until another region of that
-- name is looked up, even if the peer has closed its region: close what is
-- stale. Transfers that are under way go on. A prepared
-- transfer keeps the memory until it is closed. Idempotent.
-- @function Remote:close
-- @waits no
-- @usage
-- remote:close()
function Remote:close()
  let_go(self)
  self.closed = true
end

--- As close, for use inside the library, of a region that the peer has closed:
-- transfers that name it end in `stale`.
function Remote:leave()
  let_go(self)
  self.left = true
end

--- Ends it with its session. Called by session.lua.
function Remote:ended() self.handle = false end

-- ---- Pooled blocks ---------------------------------------------------------

local Block = {}
Block.__index = Block

local function free(engine, pointer, region)
  if not engine.handle then return true end
  if region then
    if C.perigee_region_close(region, false) == C.PERIGEE_AGAIN then
      return false
    end
  end
  C.perigee_pool_free(engine.handle, pointer)
  return true
end

function Block:text() return "a pooled block" end

local nothing = native.bytes_t(1)     -- stands for blocks of 0 bytes

-- Registers the block with the core; needed only when it is sent on.
function Block:attach()
  if not self.base then return nil, "the pooled slice has been closed" end
  local out = region_out()
  local empty = self.length == 0
  local status = C.perigee_region_register(self.engine.handle, nil,
    empty and nothing or self.base, empty and 1 or self.length, 0, nil, out)
  if status < 0 then return nil, native.detail(self.engine.handle) end
  self.handle = out[0]
  self.box.region = out[0]
  return self.handle
end

-- Forgets the memory, which the caller gives back to the core.
function Block:ended()
  if self.base then ffi.gc(self.base, nil) end
  self.base, self.handle = nil, false
  self.engine.memory[self] = nil
end

function Block:release()
  local base, region, engine = self.base, self.handle, self.engine
  if not base then return end
  self:ended()
  engine.pooled = engine.pooled - self.length
  if not free(engine, base, region) then
    engine:later(function() return free(engine, base, region) end)
  end
end

-- A step of the collector, run about once a millisecond while it is behind.
-- True when a cycle is complete.
local function step(engine)
  if not collectgarbage("step", STEP) then return false end
  engine.behind = false
  engine.pressure = math.max(PRESSURE, 2 * engine.pooled)
  return true
end
jit.off(step)

-- Lua's collector does not know how large blocks are. Blocks that handlers did
-- not close are therefore collected in steps once there are many bytes of them,
-- and by a full collection before they fill the pool.
local function collect(engine, length)
  engine.pooled = engine.pooled + length
  if engine.pooled > engine.pressure and not engine.behind then
    engine.behind = true
    engine:later(function() return step(engine) end)
  end
  if engine.pooled > engine.pooled_limit then
    collectgarbage()
    local twice = math.min(2 * engine.pooled, 0.9 * engine.pool)
    engine.pooled_limit = math.max(engine.pool / 4, twice)
  end
end

local function pool_net(engine, length, box)
  return function(pointer)
    engine.pooled = engine.pooled - length
    if not free(engine, pointer, box.region) then
      engine:later(function() return free(engine, pointer, box.region) end)
    end
  end
end

--- A slice of length bytes of the core's pool block at pointer. The slice now
-- owns the block: close() gives it back, or else the collector does.
function M.pooled(engine, pointer, length)
  collect(engine, length)
  local box = { region = false }      -- for pool_net; no reference to block
  local base = ffi.cast(native.pointer_t, pointer)
  local block = setmetatable({ engine = engine, session = false,
                               length = length, box = box,
                               base = ffi.gc(base, pool_net(engine, length,
                                                            box)),
                               handle = false }, Block)
  engine.memory[block] = true
  return slices.new(block, 0, length, nil, 2)
end

check.colons(Region, "region", "allocator close slice")
check.colons(Remote, "region", "close slice")

return M
