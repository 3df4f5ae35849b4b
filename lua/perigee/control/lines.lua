-- SPDX-License-Identifier: Apache-2.0
--- The order in which a server answers: who asks for little, renews or writes
-- goes before who asks for lists, and who is known before strangers. So a
-- crowd that lists has nobody else wait.
--
--   1  what is of the server itself (/healthz), refused, written or renewed;
--      what is looked up by who is known
--   2  what strangers look up
--   3  lists, topologies, watches and metrics of who is known
--   4  those of strangers
--
-- A call whose answer has no room now (perigee_web_room) is parked until there
-- is, and handled again.
local M = {}

local COUNT, URGENT = 4, 2
local MOST = 256                        -- that wait for lists, or are parked

local Lines = {}
Lines.__index = Lines

-- ---- A queue ---------------------------------------------------------------

local function new_queue() return { first = 1, last = 0 } end

local function push(queue, value)
  queue.last = queue.last + 1
  queue[queue.last] = value
end

local function pop(queue)
  local value = queue[queue.first]
  if value == nil then return nil end
  queue[queue.first] = nil
  queue.first = queue.first + 1
  if queue.first > queue.last then queue.first, queue.last = 1, 0 end
  return value
end

-- ---- Lines -----------------------------------------------------------------

function M.new()
  local lines = setmetatable({ parked = new_queue(), waiting = 0 }, Lines)
  for i = 1, COUNT do lines[i] = new_queue() end
  return lines
end

--- Does a call only read?
function M.is_reading(call)
  return call.method == "GET" or call.method == "HEAD"
end

local function line_of(call)
  if call.status or not call.route.role or not M.is_reading(call) then
    return 1
  end
  if call.name then return call.trusted and 1 or 2 end
  return call.trusted and 3 or 4
end

-- Strangers leave half of the places to who is known.
function Lines:has_place(call)
  return self.waiting < (call.trusted and MOST or MOST / 2)
end

--- Adds a call; false if too many wait for what takes long.
function Lines:add(call)
  local line = line_of(call)
  if line > URGENT then
    if not self:has_place(call) then return false end
    self.waiting = self.waiting + 1
  end
  push(self[line], call)
  return true
end

--- The next call that takes little; nil if there is none.
function Lines:next_urgent() return pop(self[1]) or pop(self[2]) end

--- The next one that may take more, or was parked; nil if there is none. room:
-- bytes that an answer may have.
function Lines:next_long(room)
  local parked = self.parked[self.parked.first]
  local call = parked and parked.needs <= room and pop(self.parked)
    or pop(self[3]) or pop(self[4])
  if call then self.waiting = self.waiting - 1 end
  return call
end

--- Parks a call until an answer may have as many bytes; false if too many wait.
function Lines:park(call, needs)
  if not self:has_place(call) then return false end
  self.waiting = self.waiting + 1
  call.needs = needs
  push(self.parked, call)
  return true
end

function Lines:is_urgent()
  return self[1].last > 0 or self[2].last > 0
end

--- Is there anything that can be done now?
function Lines:has_some(room)
  local parked = self.parked[self.parked.first]
  return self:is_urgent() or self[3].last > 0 or self[4].last > 0
    or parked ~= nil and parked.needs <= room
end

return M
