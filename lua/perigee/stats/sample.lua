-- SPDX-License-Identifier: Apache-2.0
--- Looks at the stats file of an agent (native/stats.h) again and again, and
-- tells what happened between two looks: for `perigee top`, which does so with
-- all agents of a host each second.
--
-- A look reads what may have changed: the head, the rows of sessions and
-- methods that are in use, and histograms of methods that were called since.
-- What the last look read stays beside it, and the differences are taken row by
-- row. So nothing is counted twice or lost when a session's counters move to
-- its engine. What a session did since the last look is lost if another one
-- has its row by now.
--
-- The file may be replaced, cut or full of anything at any time, so each look
-- opens it anew. Numbers that are smaller than before count as 0: so do those
-- of a row that is taken for another session while it is read.
local ffi = require "ffi"
local files = require "perigee.stats.file"
local native = require "perigee.native"
local stats = require "perigee.stats"
local reasons = require "perigee.stats.why"

ffi.cdef "int perigee_stats_page(void) __asm__(\"getpagesize\");"

local S, number = native.C, tonumber
local floor, max, min = math.floor, math.max, math.min
local pread, text = files.read, files.text

local M = {}

local Agent = {}
Agent.__index = Agent

-- Of what a file claims: bytes of a row, rows, and where a table may begin.
local ROW, ROWS, MOST = 2 ^ 14, 1024, 2 ^ 24
local BUCKETS = number(S.PERIGEE_STATS_BUCKETS)
local STATUSES = number(S.PERIGEE_STATS_STATUSES)
local PAGE = ffi.C.perigee_stats_page()

-- ---- Rows of a table --------------------------------------------------------

local function kind(name)
  return { array = ffi.typeof(name .. "[?]"), size = ffi.sizeof(name) }
end

local SESSION = kind "struct perigee_stats_session"
local METHOD = kind "struct perigee_stats_method"
local HISTOGRAM = kind "struct perigee_stats_histogram"
local COUNTERS = kind "struct perigee_counters"

local Head = ffi.typeof "struct perigee_stats_head"
local row_bytes = ffi.new("uint8_t[?]", ROW)

-- Rows that were read: `count` of them at `at`, which has room for `room`.
local function no_rows() return { count = 0, room = 0, at = nil } end

-- Rows of another version are shorter or longer than this one's.
local function read_others(file, from, of, at, first, count)
  local row, size = from.row, min(from.row, of.size)
  for i = 0, count - 1 do
    if pread(file, row_bytes, row, number(from.offset) + (first + i) * row)
      < row then
      return i
    end
    ffi.fill(at + i, of.size)
    ffi.copy(at + i, row_bytes, size)
  end
  return count
end

-- Reads so many rows of a table from the first one on; returns how many there
-- are.
local function read(file, from, of, at, first, count)
  count = min(count, from.rows - first)
  if from.row == 0 or from.row > ROW or from.offset > MOST or count <= 0 then
    return 0
  end
  if from.row ~= of.size then
    return read_others(file, from, of, at, first, count)
  end
  local bytes = pread(file, at, count * of.size,
                      number(from.offset) + first * of.size)
  return floor(bytes / of.size)
end

local function read_rows(file, from, of, rows, count)
  count = min(count, ROWS)
  if count > rows.room then
    rows.at, rows.room = of.array(count), count
  end
  rows.count = read(file, from, of, rows.at, 0, count)
end

-- Rows of methods are used in their order.
local function used_methods(rows)
  for i = 1, rows.count - 1 do
    if rows.at[i].used == 0 then return i end
  end
  return rows.count
end

local function read_methods(file, from, rows, expected)
  local count = max(8, expected + 1)
  repeat
    read_rows(file, from, METHOD, rows, count)
    rows.count = used_methods(rows)
    local more = rows.count == count and count < ROWS
    count = 4 * count
  until not more
end

-- ---- Texts ------------------------------------------------------------------

local function read_texts(self, head)
  self.name, self.scope = text(head.name, 128), text(head.scope, 128)
  self.host, self.program = text(head.host, 64), text(head.program, 256)
  self.pid = number(head.pid)
end

-- ---- Differences ------------------------------------------------------------

local function grown(now, before)
  return now > before and number(now - before) or 0
end

-- The row of a session in the last look, or one of zeros: it is a new session,
-- or the last look had no such row.
local no_session, no_method = SESSION.array(1), METHOD.array(1)

local function session_before(before, i, id)
  if i < before.count and before.at[i].id == id then return before.at[i] end
  return no_session[0]
end

local function session_rates(row, was, seconds)
  local c, b = row.counters, was.counters
  return {
    calls = grown(c.calls, b.calls) / seconds,
    served = grown(c.served, b.served) / seconds,
    failures = grown(c.failures, b.failures) / seconds,
    timeouts = grown(c.timeouts, b.timeouts) / seconds,
    stalls = grown(c.stalls, b.stalls) / seconds,
    sent = grown(c.bytes_sent, b.bytes_sent) / seconds,
    received = grown(c.bytes_received, b.bytes_received) / seconds,
  }
end

-- Adds to the agent's sums what was counted beside `b`.
local function add_counters(self, c, b)
  self.sent = self.sent + grown(c.bytes_sent, b.bytes_sent)
  self.received = self.received + grown(c.bytes_received, b.bytes_received)
  self.failures = self.failures + grown(c.failures, b.failures)
  self.timeouts = self.timeouts + grown(c.timeouts, b.timeouts)
  self.stalls = self.stalls + grown(c.stalls, b.stalls)
end

local function add_transport(list, row)
  local name = text(row.transport, 16)
  for i = 1, #list do
    if list[i] == name then return end
  end
  if name ~= "" then list[#list + 1] = name end
end

local function add_sessions(self)
  local now, before, first = self.rows, self.rows_before, not self.seconds
  self.sessions, self.transports = 0, {}
  for i = 0, now.count - 1 do
    local row = now.at[i]
    if row.id ~= 0 then
      if not first then
        add_counters(self, row.counters,
                     session_before(before, i, row.id).counters)
      end
      if row.ended == 0 and self.state ~= "dead" then
        self.sessions = self.sessions + 1
        add_transport(self.transports, row)
      end
    end
  end
end

-- The same of the sessions without a row, which have one together.
local function add_others(self)
  local now, before = self.rowless, self.rowless_before
  if now.count == 1 and before.count == 1 and self.seconds then
    add_counters(self, now.at[0], before.at[0])
  end
  if self.state ~= "dead" then
    self.sessions = self.sessions + number(self.head.others_open)
  end
end

local function calls_of(row, was)
  local calls, failures = 0, 0
  for i = 0, STATUSES - 1 do
    local n = grown(row.ends[i], was.ends[i])
    calls = calls + n
    if i > 0 then failures = failures + n end
  end
  return calls, failures
end

-- ---- Times of calls ---------------------------------------------------------

local Buckets = ffi.typeof("double[?]")
-- Of one agent's calls: those that it made (and those of row 0), and served.
local called, served = Buckets(BUCKETS), Buckets(BUCKETS)
local of_method = Buckets(BUCKETS)
local histogram_now = HISTOGRAM.array(1)

-- Sets `to` to what a histogram has more than `before`, which becomes as it is.
local function difference(now, before, to)
  for i = 0, BUCKETS - 1 do
    to[i] = grown(now.buckets[i], before.buckets[i])
    before.buckets[i] = now.buckets[i]
  end
end

local function add(to, from)
  for i = 0, BUCKETS - 1 do to[i] = to[i] + from[i] end
end

local function sum(buckets)
  local count = 0
  for i = 0, BUCKETS - 1 do count = count + buckets[i] end
  return count
end

-- The times in ns below which a half, and 99 of 100, are; nil: none was
-- measured.
local function quantiles(buckets)
  local count = sum(buckets)
  if count == 0 then return nil end
  return stats.quantile(buckets, count, 0.5),
         stats.quantile(buckets, count, 0.99)
end

local function add_times(self, file, from, i, whose)
  local kept = self.histograms[i]
  if not kept then
    kept = HISTOGRAM.array(1)
    self.histograms[i] = kept
  end
  if read(file, from, HISTOGRAM, histogram_now, i, 1) == 0 then return end
  difference(histogram_now[0], kept[0], of_method)
  if not self.seconds then return end
  add(whose == 2 and served or called, of_method)
  if self.closely then self.times[i] = { quantiles(of_method) } end
end

local function add_method(self, file, head, i)
  local row = self.methods.at[i]
  local was = i < self.methods_before.count and self.methods_before.at[i]
    or no_method[0]
  local calls, failures = calls_of(row, was)
  if calls == 0 then return false end
  if self.seconds then
    local whose = row.used == 2 and "served" or row.used == 1 and "called"
      or "others"
    self[whose] = self[whose] + calls
    if row.used == 2 then self.failures = self.failures + failures end
  end
  add_times(self, file, head.histograms, i, number(row.used))
  return true
end

local TIMES = { "p50", "p99", "called_p50", "called_p99", "served_p50",
                "served_p99" }

local function add_methods(self, file, head)
  local any = false
  self.times = {}
  for i = 0, self.methods.count - 1 do
    if add_method(self, file, head, i) then any = true end
  end
  for i = 1, #TIMES do self[TIMES[i]] = nil end
  if not any then return end
  self.called_p50, self.called_p99 = quantiles(called)
  self.served_p50, self.served_p99 = quantiles(served)
  add(called, served)
  self.p50, self.p99 = quantiles(called)
  ffi.fill(called, 8 * BUCKETS)
  ffi.fill(served, 8 * BUCKETS)
end

-- ---- A look -----------------------------------------------------------------

-- Forgets the last look: another engine writes the file by now.
local function begin(self, head)
  read_texts(self, head)
  self.rows.count, self.rowless.count, self.methods.count = 0, 0, 0
  self.histograms, self.at = {}, nil
end

local function swap(self)
  self.rows, self.rows_before = self.rows_before, self.rows
  self.rowless, self.rowless_before = self.rowless_before, self.rowless
  self.methods, self.methods_before = self.methods_before, self.methods
end

local SUMS = { "called", "served", "others", "sent", "received", "failures",
               "timeouts", "stalls" }

local function look_inside(self, file, head)
  local is_same = self.head.epoch == head.epoch and self.head.pid == head.pid
    and self.head.began == head.began
  if not is_same or not self.name then begin(self, head) end
  self.head, self.head_before = head, self.head
  local now = native.clock()
  self.seconds = self.at and max(1e-3, (now - self.at) / 1e9)
  self.at = now
  for i = 1, #SUMS do self[SUMS[i]] = 0 end
  swap(self)
  read_rows(file, head.sessions, SESSION, self.rows,
            min(number(head.sessions_begun), ROWS))
  read_rows(file, head.others, COUNTERS, self.rowless, 1)
  read_methods(file, head.methods, self.methods, self.methods_before.count)
  local pages
  self.state, pages = stats.state(head)
  add_sessions(self)
  add_others(self)
  add_methods(self, file, head)
  for i = 1, #SUMS do self[SUMS[i]] = self[SUMS[i]] / (self.seconds or 1) end
  self.memory = pages and pages * PAGE
end

--- Reads the file anew. The agent has afterwards, beside the head's texts and
-- `pid`: `state`; `memory`, the bytes of its process, or nil; `sessions` that
-- are open, which a dead one's are not, and their `transports`; and `seconds`,
-- since the last look at the same engine, or nil. Of these seconds, and for
-- each of them: calls `called`, `served`, and `others` of methods that have no
-- row; `failures` of what it began, and of calls that it served; `timeouts`,
-- `stalls`; bytes `sent`, `received`. Of calls in this time, if any was
-- measured: `p50` and `p99` in ns, `called_p50` and so on of its own ones, and
-- of those that it served.
-- @treturn boolean whether there is a stats file
function Agent:look()
  local file = files.open(self.path)
  if not file then return false end
  local head = self.head_before
  local fine = files.read_head(file, head)
  if fine then look_inside(self, file, head) end
  files.close(file)
  return fine == true
end

--- Whether the next looks keep times of each method, for methods_now.
function Agent:look_closely(closely) self.closely = closely end

local STATES = { [0] = "connecting", "hello", "open", "ended" }

local function status_of(row)
  return row.status > 0 and ffi.string(
    S.perigee_status_name(-number(row.status))) or nil
end

--- The sessions of the last look, with `id`, `peer`, `address`, `transport`,
-- `state`, `age` and, if it has ended, `ended` in seconds, `status`, `reason`,
-- `not_better` (why it is over nothing better, or ""), and numbers a second
-- since the look before: `calls`, `served`, `failures`, `timeouts`, `stalls`,
-- `sent`, `received`.
function Agent:sessions_now()
  local list, now = {}, self.at
  if self.state == "dead" then now = number(self.head.looked) end
  for i = 0, self.rows.count - 1 do
    local row = self.rows.at[i]
    if row.id ~= 0 then
      local ended = number(row.ended)
      local was = self.seconds and session_before(self.rows_before, i, row.id)
        or row
      local each = session_rates(row, was, self.seconds or 1)
      each.id, each.peer = number(row.id), text(row.peer, 128)
      each.address, each.reason = text(row.address, 128), text(row.reason, 128)
      each.transport, each.status = text(row.transport, 16), status_of(row)
      each.not_better = reasons.text(row)
      each.state = ended > 0 and "ended" or STATES[number(row.state)] or "open"
      each.age = max(0, (now - number(row.opened)) / 1e9)
      each.ended = ended > 0 and max(0, (now - ended) / 1e9) or nil
      list[#list + 1] = each
    end
  end
  return list
end

local WHOSE = { "peer", "own" }

--- The methods of the last look, with `whose` ("own", "peer", "other"),
-- `service`, `method`; numbers a second since the look before: `calls`,
-- `failures`, `sent`, `received`; `total` calls; and `p50`, `p99` in ns, if the
-- look was close.
function Agent:methods_now()
  local list, seconds = {}, self.seconds or 1
  for i = 0, self.methods.count - 1 do
    local row = self.methods.at[i]
    local was = i < self.methods_before.count and self.methods_before.at[i]
      or no_method[0]
    if not self.seconds then was = row end
    local calls, failures = calls_of(row, was)
    local total = calls_of(row, no_method[0])
    local times = self.times[i] or {}
    if i > 0 or total > 0 then
      list[#list + 1] = {
        whose = i > 0 and WHOSE[number(row.used)] or "other",
        service = text(row.service, 64), method = text(row.method, 64),
        calls = calls / seconds, failures = failures / seconds, total = total,
        sent = grown(row.bytes_out, was.bytes_out) / seconds,
        received = grown(row.bytes_in, was.bytes_in) / seconds,
        p50 = times[1], p99 = times[2],
      }
    end
  end
  return list
end

--- An agent whose stats file is at path, before the first look.
function M.new(path)
  return setmetatable({
    path = path, head = Head(), head_before = Head(), histograms = {},
    rows = no_rows(), rows_before = no_rows(), methods = no_rows(),
    methods_before = no_rows(), rowless = no_rows(),
    rowless_before = no_rows(), times = {}, closely = false,
  }, Agent)
end

return M
