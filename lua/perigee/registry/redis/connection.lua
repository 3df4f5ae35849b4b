-- SPDX-License-Identifier: Apache-2.0
--- A connection to a Redis server. Commands are pipelined: each is sent at
-- once, and replies settle their futures in the same order. It connects at the
-- first command, and after a loss at the next command.
--
--   state       event                                      becomes
--   away        a command                                  connecting
--   connecting  the server has greeted                     open
--   connecting  another server is the master now, or the   connecting, while
--               found one is none, or is not there         there is time
--   open        a reply                                    open
--   any         an error, silence, a stop of the loop      away: all pending
--                                                          commands fail
--
-- Only a target with `masters` (redis/sentinel) has masters. A connection with
-- a function `unasked` calls it with each message of a subscription, and with
-- nil when it is lost.
--
-- `number` is the present connection's number, as the server counts them.
--
-- A reply is what redis/reply makes of it.
local asks = require "perigee.registry.ask"
local control = require "perigee.net.native"
local descriptors = require "perigee.descriptor"
local errors = require "perigee.runtime.errors"
local failures = require "perigee.registry.redis.failure"
local futures = require "perigee.runtime.future"
local greetings = require "perigee.registry.redis.greeting"
local loop = require "perigee.runtime.loop"
local keys = require "perigee.registry.redis.keys"
local lost = require "perigee.net.lost"
local replies = require "perigee.registry.redis.reply"
local tasks = require "perigee.runtime.task"

local ffi = require "ffi"
local C = control.C

local M = { NIL = replies.NIL }

local PAUSE = 0.1                       -- seconds between attempts to connect

local Connection = {}
Connection.__index = Connection

--- A connection to target: { text, path, host, port, tls, ca, cert, key, user,
-- password, database, masters, is_sentinel }. patience: seconds without a reply
-- after which the server counts as lost.
function M.new(target, patience)
  local connection = setmetatable({
    target = target, patience = patience, stream = false, redis = false,
    first = 1, last = 0, pending = {}, greeted = false, unasked = false,
    wait = control.wait_t(), out = control.reply_out_t(), running = false,
    life = 0, place = nil, number = 0,
  }, Connection)
  lost.add(connection)
  return connection
end

-- ---- Ending ----------------------------------------------------------------

local function close(connection)
  local stream = connection.stream
  if not stream then return end
  local fd = C.perigee_stream_descriptor(stream)
  if fd >= 0 then descriptors.forget(fd) end
  if connection.redis then
    C.perigee_redis_close(connection.redis)
  else
    C.perigee_stream_close(stream)
  end
  connection.stream, connection.redis = false, false
end

--- Loses it; pending commands end in nil, kind and why. Its field `life`
-- changes: what the server knew of the previous connection (WATCH) is over.
function Connection:lose(kind, why)
  local masters = self.target.masters
  close(self)
  if masters then masters:release(self) end
  local pending, first, last = self.pending, self.first, self.last
  self.pending, self.first, self.last = {}, 1, 0
  self.greeted, self.running, self.life = false, false, self.life + 1
  why = ("%s: %s"):format(self.target.text, why)
  for i = first, last do futures.settle(pending[i].future, nil, kind, why) end
  if self.unasked then self.unasked(nil) end
end

--- Leaves the server for another that is the master now. Commands that it was
-- sent fail, as it may have run them.
function Connection:leave()
  if not self.greeted then return close(self) end
  self:lose("peer_lost", "another server is the master now")
end

-- ---- Waiting ---------------------------------------------------------------

-- Waits for what connection.wait asks for: a descriptor, and for so long at
-- most. True, or nil and an error. The stream may close its descriptor while it
-- connects.
local function wait(connection, seconds)
  local wanted = connection.wait
  local f = wanted.writable ~= 0 and descriptors.writable
    or descriptors.readable
  local due = wanted.milliseconds < 0 and math.huge
    or wanted.milliseconds * 1e-3
  local ready, err = f(wanted.descriptor, math.min(seconds, due),
                       connection.redis ~= false)
  if not ready and err.kind == "timeout" and due < seconds then return true end
  return ready, err
end

local function kind_of(status) return errors.kind(status) end

-- ---- Connecting ------------------------------------------------------------

local function target_of(target, place, patience)
  local to = control.to_t()
  to.path, to.host, to.port = target.path, place.host, place.port or 0
  to.milliseconds = math.min(patience * 1000, 2 ^ 31)
  to.tls = target.tls and 1 or 0
  to.authorities, to.certificate, to.key = target.ca, target.cert, target.key
  return to
end

-- The place of the server: { host, port }; or nil, a kind and why.
local function find(connection)
  local target, life = connection.target, connection.life
  if not target.masters then return target end
  local place, kind, why = target.masters:find()
  if connection.life ~= life then return nil, "closed", "it was closed" end
  connection.place = place
  if place then target.masters:guard(connection, place) end
  return place, kind, why
end

-- Connects. True; or nil, a kind and why.
local function dial(connection)
  local place, kind, why = find(connection)
  if not place then return nil, kind, why end
  local deadline = loop.deadline(connection.patience)
  local stream = C.perigee_stream_open(target_of(connection.target, place,
                                                 connection.patience))
  if stream == nil then
    return nil, "no_memory", "there is no memory, or no descriptor (ulimit -n)"
  end
  connection.stream = stream
  while true do
    local status = C.perigee_stream_step(stream, connection.wait)
    if status == 1 then break end
    if status < 0 then
      return nil, kind_of(status), ffi.string(C.perigee_stream_why(stream))
    end
    if not wait(connection, loop.left(deadline))
      or loop.now() >= deadline then
      return nil, "timeout", "it does not answer"
    end
    if connection.stream ~= stream then
      return nil, "closed", "it was closed"
    end
  end
  connection.redis = C.perigee_redis_open(stream)
  if connection.redis == nil then
    connection.redis = false
    return nil, "no_memory", "there is no memory"
  end
  return true
end

-- ---- Sending ---------------------------------------------------------------

local function put(connection, words)
  local n = #words
  local list, lengths = control.words_t(n), control.lengths_t(n)
  for i = 1, n do
    words[i] = tostring(words[i])
    list[i - 1], lengths[i - 1] = words[i], #words[i]
  end
  return C.perigee_redis_put(connection.redis, n, list, lengths)
end

local function put_all(connection, commands)
  for _, words in ipairs(commands) do
    local status = put(connection, words)
    if status < 0 then return nil, kind_of(status), errors.text(status) end
  end
  return true
end

-- ---- Replies ---------------------------------------------------------------

local function oldest(connection)
  return connection.pending[connection.first]
end

local function is_demoted(list)
  for _, reply in ipairs(list) do
    if type(reply) == "table" and reply.failure
      and failures.is_demoted(reply.failure) then
      return true
    end
  end
end

-- Adds a reply to the oldest pending commands, and settles their future when
-- they have all theirs.
local function heard(connection, value)
  local block = oldest(connection)
  if connection.unasked and type(value) == "table"
    and value[1] == "message" then
    return connection.unasked(value)
  end
  if not block then return connection:lose("protocol", "it spoke unasked") end
  block.replies[#block.replies + 1] = value
  if #block.replies < block.wanted then return end
  connection.pending[connection.first] = nil
  connection.first = connection.first + 1
  futures.settle(block.future, block.replies)
  if connection.target.masters and is_demoted(block.replies) then
    connection:leave()
  end
end

-- Reads one reply: its value; or nil, a kind and why.
local function read(connection)
  local redis, out = connection.redis, connection.out
  local life = connection.life
  while true do
    local status = C.perigee_redis_get(redis, out, connection.wait)
    if status == 1 then
      local value = replies.take(out[0])
      if connection.life == life and connection.redis == redis then
        return value
      end
      return nil, "closed", "it was closed"
    elseif status < 0 then
      return nil, kind_of(status), ffi.string(C.perigee_redis_why(redis))
    end
    -- A part of a reply is no answer. The time of each command goes on
    -- meanwhile.
    local block = oldest(connection)
    if block and loop.now() >= block.deadline then
      return nil, "timeout", "it does not answer"
    end
    local left = block and loop.left(block.deadline) or connection.patience
    local ready, err = wait(connection, left)
    if connection.redis ~= redis then return nil, "closed", "it was closed" end
    if not ready and err.kind ~= "timeout" then
      return nil, err.kind, err.message
    end
  end
end

local function flush(connection)
  local redis = connection.redis
  while connection.redis == redis do
    local status = C.perigee_redis_flush(redis, connection.wait)
    if status == 1 then return true end
    if status < 0 then
      return nil, kind_of(status), ffi.string(C.perigee_redis_why(redis))
    end
    if not wait(connection, connection.patience) then
      return nil, "timeout", "it does not take what it is sent"
    end
  end
  return nil, "closed", "it was closed"
end

local function greet(connection)
  local target = connection.target
  local list = greetings.commands(target)
  local fine, kind, why = put_all(connection, list)
  if fine then fine, kind, why = flush(connection) end
  for _, command in ipairs(list) do
    local value
    if not fine then break end
    value, kind, why = read(connection)
    if not value then return nil, kind, why end
    fine, kind, why = greetings.check(target, command, value)
    connection.number = greetings.number(value) or connection.number
  end
  return fine, kind, why
end

-- Errors after which another server may be the master.
local PASSING = { not_found = true, peer_lost = true, timeout = true,
                  closed = true }

local function attempt(connection)
  local fine, kind, why = dial(connection)
  if fine then fine, kind, why = greet(connection) end
  return fine, kind, why
end

-- Connects and greets. With Sentinels it tries again until its patience is
-- over, so that commands wait while a master is replaced. The last attempt may
-- have had little time; then the one before tells what is wrong.
local function reach(connection)
  local life, masters = connection.life, connection.target.masters
  local deadline = loop.deadline(connection.patience)
  local last, told
  repeat
    local fine, kind, why = attempt(connection)
    if fine or not masters or not PASSING[kind] or connection.life ~= life then
      return fine, kind, why
    end
    if not last or kind ~= "timeout" then last, told = kind, why end
    close(connection)
    masters:doubt(connection.place)
    loop.wait(futures.new(), loop.deadline(PAUSE))
  until loop.now() >= deadline or connection.life ~= life
  return nil, last, told
end

-- Sends the commands that came while it connected.
local function catch_up(connection)
  for i = connection.first, connection.last do
    local fine, kind, why = put_all(connection, connection.pending[i].commands)
    if not fine then return nil, kind, why end
  end
  connection.greeted = true
  return flush(connection)
end

-- Runs the connection until it is over; returns a kind and why.
local function converse(connection)
  for _, step in ipairs { reach, catch_up } do
    local fine, kind, why = step(connection)
    if not fine then return asks.unreached(kind), why end
  end
  local redis = connection.redis
  while connection.redis == redis do
    local value, kind, why = read(connection)
    if not value then return kind, why end
    heard(connection, value)
  end
end

-- A caller that lost the connection meanwhile may have sent commands that have
-- a life, and a task, of their own.
local function run(connection, life)
  if connection.life ~= life then return end
  local fine, kind, why = pcall(converse, connection)
  if connection.life ~= life then return end
  if not fine then kind, why = "protocol", errors.shown(kind) end
  connection:lose(kind, why)
end

--- Sends commands, which are lists of words. Returns the future of a list of
-- their replies; or of nil, a kind and why. longer: seconds that a blocking
-- command may take in addition.
function Connection:send(commands, longer)
  local future = futures.new(false, "asking " .. self.target.text)
  local seconds = self.patience + (longer or 0)
  self.last = self.last + 1
  self.pending[self.last] = {
    future = future, commands = commands, replies = {}, wanted = #commands,
    deadline = loop.deadline(seconds) }
  if not self.running then
    self.running = true
    tasks.spawn(run, self, self.life)
  elseif self.greeted then
    local fine, kind, why = put_all(self, commands)
    if not fine then self:lose(kind, why) return future end
    local status = C.perigee_redis_flush(self.redis, self.wait)
    if status < 0 then
      self:lose(kind_of(status), ffi.string(C.perigee_redis_why(self.redis)))
    elseif status == 0 then
      tasks.spawn(flush, self)
    end
  end
  return future
end

--- Sends commands and waits, in a task. Returns the list of replies; or nil, a
-- kind and why. Fails with the text of the first command that failed, if there
-- is one.
function Connection:ask(commands, longer)
  local future = self:send(commands, longer)
  loop.wait(future, math.huge)
  if not future.ended then return nil, "closed", "the loop was stopped" end
  local list, kind, why = futures.results(future)
  if not list then return nil, kind, why end
  for _, reply in ipairs(list) do
    if type(reply) == "table" and reply.failure then
      kind, why = failures.read(reply.failure)
      return nil, kind, ("%s: %s"):format(self.target.text, why)
    end
  end
  for i, command in ipairs(commands) do
    if command[1] == "TIME" and not keys.is_time(list[i]) then
      return nil, "protocol", self.target.text .. " answers TIME by no time"
    end
  end
  return list
end

function Connection:close()
  self:lose("closed", "it was closed")
end

return M
