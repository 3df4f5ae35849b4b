-- SPDX-License-Identifier: Apache-2.0
--- A cache: an agent of kind "cache" that keeps blocks of bytes by keys, for
-- clients that read them by themselves (`Agent:cache`). Made by
-- `perigee.cache`. One agent serves one scope, which is one tenant: clients of
-- another scope cannot reach its memory. Several scopes have an agent each.
--
-- * `agents`: a list of its agents
-- @classmod Cache
jit.off(true, true)             -- its loops over pairs(), see check.lua

local agents = require "perigee.agent"
local check = require "perigee.runtime.check"
local drains = require "perigee.agent.drain"
local errors = require "perigee.runtime.errors"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"
local regions = require "perigee.memory.region"
local service = require "perigee.cache.service"
local settings = require "perigee.agent.options"
local stores = require "perigee.cache.store"
local tasks = require "perigee.runtime.task"
local units = require "perigee.runtime.units"

local M = {}

local Cache = {}
Cache.__index = Cache

-- FILE: of the file, times the memory. LAST: methods by which clients end what
-- they have begun, which are served while it drains; SPARE: seconds of that in
-- which they are not.
local LAST, SPARE = { "release", "write", "seal", "abort" }, 1
local MEMORY, FILE, DRAIN, LEASE, KEEP = 2 ^ 30, 8, 10, 10, 600
local LEAST, BLOCK = 2 ^ 20, 4096
-- LONGEST: seconds that the core can count; of its ns, 0 would be the default.
-- CLIENTS: a store's, and a few more for one below it.
local LONGEST, CLIENTS, LEASES = 2 ^ 28, 65535 - 8, 2 ^ 26
local HIGH, LOW = 95, 90                -- percent
-- REGIONS: of an engine that peers may reach, at most. HELD: slabs and pieces
-- of a life, of which what keeps them has two lives (native/cache/holder).
-- PIECE: bytes of memory for which the directory takes a piece, if values have
-- 16 KiB; PIECES: of them at most.
local REGIONS, HELD, PIECE, PIECES = 4096, 2047, 2 ^ 31, 1024

-- ---- Options ---------------------------------------------------------------

local function memory(value)
  if not check.is_count(value) or value < LEAST then
    return "bytes, 1 MiB at least"
  end
end

local function slab(value)
  if memory(value) or native.power_of_two(value) ~= value
     or value > native.C.PERIGEE_CACHE_LARGEST then
    return "a power of two of bytes, from 1 MiB to 1 GiB"
  end
end

local function evict(value)
  if value ~= "lru" and value ~= "lfu" then return "\"lru\" or \"lfu\"" end
end

-- Checks integers of least to most.
local function from(least, most)
  return function(value)
    if not check.is_count(value) or value < least or value > most then
      return ("an integer of %d to %.0f"):format(least, most)
    end
  end
end

local function time(value)
  if check.seconds(value) or value < 1e-6 or value > LONGEST then
    return ("seconds, a microsecond to %d"):format(LONGEST)
  end
end

local function keep(value)
  if value ~= true and value ~= false and time(value) then
    return "true, false or " .. time(value)
  end
end

-- A list of names, or a table of bytes by name.
local function scopes(value)
  if type(value) ~= "table" or next(value) == nil then
    return "a list of scopes, or a table of bytes by scope"
  end
  for key, each in pairs(value) do
    local name = type(key) == "number" and each or key
    if check.name(name) or name == key and memory(each) then
      return "a list of scopes, or a table of bytes by scope"
    end
  end
end

local STORE = {
  memory = memory, slab = slab, hard = check.count, kind = check.string,
  lease = time, margin = time, decay = time,
  evict = evict, checksum = check.boolean, high = from(1, 100),
  low = from(1, 100),
  populate = check.boolean, share = check.boolean,
  huge = check.boolean, node = regions.node,
  file = check.string, file_size = memory, keep = keep, spill = memory,
  clients = from(1, CLIENTS), leases = from(8, LEASES),
  reservations = from(1, 2 ^ 32 - 1),
}
local OWN = { scopes = scopes }
for name, each in pairs(STORE) do OWN[name] = each end
local checked = settings.with(OWN, "perigee.cache")

-- Completes the percents between which eviction goes on.
local function complete_marks(own, level)
  own.high = own.high or math.max(HIGH, own.low or 0)
  own.low = own.low or math.min(LOW, own.high)
  if own.low > own.high then
    error(("option low of perigee.cache, %d percent, is more than option high, "
      .. "%d percent"):format(own.low, own.high), level + 1)
  end
end

local function with(options, more)
  local all = {}
  for key, value in pairs(options) do all[key] = value end
  for key, value in pairs(more) do all[key] = value end
  return all
end

-- Takes the cache's own options apart from those of its agents.
local function apart(options, level)
  local own, agent = {}, { kind = "cache" }
  for key, value in pairs(checked(options, level + 1)) do
    if OWN[key] then own[key] = value else agent[key] = value end
  end
  if own.scopes and agent.scope then
    error("perigee.cache takes scope or scopes, not both", level + 1)
  end
  complete_marks(own, level + 1)
  own.lease = own.lease or LEASE
  agent.name = agent.name or "cache:0"
  agent.engine = with({ regions = REGIONS }, agent.engine or {})
  agent.services = agent.services or {}
  return own, agent
end

-- Each scope has room for a slab, or nothing could be put.
local function check_slab(own, list, level)
  for _, each in ipairs(list) do
    if (own.slab or 0) > each.memory then
      error(("option slab of perigee.cache, %.0f bytes, is more than the %.0f "
        .. "bytes of memory that it is of"):format(own.slab, each.memory),
        level + 1)
    end
  end
  return list
end

-- Regions that memory takes as slabs of ordinary size.
local function slabs_in(bytes, length)
  return math.ceil(bytes / (length or stores.slab_of(bytes)))
end

-- Each slab is a region, and each piece of the directory: without one of them
-- for all its memory a cache would never be full.
local function check_regions(own, agent, list, level)
  local most = math.min(agent.engine.regions, own.keep and HELD or math.huge)
  for _, each in ipairs(list) do
    local part = each.memory / own.memory
    local count = slabs_in(each.memory, own.slab)
      + math.min(math.ceil(each.memory / PIECE), PIECES)
      + (own.spill and slabs_in(own.spill * part) or 0)
    if count > most then
      error(("option memory of perigee.cache, %.0f bytes, makes about %d slabs "
        .. "and pieces of the directory, and %d is the most%s: take longer "
        .. "slabs (option slab), or less memory"):format(each.memory, count,
        most, own.keep and " that option keep keeps" or ""), level + 1)
    end
  end
  return list
end

-- Memory of a GPU dies with its process; memory of the host may be below it.
local function check_kind(own, level)
  local is_host = not own.kind or own.kind == "host"
  if own.keep and not is_host then
    error(("option keep of perigee.cache is for memory of kind \"host\", and "
      .. "not of kind %q, which dies with its process"):format(own.kind),
      level + 1)
  elseif own.spill and is_host then
    error("option spill of perigee.cache is for memory of a GPU (option kind)",
          level + 1)
  elseif own.spill and own.file then
    error("perigee.cache takes spill or file, not both", level + 1)
  end
end

-- Gives equal parts of the memory that is left to those scopes that were told
-- no bytes. If all were told, that is the memory.
local function divide(own, list, told, open, level)
  own.memory = open == 0 and told or own.memory or MEMORY
  local part = math.floor((own.memory - told) / open)
  if open > 0 and part < LEAST then
    error(("option scopes of perigee.cache gives away %.0f bytes, and option "
      .. "memory is %.0f: the other scopes need %d each at least"):format(told,
      own.memory, LEAST), level + 1)
  end
  for _, each in ipairs(list) do each.memory = each.memory or part end
end

-- The memory of each scope.
local function shares(own, agent, level)
  if not own.scopes then
    own.memory = own.memory or MEMORY
    return { { scope = agent.scope, memory = own.memory } }
  end
  local list, told, open = {}, 0, 0
  for key, value in pairs(own.scopes) do
    local named = type(key) == "number"
    list[#list + 1] = { scope = named and value or key,
                        memory = not named and value }
    told, open = told + (named and 0 or value), open + (named and 1 or 0)
  end
  divide(own, list, told, open, level + 1)
  return list
end

-- ---- Its life --------------------------------------------------------------

-- A file has whole blocks.
local function blocks(bytes) return math.floor(bytes / BLOCK) * BLOCK end

local function open_one(self, own, options, share, level)
  local agent, err = agents.new(with(options, { scope = share.scope }),
                                level + 2)
  if not agent then return nil, err end
  self.agents[#self.agents + 1] = agent
  local store
  local file = own.file
  if file and own.scopes then file = file .. "." .. share.scope end
  store, err = stores.open(agent, with(own, {
    memory = share.memory, file = file,
    spill = own.spill and math.max(
      math.floor(own.spill * share.memory / own.memory), LEAST),
    file_size = blocks(own.file_size or FILE * share.memory),
    keep = own.keep == true and KEEP or own.keep,
    hold = agent.address:gsub("^unix:", ""):gsub("%.sock$", "") .. ".hold" }))
  if not store then return nil, err end
  self.stores[agent] = store
  log.note("info", agent, "%s is open, with %s of memory%s", store.text,
    units.format_size(share.memory), store.revived and store.revived > 0
      and (" and %d entries of before"):format(store.revived) or "")
  agent:serve(service.of(store))
  return true
end

--- Makes a cache, which serves whenever the loop runs.
-- @function perigee.cache
-- @tparam[opt] table options those of `perigee.agent` (name: default "cache:0";
--   kind is "cache"), and
-- @tparam[opt=2^30] number options.memory bytes of values, together
-- @tparam[opt] table options.scopes in place of `scope`: a list of scopes,
--   which have equal parts of the memory, or a table of bytes by scope, which
--   are the memory then; of one that has both, those listed have equal parts of
--   what the others leave
-- @tparam[opt] number options.slab bytes of a slab, in which values of one size
--   lie: a power of two, 1 GiB at most; default: a 64th of the memory, 256 KiB
--   at least and 256 MiB at most, or, of 128 GiB and more, a 512th. Slabs are
--   regions of the cache's engine (its option `regions`, here 4096 by default,
--   which is the most): memory of which more slabs are made is misuse, with
--   `keep` more than 2047
-- @tparam[opt=10] number options.lease seconds for which a client may read what
--   it has located, 2^28 at most, as all times here; the space of what is
--   deleted is used again a lease and a margin later at most
-- @tparam[opt] number options.margin seconds that the cache waits longer than a
--   client reads: by how much a client's clock may be slower in that time;
--   default: an eighth of the lease
-- @tparam[opt="lru"] string options.evict what goes first if the cache is full:
--   "lru", the least recently used; "lfu", the least often used of some old
--   ones
-- @tparam[opt=60] number options.decay seconds after which "lfu" forgets a use
-- @tparam[opt=95] number options.high percent of the memory at which eviction
--   begins; options.low (90): at which it ends. One of them that is given alone
--   takes the other one along where that would be on its wrong side
-- @tparam[opt] number options.hard bytes that hard pins may take, 0: there are
--   none; default: half of the memory
-- @tparam[opt=false] boolean options.populate true: a slab has all its pages
--   when it is made, so that no put waits for pages
-- @tparam[opt=false] boolean options.huge true: the same, and slabs of 2 MiB or
--   more, and the directory, are in huge pages (`Engine:alloc`). If the system
--   does not give them, the log has a warning, and memory that is made from
--   then on is in small ones; `Cache:counters` tells how much is in huge ones.
--   The gain is small. On a virtual machine with two cores a get of 16 MiB, at
--   random of 960 MiB, took 1.67 ms in place of 1.76; one of 64 KiB took 7 us
--   in place of 9 while the client had not seen all the memory, and as long
--   afterwards; one of 4 KiB, or of a few keys again and again, took as long.
--   The cache stands still for longer while a slab of 16 MiB is made: 62 to 71
--   ms there, in place of 6 to 8 with `populate`
-- @tparam[opt] number options.node the NUMA node that slabs in host memory, and
--   the directory, come from while it has memory left
-- @tparam[opt] string options.file the path of a file to which what memory
--   evicts goes, and from which it comes back when it is asked for, also after
--   a restart. Each of several scopes has one of its own, with the scope's name
--   behind a dot at the end. Values that come back take an eighth of the memory
--   besides, at most, but one may always come. While 2^18 keys are still to be
--   forgotten there, puts and deletes are refused (`no_memory`, `err.code` is
--   "forgets"). A file that fails is removed, and the cache goes on without it.
--   After a restart nothing of it is found until its directory is read:
--   milliseconds, or seconds if it has millions of values. A process that is
--   killed a few milliseconds after a put or a delete may find the key's former
--   value there the next time; if the directory was not read by then, it finds
--   the file empty
-- @tparam[opt] number options.file_size bytes of that file, which are taken at
--   once; default: eight times the memory
-- @tparam[opt] number options.spill bytes of host memory below a GPU's memory
--   (option `kind`), in place of a file: what is near its eviction is copied
--   there by the GPU, and clients read it there once it was evicted. What is
--   got there eight times within about a second is copied back, but for values
--   that come along with answers: a sixteenth of the GPU's memory at a time,
--   and clients read it below meanwhile; a put of such a key is refused as busy
--   until the copy is there. Values are gone when this memory is full, too.
--   What is evicted faster than it is copied is gone at once. Chains and groups
--   do not reach there. Several scopes have parts of it as of the memory.
--   Default: there is none
-- @tparam[opt=false] boolean|number options.keep true, or seconds (true: 600):
--   a process that does nothing else keeps the memory for as long after this
--   one has ended, and a cache of the same name goes on with it: what was
--   sealed is there, but for entries with a TTL; pins are kept, chains and
--   groups are not
-- @tparam[opt="host"] string options.kind the memory of slabs: "host", or that
--   of a GPU, as in "cuda:0", which dies with its process: `keep` is misuse
--   with it. It has no views. Each slab takes whole units of the device's
--   memory, of 2 MiB mostly. What goes to a `file`, or comes from there, is
--   copied by the engine to host memory on its way, 256 MiB at a time, and
--   nobody waits for that but who asks for it; a put of a key that is just
--   coming back is refused as busy
-- @tparam[opt=false] boolean options.share true: processes of this host map a
--   GPU's slabs, so that a get to memory of a GPU is one copy. The driver lets
--   them write there, too: only for clients that are trusted with all values.
--   false: gets from slabs of a GPU go through host memory
-- @tparam[opt=false] boolean options.checksum true: makes a checksum of each
--   value in host memory when it is sealed (about 40 us for 1 MiB), for clients
--   that check. Values in memory of a GPU have none, and are not checked
-- @tparam[opt=1024] number options.clients sessions at a time, 65527 at most:
--   others are refused (`no_memory`, `err.code` is "clients");
--   options.leases (65536, 8 at least and 2^26 at most) of all of them, and
--   options.reservations (256) of one of them
-- @treturn Cache the cache; or nil and an error
-- @errors those of `perigee.agent`; `no_memory`; of `kind` `unsupported`: no
--   such kind of memory, and `not_found`: no such device; of `node`
--   `not_found`: this process can have no memory of it; of the file
--   `no_memory` (`err.code` "no_space"), `denied` ("read_only"; "foreign": it
--   is not a cache's, or not this user's alone), `name_taken` ("in_use"),
--   `unsupported` ("io"); of `keep` `name_taken`: the process that keeps the
--   memory does not answer, or serves another cache; `peer_lost`: it has
--   stopped answering, and keeps what it has; `unsupported`: none can be
--   started
-- @waits as `perigee.agent`
-- @usage
-- local cache = assert(perigee.cache { name = "cache:7", memory = 2 ^ 24 })
-- local blocks = assert(agent:cache "cache:7")
-- assert(blocks:put("greeting", "hello"))
-- print(blocks:get "greeting", cache:counters().entries)       --> hello 1
-- cache:close()
function M.new(options, level)
  level = level or 2
  local own, agent = apart(options, level)
  check_kind(own, level)
  local self = setmetatable({ agents = {}, stores = {} }, Cache)
  local list = check_slab(own, shares(own, agent, level), level)
  for _, share in ipairs(check_regions(own, agent, list, level)) do
    local fine, err = open_one(self, own, agent, share, level)
    if not fine then
      self:close()
      return nil, err
    end
  end
  return self
end

--- Tells what it has: the sums of all scopes.
-- @function Cache:counters
-- @treturn table numbers: `entries`, `copies` (of `entries`: of hot keys that
--   other caches have), `reserved`, `held` (gone, but leased); bytes: `quota`,
--   `slabs`, `huge` (of `slabs`: in huge pages, but for those kept from another
--   process), `used` (with what sizes waste), `values`, `hard`, `directory`;
--   `leases`, `clients`; since it began: `hits` and `misses` of
--   requests (a client of this host that reads the directory makes none),
--   `sealed`, `evicted`, `expired`, `deleted`; `failed`: copies between memory
--   of a GPU and what is below it, which leave the value where it was. Of host
--   memory below a GPU's (`spill`), which all of the above but `leases`,
--   `directory` and `hits` leave out: `spilled` entries (some are above, too),
--   `spill_quota`, `spill_slabs`, `spill_used` and `spill_values` in bytes,
--   `spill_evicted`
-- @waits no
-- @usage
-- local cache = assert(perigee.cache { name = "cache:6", memory = 2 ^ 24 })
-- print(cache:counters().evicted)                              --> 0
-- cache:close()
function Cache:counters()
  local sums = {}
  for _, store in pairs(self.stores) do
    for name, value in pairs(store:counters()) do
      sums[name] = (sums[name] or 0) + value
    end
  end
  return sums
end

-- Waits while clients hold leases or reservations; returns whether they do
-- still when less than `spare` seconds are left.
local function is_held(self, deadline, spare)
  while true do
    local counters = self:counters()
    local held = (counters.leases or 0) + (counters.reserved or 0) > 0
    if not held or loop.left(deadline) <= spare then return held end
    tasks.sleep(0.01)
  end
end

--- Stops it in order. It takes no new requests; what was leased stays where
-- it is until it is given back, or the leases are over; what was reserved may
-- be sealed or aborted. Then its agents drain (`Agent:drain`).
-- @function Cache:drain
-- @tparam[opt=10] number timeout seconds
-- @treturn boolean true: nobody reads any more; else nil and an error
-- @errors `timeout`: calls are under way, or leases are not given back
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 24 })
-- print(cache:drain(5))                                        --> true
-- cache:close()
function Cache:drain(timeout)
  check.value(timeout or DRAIN, check.seconds, "cache:drain's timeout")
  local deadline = loop.deadline(timeout or DRAIN)
  local fine, err = true, nil
  for _, store in pairs(self.stores) do store:end_waits() end
  for _, agent in ipairs(self.agents) do drains.begin(agent, "cache", LAST) end
  is_held(self, deadline, math.min(SPARE, loop.left(deadline) / 2))
  for _, agent in ipairs(self.agents) do agent:drain() end   -- all at once
  for _, agent in ipairs(self.agents) do
    local drained, why = agent:drain(loop.left(deadline))
    if not drained then fine, err = nil, why end
  end
  if is_held(self, deadline, 0) and fine then
    fine, err = nil, errors.new("timeout", "draining a cache: leases are not "
      .. "given back, or what is reserved is not sealed")
  end
  if fine then return true end
  return nil, err
end

--- Ends the process that keeps its memory (option `keep`): the next cache of
-- this name begins empty, unless it has a file.
-- @function Cache:forget
-- @waits no
-- @usage
-- local cache = assert(perigee.cache { name = "cache:5", memory = 2 ^ 24,
--                                      keep = 60 })
-- cache:forget()
-- cache:close()
function Cache:forget()
  for _, store in pairs(self.stores) do
    if store.keep then store.keep:forget() end
    store.keep = false
  end
end

--- Closes its agents; what they had is gone, but for what its options `keep`
-- and `file` keep. Idempotent.
-- @function Cache:close
-- @waits as `Agent:close`
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 24 })
-- cache:close()
-- cache:close()
function Cache:close()
  for _, store in pairs(self.stores) do store:close() end
  for _, agent in ipairs(self.agents) do agent:close() end
  self.stores, self.agents = {}, {}
end

check.colons(Cache, "cache", "close counters drain forget")

return M
