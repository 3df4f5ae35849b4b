-- SPDX-License-Identifier: Apache-2.0
--- Trees of spans in the Trace Event Format of Chrome's viewer (and of
-- Perfetto): complete events, in microseconds.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local M = {}

-- The ns between the roots of two trees.
local function apart(tree, first)
  local one, other = tree.root, first.root
  local clocks = one.file.host ~= other.file.host
    and tonumber(one.file.offset - other.file.offset) or 0
  return one.start - other.start + clocks
end

-- Spans of a process that overlap go to lines of their own.
local function line_of(lines, start, ended)
  for i = 1, #lines + 1 do
    if not lines[i] or lines[i] <= start then
      lines[i] = ended
      return i
    end
  end
end

local function event(span, process, base)
  local ns = span.took or 0
  local start = base + span.at
  return {
    ph = "X", cat = span.side, pid = process.number, ts = start / 1e3,
    tid = line_of(process.lines, start, start + ns), dur = ns / 1e3,
    name = span.method and ("%s.%s"):format(span.service, span.method) or "?",
    args = { trace = span.trace, span = span.span, parent = span.above
               and span.above.span or span.parent,
             peer = span.peer, status = span.status or span.ended and "ok"
               or "not ended", queue_ns = span.queues, wire_ns = span.wires,
             landing_ns = span.lands, service_ns = span.serves,
             shifted_ns = span.shift, bytes_out = span.bytes_out,
             bytes_in = span.bytes_in },
  }
end

local function new_process(events, file, number)
  local name = ("%s (host %s, process %d)"):format(file.name, file.host,
                                                   file.pid)
  events[#events + 1] = { ph = "M", name = "process_name", pid = number,
                          args = { name = name } }
  return { number = number, lines = {} }
end

--- Makes the document of trees, a value for JSON. A span that has not ended has
-- no duration.
function M.document(trees)
  local events, processes, count = {}, {}, 0
  local all = {}
  for _, tree in ipairs(trees) do
    local base = apart(tree, trees[1])
    for _, span in ipairs(tree.spans) do
      all[#all + 1] = { span = span, base = base, at = base + span.at }
    end
  end
  table.sort(all, function(a, b) return a.at < b.at end)
  for _, each in ipairs(all) do
    local file = each.span.file
    if not processes[file] then
      count = count + 1
      processes[file] = new_process(events, file, count)
    end
    events[#events + 1] = event(each.span, processes[file], each.base)
  end
  return { displayTimeUnit = "ns",
           traceEvents = require "perigee.cli.json".list(events) }
end

return M
