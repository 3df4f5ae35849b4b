-- SPDX-License-Identifier: Apache-2.0
--- Puts the spans of several agents together: which calls belong to one trace,
-- which was made for which, and when, by one clock.
--
-- A callee's span is a child of the caller's which travelled with the request
-- (`wire`). A caller's span is a child of the callee's in the same agent that
-- was being served: both have the same `parent`. Several may: a program may
-- name one span for many calls. Then names and times decide.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local M = {}

-- ---- Parents ----------------------------------------------------------------

local function put(index, key, span)
  if not key then return end
  local list = index[key] or {}
  index[key] = list
  list[#list + 1] = span
end

-- The keys by which a callee looks for its caller, the best first: the span
-- that came with the request, with the callee's name and method, one of them,
-- or none. No text has a byte 0.
local function keys_of(wire, name, service, method)
  method = ("%s\0%s"):format(service or "", method or "")
  return ("%s\0both\0%s\0%s"):format(wire, name, method),
         ("%s\0name\0%s"):format(wire, name),
         ("%s\0method\0%s"):format(wire, method), wire
end

local function put_caller(callers, span)
  if not span.wire then return end
  local both, name, method, any = keys_of(span.wire, span.peer, span.service,
                                          span.method)
  put(callers, both, span)
  put(callers, name, span)
  put(callers, method, span)
  put(callers, any, span)
end

-- Of a list of callers, the first that has no callee yet, or else the first.
-- Those that have one keep it, so all searches go through the list once.
local function next_of(list)
  local at = list.at or 1
  while list[at] and list[at].callee do at = at + 1 end
  list.at = at
  return list[at] or list[1]
end

local function caller_of(span, callers)
  if not span.parent then return nil end
  local both, name, method, any = keys_of(span.parent, span.file.name,
                                          span.service, span.method)
  local list = callers[both] or callers[name] or callers[method]
    or callers[any]
  local found = list and next_of(list)
  if found then found.callee = span end
  return found
end

-- The callees' spans of a file by their parents, in the order of their starts.
-- Of those that began at once, the first stands last.
local function put_callee(callees, span)
  callees[span.file] = callees[span.file] or {}
  put(callees[span.file], span.parent, span)
end

local function sort_callees(callees)
  local place = {}
  local function before(a, b)
    if a.start ~= b.start then return a.start < b.start end
    return place[a] > place[b]
  end
  for _, by_parent in pairs(callees) do
    for _, list in pairs(by_parent) do
      for i, span in ipairs(list) do place[span] = i end
      table.sort(list, before)
    end
  end
end

-- The last of such a list that had begun by then.
local function last_by(list, start)
  local low, high = 0, #list
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if list[middle].start <= start then low = middle else high = middle - 1 end
  end
  return list[low]
end

-- The callers behind which calls are looked for whose callee is gone, by wire:
-- the first, and the first in another file than that.
local function put_behind(behind, span)
  if not span.wire or span.wire == span.parent then return end
  local two = behind[span.wire]
  if not two then
    behind[span.wire] = { span }
  elseif not two[2] and two[1].file ~= span.file then
    two[2] = span
  end
end

-- The callee's span for which its handler made this call: the last that had
-- begun; or, if its row was used anew, the caller's span behind it.
local function served_of(span, callees, behind)
  if not span.parent then return nil end
  local list = (callees[span.file] or {})[span.parent]
  local found = list and last_by(list, span.start)
  if found then return found end
  local two = behind[span.parent] or {}
  return two[1] and two[1].file ~= span.file and two[1] or two[2]
end

-- Spans are other processes' words, so their parents may go round in circles:
-- each circle is cut.
local function cut_circles(spans)
  local done = {}
  for _, span in ipairs(spans) do
    local path, at = {}, span
    while at and not done[at] and not path[at] do
      path[at], at = true, at.above
    end
    if at and path[at] then at.above = nil end
    for each in pairs(path) do done[each] = true end
  end
end

-- Puts spans in the tables in which parents are looked for.
local function index_of(spans)
  local callers, callees, behind = {}, {}, {}
  for _, span in ipairs(spans) do
    if span.side == "callee" then
      put_callee(callees, span)
    else
      put_caller(callers, span)
      put_behind(behind, span)
    end
  end
  sort_callees(callees)
  return callers, callees, behind
end

-- Many spans may have one parent, so none is compared with all others.
local function find_parents(spans)
  local callers, callees, behind = index_of(spans)
  for _, span in ipairs(spans) do
    if span.side == "callee" then
      span.above = caller_of(span, callers)
    else
      span.above = served_of(span, callees, behind)
    end
  end
  cut_circles(spans)
end

-- ---- Times ------------------------------------------------------------------

local function apart(file, other)
  return tonumber(file.offset - other.offset)
end

-- The ns by which a callee's times have to be shifted, to lie in its caller's;
-- 0 if they may be right. Processes of one host have one clock, and a request
-- may be read after its caller gave up.
local function shift_of(span, caller, offset)
  local start = span.start + offset
  local low, high = caller.at, (caller.ended or caller.file.now) + caller.offset
  local same = span.file.host == caller.file.host
  local fine = caller.ended and not caller.status
  local ended = span.ended and span.ended + offset
  local late = not same and (start > high or fine and ended and ended > high)
  if start >= low and not late then return 0 end
  local from = caller.sent and caller.sent + caller.offset or low
  local room = fine and ended and (high - from) - (ended - start) or 0
  return from + math.max(room, 0) / 2 - start
end

-- Sets span.offset, which brings its times to the tree's (0: its root began),
-- span.at, its start by that, and span.shift, if that is no clock's.
local function place(span, root)
  local above = span.above
  span.offset = above and above.offset or -root.start
  local other = (above or root).file
  if other.host ~= span.file.host then
    span.offset = span.offset + apart(span.file, other)
  end
  if above and span.side == "callee" and above.side == "caller" then
    local shift = shift_of(span, above, span.offset)
    span.shift = shift ~= 0 and shift or nil
    span.offset = span.offset + shift
  end
  span.at = span.start + span.offset
end

-- ---- Phases -----------------------------------------------------------------

local function between(from, to)
  return from and to and math.max(to - from, 0)
end

-- The ns of its phases, as native/stats.h has them; nil: not known.
local function phases(span)
  span.took = between(span.start, span.ended)
  if span.side == "callee" then
    span.lands = between(span.start, span.given)
    span.serves = between(span.given, span.ended)
    return
  end
  span.queues = between(span.start, span.sent)
  span.lands = between(span.landing, span.ended)
  local callee, way = span.callee, between(span.sent, span.ended)
  local there = callee and between(callee.start, callee.ended)
  span.wires = way and there and not span.status
    and math.max(way - there - (span.lands or 0), 0) or nil
end

-- ---- Trees ------------------------------------------------------------------

local function earlier(a, b)
  if a.at ~= b.at then return a.at < b.at end
  return a.number < b.number
end

local function best(list, of)
  local found, most
  for _, each in ipairs(list or {}) do
    local value = of(each)
    if value and (not most or value > most) then found, most = each, value end
  end
  return found
end

-- Where the trace began: with a span that no other one made, the earliest of
-- these as far as clocks tell.
local function first_of(spans)
  return best(spans, function(span)
    return not span.above and (span.parent and 0 or 2 ^ 62)
      - tonumber(span.file.offset - spans[1].file.offset + span.start)
  end)
end

-- Brings the spans in the order in which a tree is written, each with its
-- `depth`. Without recursion: a tree may be as deep as there are spans.
local function ordered(spans, root)
  local roots, below, list, open = {}, {}, {}, {}
  for _, span in ipairs(spans) do
    if span.above then put(below, span.above, span)
    else roots[#roots + 1] = span end
  end
  local function push(children, depth)
    for _, child in ipairs(children) do
      place(child, root)
      child.depth = depth
    end
    table.sort(children, earlier)
    for i = #children, 1, -1 do open[#open + 1] = children[i] end
  end
  push(roots, 0)
  while #open > 0 do
    local span = table.remove(open)
    list[#list + 1] = span
    push(below[span] or {}, span.depth + 1)
  end
  return list
end

--- Makes a tree of the spans of one trace, as collect() gives them.
-- @treturn table `trace`, `root` (a span), and `spans` in the order of a tree:
--   each has `root`, `depth` (0: it has no parent here), `above` (its parent),
--   `at` (ns since the root began), `offset` (which brings its times to that),
--   `shift` (ns by which it was moved, for its clock is another one), and in
--   ns, as far as they are known, `took`, `queues`, `wires`, `lands` and
--   `serves`
function M.tree(spans)
  find_parents(spans)
  local root = first_of(spans)
  local list = ordered(spans, root)
  for _, span in ipairs(list) do
    phases(span)
    span.root = root
  end
  return { trace = root.trace, root = root, spans = list }
end

--- Gathers the spans of files (perigee.stats.spans) by their traces: returns a
-- table of lists. Each span gets `file`, what was read of its agent.
function M.collect(files)
  local traces = {}
  for _, file in ipairs(files) do
    for _, span in ipairs(file.spans) do
      span.file = file
      put(traces, span.trace, span)
    end
  end
  return traces
end

return M
