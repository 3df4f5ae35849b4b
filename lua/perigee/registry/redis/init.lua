-- SPDX-License-Identifier: Apache-2.0
--- The registry in Redis: entries with a TTL, an index and a stream for each
-- scope (redis/keys). Names are taken, updated and released by transactions
-- that check the present entry: WATCH, GET, then MULTI and EXEC, which does
-- nothing if another client has changed the entry. No scripts run on the
-- server.
--
-- There is one connection for each Lua state and address, for all but blocking
-- reads (redis/feed). Its transactions run one after another, since a WATCH
-- applies to the whole connection.
local addresses = require "perigee.registry.redis.address"
local connections = require "perigee.registry.redis.connection"
local entries = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local failures = require "perigee.registry.redis.failure"
local feed = require "perigee.registry.redis.feed"
local feeds = require "perigee.registry.feed"
local futures = require "perigee.runtime.future"
local keys = require "perigee.registry.redis.keys"
local loop = require "perigee.runtime.loop"
local names_of = require "perigee.registry.redis.names"
local pages_of = require "perigee.registry.pages"
local parts = require "perigee.registry.address"
local sentinels = require "perigee.registry.redis.sentinel"
local tasks = require "perigee.runtime.task"
local writes = require "perigee.registry.redis.writes"

local M = {}

local NIL = connections.NIL
local TTL, TIMEOUT = 10, 5              -- seconds
local ATTEMPTS = 100                    -- of a transaction that others disturb
local TEXTS = 30                        -- entries of one reply
local SWEPT = 32                        -- expired names that a list removes

local Redis = {}
Redis.__index = Redis

local all = setmetatable({}, { __mode = "k" })

--- The registry at an address; or nil and what the address should be.
function M.open(address)
  local target, why = addresses.read(address)
  if not target then return nil, why end
  if target.password and target.host and not target.tls then
    parts.warn("the password for " .. target.text, { target.host }, "rediss://")
  end
  local redis = setmetatable({
    target = target, ttl = target.ttl or TTL, lock = false, feeds = feeds.set(),
    patience = target.timeout or TIMEOUT }, Redis)
  if target.sentinels then
    target.masters = sentinels.new(target, redis.patience)
  end
  redis.connection = connections.new(target, redis.patience)
  all[redis] = true
  return redis
end

-- Tasks are not resumed after a stop: releases the lock of one that was
-- dropped.
loop.dropped[#loop.dropped + 1] = function()
  for redis in pairs(all) do redis.lock = false end
end

-- ---- Transactions ----------------------------------------------------------

local function unlock(redis, lock, fine, ...)
  if redis.lock == lock then redis.lock = false end
  futures.settle(lock)
  if fine then return ... end
  errors.pass((...))
  return nil, "protocol", errors.shown((...))
end

-- Calls f(redis, ...) while no other transaction uses the connection.
local function alone(f, redis, ...)
  while redis.lock do loop.wait(redis.lock, math.huge) end
  local lock = futures.new()
  redis.lock = lock
  return unlock(redis, lock, pcall(f, redis, ...))
end

--- Calls f(redis, ...) while no other transaction uses the connection; returns
-- its results.
function Redis:alone(f, ...) return alone(f, self, ...) end

-- The transaction that sets name's entry to text, or removes it if text is nil.
local function writing(redis, scope, name, text)
  local commands = writes.commands(scope, name, text, redis:milliseconds())
  table.insert(commands, 1, { "MULTI" })
  commands[#commands + 1] = { "EXEC" }
  return commands
end

function Redis:milliseconds() return math.ceil(self.ttl * 1000) end

-- Is it the failure of a write to an index that is none (redis/names)? The name
-- is there without it.
local function is_of_index(command, failure)
  return (command[1] == "ZADD" or command[1] == "ZREM")
    and failure:find "^WRONGTYPE" ~= nil
end

-- Only in the life of the connection that has the WATCH: in another nothing
-- would say that somebody was in between. True, and whether it was done; or
-- nil, a kind and why.
local function exec(redis, commands, life)
  if redis.connection.life ~= life then return true, false end
  local replies, kind, why = redis.connection:ask(commands)
  if not replies then return nil, kind, why end
  local done = replies[#replies] ~= NIL
  for i, reply in ipairs(done and replies[#replies] or {}) do
    if type(reply) == "table" and reply.failure
      and not is_of_index(commands[i + 1], reply.failure) then
      return nil, failures.read(reply.failure)
    end
  end
  return true, done
end

Redis.exec = exec

-- Reads name's entry, calls decide(text, now, time) for the commands, and runs
-- them if no other client has changed the entry; otherwise tries again. time is
-- the reply to TIME. decide may return a second value as the result (else
-- true). It may also return nil in place of commands. Then nothing is run, and
-- its other values are the results.
local function transact(redis, scope, name, decide)
  local key = keys.name(scope, name)
  for _ = 1, ATTEMPTS do
    local life = redis.connection.life
    local replies, kind, why = redis.connection:ask {
      { "WATCH", key }, { "GET", key }, { "TIME" } }
    if not replies then return nil, kind, why end
    local text = replies[2] ~= NIL and replies[2] or nil
    local time = replies[3]
    local given = { decide(text, keys.time(time), time) }
    if not given[1] then
      redis.connection:send { { "UNWATCH" } }
      return unpack(given, 2, 5)
    end
    local fine, done
    fine, done, why = exec(redis, given[1], life)
    if not fine then return nil, done, why end
    if done then return given[2] or true end
  end
  return nil, "timeout", "others change the name " .. name .. " all the time"
end

local function who(entry)
  if not entry then return "what is no entry of Perigee's is in its place" end
  return ("process %s on %s holds it"):format(tostring(entry.pid or "?"),
                                              tostring(entry.host or "?"))
end

-- ---- Holding ---------------------------------------------------------------

local function hold(redis, entry, over)
  local scope, name = entry.scope, entry.name
  local held = { scope = scope, name = name, epoch = entry.epoch,
                 entry = entry }
  return transact(redis, scope, name, function(text, now, time)
    local other = text and keys.decode(text, scope, name, now)
    if text and not (over and other and other.epoch == over) then
      return nil, nil, "name_taken", who(other), other
    end
    held.term = keys.term(time, other)
    entry.term = held.term
    local mine, why = keys.encode(entry, now)
    if not mine then return nil, nil, "protocol", why end
    return writing(redis, scope, name, mine), held
  end)
end

--- Takes a name. over: the epoch of a holder that was found dead, or nil.
function Redis:hold(entry, over)
  return tasks.spawn(alone, hold, self, entry, over)
end

local function is_text_of(held, text)
  local other = keys.decode(text, held.scope, held.name, 0)
  return other and other.epoch == held.epoch or false
end

-- Prolongs the TTL if the name is still ours: true, or false where more has to
-- be done. It asks first, so that what arrives late shortens no other agent's
-- TTL; one that has taken the name just now gets its TTL back.
local function prolonged(redis, held)
  local key, ttl = keys.name(held.scope, held.name), redis:milliseconds()
  local replies, kind, why = redis.connection:ask { { "GET", key } }
  if not replies then return nil, kind, why end
  if not is_text_of(held, replies[1]) then return false end
  replies, kind, why = redis.connection:ask(writes.prolonging(key, ttl))
  if not replies then return nil, kind, why end
  if is_text_of(held, replies[2]) then return true end
  local back = writes.giving_back(key, replies[1], ttl)
  if back then redis.connection:send { back } end
  return false
end

local function rewrite(redis, held, entry)
  local scope, name = held.scope, held.name
  return transact(redis, scope, name, function(text, now, time)
    local other = text and keys.decode(text, scope, name, now)
    if text and not (other and other.epoch == held.epoch) then
      return nil, nil, "name_taken", who(other)
    end
    if not text then held.term = keys.term(time) end
    entry.term = held.term
    local mine, why = keys.encode(entry, now)
    if not mine then return nil, nil, "protocol", why end
    return writing(redis, scope, name, mine)
  end)
end

-- The entry before is still there if a full server refuses a new one, and is
-- kept.
local function renew(redis, held, entry)
  local fine, kind, why = rewrite(redis, held, entry or held.entry)
  if fine then held.entry = entry or held.entry end
  if kind == "no_memory" and prolonged(redis, held) then
    return true, kind, why
  end
  return fine, kind, why
end

local function keep(redis, held)
  local fine, kind, why = prolonged(redis, held)
  if fine then return true elseif fine == nil then return nil, kind, why end
  return alone(renew, redis, held)
end

--- Prolongs a name's TTL, and updates its entry if one is given: where that is
-- refused the TTL is prolonged all the same. Takes the name again if the server
-- has lost it.
function Redis:renew(held, entry)
  if not entry then return tasks.spawn(keep, self, held) end
  return tasks.spawn(alone, renew, self, held, entry)
end

local function release(redis, held)
  local scope, name = held.scope, held.name
  return transact(redis, scope, name, function(text, now)
    local other = text and keys.decode(text, scope, name, now)
    if not other or other.epoch ~= held.epoch then return nil, true end
    return writing(redis, scope, name, nil)
  end)
end

function Redis:release(held)
  return tasks.spawn(alone, release, self, held)
end

-- ---- Asking ----------------------------------------------------------------

local function lookup(redis, scope, name)
  local replies, kind, why = redis.connection:ask {
    { "GET", keys.name(scope, name) }, { "TIME" } }
  if not replies then return nil, kind, why end
  if replies[1] == NIL then return nil end
  return keys.decode(replies[1], scope, name, keys.time(replies[2]))
end

function Redis:lookup(scope, name)
  return tasks.spawn(lookup, self, scope, name)
end

-- The texts of names' entries, NIL where there is none, and the server's time;
-- or nil, a kind and why. Each reply has room for the longest entries.
local function texts_of(connection, scope, names)
  local commands, texts = { { "TIME" } }, {}
  for i, name in ipairs(names) do
    local at = math.ceil(i / TEXTS) + 1
    commands[at] = commands[at] or { "MGET" }
    table.insert(commands[at], keys.name(scope, name))
  end
  local replies, kind, why = connection:ask(commands)
  if not replies then return nil, kind, why end
  for at = 2, #commands do
    for i = 1, #commands[at] - 1 do texts[#texts + 1] = replies[at][i] end
  end
  return texts, keys.time(replies[1])
end

-- Removes names without an entry from the index.
local function sweep(redis, scope, names)
  for _, name in ipairs(names) do
    transact(redis, scope, name, function(text)
      if text then return nil, true end
      return { { "MULTI" }, { "ZREM", keys.names(scope), name }, { "EXEC" } }
    end)
  end
end

-- Calls f(name, text, now) for each name in a range, until f returns true.
-- True; or nil, a kind and why. Ends whatever the server answers: each page
-- lies behind the one before it, and pages has its bounds.
local function each(pages, redis, connection, scope, from, to, f)
  local next_page = names_of.pages(pages, connection, scope, from, to)
  local gone = {}
  repeat
    local names, last, why = next_page()
    if not names then return nil, last, why end
    local texts, now, failed = texts_of(connection, scope, names)
    if not texts then return nil, now, failed end
    for i, name in ipairs(names) do
      local text = texts[i]
      pages:name(#name + (type(text) == "string" and #text or 0))
      if text == NIL then
        if #gone < SWEPT then gone[#gone + 1] = name end
      elseif f(name, text, now) then
        return true
      end
    end
    local fine, kind, reason = pages:turn()
    if not fine then return nil, kind, reason end
  until last
  if gone[1] then tasks.spawn(alone, sweep, redis, scope, gone) end
  return true
end

-- As each(), for the names that a filter { prefix, after } lets through.
local function each_of(pages, redis, scope, filter, f)
  local prefix = filter.prefix or ""
  local from = filter.after and filter.after >= prefix and "(" .. filter.after
    or "[" .. prefix
  local to = prefix == "" and "+" or "(" .. prefix .. "\255"
  return each(pages, redis, redis.connection, scope, from, to, f)
end

--- Calls f(name, text, now) for each name that a filter { prefix, after } lets
-- through, until f returns true. Waits. True; or nil, a kind and why.
function Redis:each(scope, filter, f)
  return each_of(pages_of.new(), self, scope, filter, f)
end

local function list(pages, redis, scope, filter)
  local chosen, choose = entries.choice(filter)
  local fine, kind, why = each_of(pages, redis, scope, filter,
    function(name, text, now)
      return choose((keys.decode(text, scope, name, now)))
    end)
  if not fine then return nil, kind, why end
  return chosen
end

function Redis:list(scope, filter)
  return pages_of.spawn(list, self, scope, filter)
end

--- Reads the texts of all entries of a scope by name, on the given connection.
-- Waits. Used by feeds.
function Redis:all(scope, connection)
  local texts = {}
  local fine, kind, why = each(pages_of.new(), self, connection, scope, "-",
    "+", function(name, text) texts[name] = text end)
  if not fine then return nil, kind, why end
  return texts
end

-- ---- Watching --------------------------------------------------------------

function Redis:watch(scope, filter)
  return feeds.of(self.feeds, scope, feed.new, self, scope, self.target,
                  self.patience, self.ttl):watch(filter)
end

return M
