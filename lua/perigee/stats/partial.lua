-- SPDX-License-Identifier: Apache-2.0
--- Reads of a stats file (native/stats.h) what metrics are made of, with the
-- rows that are in use alone, so that many files are read often. Anybody of
-- this user may have written the file: it has to be as long as it says, and
-- each number in it is bounded before it is a place or a length.
local ffi = require "ffi"
local files = require "perigee.stats.file"
local native = require "perigee.native"
local stats = require "perigee.stats"

local S = native.C
local min, floor, number = math.min, math.floor, tonumber
local text = files.text

local M = {}

-- ROOM: bytes that are read at a time. MOST: where a table may begin, and ROWS
-- of it that are read.
local ROOM, MOST, ROWS = 2 ^ 18, 2 ^ 24, 4096

local bytes, short = ffi.new("uint8_t[?]", ROOM), nil
local head = ffi.new "struct perigee_stats_head"

-- ---- The histograms' bounds -------------------------------------------------

-- Powers of two of ns, at each of which a bucket of the file begins: 256 ns,
-- each from 1.024 us to 1.05 ms, and then each fourfold, to 69 s.
local POWERS = { 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28,
                 30, 32, 34, 36 }
local BINS = #POWERS + 1

--- The powers of two of ns that the upper bounds of bins are; the last bin has
-- none.
M.powers = POWERS

-- Bin n has the buckets from edges[n] on that are before edges[n + 1].
local edges = ffi.new("int32_t[?]", BINS + 1)

--- The upper bounds of bins, in seconds; the last one has none.
M.bounds = {}

for i, power in ipairs(POWERS) do
  M.bounds[i] = 2 ^ power / 1e9
  edges[i] = (power - 6) * number(S.PERIGEE_STATS_STEPS)
end
edges[BINS] = S.PERIGEE_STATS_BUCKETS

-- ---- Numbers of a method ----------------------------------------------------

--- The places of a method's numbers: `calls` that ended, bytes, ns; `ends` is
-- the first of as many statuses, `bins` the first of as many bins.
M.at = { calls = 0, out = 1, into = 2, longest = 3, sum = 4, ends = 5,
         bins = 5 + number(S.PERIGEE_STATS_STATUSES) }
M.statuses, M.bins = number(S.PERIGEE_STATS_STATUSES), BINS

local AT, ENDS, BIN = M.at, M.at.ends, M.at.bins
local numbers_t = ffi.typeof("double[$]", BIN + BINS)

--- Zeros.
function M.numbers() return numbers_t() end

--- Adds numbers to others.
function M.add(to, more)
  local longest = math.max(to[AT.longest], more[AT.longest])
  for i = 0, BIN + BINS - 1 do to[i] = to[i] + more[i] end
  to[AT.longest] = longest
end

--- How many statuses calls have failed with.
function M.failures(numbers)
  local n = 0
  for i = ENDS + 1, BIN - 1 do
    if numbers[i] > 0 then n = n + 1 end
  end
  return n
end

-- ---- Reading ----------------------------------------------------------------

-- Rows of an older version are shorter: copies them to where each has `size`
-- bytes.
local function spread(row, size, n)
  short = short or ffi.new("uint8_t[?]", ROOM)
  ffi.fill(short, n * size)
  for i = 0, n - 1 do ffi.copy(short + i * size, bytes + i * row, row) end
  return short, n, size
end

-- Reads rows of a table from the first one on, as many as there is room for.
-- Returns where they are, how many, and the bytes of each.
local function load(file, at, first, count, size)
  local row = at.row
  local longest = math.max(row, size)
  if row == 0 or longest > ROOM or at.offset > MOST then return bytes, 0, 1 end
  count = min(count, at.rows - first, ROWS - first, floor(ROOM / longest))
  if count <= 0 then return bytes, 0, 1 end
  local n = files.read(file, bytes, count * row,
                       number(at.offset) + first * row)
  n = floor(math.max(n, 0) / row)
  if row < size then return spread(row, size, n) end
  return bytes, n, row
end

-- ---- Counters ---------------------------------------------------------------

local COUNTERS = ffi.sizeof "struct perigee_counters" / 8
local words_t = ffi.typeof "const uint64_t *"
local sums = ffi.new("double[?]", COUNTERS)

-- Lists of counters' names by the bytes that have them: agents of one version
-- have the same ones.
local known, lists = {}, 0

local function names_of(file)
  local at, n, row = load(file, head.names, 0, COUNTERS, 24)
  local whole = ffi.string(at, n * row)
  if known[whole] then return known[whole] end
  if lists > 16 then known, lists = {}, 0 end
  local names = {}
  for i = 1, n - 1 do
    names[i] = text(ffi.cast("const char *", at) + i * row, 24)
  end
  known[whole], lists = names, lists + 1
  return names
end

local function add_words(words)
  local n = min(number(words[0]) / 8, COUNTERS)
  for i = 1, n - 1 do sums[i] = sums[i] + number(words[i]) end
end

local session_t = ffi.typeof "const struct perigee_stats_session *"
local SESSION = ffi.sizeof "struct perigee_stats_session"
local ROWS_OF_SESSIONS = S.PERIGEE_STATS_SESSIONS

-- What a row tells of a session, for links.lua.
local function session_of(row, transport)
  local c = row.counters
  return { epoch = tostring(row.epoch), peer = text(row.peer, 128),
           address = text(row.address, 128), transport = transport,
           dialed = row.dialed ~= 0, lanes = row.lanes, not_shm = row.not_shm,
           not_verbs = row.not_verbs, calls = number(c.calls),
           served = number(c.served), sent = number(c.bytes_sent),
           received = number(c.bytes_received) }
end

-- Adds the counters of those that have not ended, and counts them by transport,
-- those without a row as `other`; adds those with one to `sessions` by their
-- ids, if that is there.
local function add_sessions(file, transports, sessions)
  local from, n, size = load(file, head.sessions, 0, ROWS_OF_SESSIONS, SESSION)
  for i = 0, n - 1 do
    local row = ffi.cast(session_t, from + i * size)
    if row.id ~= 0 and row.ended == 0 then
      local name = text(row.transport, 16)
      transports[name] = (transports[name] or 0) + 1
      add_words(ffi.cast(words_t, row.counters))
      if sessions then sessions[number(row.id)] = session_of(row, name) end
    end
  end
  local others = number(head.others_open)
  if others > 0 then transports.other = (transports.other or 0) + others end
end

-- Adds a table's row of counters.
local function add_row(file, of)
  local from, n = load(file, of, 0, 1, 8 * COUNTERS)
  if n == 1 then add_words(ffi.cast(words_t, from)) end
end

-- The engine's counters by their names. A session that is freed adds its own to
-- the engine's, so these are read first: then nothing is counted twice.
local function counters_of(file, transports, sessions)
  local names, counters = names_of(file), {}
  ffi.fill(sums, ffi.sizeof(sums))
  add_row(file, head.counters)
  add_row(file, head.others)
  add_sessions(file, transports, sessions)
  for i = 1, COUNTERS - 1 do
    if names[i] then counters[names[i]] = sums[i] end
  end
  return counters
end

-- ---- Methods ----------------------------------------------------------------

local method_t = ffi.typeof "const struct perigee_stats_method *"
local METHOD = ffi.sizeof "struct perigee_stats_method"
local TEXTS = 128                       -- bytes of both names

local SIDES = { "client", "server", "other" }

local function copy_method(row, index, side)
  local to, calls = numbers_t(), 0
  for i = 0, M.statuses - 1 do
    local n = number(row.ends[i])
    to[ENDS + i], calls = n, calls + n
  end
  to[0], to[1], to[2] = calls, number(row.bytes_out), number(row.bytes_in)
  to[3] = number(row.longest)
  return { index = index, side = side, names = ffi.string(row.service, TEXTS),
           numbers = to }
end

-- Adds the methods from a row on to the list; how many rows were looked at.
local function add_methods(file, list, first)
  local from, n, size = load(file, head.methods, first, ROWS, METHOD)
  for i = 0, n - 1 do
    local row = ffi.cast(method_t, from + i * size)
    local used = number(row.used)
    if used >= 1 and used <= 3 then
      list[#list + 1] = copy_method(row, first + i, SIDES[used])
    end
  end
  return n
end

local histogram_t = ffi.typeof "const struct perigee_stats_histogram *"
local HISTOGRAM = ffi.sizeof "struct perigee_stats_histogram"

local function fold(h, to)
  to[AT.sum] = number(h.sum)
  for bin = 0, BINS - 1 do
    local n = 0ULL
    for i = edges[bin], edges[bin + 1] - 1 do n = n + h.buckets[i] end
    to[BIN + bin] = number(n)
  end
end

-- So many methods of the list, from one on, have rows side by side.
local function run_of(list, at)
  local first, n = list[at].index, 1
  while list[at + n] and list[at + n].index == first + n do n = n + 1 end
  return n
end

local function add_histograms(file, list)
  local at = 1
  while at <= #list do
    local from, n, size = load(file, head.histograms, list[at].index,
                               run_of(list, at), HISTOGRAM)
    if n == 0 then return end
    for i = 0, n - 1 do
      fold(ffi.cast(histogram_t, from + i * size), list[at + i].numbers)
    end
    at = at + n
  end
end

-- Those that were called at least once.
local function methods_of(file)
  local all, list, first = {}, {}, 0
  repeat
    local n = add_methods(file, all, first)
    first = first + n
  until n == 0
  for _, each in ipairs(all) do
    if each.numbers[0] > 0 then list[#list + 1] = each end
  end
  add_histograms(file, list)
  return list
end

-- ---- What is under way ------------------------------------------------------

local operation_t = ffi.typeof "const struct perigee_stats_operation *"
local OPERATION = ffi.sizeof "struct perigee_stats_operation"
local CALL, SERVED = S.PERIGEE_STATS_CALL, S.PERIGEE_STATS_SERVED

-- The age in ns of the oldest own call, and of the peers'; 0: there is none.
local function oldest_of(file, now)
  local from, n, size = load(file, head.operations, 0, ROWS, OPERATION)
  local call, served = now, now
  for i = 0, n - 1 do
    local row = ffi.cast(operation_t, from + i * size)
    local kind, began = bit.band(row.what, 0xffff), number(row.began)
    if began > 0 and kind == CALL then call = min(call, began) end
    if began > 0 and kind == SERVED then served = min(served, began) end
  end
  return now - call, now - served
end

-- ---- The file ---------------------------------------------------------------

local function read_rest(file, wants_sessions)
  local told = {
    name = text(head.name, 128), scope = text(head.scope, 128),
    host = text(head.host, 64), pid = number(head.pid), epoch = head.epoch,
    began_at = number(head.began_at) / 1e9, state = stats.state(head),
    begun = number(head.sessions_begun), transports = {},
    sessions = wants_sessions and {} or nil,
  }
  local is_dead = told.state == "dead"
  local now = is_dead and number(head.looked) or native.clock()
  told.counters = counters_of(file, told.transports, told.sessions)
  if is_dead then told.transports, told.sessions = {}, nil end
  told.methods = methods_of(file)
  told.oldest_call, told.oldest_served = oldest_of(file, now)
  return told
end

--- Reads a stats file; with the open sessions of an agent that lives, if
-- `wants_sessions`.
-- @treturn table `name`, `scope`, `host`, `pid`, `epoch` (a number of 64 bits),
--   `began_at` (seconds since 1970), `state`, `counters` by their names (with
--   those of open sessions), `transports` (open sessions by name, and how many
--   have no row as `other`; none, if it is dead), `begun` (sessions, ever),
--   `oldest_call`, `oldest_served` (ns),
--   and `methods`, a list of { `side`: "client", "server" or "other", `names`:
--   the 64 bytes of its service's name and those of its own, `numbers`: see
--   at }; `sessions`, if wanted: by their ids, { `epoch`: the peer's, a text,
--   `peer`, `address`, `transport`, `dialed`, `lanes`, `not_shm`, `not_verbs`,
--   `calls`, `served`, `sent`, `received` }. Or nil and why; nil alone if there
--   is no such file
function M.read(path, wants_sessions)
  local file, length = files.open(path)
  if not file then return nil, length end
  local fine, why = files.read_head(file, head)
  if fine and head.length > length then fine, why = nil, "it is cut" end
  local told = fine and read_rest(file, wants_sessions)
  files.close(file)
  if not told then return nil, why end
  return told
end

return M
