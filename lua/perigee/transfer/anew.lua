-- SPDX-License-Identifier: Apache-2.0
--- Prepared transfers of kept sessions. The first post after a kept session has
-- reconnected prepares the transfer again in the new session. Otherwise they
-- behave as other prepared transfers:
--
--   transfer:post()      starts it once more; returns the future of this post,
--                        which ends in `stale` if the transfer names memory of
--                        an earlier life of the peer
--   transfer:wait(t), :done(), :cancel()    apply to the last post
--   transfer:close()     frees it, and cancels a post that is under way
--
-- A post that finds the session lost waits for the peer, as a kept session's
-- other operations do.
local batch = require "perigee.transfer.batch"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"

local M = {}

local Anew = {}
Anew.__index = Anew

function Anew:__tostring()
  return ("prepared transfer (%s of %s)"):format(self.name, self.kept:text())
end

--- Makes a transfer of a kept session, prepared in session by its function of
-- that name. Nil and an error on failure. Raises misuse at level.
function M.new(kept, session, name, spec, immediate, level)
  local fine, inner, err = pcall(session[name], session, spec, immediate)
  if not fine then
    errors.pass(inner)
    check.blame(inner, level + 1)
  end
  if not inner then return nil, err end
  return setmetatable({ kept = kept, name = name, spec = batch.copy(spec),
                        immediate = immediate, inner = inner, last = inner,
                        closed = false }, Anew)
end

-- Posts it in session, prepared again if needed, with left seconds as timeout.
-- Returns the post's future, or nil and an error.
local function post_in(self, session, left, blocks)
  if self.inner.owner ~= session then
    local inner, err = session[self.name](session, self.spec, self.immediate)
    if not inner then return nil, err end
    self.inner = inner
  end
  local inner, timeout = self.inner, self.inner.timeout
  inner.timeout = check.nanoseconds(left)
  local fine, raised = pcall(inner.post, inner, blocks)
  inner.timeout = timeout
  if fine then return inner end
  errors.pass(raised)
  error(raised, 0)
end

local function no_more(self)
  return self.kept:gone() or self.closed and errors.new("closed",
    "posting a transfer: it was closed", false)
end

local function copy_list(list)
  if type(list) ~= "table" then return list end
  local own = {}
  for i = 1, #list do own[i] = list[i] end
  return own
end

-- A copy of blocks that are posted later, since the caller may change its
-- tables meanwhile.
local function copy(blocks)
  if type(blocks) ~= "table" then return blocks end
  local own = {}
  for key, value in pairs(blocks) do own[key] = value end
  own.from, own.to = copy_list(blocks.from), copy_list(blocks.to)
  return own
end
jit.off(copy)                           -- see check.lua

-- A function apart from post, since LuaJIT does not compile code that makes a
-- closure.
local function post_later(self, blocks)
  blocks = copy(blocks)
  return self.kept:later("a prepared transfer", self.spec.timeout or 30,
    function(session, left) return post_in(self, session, left, blocks) end,
    check.line(3))
end

function Anew:post(blocks)
  if not self.last.ended then
    error("transfer:post: it is still posted; wait for it first", 2)
  end
  local inner, over = self.inner, no_more(self)
  if over then
    self.last = futures.done(nil, over)
    return self.last
  elseif inner.owner.handle then
    self.last = inner:post(blocks)
    if not futures.lost(self.last) then return self.last end
  end
  self.last = post_later(self, blocks)
  return self.last
end

function Anew:wait(seconds) return self.last:wait(seconds) end
function Anew:done() return self.last:done() end
function Anew:cancel() return self.last:cancel() end

--- Frees it. Idempotent.
function Anew:close()
  self.closed = true
  self.last:cancel()
  self.inner:close()
end

check.colons(Anew, "transfer", "cancel close done post wait")

return M
