-- SPDX-License-Identifier: Apache-2.0
-- How the ranks of a job find each other: rank 0 serves "ranks", which all of
-- them call (rank 0, too). No other server is needed.
--
--   event                                 the meeting
--   all ranks have joined                 is complete: all() returns the places
--   a rank joins that does not fit        is broken
--   the time for joining is over          is broken: who has not come
--   a rank is lost before it has left     is broken
--
-- Every call that waits, or comes, gets the reason once the meeting is broken.

local futures = require "perigee.runtime.future"
local perigee = require "perigee"

local M = {}
local Meeting = {}
Meeting.__index = Meeting

--- size: how many ranks; seconds: the time for joining; key: what all must have
-- in common, { version, options }, texts.
function M.new(size, seconds, key)
  return setmetatable({ size = size, key = key, seconds = seconds, count = 0,
                        places = {}, points = {}, left = {}, rows = {},
                        whole = futures.new() }, Meeting)
end

-- Begins when rank 0 has joined.
local function wait_for_all(self)
  perigee.spawn(function()
    self.whole:wait(self.seconds)
    if not self.whole:done() then self:break_off(self:missing()) end
  end)
end

function Meeting:missing()
  local absent = {}
  for rank = 0, self.size - 1 do
    if not self.places[rank] then absent[#absent + 1] = rank end
  end
  return ("%s %s %s not come within %g s"):format(
    #absent == 1 and "rank" or "ranks", table.concat(absent, ", "),
    #absent == 1 and "has" or "have", self.seconds)
end

--- Ends the meeting for all ranks; why: a sentence.
function Meeting:break_off(why)
  if self.broken then return end
  self.broken = why
  futures.settle(self.whole, false)
  for _, point in pairs(self.points) do futures.settle(point.future, false) end
end

-- ---- What ranks call -------------------------------------------------------
-- Each returns something true, or false and the reason.

-- The part of the key that another rank has otherwise, or nil.
local function differs(self, rank, key)
  for _, name in ipairs { "version", "options" } do
    local value = self.key[name]
    if key[name] ~= value then
      return ("rank %d has %s %s, rank 0 has %s"):format(rank, name,
        tostring(key[name]), value)
    end
  end
end

-- Breaks the meeting when the rank's session ends before it has left.
local function watch(self, rank, session)
  perigee.spawn(function()
    session:ended():wait()
    if not self.left[rank] then
      self:break_off(("rank %d was lost"):format(rank))
    end
  end)
end

-- port: where a rank that is to be dialled by an address listens, else 0.
function Meeting:join(rank, key, port, session)
  local why = differs(self, rank, key)
    or self.places[rank] and ("two processes say that they are rank %d")
      :format(rank)
  if why then self:break_off(why) end
  if self.broken then return false, self.broken end
  local from = session and session.from or ""
  self.places[rank] = { port = port, host = from:match "^tcp://(.*):%d+$" }
  self.count = self.count + 1
  if rank == 0 then wait_for_all(self) else watch(self, rank, session) end
  if self.count == self.size then futures.settle(self.whole, true) end
  return true
end

-- The place of each rank: a list, rank 0 first, of { host, port }.
function Meeting:all()
  self.whole:wait()
  if self.broken then return false, self.broken end
  local list = {}
  for rank = 0, self.size - 1 do list[rank + 1] = self.places[rank] end
  return list
end

-- Returns when all ranks have come to this point.
function Meeting:meet(name)
  local point = self.points[name] or { count = 0, future = futures.new() }
  self.points[name] = point
  point.count = point.count + 1
  if point.count == self.size then futures.settle(point.future, true) end
  if not self.broken then point.future:wait() end
  if self.broken then return false, self.broken end
  return true
end

-- Hands in a rank's row of that number.
function Meeting:tell(number, rank, row)
  self.rows[number] = self.rows[number] or {}
  self.rows[number][rank] = row
  return true
end

-- A rank has all that it came for.
function Meeting:leave(rank)
  self.left[rank] = true
  return true
end

-- A rank cannot go on.
function Meeting:give_up(rank, why)
  self.left[rank] = true
  self:break_off(("rank %d: %s"):format(rank, why))
  return true
end

--- The service for rank 0's agent.
function Meeting:service()
  local function method(name)
    return function(...) return self[name](self, ...) end
  end
  return { name = "ranks", version = 1, methods = {
    join = function(rank, key, port)
      return self:join(rank, key, port, perigee.context().session)
    end,
    all = method "all", meet = method "meet", tell = method "tell",
    leave = method "leave", give_up = method "give_up",
  } }
end

return M
