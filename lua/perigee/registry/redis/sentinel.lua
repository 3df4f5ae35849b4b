-- SPDX-License-Identifier: Apache-2.0
--- Finds the master of a name by Sentinels, and notices when another server
-- becomes the master.
--
-- Each attempt to connect asks the Sentinels, one after another; the one that
-- answered last is asked first. A task for each Sentinel listens there for
-- "+switch-master" as long as any connection to a master is open. So a master
-- that is silent, and closes nothing, is left as soon as any Sentinel tells of
-- its successor.
local connections = require "perigee.registry.redis.connection"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"

local M = {}

local NIL = connections.NIL
local PATIENCE = 1                      -- seconds for a Sentinel's answer
local CHECK = 2                         -- seconds between checks that it lives
local PAUSE = 1                         -- seconds until one is tried again

local Masters = {}
Masters.__index = Masters

local all = setmetatable({}, { __mode = "k" })

--- Makes an object that finds the master for target: { master, sentinels },
-- where each Sentinel is a target. patience: seconds that a Sentinel may take,
-- if less than 1.
function M.new(target, patience)
  local masters = setmetatable({
    name = target.master, sentinels = target.sentinels,
    patience = math.min(patience, PATIENCE), listening = {}, told = false,
    guarded = setmetatable({}, { __mode = "k" }) }, Masters)
  all[masters] = true
  return masters
end

-- Tasks are not resumed after a stop.
loop.dropped[#loop.dropped + 1] = function()
  for masters in pairs(all) do masters.listening = {} end
end

-- ---- Asking ----------------------------------------------------------------

-- The place { host, port } of two words; nil if they are none.
local function place_of(host, port)
  port = tonumber(port)
  local fine = type(host) == "string" and host ~= "" and port
    and port % 1 == 0 and port > 0 and port < 65536
  return fine and { host = host, port = port } or nil
end

local function ask(masters, sentinel)
  local connection = connections.new(sentinel, masters.patience)
  local replies, kind, why = connection:ask {
    { "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masters.name } }
  connection:close()
  if not replies then return nil, kind, why end
  local reply = replies[1]
  if reply == NIL then
    return nil, "not_found", ("%s: it knows no master %s")
      :format(sentinel.text, masters.name)
  end
  local place = type(reply) == "table" and place_of(reply[1], reply[2])
  if place then return place end
  return nil, "protocol", sentinel.text .. ": what it answers is no address"
end

-- Moves a Sentinel to place at in the order of asking.
local function move(masters, sentinel, at)
  local list = masters.sentinels
  for i, one in ipairs(list) do
    if one == sentinel then table.remove(list, i) break end
  end
  table.insert(list, at, sentinel)
end

--- The place { host, port } of the master, if one was told of and not doubted
-- since; else asks. Waits. Nil, a kind and why if no Sentinel tells one.
function Masters:find()
  if self.told then return self.told end
  local kind, why
  for _, sentinel in ipairs { unpack(self.sentinels) } do
    local place
    place, kind, why = ask(self, sentinel)
    if place then
      move(self, sentinel, 1)
      return place
    end
  end
  return nil, kind, why
end

--- Says that no master is at a place that was found (nil: none was found):
-- another Sentinel is asked first.
function Masters:doubt(place)
  if place == self.told then self.told = false end
  move(self, self.sentinels[1], #self.sentinels)
end

-- ---- Listening -------------------------------------------------------------

-- Has the connections leave that are to other places than the master's.
local function leave_others(masters, master)
  local others = {}
  for connection, place in pairs(masters.guarded) do
    if place.host ~= master.host or place.port ~= master.port then
      others[#others + 1] = connection
    end
  end
  for _, connection in ipairs(others) do connection:leave() end
end
jit.off(leave_others)

local function told(masters, message)
  local text = type(message[3]) == "string" and message[3] or ""
  local name, host, port = text:match "^(%S+) %S+ %d+ (%S+) (%d+)$"
  local place = place_of(host, port)
  if name ~= masters.name or not place then return end
  masters.told = place
  leave_others(masters, place)
end

-- Listens at a Sentinel until that is lost, or until nobody needs it.
local function listen_at(masters, sentinel)
  local ear = connections.new(sentinel, masters.patience)
  local life, lost = ear.life, futures.new()
  function ear.unasked(message)
    if message then told(masters, message) else futures.settle(lost) end
  end
  local fine = ear:ask { { "SUBSCRIBE", "+switch-master" } }
  local place = fine and ask(masters, sentinel) -- of a switch before
  if place then leave_others(masters, place) end
  while fine and ear.life == life and next(masters.guarded) do
    loop.wait(lost, loop.deadline(CHECK))
    fine = ear.life == life and ear:ask { { "PING" } }
  end
  ear:close()
end

local function listen(masters, sentinel)
  while next(masters.guarded) do
    listen_at(masters, sentinel)
    loop.wait(futures.new(), loop.deadline(PAUSE))
  end
  masters.listening[sentinel] = nil
end

--- Calls connection:leave(), if the connection is to place, as soon as another
-- server is the master. It is guarded until it is lost, also between attempts.
function Masters:guard(connection, place)
  self.guarded[connection] = place
  for _, sentinel in ipairs(self.sentinels) do
    if not self.listening[sentinel] then
      self.listening[sentinel] = true
      tasks.spawn(listen, self, sentinel)
    end
  end
end

--- Ends that.
function Masters:release(connection) self.guarded[connection] = nil end

return M
