-- SPDX-License-Identifier: Apache-2.0
-- Modes of bench/cache.lua that read: one value, many, a view, look-ups.
local calls = require "bench.lib.calls"
local ffi = require "ffi"
local floor = require "bench.lib.floor"
local loops = require "bench.lib.cache.loops"
local native = require "perigee.native"
local payload = require "bench.lib.payload"
local rounds = require "bench.lib.rounds"
local ways = require "bench.lib.cache.ways"

local wire = require "perigee.cache.wire"

local wrong = payload.wrong

local M = {}

-- Bytes of the view that others are compared with.
local LEAST = 64
-- get_many: values, their bytes, and how far apart the pages are.
local MANY, PAGE, STRIDE = 61, 2 ^ 16, 2 ^ 17
-- match: keys of a chain, how many of them are there, and bytes of a key.
local CHAIN, THERE, HASH = 1000, 200, 32
-- prefix: values, their bytes, and the pages of one.
local CHUNKS, CHUNK, PIECES = 16, 2 ^ 22, 64
-- has: keys, their bytes, look-ups in one sample, and bytes of a line.
local ENTRIES, LONG_KEY, LOOKS, LINE = 200000, 64, 64, 64

local function floor_of(run, name, step)
  if run.given.no_floor then return nil end
  return function(seconds)
    return { [name] = rounds.round(step, seconds).histogram }
  end
end

local function measure(run, row, step, ...)
  row.window = 1
  return rounds.measure(row, run.given, step, ...)
end

-- Checks value number `which` in a slice's memory: one byte of each page, and
-- all at the end of a turn.
local function checks(what, pointer, length)
  local whole = loops.whole(what, length)
  return function(round)
    loops.check(what, pointer, length, loops.turn(round))
  end, function(round) whole(pointer, loops.turn(round)) end
end

-- ---- One value -------------------------------------------------------------

local function keys_of(length)
  local keys = {}
  for which = 0, loops.KEYS - 1 do
    keys[which + 1] = loops.key(length, which)
  end
  return keys
end

--- Returns a step that gets values of that length in turns into memory, after
-- they were put.
function M.getting(run, way, length)
  local keys, into = keys_of(length), run.memory:slice(run.room, length)
  loops.put_all(run.side:client(true), run.memory, length)
  local client, before = ways.client(run.side, way, keys, length)
  local after, whole = checks("get", into.pointer, length)
  local options, turn = { into = into }, loops.turn
  return loops.step {
    before = before, after = after, whole = whole,
    repeats = (way ~= "new" or not before) and loops.repeats(length) or 1,
    one = function(round)
      local part, err = client:get(keys[turn(round) + 1], options)
      if not part then wrong("get", err) end
    end,
  }
end

-- A step of one-sided reads of as much.
local function reading(run, length)
  local into = run.memory:slice(run.room, length)
  local region, session, turn = run.side:region(), run.side.session, loops.turn
  loops.write_all(session, region, run.memory, length)
  local from = {}
  for which = 0, loops.KEYS - 1 do
    from[which] = region:slice(which * length, length)
  end
  local after, whole = checks("read", into.pointer, length)
  return loops.step {
    after = after, whole = whole, repeats = loops.repeats(length),
    one = function(round)
      local fine, err = session:read({ from = from[turn(round)],
                                       to = into }):wait()
      if not fine then wrong("read", err) end
    end,
  }
end

-- A short value comes along with the answer to a request, so its floor is an
-- echo.
local function get(run, mode, way, length)
  local floors
  if way == "new" and length <= wire.SMALL then
    floors = floor_of(run, "raw echo",
                      calls.raw(run.side.proxy, length, run.side.engine))
  else
    floors = floor_of(run, "one-sided read", reading(run, length))
  end
  return measure(run, { mode = mode, size = length },
                 M.getting(run, way, length), floors)
end

function M.get(run, size) return get(run, "get", "map", size) end
function M.get_new(run, size) return get(run, "get_new", "new", size) end
function M.get_held(run, size) return get(run, "get_held", "held", size) end

-- ---- A view ----------------------------------------------------------------

-- The bytes are looked at outside of the time: it is of the lease alone.
local function viewing(run, way, length)
  local keys, turn = keys_of(length), loops.turn
  loops.put_all(run.side:client(true), run.memory, length)
  local client, before = ways.client(run.side, way, keys, wire.SMALL + 1)
  local whole = loops.whole("view", length)
  local function look(round, f)
    local view, err = client:view(keys[turn(round) + 1])
    if not view then wrong("view", err) end
    f(view.pointer, round)
    view:close()
  end
  return loops.step {
    before = before, repeats = way == "new" and 1 or LOOKS,
    one = function(round)
      local view, err = client:view(keys[turn(round) + 1])
      if not view or view.length ~= length then wrong("view", err) end
      view:close()
    end,
    after = function(round)
      look(round, function(pointer)
        loops.check("view", pointer, length, turn(round))
      end)
    end,
    whole = function(round)
      look(round, function(pointer) whole(pointer, turn(round)) end)
    end,
  }
end

local function view(run, mode, way, length)
  local least = viewing(run, way, LEAST)
  return measure(run, { mode = mode, size = length },
                 viewing(run, way, length),
                 floor_of(run, "view of 64 B", least))
end

function M.view(run, size) return view(run, "view", "map", size) end
function M.view_new(run, size) return view(run, "view_new", "new", size) end

-- ---- Many values -----------------------------------------------------------

-- Puts values 1 to count, from that memory; returns their keys.
local function put_numbered(run, count, length)
  local client, keys = run.side:client(true), {}
  local slice = run.memory:slice(0, length)
  for i = 1, count do
    keys[i] = ("bench.many.%d.%d"):format(length, i)
    loops.fill(slice.pointer, length, i)
    assert(client:put(keys[i], slice))
  end
  return keys
end

--- Returns what looks at the items' places (a list of pointers each; `length`:
-- an item's bytes) around one(round), which fills them. before() changes a byte
-- of each page, as program and floor have the same places, and after() checks
-- it. whole() empties all, has them filled again, and compares every byte.
function M.looks(what, places, one)
  local length, step = places.length, payload.PAGE
  local part, expected = length / #places[1], payload.private(length)
  local function each(f)
    for i, pointers in ipairs(places) do
      for j, pointer in ipairs(pointers) do f(pointer, i, (j - 1) * part) end
    end
  end
  local function change(pointer, i, at)
    payload.stamp_each(pointer, i, part / step, step, i + at / step + 1)
  end
  local function check(pointer, i, at)
    local bad = payload.check_each(pointer, i, part / step, step, i + at / step)
    if bad ~= 0 then wrong(what) end
  end
  local function compare(pointer, i, at)
    if at == 0 then loops.fill(expected, length, i) end
    if not payload.same(pointer, expected + at, part) then wrong(what) end
  end
  return function() each(change) end, function() each(check) end,
    function(round)
      each(function(pointer) ffi.fill(pointer, part) end)
      one(round)
      each(compare)
    end
end

-- A step of get_many of these items. before: a function, or nil.
local function getting_many(client, items, places, before, first)
  local function one()
    if first then first() end
    local lengths = client:get_many(items)
    for i = 1, #items do
      if lengths[i] ~= places.length then wrong("get_many", lengths[i]) end
    end
  end
  local change, after, whole = M.looks("get_many", places, one)
  before = before or function() end
  return loops.step {
    before = function(round)
      change()
      before(round)
    end,
    one = one, after = after,
    whole = function(round)
      before(round)
      whole(round)
    end,
  }
end

-- One strided read of as much.
local function reading_pages(run, pages, places)
  local from = run.side:region():slice(0, MANY * PAGE)
  local to = pages:slice(0, PAGE, { count = MANY, stride = STRIDE })
  local session, slice = run.side.session, run.memory:slice(0, PAGE)
  for i = 1, MANY do
    loops.fill(slice.pointer, PAGE, i)
    assert(session:write({ from = slice,
                           to = from:slice((i - 1) * PAGE, PAGE) }):wait())
  end
  local function one()
    local fine, err = session:read({ from = from, to = to }):wait()
    if not fine then wrong("read", err) end
  end
  local before, after, whole = M.looks("read", places, one)
  return loops.step { before = before, one = one, after = after,
                      whole = whole }
end

local function get_many(run, mode, way)
  local keys, items = put_numbered(run, MANY, PAGE), {}
  local places = { length = PAGE }
  local pages = run.memory:slice(run.room, MANY * STRIDE)
  for i, key in ipairs(keys) do
    local into = pages:slice((i - 1) * STRIDE, PAGE)
    items[i] = { key = key, into = into }
    places[i] = { into.pointer }
  end
  local client, before = ways.client(run.side, way, keys, PAGE)
  return measure(run, { mode = mode, size = MANY * PAGE, count = MANY },
                 getting_many(client, items, places, before),
                 floor_of(run, "strided read",
                          reading_pages(run, pages, places)))
end

function M.get_many(run) return get_many(run, "get_many", "map") end
function M.get_many_new(run) return get_many(run, "get_many_new", "new") end
function M.get_many_held(run) return get_many(run, "get_many_held", "held") end

-- Chunk i goes to PIECES pages that are not in order; 37 and PIECES have no
-- common factor.
local function chunk_places(memory, i)
  local slices, pointers, length = {}, {}, CHUNK / PIECES
  for j = 1, PIECES do
    local at = (i - 1) * CHUNK + j * 37 % PIECES * length
    slices[j] = memory:slice(at, length)
    pointers[j] = slices[j].pointer
  end
  return slices, pointers
end

local function prefix(run, mode, way)
  local keys, items = put_numbered(run, CHUNKS, CHUNK), {}
  local places = { length = CHUNK }
  local memory = run.memory:slice(run.room, CHUNKS * CHUNK)
  for i, key in ipairs(keys) do
    local into, pointers = chunk_places(memory, i)
    items[i] = { key = key, into = into }
    places[i] = pointers
  end
  local client, before = ways.client(run.side, way, keys, CHUNK)
  local function match()
    if client:match(keys) ~= CHUNKS then wrong "match" end
  end
  local size = CHUNKS * CHUNK
  return measure(run, { mode = mode, size = size, count = CHUNKS },
                 getting_many(client, items, places, before, match),
                 not run.given.no_floor and floor.of("floor_memcpy", run.given,
                                                     {}, size) or nil)
end

function M.prefix(run) return prefix(run, "prefix", "map") end
function M.prefix_new(run) return prefix(run, "prefix_new", "new") end

-- ---- Look-ups --------------------------------------------------------------

function M.match(run)
  local client, keys, dice = run.side:client(true), {}, payload.private(HASH)
  for i = 1, CHAIN do
    for k = 0, HASH - 1 do dice[k] = math.random(0, 255) end
    keys[i] = ffi.string(dice, HASH)
    if i <= THERE then assert(client:put(keys[i], "")) end
  end
  local step = loops.step {
    one = function()
      local found, err = client:match(keys)
      if found ~= THERE then wrong("match", err) end
    end,
  }
  local size = CHAIN * HASH
  return measure(run, { mode = "match", size = size, count = CHAIN }, step,
                 floor_of(run, "raw echo",
                          calls.raw(run.side.proxy, size, run.side.engine)))
end

-- The pieces of the directory, as this process has them mapped, but for the
-- last, which is not full.
local function pieces_of(session)
  local pieces = {}
  while true do
    local region = session:region("cache.directory." .. #pieces)
    if not region then break end
    pieces[#pieces + 1] = ffi.cast("const uint32_t *",
      native.C.perigee_remote_pointer(region.handle))
  end
  return pieces
end

-- Reads lines of these pieces by chance; where the next one is depends on the
-- one before, by a factor of 0. (bench/cache_core.c does it in C.)
local function reading_lines(pieces, piece)
  local words, lines, dice, zero = LINE / 4, piece / LINE, 1, 1
  local all = #pieces * lines
  return loops.step {
    repeats = LOOKS,
    before = function() zero = 0 end,
    one = function()
      local at = dice % all
      local word = pieces[math.floor(at / lines) + 1][at % lines * words]
      dice = dice * 16807 % 2147483647 + word * zero
    end,
  }
end

-- The keys have been made just before they are looked up, so they are near.
function M.has(run)
  local client, keys = run.side:client(true), {}
  for i = 1, ENTRIES do
    keys[i] = ("%s%08d"):format(("k"):rep(LONG_KEY - 8), i)
    assert(client:put(keys[i], ""))
  end
  assert(client:has { keys[1] })
  local chosen, asked, sum = {}, {}, 0
  local step = loops.step {
    repeats = LOOKS,
    before = function()
      for i = 1, LOOKS do
        chosen[i] = keys[math.random(ENTRIES)]
        sum = (sum + chosen[i]:byte(1) + chosen[i]:byte(LONG_KEY)) % 256
      end
    end,
    one = function(round)
      asked[1] = chosen[round % LOOKS + 1]
      local there, err = client:has(asked)
      if not there or not there[1] then wrong("has", err) end
    end,
  }
  local piece = require "perigee.cache.native".C.PERIGEE_CACHE_PIECE
  local pieces = pieces_of(run.side.session)
  return measure(run, { mode = "has", size = LONG_KEY, count = ENTRIES }, step,
                 floor_of(run, "cache line", reading_lines(pieces, piece)))
end

return M
