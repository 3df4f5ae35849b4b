-- SPDX-License-Identifier: Apache-2.0
--- A client of one cache, or of several that share the keys. Made by
-- `Agent:cache`.
--
-- A key is a string of 1 to 512 bytes; a value has 0 bytes to 1 GiB. A value is
-- seen when all of it is there, and as long as the cache has room: a key that
-- is gone is `not_found`. What a client gets is the bytes that were put under
-- that key, whole, or an error.
--
-- On the cache's host a get is a look into mapped memory and a copy, without a
-- request. Elsewhere a small value comes with the answer; for others the cache
-- grants a lease, under which the client reads by itself. A program that makes
-- gets of mapped memory alone, and never runs the loop, finds within half a
-- second, or at the 33rd get after that, that its cache is gone.
--
-- Several caches have their own parts of the keys (by rendezvous hashing), and
-- with `replicas` each key is kept by several. The keys of a cache that is lost
-- are missed until it is there again. What is put meanwhile goes to the others.
-- A cache that was not restarted, but stopped or not reached, comes back with
-- the values of before: of several caches, a client may get an older value than
-- it has put.
--
-- Errors of all functions that ask a cache: `peer_lost`, `timeout`, `closed`,
-- `denied`; of one cache by its name `not_found`, too: nobody has that name; of
-- several `not_found`: none of them can be asked now.
--
-- * `assignments`: values that belong together, by numbers (`CacheAssignments`)
-- @classmod CacheClient
local assignments = require "perigee.cache.assignments"
local check = require "perigee.runtime.check"
local hots = require "perigee.cache.hot"
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"
local new_table = require "table.new"
local peers = require "perigee.agent.peers"
local places = require "perigee.cache.place"
local sets = require "perigee.cache.set"
local slices = require "perigee.memory.slice"
local tasks = require "perigee.runtime.task"

local C = native.C

local M = {}

local Client = {}
Client.__index = Client

-- AT_ONCE: puts of put_many that are under way together. PAUSE: seconds
-- between tries while a key's cache cannot be asked. MANY: keys or events of
-- one answer.
-- LONGEST: seconds that an entry can live (native/cache/cache.h).
local LONGEST = 2 * 366 * 86400
local AT_ONCE, PAUSE, MANY, KEY = 32, 0.05, 1000, C.PERIGEE_CACHE_KEY

-- ---- Checks ----------------------------------------------------------------

local function a_key(value)
  if type(value) ~= "string" or #value < 1 or #value > KEY then
    return ("a key, a string of 1 to %d bytes"):format(KEY)
  end
end

local function check_key(key, what) check.value(key, a_key, what, 3) end

local function check_keys(keys, what)
  check.value(keys, check.table, what .. "'s keys", 3)
  for _, key in ipairs(keys) do check.value(key, a_key, what, 3) end
end

-- The place of an option `into`, which slices.check has passed.
local function place_of(self, into, what)
  local place, why = slices.place(into)
  if not place then error(("%s's into: %s"):format(what, why), 3) end
  slices.check_own(place, what, 3, self.engine)
  return place
end

local function pin(value)
  if value ~= "soft" and value ~= "hard" and value ~= false then
    return "\"soft\", \"hard\" or false"
  end
end

local function near(value)
  if not check.is_count(value) or value < 2 ^ 20 then
    return "bytes, 1 MiB at least"
  end
end

local function several(value)
  if not check.is_count(value) or value < 2 then return "caches, 2 at least" end
end

local PUT = { ttl = check.seconds, pin = pin, group = check.count,
              if_absent = check.boolean, parent = a_key,
              wait = check.seconds }
-- What an item of a list is checked for by itself, with what is said of that.
local function anything() end
local ITEM_TO_PUT = { key = anything, value = anything }
for name, each in pairs(PUT) do ITEM_TO_PUT[name] = each end
local ITEM_TO_GET = { key = anything, into = anything }
local GET = { into = slices.check, wait = check.seconds }
local NEW = { timeout = check.seconds, map = check.boolean,
              checksum = check.boolean, near = near, stale = check.seconds,
              replicas = check.count, reconnect = check.seconds,
              hot = several }

-- ---- Getting ---------------------------------------------------------------

-- Waits for a key, where a cache has it, until deadline.
local function wait_for(self, key, deadline)
  local one = self.set:owner(key, 1)
  local fine = one and self.set:reach(one)
  if fine and one:wait(key, loop.left(deadline)) ~= nil then return end
  tasks.sleep(math.min(loop.left(deadline), PAUSE))
end

local function is_missed(err) return err.kind == "not_found" end

-- Nobody tells when a key is not reserved any more.
local function pause_for(_, _, deadline, pause)
  tasks.sleep(math.min(loop.left(deadline), pause))
end

-- A result, and what is told beside it of several caches.
local function passed(result, count, err)
  if count then return result, count, err end
  return result
end

-- Calls f(self, key, ...) until it does not end in an error that `passes` is
-- true of, or the time is over; waits by `pass` in between.
local function patiently(self, key, seconds, passes, pass, f, ...)
  local deadline = seconds and loop.deadline(seconds)
  local pause = 0.001
  while true do
    local result, err, why = f(self, key, ...)
    if result then return passed(result, err, why) end
    if not deadline or not passes(err) or loop.left(deadline) == 0 then
      return nil, err
    end
    pass(self, key, deadline, pause)
    pause = math.min(2 * pause, PAUSE)
  end
end

local function get(self, key, into)
  local only = self.only
  if only then return only:get(key, into) end
  local hot = self.hot
  if hot then return hot:get(key, into) end
  return self.set:first(key, "get", into)
end

--- Gets a value.
-- @function CacheClient:get
-- @tparam string key
-- @tparam[opt] table options
-- @tparam[opt] Slice options.into where the value goes: a slice of own memory,
--   or a list of slices, of any kind of memory. Its bytes are undefined if this
--   fails
-- @tparam[opt] number options.wait seconds that this waits until somebody has
--   put the key
-- @treturn string|Slice the value; with `into`, its filled part; or nil and an
--   error
-- @errors `not_found`: the key is not there; `too_large`: longer than `into`;
--   `stale`: each time that the bytes were there, the lease was over; or each
--   time that they had come from the cache's file, memory evicted them again
-- @waits yes, unless the cache's directory is mapped
-- @usage
-- local cache = assert(perigee.cache { name = "cache:8", memory = 2 ^ 24 })
-- local blocks = assert(agent:cache "cache:8")
-- assert(blocks:put("layer.0", region:slice(0, 4096)))
-- local part = assert(blocks:get("layer.0", { into = region:slice(8192) }))
-- print(part.length)                                           --> 4096
-- print(select(2, blocks:get "layer.1").kind)                  --> not_found
-- cache:close()
function Client:get(key, options)
  check_key(key, "cache:get's key")
  if options == nil then return get(self, key) end
  options = check.few(options, GET, "cache:get")
  local into = options.into and place_of(self, options.into, "cache:get")
  if not options.wait then return get(self, key, into) end
  return patiently(self, key, options.wait, is_missed, wait_for, get, into)
end

-- The items of a list at some indexes; and results put back to these.
local function picked(list, of)
  local own = {}
  for n, i in ipairs(of) do own[n] = list[i] end
  return own
end

local function spread(own, of, results)
  for n, i in ipairs(of) do results[i] = own[n] end
end

-- Gets items of several caches.
local function get_of_several(self, items)
  local keys, results = {}, {}
  for i, item in ipairs(items) do keys[i] = item.key end
  local set = self.set
  for one, of in pairs(set:split(keys, set:choice(), 1)) do
    local own = one:get_many(picked(items, of))
    for n = 1, #of do
      if type(own[n]) ~= "number" then set:leave(one, own[n]) end
    end
    spread(own, of, results)
  end
  for i, item in ipairs(items) do
    if type(results[i]) ~= "number" then
      local part, err = get(self, item.key, item.into) -- maybe another has it
      results[i] = part and part.length or err
    end
  end
  return results
end
jit.off(get_of_several)

--- Gets many values, by few requests and one transfer from each cache.
-- @function CacheClient:get_many
-- @tparam table list of { key = a key, into = a slice or a list of slices }
-- @treturn table for each: its length, or an error; or nil and an error
-- @errors of each item those of `CacheClient:get`
-- @waits yes
-- @usage
-- assert(blocks:put("many.1", "one"))
-- local lengths = blocks:get_many {
--   { key = "many.1", into = region:slice(0, 8) },
--   { key = "many.none", into = region:slice(8, 8) } }
-- print(lengths[1], lengths[2].kind)                           --> 3 not_found
function Client:get_many(list)
  check.value(list, check.table, "cache:get_many's list", 2)
  local items = new_table(#list, 0)
  for i, each in ipairs(list) do
    check.value(each, check.table, "cache:get_many's items", 2)
    check.few(each, ITEM_TO_GET, "an item of cache:get_many", 2)
    check_key(each.key, "cache:get_many's key")
    check.value(each.into, slices.check, "cache:get_many's into", 2)
    items[i] = { key = each.key,
                 into = place_of(self, each.into, "cache:get_many") }
  end
  if self.only then return self.only:get_many(items) end
  return get_of_several(self, items)
end

-- Looks for the keys that have not been found at number n of those that have
-- each.
local function look_for(self, keys, live, n, found)
  for one, of in pairs(self.set:split(keys, live, n, found)) do
    local there, err = one:has(picked(keys, of))
    if there then
      spread(there, of, found)
    else
      self.set:leave(one, err)
    end
  end
end
jit.off(look_for)

--- Tells which keys are there, at one of the caches that have each.
-- @function CacheClient:has
-- @tparam {string,...} keys
-- @treturn {boolean,...} for each; or nil and an error, of one cache
-- @errors of one cache those of all functions that ask it
-- @waits yes, unless the cache's directory is mapped
-- @usage
-- assert(blocks:put("has.1", "one"))
-- local there = assert(blocks:has { "has.1", "has.2" })
-- print(there[1], there[2])                                    --> true false
function Client:has(keys)
  check_keys(keys, "cache:has")
  if self.only then return self.only:has(keys) end
  local gone = self.set:gone "looking for keys"
  if gone then return nil, gone end
  local results, live = {}, self.set:choice()
  for i = 1, #keys do results[i] = false end
  for n = 1, math.min(self.set.replicas, #live) do
    look_for(self, keys, live, n, results)
  end
  return results
end

--- Tells how much of a chain is there: hashes of a text's blocks, for example,
-- each of all before it.
-- @function CacheClient:match
-- @tparam {string,...} keys
-- @treturn number how many are there, up to the first that is not; or nil and
--   an error
-- @errors of one cache those of all functions that ask it
-- @waits yes
-- @usage
-- assert(blocks:put("match.1", "one"))
-- print(blocks:match { "match.1", "match.2", "match.3" })      --> 1
function Client:match(keys)
  check_keys(keys, "cache:match")
  if self.only then return self.only:match(keys) end
  local there, err = self:has(keys)
  if not there then return nil, err end
  for i = 1, #keys do
    if not there[i] then return i - 1 end
  end
  return #keys
end

-- ---- Putting ---------------------------------------------------------------

-- A ttl of 0 is the shortest: the cache takes 0 for none.
local function asked_of(options)
  local ttl = options.ttl
  return { ttl = ttl and math.max(math.floor(math.min(ttl, LONGEST) * 1e9), 1)
                 or 0,
           group = options.group, pin = options.pin or nil,
           if_absent = options.if_absent, parent = options.parent }
end

local function is_busy(err) return err.code == "busy" end

local function put(self, key, value, asked)
  local only, version, err, why = self.only
  if only then
    version, err = only:put(key, value, asked)
  else
    version, err, why = self.set:all(key, "put", value, asked)
  end
  if not version then return nil, err end
  return passed(true, err, why)
end

--- Puts a value. The cache fetches it: the memory is the caller's again when
-- this returns. Nobody sees the entry before all of it is there. What the key
-- had before is replaced.
-- @function CacheClient:put
-- @tparam string key
-- @tparam string|Slice value bytes: a string, a slice of own memory, or a list
--   of slices
-- @tparam[opt] table options
-- @tparam[opt] number options.ttl seconds that it lives, and up to 0.14 s more,
--   also of 0: the cache counts in such steps; default: until it has to go
-- @tparam[opt] string options.pin "soft": it is evicted after all that are not
--   pinned; "hard": never
-- @tparam[opt] number options.group entries of a group (1 to 2^53) are evicted
--   together, 1024 at most
-- @tparam[opt] string options.parent the key before it in a chain, which is not
--   evicted while this one is there
-- @tparam[opt=false] boolean options.if_absent true: not if the key is there
-- @tparam[opt] number options.wait seconds that this waits while another writer
--   has the key reserved
-- @treturn boolean true; or nil and an error, if no cache has taken it
-- @treturn number with `replicas`, how many caches have taken it: the others
--   may have an older value
-- @treturn Error of one that has not, if there is one
-- @errors `exists`: the key is there, or (`err.code` is "busy") another writer
--   is putting it; `no_memory`: the cache is full of what may not go, or has
--   too many clients (`err.code` is "clients"), or its file has too much to
--   forget ("forgets"); `not_found`: the parent is not there; `too_large`
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 24 })
-- local blocks = assert(agent:cache "cache:9")
-- print(blocks:put("k", "v", { ttl = 60 }))                    --> true
-- print(select(2, blocks:put("k", "w", { if_absent = true })).kind) --> exists
-- cache:close()
function Client:put(key, value, options)
  check_key(key, "cache:put's key")
  value = places.value(value, "cache:put", 2, self.engine)
  if options == nil then return put(self, key, value) end
  options = check.few(options, PUT, "cache:put")
  return patiently(self, key, options.wait, is_busy, pause_for, put, value,
                   asked_of(options))
end

-- The options of an item of put_many.
local function options_of(item)
  local options = {}
  for name in pairs(PUT) do options[name] = item[name] end
  return options
end
jit.off(options_of)

--- Puts many values, several at a time.
-- @function CacheClient:put_many
-- @tparam table list of { key =, value = }, which may have the options of
--   `CacheClient:put`, too
-- @treturn table for each: true, if a cache has taken it, or an error
-- @errors of each item those of `CacheClient:put`
-- @waits yes
-- @usage
-- local results = blocks:put_many { { key = "a.1", value = "one" },
--   { key = "a.2", value = "two", ttl = 60 } }
-- print(results[1], results[2], blocks:get "a.2") --> true true two
function Client:put_many(list)
  check.value(list, check.table, "cache:put_many's list", 2)
  local items, results, next_one, workers = {}, {}, 0, {}
  for i, each in ipairs(list) do
    check.value(each, check.table, "cache:put_many's items", 2)
    check.options(each, ITEM_TO_PUT, "an item of cache:put_many", 2)
    check_key(each.key, "cache:put_many's key")
    items[i] = { key = each.key, options = options_of(each),
                 value = places.value(each.value, "cache:put_many", 2,
                                      self.engine) }
  end
  for n = 1, math.min(AT_ONCE, #items) do
    workers[n] = tasks.spawn(function()
      while next_one < #items do
        next_one = next_one + 1
        local i, item = next_one, items[next_one]
        local fine, err = self:put(item.key, item.value, item.options)
        results[i] = fine or err
      end
    end)
  end
  for _, each in ipairs(workers) do each:wait() end
  return results
end
jit.off(Client.put_many)

-- ---- Places, views ---------------------------------------------------------

local function reserve(self, key, length, asked)
  return self.set:first(key, "reserve", length, asked)
end

--- Reserves a place for a value that is written piece by piece. Of several
-- caches one keeps it, whatever `replicas` is.
-- @function CacheClient:reserve
-- @tparam string key
-- @tparam number length of the value
-- @tparam[opt] table options as of `CacheClient:put`
-- @treturn Place the place; or nil and an error
-- @errors as of `CacheClient:put`
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 24 })
-- local blocks = assert(agent:cache "cache:9")
-- local place = assert(blocks:reserve("k", 8))
-- assert(place:write("half", 0))
-- assert(place:write("half", 4))
-- print(place:seal(), blocks:get "k")                      --> true halfhalf
-- cache:close()
function Client:reserve(key, length, options)
  check_key(key, "cache:reserve's key")
  check.value(length, check.count, "cache:reserve's length", 2)
  options = check.options(options, PUT, "cache:reserve")
  return patiently(self, key, options.wait, is_busy, pause_for, reserve, length,
                   asked_of(options))
end

--- Leases a value where it lies, on the cache's host: no byte is moved.
-- @function CacheClient:view
-- @tparam string key
-- @treturn CacheView the view; or nil and an error
-- @errors `not_found`; `unsupported`: the cache is not of this host, or keeps
--   values in memory that the CPU cannot touch; `no_memory`: too many leases;
--   `stale` as of `CacheClient:get`
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 24 })
-- local blocks = assert(agent:cache "cache:9")
-- assert(blocks:put("k", "value"))
-- local view, why = blocks:view "k"
-- print(view and view:string() or why.kind == "unsupported" and "value")
-- --> value
-- if view then view:close() end
-- cache:close()
function Client:view(key)
  check_key(key, "cache:view's key")
  return self.set:first(key, "view")
end

-- ---- Entries ---------------------------------------------------------------

--- Deletes an entry. Who has leased it may read it still.
-- @function CacheClient:delete
-- @tparam string key
-- @treturn boolean true; or nil and an error
-- @errors `not_found`
-- @waits yes
-- @usage
-- assert(blocks:put("delete.1", "one"))
-- print(blocks:delete "delete.1")                              --> true
-- print(select(2, blocks:delete "delete.1").kind)              --> not_found
function Client:delete(key)
  check_key(key, "cache:delete's key")
  return self.set:all(key, "change", C.PERIGEE_CACHE_DELETE, 0, "deleting")
end

--- Counts as a use of an entry, so that it is evicted later.
-- @function CacheClient:touch
-- @tparam string key
-- @treturn boolean true; or nil and an error
-- @errors `not_found`; `stale` as of `CacheClient:get`
-- @waits yes
-- @usage
-- assert(blocks:put("touch.1", "one"))
-- print(blocks:touch "touch.1")                                --> true
function Client:touch(key)
  check_key(key, "cache:touch's key")
  return self.set:all(key, "change", C.PERIGEE_CACHE_TOUCH, 0, "touching")
end

local PINS = { soft = C.PERIGEE_CACHE_SOFT, hard = C.PERIGEE_CACHE_HARD,
               [false] = C.PERIGEE_CACHE_UNPINNED }

--- Pins an entry, or lets it go.
-- @function CacheClient:pin
-- @tparam string key
-- @tparam[opt="soft"] string|boolean how "soft": it is evicted after all that
--   are not pinned; "hard": never; false: it is not pinned any more
-- @treturn boolean true; or nil and an error
-- @errors `not_found`; `no_memory`: hard pins have all that they may have;
--   `stale` as of `CacheClient:get`
-- @waits yes
-- @usage
-- assert(blocks:put("pin.1", "one"))
-- print(blocks:pin("pin.1", "hard"), blocks:pin("pin.1", false)) --> true true
function Client:pin(key, how)
  check_key(key, "cache:pin's key")
  if how == nil then how = "soft" end
  check.value(how, pin, "cache:pin's pin", 2)
  return self.set:all(key, "change", C.PERIGEE_CACHE_PIN, PINS[how], "pinning")
end

--- Tells of an entry.
-- @function CacheClient:stat
-- @tparam string key
-- @treturn table `length`; `version`, a number that is larger than that of all
--   entries which its cache sealed before, also before a restart if the host's
--   clock did not go back; `cache`, the name of that cache;
--   `where` it lies there: "gpu", "memory" (of the host) or "file", the first
--   of these that has it; or nil and an error
-- @errors `not_found`
-- @waits yes
-- @usage
-- assert(blocks:put("stat.1", "one"))
-- local entry = assert(blocks:stat "stat.1")
-- print(entry.length, entry.cache, entry.where)         --> 3 cache:0 memory
function Client:stat(key)
  check_key(key, "cache:stat's key")
  return self.set:first(key, "stat")
end

--- Tells the counters of the caches: `Cache:counters`, of this scope.
-- @function CacheClient:stats
-- @treturn table by the caches' names; or nil and an error
-- @errors those of all functions that ask a cache
-- @waits yes
-- @usage
-- assert(blocks:put("stats.1", "one"))
-- print(blocks:stats()["cache:0"].entries > 0)                 --> true
function Client:stats()
  local all = {}
  local fine, err = self.set:each(function(one)
    local counters, why = one:counters()
    all[one.name] = counters
    return counters, why
  end)
  if fine then return all end
  return nil, err
end

local LIST = { prefix = check.string, limit = check.count }

--- Lists keys, in no order: those in memory, and those that are only below it,
-- in a file, or in memory of the host below a GPU's. A key that was there
-- throughout is listed; but one that was only below, and is put again
-- meanwhile, may be left out.
-- @function CacheClient:list
-- @tparam[opt] table options
-- @tparam[opt=""] string options.prefix only keys that begin with it
-- @tparam[opt] number options.limit keys at most
-- @treturn {string,...} the keys, each once; or nil and an error
-- @treturn table where each lies, by keys, as `CacheClient:stat` tells
-- @errors those of all functions that ask a cache
-- @waits yes
-- @usage
-- assert(blocks:put("list.1", "one"))
-- print(table.concat(blocks:list { prefix = "list." }, " "))   --> list.1
function Client:list(options)
  options = check.options(options, LIST, "cache:list")
  local prefix, limit = options.prefix or "", options.limit or math.huge
  if #prefix > KEY then
    error(("cache:list's prefix has at most %d bytes"):format(KEY), 2)
  end
  local list, known = {}, {}
  local fine, err = self.set:each(function(one)
    return one:list(prefix, MANY, function(key, where)
      if not known[key] and #list < limit then
        known[key] = where
        list[#list + 1] = key
      end
      return #list < limit
    end)
  end)
  if fine then return list, known end
  return nil, err
end

-- Where events of a cache are wanted from: a number, or { number, epoch }.
local function number_of(from, one)
  if type(from) == "table" then from = from[one.name] end
  local number = type(from) == "table" and from.number or from
  return check.is_count(number) and from or 0
end

-- Where events are wanted from, by caches: one that is not asked now is asked
-- from there later.
local function positions(from, members)
  local list = {}
  for name, at in pairs(type(from) == "table" and from or {}) do
    list[name] = at
  end
  for name in pairs(check.is_count(from) and members or {}) do
    list[name] = from
  end
  return list
end
jit.off(positions)

local function from_of(value)
  if not check.is_count(value) and type(value) ~= "table" then
    return "what `next` was of the last events"
  end
end

local EVENTS = { from = from_of, limit = check.count }

--- Tells what has happened to entries, in the order in which it did in each
-- cache: for routers, which know thereby who has what.
-- @function CacheClient:events
-- @tparam[opt] table options
-- @tparam[opt] table options.from the `next` of the events before; default: the
--   oldest events that are kept
-- @tparam[opt=1000] number options.limit events of a cache at most
-- @treturn table a list of events, each with `kind` ("sealed", "evicted",
--   "deleted", "expired", "replaced"), `key`, `length`, `version`, `number` and
--   `cache`; `next`, to go on from; `lost`, true if some before these are not
--   kept any more; or nil and an error
-- @errors those of all functions that ask a cache
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 24 })
-- local blocks = assert(agent:cache "cache:9")
-- local before = assert(blocks:events())
-- assert(blocks:put("k", "value"))
-- local after = assert(blocks:events { from = before.next })
-- print(#after, after[1].kind, after[1].key)                   --> 1 sealed k
-- cache:close()
function Client:events(options)
  options = check.options(options, EVENTS, "cache:events")
  local all = { next = positions(options.from, self.set.members),
                lost = false }
  local fine, err = self.set:each(function(one)
    local list, why = one:events(number_of(options.from, one),
                                 math.min(options.limit or MANY, 65535))
    if not list then return nil, why end
    for _, event in ipairs(list) do
      event.cache = one.name
      all[#all + 1] = event
    end
    all.next[one.name], all.lost = list.next, all.lost or list.lost
    return true
  end)
  if fine then return all end
  return nil, err
end

--- Ends the use of the caches: what was leased is given back. Idempotent. The
-- agent's sessions stay.
-- @function CacheClient:close
-- @waits no
-- @usage
-- local other = assert(agent:cache "cache:0")
-- assert(other:put("close.1", "one"))
-- other:close()
function Client:close()
  self.set:close()
  self.only = false
end

function Client:__tostring()
  return ("client of %s"):format(self.text)
end

-- ---- Making ----------------------------------------------------------------

local FILTER = { kind = check.string, prefix = check.string,
                 service = check.string }

local function check_name(name)
  check.value(name, peers.check, "a cache's name", 5)
end

local function which_of(which)
  if type(which) == "string" then
    check_name(which)
    return which
  elseif type(which) ~= "table" then
    error("agent:cache takes a cache's name, a list of names, or a filter as "
      .. "{ kind = \"cache\" }", 4)
  end
  if which[1] == nil then check.options(which, FILTER, "agent:cache", 4) end
  for _, name in ipairs(which) do check_name(name) end
  return table.concat(which, ", ")
end

--- Makes a client of caches, which `perigee.cache` or `perigee cache` serve.
-- @function Agent:cache
-- @tparam string|table which the name of a cache; a list of names; or a filter
--   as of `Agent:watch` ({ kind = "cache" }): all that the registry lists, as
--   they come and go
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds of each request
-- @tparam[opt=1] number options.replicas how many caches have each key: `put`,
--   `delete`, `touch` and `pin` are done if one has done it, and tell behind
--   true how many have, and an error of one that has not
-- @tparam[opt=true] boolean options.map false: asks the cache even on its host
-- @tparam[opt=false] boolean options.checksum true: compares what it gets with
--   the checksum that the cache has made, if it makes some (`perigee.cache`:
--   of values in memory of a GPU it does not); what differs is `protocol`
-- @tparam[opt=0] number options.stale seconds by which a value that it gets may
--   be older than what others have put. With some, the places of values that
--   are got again and again are kept for as long, at most for as long as a
--   lease: then a get takes a transfer, but no request. Not those of values of
--   up to 7 KiB, which come with the answer to a request
-- @tparam[opt] number options.hot how many of several caches a key may be read
--   from, its own included, that this client gets 64 times in a second or two.
--   It wants `stale`: what comes from another cache is the value that the key's
--   own had no longer ago than that, and never older than what this client has
--   put or heard of. The client puts copies there, which whoever asks for such
--   a key shares. They live for 10 s, or 2 * `stale` if that is longer, and go
--   before all else if their cache is full; `Cache:counters` tells how many
--   there are, and nothing else tells of them. There are none of keys of more
--   than 474 bytes, nor for clients that have mapped the key's cache, and
--   `get_many` does not look for them. Who may put in this scope could put
--   wrong copies, too: with `checksum` they are compared with what the key's
--   own cache says
-- @tparam[opt] number options.near bytes of own memory for copies of what is
--   got again and again, is longer than 7 KiB, and comes from a cache that is
--   not mapped; for each cache. A get takes a request then, but no transfer;
--   within `stale` neither. `get_many` does not look for copies
-- @tparam[opt] number options.reconnect seconds that a request waits for a
--   cache that is away; default 3 for one cache, 0 for several
-- @treturn CacheClient the client; or nil and an error. A cache that is not
--   there is not found out here
-- @errors with a filter those of `Agent:list`
-- @waits with a filter
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 24 })
-- local blocks = assert(agent:cache "cache:9")
-- assert(blocks:put("k", "value"))
-- print(blocks:get "k")                                        --> value
-- cache:close()
function M.new(agent, which, options)
  local text = which_of(which)
  options = check.options(options, NEW, "agent:cache", 3)
  if options.replicas == 0 then error("replicas are at least 1", 3) end
  if options.hot and (options.stale or 0) == 0 then
    error("option hot wants stale: a copy is not as new as its value", 3)
  end
  local set, only = sets.new(agent, which, options)
  if not set then return nil, only end
  local self = setmetatable({
    set = set, only = only, text = text, engine = agent.engine,
    hot = not only and options.hot and hots.new(set, options) or false,
  }, Client)
  self.assignments = assignments.new(self, agent)
  return self
end

check.colons(Client, "cache", "close delete events get get_many has list match "
  .. "pin put put_many reserve stat stats touch view")

return M
