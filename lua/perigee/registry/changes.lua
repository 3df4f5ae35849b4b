-- SPDX-License-Identifier: Apache-2.0
--- Numbered changes of names, for backends that watch: what has changed since a
-- revision, and a future of the next change. A revision is a number with a text
-- that no other list of changes has: who comes with another's is told all.
local futures = require "perigee.future"
local native = require "perigee.native"

local M = {}

local KEPT = 1024                       -- changes that can be told again
local made = 0

local Changes = {}
Changes.__index = Changes

--- A list without any; what is watched, as text.
function M.new(what)
  made = made + 1
  return setmetatable({ what = what, at = 0, log = {}, waiting = {},
                        id = ("%d.%d.%d"):format(native.pid(), made,
                                                 native.clock() % 1e9) },
                      Changes)
end

--- Notes that there is something new of name. Those who wait are not told yet.
function Changes:note(name)
  self.at = self.at + 1
  self.log[self.at] = name
  self.log[self.at - KEPT] = nil
end

--- Ends what waits for a change: with what it asked for, or, where not fine,
-- with nil, a kind and why.
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

--- Does anybody wait for a change?
function Changes:is_wanted()
  for _, each in ipairs(self.waiting) do
    if not each.future.ended then return true end
  end
  return false
end

--- The revision that is now.
function Changes:revision()
  return ("%s:%d"):format(self.id, self.at)
end

--- The names that have something new since a revision, perhaps none, each once;
-- nil if that cannot be told.
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

--- A future of f(...), called when there is something new; or of nil, a kind
-- and why.
function Changes:next(f, ...)
  local future = futures.new(false, "watching " .. self.what)
  self.waiting[#self.waiting + 1] = { future = future, f = f, ... }
  return future
end

return M
