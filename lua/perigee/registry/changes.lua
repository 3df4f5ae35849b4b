-- SPDX-License-Identifier: Apache-2.0
--- A numbered list of changed names, for backends that watch: it gives what has
-- changed since a revision, and a future of the next change. A revision is a
-- text that holds the list's unique id and a number. since() returns nil for a
-- revision of another list; then the caller has to get everything.
local futures = require "perigee.runtime.future"
local native = require "perigee.native"

local M = {}

local KEPT = 1024                       -- changes that since() can return
local made = 0

local Changes = {}
Changes.__index = Changes

--- Makes an empty list. what: the watched thing, for messages.
function M.new(what)
  made = made + 1
  return setmetatable({ what = what, at = 0, log = {}, waiting = {},
                        id = ("%d.%d.%d"):format(native.pid(), made,
                                                 native.clock() % 1e9) },
                      Changes)
end

--- Notes that name has changed. Waiting futures are settled only by tell().
function Changes:note(name)
  self.at = self.at + 1
  self.log[self.at] = name
  self.log[self.at - KEPT] = nil
end

--- Settles all futures that wait for a change: with the results of their
-- functions, or, if fine is false, with nil, kind and why.
function Changes:tell(fine, kind, why)
  local waiting = self.waiting
  self.waiting = {}
  for _, each in ipairs(waiting) do
    if each.future.ended then -- luacheck: ignore 542
    elseif fine then
      futures.settle(each.future, each.f(unpack(each)))
    else
      futures.settle(each.future, nil, kind, why)
    end
  end
end

--- Does any future still wait for a change?
function Changes:is_wanted()
  for _, each in ipairs(self.waiting) do
    if not each.future.ended then return true end
  end
  return false
end

--- The current revision.
function Changes:revision()
  return ("%s:%d"):format(self.id, self.at)
end

--- The names that have changed since a revision, each once; may be empty. Nil
-- if the list does not have this revision.
function Changes:since(revision)
  local id, from = revision:match "^(.*):(%d+)$"
  from = tonumber(from)
  if id ~= self.id or from > self.at or self.at - from > KEPT then
    return nil
  end
  local names, seen = {}, {}
  for at = from + 1, self.at do
    local name = self.log[at]
    if not seen[name] then names[#names + 1], seen[name] = name, true end
  end
  return names
end

--- A future of the results of f(...), which is called at the next tell(); or of
-- nil, a kind and why.
function Changes:next(f, ...)
  local future = futures.new(false, "watching " .. self.what)
  self.waiting[#self.waiting + 1] = { future = future, f = f, ... }
  return future
end

return M
