-- SPDX-License-Identifier: Apache-2.0
-- The checker of caches: writers put values that say their key, when they were
-- made, and a checksum throughout; readers get them in all ways, while readers,
-- writers and the cache are killed, stopped and started at random. Each value
-- that a reader gets has to be its key's, whole, and not older than what it had
-- got for that key before from this life of the cache. Else it is a fault, a
-- line in a file, which M.run returns.
--
-- A key belongs to one life of one writer, and to one session of it with the
-- cache: a put of an earlier session may be done later than one of this
-- session, if nobody has waited for its end. So the order of a key's values is
-- that of their times, which all processes of a host share.
--
-- With several caches there are few keys, which are read so much that they are
-- hot: readers read copies of them (options `stale`, `hot`). A client without
-- these looks now and then what the value is; STALE seconds later no reader
-- gets one of before. That holds while a key has the same cache, in one life.
--
-- PLANTS are rules that a reader breaks, to see that the checker finds it: they
-- patch the source of the client's modules.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local liars = require "spec.support.liar"
local perigee = require "perigee"
local process = require "spec.support.process"

local M = {}

local KEYS, WRITERS, TASKS, ROOM = 12, 2, 3, 2 ^ 20
local NAMES, STALE, HOT_KEYS = { "cache:0", "cache:1", "cache:2" }, 0.2, 2
local SIZES = { 24, 200, 4096, 7168, 7176, 30000, 100000, 262144, 262152,
                600000, 1000000 }

-- ---- Values ----------------------------------------------------------------

local u64 = ffi.typeof "uint64_t"
local words_t = ffi.typeof "uint64_t *"
local GOLDEN, OTHER = 0x9E3779B97F4A7C15ULL, 0xD1B54A32D192ED03ULL

local function base_of(key, stamp) return key * GOLDEN + stamp * OTHER end

local function fill(pointer, length, key, stamp)
  local words, n = ffi.cast(words_t, pointer), length / 8
  local base = base_of(u64(key), u64(stamp))
  words[0], words[1], words[2] = key, stamp, length
  for i = 3, n - 1 do words[i] = base + i * GOLDEN end
end

-- Returns the value's time; or nil and what is wrong.
local function check(pointer, length, key)
  local words = ffi.cast(words_t, pointer)
  if length < 24 or length % 8 ~= 0 then
    return nil, ("%d bytes"):format(length)
  end
  local stamp = words[1]
  if words[0] ~= key or words[2] ~= length then
    return nil, ("it has %s bytes of key %s"):format(words[2], words[0])
  end
  local base, from, to = base_of(u64(key), stamp), nil, nil
  for i = 3, length / 8 - 1 do
    if words[i] ~= base + i * GOLDEN then from, to = from or i, i end
  end
  if not from then return tonumber(stamp) end
  return nil, ("from byte %d to %d of %d it is another value's: %s ... %s")
    :format(from * 8, to * 8 + 7, length, words[from], words[to])
end

local function name_of(key) return "key " .. key end

-- ---- What all processes share: files ---------------------------------------

local function path(name) return cases.folder .. "/" .. name end

local function note(name, mode, text)
  local file = assert(io.open(path(name), mode))
  file:write(text, "\n")
  file:close()
end

local function lines(name)
  local list, file = {}, io.open(path(name))
  if not file then return list end
  for line in file:lines() do list[#list + 1] = line end
  file:close()
  return list
end

local function fault(text, ...) note("faults", "a", text:format(...)) end

-- The first key of a writer's life, as it has told.
local function first_key(writer)
  return tonumber(lines("writer." .. writer)[1])
end

-- Runs f again and again in several tasks; what it raises is a fault.
local function forever(tasks, f)
  for n = 1, tasks do
    perigee.spawn(function()
      while true do
        local fine, why = xpcall(f, debug.traceback, n)
        if not fine then
          fault("raised: %s", tostring(why):gsub("\n", " "))
          perigee.sleep(0.1)
        end
      end
    end)
  end
end

-- The life of the cache that has a key.
local function life_of(blocks, key)
  local one = blocks.only or blocks.set:owner(name_of(key), 1)
  local session = one and one.session
  return session and one.name .. session.epoch
end

-- What a client's sessions are: a text.
local function sessions_of(blocks)
  local list = {}
  for name, one in pairs(blocks.set.members) do
    list[#list + 1] = name .. tostring(one.session)
  end
  table.sort(list)
  return table.concat(list, " ")
end

-- The caches of a checker, as `Agent:cache` takes them.
local function which_of(several)
  return several == "true" and NAMES or NAMES[1]
end

-- ---- A writer --------------------------------------------------------------

local function shuffled(chance, slice)
  if chance.one_in(3) then return slice:string() end
  if chance.one_in(3) and slice.length >= 48 then
    return { slice:slice(0, 24), slice:slice(24) }
  end
  return slice
end

-- Puts by parts, out of order.
local function put_in_parts(blocks, key, slice)
  local place = blocks:reserve(key, slice.length)
  if not place then return end
  local half = math.floor(slice.length / 2)
  if place:write(slice:slice(half), half) and place:write(slice:slice(0, half))
    and place:seal() then return end
  place:abort()
end

--- A writer's process. seed says what it does, and first is its first key.
function M.writer(child, who, seed, first, several)
  local chance, agent = liars.chance(tonumber(seed)), assert(cases.agent())
  local blocks = assert(agent:cache(which_of(several), { timeout = 2 }))
  local region = assert(agent.engine:alloc(TASKS * ROOM))
  local session, key = false, tonumber(first) - KEYS
  child.say("ready")
  forever(TASKS, function(n)
    local sessions = sessions_of(blocks)
    if sessions ~= session then
      session, key = sessions, key + KEYS
      note("writer." .. who, "w", key)
    end
    local slice = region:slice((n - 1) * ROOM, chance.pick(SIZES))
    local mine = key + chance.next(KEYS / TASKS) * TASKS - n
    fill(slice.pointer, slice.length, mine, process.now() * 1e6)
    if chance.one_in(6) then
      put_in_parts(blocks, name_of(mine), slice)
    else
      blocks:put(name_of(mine), shuffled(chance, slice),
                 { ttl = chance.one_in(20) and 0.3 or nil })
    end
    if chance.one_in(30) then blocks:delete(name_of(mine)) end
    perigee.sleep(several == "true" and 0.02 or chance.one_in(3) and 0.002 or 0)
  end)
  perigee.run()
end

-- ---- A reader --------------------------------------------------------------

local ways = {}

function ways.text(blocks, key) return blocks:get(key) end

function ways.slice(blocks, key, into)
  return blocks:get(key, { into = into })
end

function ways.list(blocks, key, into)
  return blocks:get(key, { into = { into:slice(0, 4096), into:slice(4096) } })
end

function ways.many(blocks, key, into)
  local got = blocks:get_many { { key = key, into = into } }[1]
  if type(got) == "number" then return into:slice(0, got) end
  return nil, got
end

function ways.view(blocks, key)
  local view, err = blocks:view(key)
  if not view then return nil, err end
  return view
end

-- What a reader has got; ns of the time of each key's newest value.
local function reader(who)
  return { who = who, seen = {}, told = {}, lives = {}, gets = 0, hits = 0,
           errors = {}, fresh = false, keys = KEYS }
end

local function stamp_of(got, key)
  return check(ffi.cast("const uint8_t *", got), #got, key)
end

-- Looks what a key's value is; nobody may get one of before, STALE later.
local function look(self, key, life)
  local told = self.told[key] or { due = 0, next = false, at = 0 }
  local same = life_of(self.fresh, key) == life
  local got = self.fresh:get(name_of(key))
  if got and same and life_of(self.fresh, key) == life and not told.next then
    told.next, told.at = stamp_of(got, key), process.now()
    self.told[key] = told
  end
end

-- The time of the oldest value that may be got now; nil: any may.
local function floor_of(self, key)
  local told, seen = self.told[key], self.seen[key]
  if not told then return seen end
  if told.next and process.now() >= told.at + STALE then
    told.due, told.next = math.max(told.due, told.next), false
  end
  return math.max(told.due, seen or 0)
end

-- What is known of a key is of one life of one cache.
local function begin_life(self, key, life)
  if self.lives[key] == life then return end
  self.lives[key], self.seen[key], self.told[key] = life, nil, nil
end

-- Checks what was got by one way; floor: of the key, before.
local function judge(self, way, key, got, floor, fresh)
  local bytes, length = got.pointer, got.length
  if type(got) == "string" then
    bytes, length = got, #got
  elseif way == "list" then
    bytes = got[1].pointer              -- the parts lie side by side
  end
  local stamp, why = check(ffi.cast("const uint8_t *", bytes), length, key)
  if way == "view" then
    local left = got:left()
    got:close()
    if left == 0 then return end        -- it was over: anything may be there
  end
  if not stamp then
    fault("%s: key %d by %s: %s", self.who, key, way, why)
  elseif fresh and floor and stamp < floor then
    fault("%s: key %d by %s: %d us older than one before", self.who, key, way,
          floor - stamp)
  elseif fresh then
    self.hits = self.hits + 1
    self.seen[key] = math.max(stamp, self.seen[key] or 0)
  end
end

local function get_once(self, blocks, chance, into)
  local writer = first_key(chance.next(WRITERS))
  if not writer then return perigee.sleep(0.01) end
  local key = writer + chance.next(self.keys) - 1
  local way = chance.pick(self.ways)
  local before = life_of(blocks, key)
  begin_life(self, key, before)
  if self.fresh and chance.one_in(8) then look(self, key, before) end
  if life_of(blocks, key) ~= before then return end
  local floor = floor_of(self, key)
  local got, err = ways[way](blocks, name_of(key), into)
  self.gets = self.gets + 1
  if got then
    judge(self, way, key, got, floor, before and self.lives[key] == before
          and life_of(blocks, key) == before)
  else
    self.errors[err.kind] = (self.errors[err.kind] or 0) + 1
    if err.kind ~= "not_found" then perigee.sleep(0.002) end
  end
end

-- Tells what a reader has done, so that it is seen to go on.
local function tell(self, blocks)
  local words = { self.gets, self.hits }
  if blocks.hot then words[3] = ("(%d of copies)"):format(blocks.hot.reads) end
  for kind, n in pairs(self.errors) do words[#words + 1] = kind .. "=" .. n end
  note("reader." .. self.who, "w", table.concat(words, " "))
end

--- A reader's process. map: "true" or "false".
function M.reader(child, who, seed, map, plant, several)
  M.plant(plant)
  local chance, agent = liars.chance(tonumber(seed)), assert(cases.agent())
  local hot = several == "true" and 3 or nil
  local blocks = assert(agent:cache(which_of(several), {
    timeout = 2, map = map == "true", near = who == "4" and 2 ^ 22 or nil,
    stale = (hot or chance.one_in(2)) and STALE or nil, hot = hot }))
  local region, self = assert(agent.engine:alloc(TASKS * ROOM)), reader(who)
  if hot then
    self.fresh = assert(agent:cache(NAMES, { timeout = 2, map = false }))
    self.keys = HOT_KEYS
  end
  self.ways = map == "true" and { "text", "slice", "list", "many", "view" }
    or { "text", "slice", "list", "many" }
  child.say("ready")
  forever(TASKS, function(n)
    get_once(self, blocks, chance, region:slice((n - 1) * ROOM, ROOM))
    if chance.one_in(10) then perigee.sleep(0) end
  end)
  forever(1, function()
    tell(self, blocks)
    perigee.sleep(0.05)
  end)
  perigee.run()
end

-- ---- Plants ----------------------------------------------------------------

--- Rules that a reader may break: a module, a line of it, and what stands there
-- instead.
M.PLANTS = {
  clock = { "perigee.cache.member",
            "if lease.till > now() then return part end",
            "do return part end" },
  known = { "perigee.cache.hot",
            "and owner.leases:is_newest(key, version) and one.till > now()",
            "", several = true },
  same = { "perigee.cache.mapped",
           "if not same(self, key, place) then return nil, AGAIN end", "" },
}

--- Plants a fault in this process's client; nil, "": none.
function M.plant(name)
  if (name or "") == "" then return end
  local module, line, instead = unpack(M.PLANTS[name])
  local file = assert(io.open(assert(package.searchpath(module, package.path))))
  local text = file:read "*a"
  file:close()
  local from, to = text:find(line, 1, true)
  assert(from, "the line of plant " .. name .. " is not there")
  package.preload[module] = assert(loadstring(
    text:sub(1, from - 1) .. instead .. text:sub(to + 1), "=" .. module))
end

-- ---- The judge -------------------------------------------------------------

local function start(role, ...)
  local child = process.start(function(child, _, _, part, ...)
    require "spec.support.cache_checker"[part](child, ...)
  end, role, ...)
  return child
end

-- Options of caches, by what is below: a file, and memory that outlives the
-- process; or, of a GPU's memory, memory of the host, or a file.
local BELOW = {
  file = { file = true, keep = 20, checksum = true },
  spill = { kind = "cuda:0", memory = 2 ^ 22, spill = 2 ^ 23 },
  gpu_file = { kind = "cuda:0", memory = 2 ^ 22, file = true },
}

--- A cache's process.
function M.cache(child, below, name)
  local caches = require "spec.support.caches"
  local options = { name = name, memory = 2 ^ 23, slab = 2 ^ 20, lease = 0.25,
                    margin = 0.05 }
  for key, value in pairs(BELOW[below] or {}) do options[key] = value end
  if options.file then
    options.file, options.file_size = path("file." .. name), 2 ^ 25
  end
  caches.open(options)
  child.say("ready")
  perigee.run()
end

-- The processes: of each what starts it again.
local function cast(chance, plant, below, several)
  local key, all = 0, {}
  local function add(kind, again)
    all[#all + 1] = { kind = kind, start = again, child = again() }
  end
  for n = 1, several and #NAMES or 1 do
    add("cache", function() return start("cache", below or false, NAMES[n]) end)
  end
  for n = 1, WRITERS do
    add("writer", function()
      key = key + 2 ^ 20
      return start("writer", n, chance.next(2 ^ 30), key, several or false)
    end)
  end
  for n, map in ipairs { true, false, true, false } do
    add("reader", function()
      return start("reader", n, chance.next(2 ^ 30), map, plant or "",
                   several or false)
    end)
  end
  return all
end

local function sleep(seconds) process.usleep(seconds) end

local function stop_for(one, seconds)
  one.child:signal "STOP"
  sleep(seconds)
  one.child:signal "CONT"
end

-- One disturbance: mostly readers are stopped, for longer than a lease.
local function disturb(chance, all)
  local one = chance.pick(all)
  if one.kind == "cache" and not chance.one_in(4) then
    stop_for(one, chance.next(200) / 1000)
  elseif one.kind ~= "cache" and not chance.one_in(8) then
    stop_for(one, one.kind == "reader" and 0.1 + chance.next(600) / 1000
             or chance.next(100) / 1000)
  else
    one.child:kill()
    sleep(chance.next(100) / 1000)
    one.child = one.start()
  end
  sleep(chance.next(60) / 1000)
end

local function gets_of(n)
  return tonumber((lines("reader." .. n)[1] or "0"):match "^%d+") or 0
end

-- All readers go on when nobody is disturbed any more.
local function go_on()
  local before, limit = {}, process.now() + 20 * cases.slow
  sleep(0.2)
  for n = 1, 4 do before[n] = gets_of(n) end
  for n = 1, 4 do
    while gets_of(n) == before[n] do
      if process.now() > limit then return false end
      sleep(0.05)
    end
  end
  return true
end

--- Runs for so many seconds, or until there is a fault. plant: of all readers.
-- below: a name of BELOW, or false. several: there are three caches. Returns a
-- list of faults, and what readers have done, as text.
function M.run(seconds, seed, plant, below, several)
  os.execute(("mkdir -p '%s'"):format(cases.folder))
  local chance = liars.chance(seed)
  local all = cast(chance, plant, below, several)
  for _, one in ipairs(all) do one.child:expect("ready", 60 * cases.slow) end
  local limit = process.now() + seconds
  while process.now() < limit and #lines "faults" == 0 do
    disturb(chance, all)
  end
  if not plant and not go_on() then fault("a reader hangs") end
  local told = {}
  for n = 1, 4 do told[n] = lines("reader." .. n)[1] or "-" end
  for _, one in ipairs(all) do one.child:close() end
  return lines "faults", table.concat(told, "; ")
end

return M
