-- SPDX-License-Identifier: Apache-2.0
--- A value where it lies in a cache of this host (`CacheClient:view`): its
-- bytes stay what they are while the view's lease lasts.
--
-- * `pointer`: const uint8_t * to the bytes, which this process may only read;
--   it keeps nothing alive. When the session with the cache has ended (`left`
--   is 0), there may be no memory there any more
-- * `length`: bytes
-- @classmod CacheView
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local maps = require "perigee.cache.mapped"

local ffi = require "ffi"

local M = {}

local View = {}
View.__index = View

--- Makes a view of a client's lease (leases.lua).
function M.new(lease, pointer)
  lease.views = lease.views + 1
  return setmetatable({ lease = lease, length = lease.length,
                        pointer = pointer,
                        slab = maps.enter(lease.among.slabs, lease.slab) },
                      View)
end

--- Tells for how long the bytes are still sure to be the value's. Ask after the
-- bytes were used, too: a process may be stopped in between.
-- @function CacheView:left
-- @treturn number seconds; 0: what was read since the last look may be
--   something else
-- @waits no
-- @usage
-- assert(blocks:put("view.1", "one"))
-- local view = blocks:view "view.1"  -- nil: the cache is of another host
-- if view then assert(view:left() > 0 and view:left() <= 10) end
function View:left()
  local lease = self.lease
  if not (lease and lease.among:holds(lease)) then return 0 end
  return loop.left(lease.till)
end

--- Copies the bytes.
-- @function CacheView:string
-- @treturn string the value; or nil and an error
-- @errors `stale`: the lease is over
-- @waits no
-- @usage
-- assert(blocks:put("view.1", "one"))
-- local view = blocks:view "view.1"  -- nil: the cache is of another host
-- print(view and view:string() or "one")                       --> one
function View:string()
  local text = self:left() > 0 and ffi.string(self.pointer, self.length)
  if text and self:left() > 0 then return text end
  return nil, errors.new(self.lease and "stale" or "closed", "reading a view: "
    .. (self.lease and "its lease is over" or "it was closed"), true)
end

--- Gives the lease back. Idempotent.
-- @function CacheView:close
-- @waits no
-- @usage
-- assert(blocks:put("view.1", "one"))
-- local view = blocks:view "view.1"  -- nil: the cache is of another host
-- if view then view:close() end
function View:close()
  local lease = self.lease
  self.lease, self.pointer = false, nil
  if not lease then return end
  maps.leave(self.slab)
  lease.among:leave(lease)
end

check.colons(View, "view", "close left string")

return M
