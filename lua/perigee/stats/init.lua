-- SPDX-License-Identifier: Apache-2.0
--- Reads stats files of engines (native/stats.h): what an agent of this host
-- counts, who it has sessions with, what is under way, and what it did last,
-- also if it is busy, stopped or dead. The agent is not asked. Its file is
-- NAME.stats in its scope's folder; NAME.stats.last is that of the former owner
-- of the name, if that was killed.
local ffi = require "ffi"
local files = require "perigee.stats.file" -- declares the structures
local levels = require "perigee.runtime.levels"
local native = require "perigee.native"
local reasons = require "perigee.stats.why"

local C = native.C

local M = {}

local MAGIC = "perigee\1"
-- Anybody of this user may have written the file. MOST: bytes of a table, and
-- ROWS of it, that are read. BUSY: ns without a look at the clock after which a
-- process that does not sleep is busy with something else.
local MOST, ROWS, BUSY = 2 ^ 24, 4096, 1e9

-- Texts of peers and programs, which have any bytes; they may have no end.
local function text(field)
  return ffi.string(field, ffi.sizeof(field)):match "^%Z*"
end

local number = tonumber

-- ---- The process ------------------------------------------------------------

-- Fields 3, 22 and 24 of /proc/PID/stat; the second, in brackets, may have
-- blanks and brackets.
local FIELDS = "^.*%) (%S)" .. (" %S+"):rep(18) .. " (%d+) %S+ (%d+)"

-- The state of a process, a letter, when it started, and the pages that it has
-- in memory; nil: there is none.
local function process(pid)
  local file = io.open(("/proc/%d/stat"):format(pid))
  local line = file and file:read "*a" or ""
  if file then file:close() end
  local letter, started, pages = line:match(FIELDS)
  return letter, number(started or 0), number(pages or 0)
end

-- When the program, and no thread of the engine's, last looked at the clock.
local function looked(head)
  return number(head.polled ~= 0 and head.polled or head.looked)
end

--- The state of a file's process, by its head: "dead", "stopped", "asleep" (it
-- waits for events), "busy" (the program has not polled for a second) or
-- "running". Then the pages that it has in memory, unless it is dead.
local function state_of(head)
  local letter, started, pages = process(number(head.pid))
  if not letter or letter == "Z" or started ~= number(head.pid_started) then
    return "dead"
  end
  if letter == "T" or letter == "t" then return "stopped", pages end
  if head.asleep ~= 0 then return "asleep", pages end
  local busy = native.clock() - looked(head) > BUSY
  return busy and "busy" or "running", pages
end

M.state = state_of

-- ---- Tables of the file -----------------------------------------------------

-- The bytes of a table, or of its first rows.
local function bytes_of(file, at, most)
  local row, rows = at.row, math.min(at.rows, most or ROWS)
  if row == 0 or row * rows > MOST or at.offset > MOST then return "" end
  file:seek("set", number(at.offset))
  return file:read(row * rows) or ""
end

-- Calls f(row, i) for each row of a table's bytes, which is copied to a struct
-- of that type: rows of another version are longer or shorter.
local function each_of(bytes, at, ctype, f)
  local row, one = at.row, ffi.new(ctype)
  if row == 0 then return end
  local size = math.min(row, ffi.sizeof(one))
  local from = ffi.cast("const uint8_t *", bytes)
  for i = 0, math.floor(#bytes / row) - 1 do
    ffi.copy(one, from + i * row, size)
    f(one, i)
  end
end

local function each(file, at, ctype, f, most)
  each_of(bytes_of(file, at, most), at, ctype, f)
end

-- Made once: LuaJIT keeps each type that a text describes.
local NAME = ffi.typeof "struct { char name[24]; }"

local function counter_names(file, at)
  local names = {}
  each(file, at, NAME, function(row, i)
    names[i] = text(row.name)
  end)
  return names
end

local function counters_of(names, counters)
  local words, all = ffi.cast("const uint64_t *", counters), {}
  local n = math.min(ffi.sizeof "struct perigee_counters", number(words[0]))
  for i = 1, n / 8 - 1 do
    if names[i] and names[i] ~= "" then all[names[i]] = number(words[i]) end
  end
  return all
end

local STATES = { [0] = "connecting", "hello", "open", "ended" }

local function sessions_of(file, head, names)
  local list = {}
  each(file, head.sessions, "struct perigee_stats_session", function(row)
    if row.id == 0 then return end
    local ended = number(row.ended)
    list[#list + 1] = {
      id = number(row.id), peer = text(row.peer), address = text(row.address),
      transport = text(row.transport), reason = text(row.reason),
      epoch = ("%016x"):format(row.epoch), dialed = row.dialed ~= 0,
      lanes = row.lanes, not_better = reasons.text(row),
      state = ended > 0 and "ended" or STATES[number(row.state)] or "open",
      opened = number(row.opened), ended = ended > 0 and ended or nil,
      status = row.status > 0 and ffi.string(
        C.perigee_status_name(-number(row.status))) or nil,
      counters = counters_of(names, row.counters),
    }
  end)
  return list
end

--- ns below which so much of a histogram's buckets is, of so many calls; each
-- bucket stands for its middle.
function M.quantile(buckets, count, part)
  local left = part * count
  for i = 0, C.PERIGEE_STATS_BUCKETS - 1 do
    left = left - number(buckets[i])
    if left <= 0 then return M.bucket(i + 0.5) end
  end
  return M.bucket(C.PERIGEE_STATS_BUCKETS)
end

--- Returns the least ns of a bucket; halves are between.
function M.bucket(i)
  local steps, whole = C.PERIGEE_STATS_STEPS, math.floor(i)
  local function start(n)
    return (steps + n % steps) * 2 ^ (math.floor(n / steps) + 2)
  end
  return start(whole) + (i - whole) * (start(whole + 1) - start(whole))
end

local function ends_of(row)
  local calls, failures, by = 0, 0, {}
  for i = 0, C.PERIGEE_STATS_STATUSES - 1 do
    local n = number(row.ends[i])
    calls = calls + n
    if i > 0 and n > 0 then
      failures = failures + n
      by[ffi.string(C.perigee_status_name(-i))] = n
    end
  end
  return calls, failures, by
end

local WHOSE = { "peer", "own", "other" }

local function methods_of(file, head)
  local list, by_row = {}, {}
  each(file, head.methods, "struct perigee_stats_method", function(row, i)
    local whose = i == 0 and "other" or WHOSE[number(row.used)]
    if not whose then return end
    local calls, failures, by = ends_of(row)
    by_row[i] = { whose = whose, service = text(row.service),
                  method = text(row.method), calls = calls,
                  failures = failures, ends = by,
                  bytes_out = number(row.bytes_out),
                  bytes_in = number(row.bytes_in),
                  longest = number(row.longest) }
    if i > 0 or calls > 0 then list[#list + 1] = by_row[i] end
  end)
  each(file, head.histograms, "struct perigee_stats_histogram",
    function(h, i)
      local method = by_row[i]
      if not method or h.count == 0 then return end
      local count = number(h.count)
      method.mean = number(h.sum) / count
      method.p50 = M.quantile(h.buckets, count, 0.5)
      method.p99 = M.quantile(h.buckets, count, 0.99)
    end, #list + 1)
  return list, by_row
end

local KINDS = { "call", "read", "write", "send", "served", "transfer", "recv",
                "recv_imm", "lookup", "connect", "batch" }

local function under_way(file, head, by_row)
  local list = {}
  each(file, head.operations, "struct perigee_stats_operation",
    function(row, i)
      if row.began == 0 then return end
      local method = by_row[bit.rshift(row.what, 16)]
      list[#list + 1] = {
        operation = i, began = number(row.began), session = row.session,
        kind = KINDS[bit.band(row.what, 0xffff)] or "?",
        service = method and method.service, method = method and method.method,
      }
    end)
  table.sort(list, function(a, b) return a.began < b.began end)
  return list
end

local EVENTS = {
  [C.PERIGEE_EVENT_ACCEPTED] = "accepted", [C.PERIGEE_EVENT_REPLY] = "reply",
  [C.PERIGEE_EVENT_CONNECTED] = "connected", [C.PERIGEE_EVENT_LOST] = "lost",
  [C.PERIGEE_EVENT_REQUEST] = "request", [C.PERIGEE_EVENT_LANDING] = "landing",
  [C.PERIGEE_EVENT_ABANDONED] = "abandoned", [C.PERIGEE_EVENT_SENT] = "sent",
  [C.PERIGEE_EVENT_DONE] = "done",
  [C.PERIGEE_EVENT_REPLY_LANDING] = "reply landing",
}

-- How many events there are by now.
local function events_given(file)
  file:seek("set", ffi.offsetof("struct perigee_stats_head", "events_given"))
  local bytes = file:read(8) or ""
  return #bytes == 8 and number(ffi.cast("const uint64_t *", bytes)[0]) or 0
end

-- The row of the next event may have a half of it, and rows of those that came
-- while rows were read, too: so these are left out.
local function events_of(file, head, by_row)
  local all, list, given = {}, {}, number(head.events_given)
  each(file, head.events, "struct perigee_stats_event", function(row, i)
    local method = by_row[bit.rshift(row.what, 16)]
    all[i] = {
      time = number(row.time), session = row.session,
      operation = row.operation, bytes = number(row.bytes),
      kind = EVENTS[bit.band(row.what, 0xffff)] or "?",
      status = row.status ~= 0
        and ffi.string(C.perigee_status_name(row.status)) or nil,
      service = method and method.service, method = method and method.method,
    }
  end)
  local rows = #all > 0 and math.min(head.events.rows, ROWS) or 0
  local first = math.max(given - rows, events_given(file) + 1 - rows, 0)
  for i = 0, math.min(rows, given - first) - 1 do
    list[#list + 1] = all[(first + i) % rows]
  end
  return list
end

-- ---- The file ---------------------------------------------------------------

local function head_of(file, path)
  local bytes = file:read(4096) or ""
  if #bytes < ffi.sizeof "struct perigee_stats_head"
    or bytes:sub(1, #MAGIC) ~= MAGIC then
    return nil, path .. " is no stats file"
  end
  local head = ffi.new "struct perigee_stats_head"
  ffi.copy(head, bytes, ffi.sizeof(head))
  if head.version ~= C.PERIGEE_STATS_VERSION then
    return nil, ("%s is of version %d, and this is %d"):format(path,
      head.version, tonumber(C.PERIGEE_STATS_VERSION))
  end
  return head
end

local function add(sums, counters)
  for name, value in pairs(counters) do
    sums[name] = (sums[name] or 0) + value
  end
end
jit.off(add)                    -- its loop over pairs(), see check.lua

-- Counters of the engine with those of its sessions.
local function total(file, head, names, sessions)
  local sums = {}
  local function add_row(row) add(sums, counters_of(names, row)) end
  each(file, head.counters, "struct perigee_counters", add_row, 1)
  each(file, head.others, "struct perigee_counters", add_row, 1)
  for _, session in ipairs(sessions) do
    if session.state ~= "ended" then add(sums, session.counters) end
  end
  return sums
end

-- What the head tells of the process.
local function told_of(head)
  return {
    name = text(head.name), scope = text(head.scope), host = text(head.host),
    program = text(head.program), pid = number(head.pid),
    state = (state_of(head)), began = number(head.began),
    began_at = number(head.began_at) / 1e9, now = native.clock(),
    looked = looked(head),
    asleep = head.asleep ~= 0 and number(head.asleep) or nil,
    log = { asked = levels.NAMES[number(head.log_asked)],
            own = levels.NAMES[number(head.log_own)] },
  }
end

-- Opens the file at path; returns it and its head, or nil and a sentence.
local function open(path)
  if files.is_other(path) then return nil, path .. " is no regular file" end
  local file, why = io.open(path, "rb")
  if not file then return nil, why end
  local head
  head, why = head_of(file, path)
  if head then return file, head end
  file:close()
  return nil, why
end

-- For spans.lua: how files are opened and read.
M.inside = { open = open, each = each, each_of = each_of, bytes_of = bytes_of,
             text = text, told_of = told_of }

--- Reads of a stats file what it tells of the process: the fields of M.read up
-- to `log`: the levels of its log, `asked` (nil: none is) and `own`.
function M.head(path)
  local file, head = open(path)
  if not file then return nil, head end
  file:close()
  return told_of(head)
end

-- Writes the level to an open file: true, or nil and why not.
local function write_level(file, level)
  local fine, why = files.read_head(file, ffi.new "struct perigee_stats_head")
  if not fine then return nil, why end
  local word = ffi.new("uint64_t[1]", level and levels.RANKS[level] or 0)
  local at = ffi.offsetof("struct perigee_stats_head", "log_asked")
  if files.write(file, word, 8, at) then return true end
  return nil, "it cannot be written"
end

--- Has the log of the agent whose file is at path have a level (perigee.log),
-- until it ends; nil: its own. True; or nil and a sentence.
function M.ask_for_level(path, level)
  local file, why = files.open(path, true)
  if not file then
    return nil, ("%s: %s"):format(path, why or "there is none")
  end
  local fine
  fine, why = write_level(file, level)
  files.close(file)
  return fine, why and ("%s: %s"):format(path, why)
end

--- Reads a stats file. Times are ns of the agent's clock: `now` is this moment
-- by it, `began_at` seconds since 1970 at `began`.
-- @treturn table `name`, `scope`, `host`, `program`, `pid`, `state`, `began`,
--   `began_at`, `now`, `looked`, `asleep`, `log`; `counters`, `sessions` (each
--   with the peer's `epoch`; `dialed`, by this agent; `lanes`, how many were
--   open beside the first; and `not_better`, why it is over nothing better, or
--   ""), `methods`, `under_way`, `events`; or nil and a sentence
function M.read(path)
  local file, head = open(path)
  if not file then return nil, head end
  local told, names = told_of(head), counter_names(file, head.names)
  local by_row
  told.sessions = sessions_of(file, head, names)
  told.methods, by_row = methods_of(file, head)
  told.counters = total(file, head, names, told.sessions)
  told.under_way = under_way(file, head, by_row)
  told.events = events_of(file, head, by_row)
  file:close()
  return told
end

return M
