-- SPDX-License-Identifier: Apache-2.0
--- Prepared transfers: checked and resolved once, and posted any number of
-- times. A prepared transfer is itself the future of its post, so that posting
-- allocates nothing. It is freed by `Prepared:close` or with its session, not
-- by the collector. Made by `Session:prepare_write`, `Session:prepare_read` and
-- `Session:prepare_write_imm`.
-- @classmod Prepared
local batch = require "perigee.transfer.batch"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local native = require "perigee.native"
local sessions = require "perigee.engine.session"

local ffi = require "ffi"
local C = native.C
local Session, Future, settle = sessions.Session, futures.Future, futures.settle

local READ, WRITE = C.PERIGEE_OP_READ, C.PERIGEE_OP_WRITE
local WRITE_IMM, INLINE = C.PERIGEE_OP_WRITE_IMM, C.PERIGEE_INLINE

local ENDED, VALUE = futures.ENDED, futures.VALUE
local OPERATION, OWNER = futures.OPERATION, futures.OWNER

local Prepared = {}
local META = futures.metatable(Prepared, "prepared transfer")
Prepared.wait, Prepared.done = Future.wait, Future.done
Prepared.cancel = Future.cancel

local function doing(session, what)
  return ("%s with %s"):format(what, session:text())
end

local function posted(self, event)
  if event.status == 0 then return settle(self, true) end
  settle(self, nil, batch.ended(event, batch.doing(self.transfer, self.kept),
                                self.timeout))
end

local function not_posted(self, status)
  local err = errors.from(status, doing(self.owner, "posting a transfer"),
                          self.owner.engine.handle, false)
  self[ENDED] = false
  settle(self, nil, err)
  return self
end

-- ---- Blocks by number -------------------------------------------------------

local numbers_t = ffi.typeof("uint32_t[?]")
local MOST = 4096                       -- as in native/perigee.h

-- Fills a list of numbers into the array of that side, which is kept. Returns
-- the array and how many there are, or nil and what is wrong.
local function numbered(self, side, list)
  local n = type(list) == "table" and #list or 0
  if n < 1 or n > MOST then
    return nil, ("%s is a list of 1 to %d numbers"):format(side, MOST)
  end
  local array = self[side]
  if not array or ffi.sizeof(array) < 4 * n then
    array = numbers_t(n)
    self[side] = array
  end
  for i = 1, n do
    local number = list[i]
    if not check.is_count(number) or number >= 2 ^ 32 then
      return nil, ("number %d of %s is a block's number, from 0"):format(i,
                                                                         side)
    end
    array[i - 1] = number
  end
  return array, n
end

-- Raises for what is neither from nor to.
local function check_known(spec)
  for key in pairs(spec) do
    if key ~= "from" and key ~= "to" then
      error(("transfer:post: it takes from and to, no %s"):format(
        tostring(key)), 4)
    end
  end
end
jit.off(check_known)                    -- see check.lua

-- Posts some of the blocks. Returns what the core returns.
local function post_blocks(self, spec)
  if type(spec) ~= "table" then
    error("transfer:post takes { from = numbers, to = numbers }", 3)
  end
  local from, n = numbered(self, "from", spec.from)
  local to, m = numbered(self, "to", spec.to)
  if not from or not to then
    error("transfer:post: " .. (from and m or n), 3)
  elseif n ~= m then
    error(("transfer:post: from has %d numbers and to has %d"):format(n, m), 3)
  end
  if batch.has_unknown(spec) or spec.timeout ~= nil then check_known(spec) end
  local own, remote = from, to
  if self.transfer == READ then own, remote = to, from end
  return C.perigee_post_blocks(self.handle, own, remote, n, self.timeout)
end

--- Starts the transfer once more. Its `wait`, `done` and `cancel` (as a
-- `Future`'s) apply to this post until the next one. To post it while it is
-- still under way is misuse.
--
-- A transfer of two layouts, or of lists whose slices have blocks of one
-- length, may be posted for some of the blocks: those of the given numbers
-- along the last dimension, in all outer ones. Each number of `from` is paired
-- with the number at the same place in `to`, if the outer dimensions of both
-- make as many; else pairs are made by bytes.
-- @function Prepared:post
-- @tparam[opt] table blocks
-- @tparam table blocks.from numbers of blocks, from 0
-- @tparam table blocks.to as many numbers
-- @treturn Prepared itself, as the future of true
-- @errors as of `Session:write`
-- @waits no
-- @usage
-- local transfer = assert(session:prepare_write {
--   from = region:slice(0, 8), to = remote:slice(0, 8) })
-- for _ = 1, 3 do assert(transfer:post():wait(1)) end
-- print(transfer:done())                                       --> true
-- local pages = { region:slice(0, 16, { count = 8, stride = 64 }),
--                 region:slice(4096, 16, { count = 8, stride = 64 }) }
-- local theirs = { remote:slice(0, 16, { count = 8, stride = 32 }),
--                  remote:slice(4096, 16, { count = 8, stride = 32 }) }
-- local move = assert(session:prepare_write { from = pages, to = theirs })
-- print(move:post({ from = { 7, 3 }, to = { 0, 1 } }):wait(1))  --> true
function Prepared:post(blocks)
  local session = self[OWNER]
  if not self[ENDED] then
    error("transfer:post: it is still posted; wait for it first", 2)
  end
  if not session.handle or not self.handle then
    self[ENDED] = false
    settle(self, nil, self.handle and session:gone("posting a transfer")
      or errors.new("closed", "posting a transfer: it was closed", false))
    return self
  end
  local operation
  if blocks ~= nil then
    operation = post_blocks(self, blocks)
  else
    operation = C.perigee_post(self.handle, self.timeout)
  end
  if operation == INLINE then
    self[VALUE], self[ENDED] = true, 1
    return self
  end
  if operation < 0 then return not_posted(self, operation) end
  self[ENDED] = false
  self[OPERATION] = operation
  futures.expect(session.engine, operation, self)
  return self
end

--- Frees it. A post that is under way is cancelled, and the transfer is freed
-- when the post has ended. Idempotent.
-- @function Prepared:close
-- @waits no
-- @usage
-- local transfer = assert(session:prepare_read {
--   from = remote:slice(0, 8), to = region:slice(0, 8) })
-- transfer:close()
function Prepared:close()
  local handle, session = self.handle, self.owner
  if not handle then return end
  self:cancel()
  self.handle = false
  local function free()
    if not session.handle then return true end -- freed with its session
    if not self.ended then return false end
    C.perigee_prepared_free(handle)
    return true
  end
  if not free() then session.engine:later(free) end
end

local prepared_out = ffi.typeof("struct perigee_prepared *[1]")

local function prepare(session, kind, spec, immediate)
  if type(spec) ~= "table" then batch.misuse(kind, batch.explain {}, 3) end
  local timeout = batch.timeout(spec, 3)
  if not session.handle then
    return nil, session:gone(doing(session, "preparing a transfer"))
  end
  local specs = spec
  if spec.from or spec.to then
    specs = { {} }
    for key, value in pairs(spec) do
      if key ~= "timeout" then specs[1][key] = value end
    end
  end
  local list, n, kept = batch.list(session, kind, specs, 3)
  if not list then return nil, n end
  local out = prepared_out()
  local status = C.perigee_prepare(session.handle, kind, list, n, immediate,
                                   out)
  if status < 0 then
    return nil, errors.from(status, doing(session, "preparing a transfer"),
                            session.engine.handle, false)
  end
  return setmetatable({
    1, true, false, false, session, posted,
    handle = out[0], timeout = timeout, kept = kept, transfer = kind,
    from = false, to = false,
  }, META)
end

--- Prepares a write that can be posted any number of times. It keeps its memory
-- alive until it is closed or the session ends.
-- @function Session:prepare_write
-- @tparam table spec as for `Session:write`
-- @treturn Prepared the transfer; or nil and an error
-- @errors `range`, `denied`, `stale`, `peer_lost`, `no_memory`
-- @waits no
-- @usage
-- local transfer = assert(session:prepare_write {
--   from = region:slice(0, 64), to = remote:slice(0, 64), timeout = 1 })
-- print(transfer:post():wait())                                --> true
function Session:prepare_write(spec)
  local prepared, err = prepare(self, WRITE, spec, 0)
  return prepared, err
end

--- The same for `Session:read`.
-- @function Session:prepare_read
-- @tparam table spec as for `Session:read`
-- @treturn Prepared the transfer; or nil and an error
-- @errors as of `Session:prepare_write`
-- @waits no
-- @usage
-- local transfer = assert(session:prepare_read {
--   from = remote:slice(0, 64), to = region:slice(0, 64) })
-- print(transfer:post():wait(5))                               --> true
function Session:prepare_read(spec)
  local prepared, err = prepare(self, READ, spec, 0)
  return prepared, err
end

--- The same for `Session:write_imm`.
-- @function Session:prepare_write_imm
-- @tparam table spec as for `Session:write`
-- @tparam number immediate an integer of 0 to 2^53
-- @treturn Prepared the transfer; or nil and an error
-- @errors as of `Session:prepare_write`
-- @waits no
-- @usage
-- local block = assert(engine:alloc(4096, { name = "block", access = "w" }))
-- local theirs = assert(near:region "block")
-- local transfer = assert(near:prepare_write_imm({
--   from = region:slice(0, 8), to = theirs:slice(0, 8) }, 1))
-- transfer:post()
-- print(far:recv_imm():wait(5))                                --> 1
function Session:prepare_write_imm(spec, immediate)
  if not check.is_count(immediate) then
    error("an immediate is an integer of 0 to 2^53", 2)
  end
  local prepared, err = prepare(self, WRITE_IMM, spec, immediate)
  return prepared, err
end

jit.off(prepare)

check.colons(Session, "session", "prepare_read prepare_write prepare_write_imm")
check.colons(Prepared, "transfer", "close post")

return Prepared
