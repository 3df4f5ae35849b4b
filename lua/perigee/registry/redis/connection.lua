-- SPDX-License-Identifier: Apache-2.0
--- A connection to a Redis server. Commands are pipelined: each is sent at
-- once, and replies settle their futures in the same order. It connects at the
-- first command, and after a loss at the next command.
--
--   state       event                                      becomes
--   away        a command                                  connecting
--   connecting  the server has greeted                     open
--   open        a reply                                    open
--   any         an error, silence, a stop of the loop      away: all pending
--                                                          commands fail
--
-- A reply is a text, a number, a list, M.NIL, or a table with field `failure`.
local control = require "perigee.control.native"
local descriptors = require "perigee.descriptor"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local ffi = require "ffi"
local C = control.C

local M = { NIL = {} }

local Connection = {}
Connection.__index = Connection

local all = setmetatable({}, { __mode = "k" })

--- A connection to target: { text, path, host, port, tls, ca, cert, key, user,
-- password, database }. patience: seconds without a reply after which the
-- server counts as lost.
function M.new(target, patience)
  local connection = setmetatable({
    target = target, patience = patience, stream = false, redis = false,
    first = 1, last = 0, pending = {}, greeted = false, wait = control.wait_t(),
    out = control.reply_out_t(), running = false, life = 0,
  }, Connection)
  all[connection] = true
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
  close(self)
  local pending, first, last = self.pending, self.first, self.last
  self.pending, self.first, self.last = {}, 1, 0
  self.greeted, self.running, self.life = false, false, self.life + 1
  why = ("%s: %s"):format(self.target.text, why)
  for i = first, last do futures.settle(pending[i].future, nil, kind, why) end
end

local function lose_all(why)
  local list = {}
  for connection in pairs(all) do list[#list + 1] = connection end
  for _, connection in ipairs(list) do connection:lose("closed", why) end
end
jit.off(lose_all)

-- Tasks are not resumed after a stop; without an engine nothing can be waited
-- for.
loop.dropped[#loop.dropped + 1] = function()
  lose_all "the loop was stopped"
end
loop.emptied[#loop.emptied + 1] = function()
  lose_all "the last engine was closed"
end

-- ---- Waiting ---------------------------------------------------------------

-- Waits for what connection.wait asks for: a descriptor or a time. True, or nil
-- and an error.
local function wait(connection, seconds)
  local wanted = connection.wait
  if wanted.descriptor < 0 then
    loop.wait(futures.new(), loop.deadline(wanted.milliseconds * 1e-3))
    return true
  end
  local f = wanted.writable ~= 0 and descriptors.writable
    or descriptors.readable
  return f(wanted.descriptor, seconds)
end

local function kind_of(status) return errors.kind(status) end

-- ---- Connecting ------------------------------------------------------------

local function target_of(target)
  local to = control.to_t()
  to.path, to.host, to.port = target.path, target.host, target.port or 0
  to.tls = target.tls and 1 or 0
  to.authorities, to.certificate, to.key = target.ca, target.cert, target.key
  return to
end

-- Connects. True; or nil, a kind and why.
local function dial(connection)
  local deadline = loop.deadline(connection.patience)
  local stream = C.perigee_stream_open(target_of(connection.target))
  if stream == nil then return nil, "no_memory", "there is no memory" end
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

local function greeting(target)
  local list = {}
  if target.password then
    list[1] = target.user and { "AUTH", target.user, target.password }
      or { "AUTH", target.password }
  end
  if target.database and target.database ~= 0 then
    list[#list + 1] = { "SELECT", target.database }
  end
  return list
end

local function put_all(connection, commands)
  for _, words in ipairs(commands) do
    local status = put(connection, words)
    if status < 0 then return nil, kind_of(status), errors.text(status) end
  end
  return true
end

-- ---- Replies ---------------------------------------------------------------

local length_out = control.length_t()

local function value_of(reply)
  local kind = C.perigee_reply_kind(reply)
  if kind == C.PERIGEE_REPLY_NIL then return M.NIL end
  if kind == C.PERIGEE_REPLY_INTEGER then
    return tonumber(C.perigee_reply_integer(reply))
  end
  if kind == C.PERIGEE_REPLY_LIST then
    local list = {}
    for i = 1, tonumber(C.perigee_reply_count(reply)) do
      list[i] = value_of(C.perigee_reply_at(reply, i - 1))
    end
    return list
  end
  local text = C.perigee_reply_text(reply, length_out)
  local value = ffi.string(text, length_out[0])
  return kind == C.PERIGEE_REPLY_FAILURE and { failure = value } or value
end

local function oldest(connection)
  return connection.pending[connection.first]
end

-- Adds a reply to the oldest pending commands, and settles their future when
-- they have all theirs.
local function heard(connection, value)
  local block = oldest(connection)
  if not block then return connection:lose("protocol", "it spoke unasked") end
  block.replies[#block.replies + 1] = value
  if #block.replies < block.wanted then return end
  connection.pending[connection.first] = nil
  connection.first = connection.first + 1
  futures.settle(block.future, block.replies)
end

-- Reads one reply: its value; or nil, a kind and why.
local function read(connection)
  local redis, out = connection.redis, connection.out
  while true do
    local status = C.perigee_redis_get(redis, out, connection.wait)
    if status == 1 then
      local value = value_of(out[0])
      C.perigee_reply_free(out[0])
      return value
    elseif status < 0 then
      return nil, kind_of(status), ffi.string(C.perigee_redis_why(redis))
    end
    -- A part of a reply is no answer. Who asks meanwhile has its time, too.
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
  local list = greeting(connection.target)
  local fine, kind, why = put_all(connection, list)
  if fine then fine, kind, why = flush(connection) end
  for _ = 1, #list do
    local value
    if not fine then break end
    value, kind, why = read(connection)
    if not value then return nil, kind, why end
    if type(value) == "table" and value.failure then
      return nil, "denied", value.failure
    end
  end
  return fine, kind, why
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

-- Until it is over: a kind and why.
local function converse(connection)
  for _, step in ipairs { dial, greet, catch_up } do
    local fine, kind, why = step(connection)
    if not fine then return kind, why end
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
-- kind and why. If a command failed, fails with the first such command's text.
function Connection:ask(commands, longer)
  local future = self:send(commands, longer)
  loop.wait(future, math.huge)
  if not future.ended then return nil, "closed", "the loop was stopped" end
  local replies, kind, why = futures.results(future)
  if not replies then return nil, kind, why end
  for _, reply in ipairs(replies) do
    if type(reply) == "table" and reply.failure then
      return nil, M.kind_of_failure(reply.failure),
             ("%s: %s"):format(self.target.text, reply.failure)
    end
  end
  return replies
end

local KINDS = { NOAUTH = "denied", WRONGPASS = "denied", NOPERM = "denied",
                OOM = "no_memory", LOADING = "peer_lost",
                READONLY = "peer_lost", MASTERDOWN = "peer_lost",
                BUSY = "peer_lost", MISCONF = "no_memory",
                CLUSTERDOWN = "peer_lost", EXECABORT = "protocol" }

--- The kind of error for a failure text of the server.
function M.kind_of_failure(text)
  return KINDS[text:match "^%u+" or ""] or "protocol"
end

function Connection:close()
  self:lose("closed", "it was closed")
end

return M
