-- SPDX-License-Identifier: Apache-2.0
--- `perigee trace`: calls of sampled traces across this host's agents, from
-- their stats files. No agent is asked, and one that was killed is among them.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local M = {
  name = "trace",
  summary = "Put one call across agents together, or list traces.",
  description = "Tells what became of a call and of those that were made for "
    .. "it, agent by agent, with times. Without an ID it lists the traces that "
    .. "there are. Calls with a trace that is sampled (option trace) leave "
    .. "spans in the stats files of caller and callee. These are read; no "
    .. "agent is asked.",
}

local function identity(text)
  local id = text:lower()
  id = id:match "^00%-(%x+)%-%x+%-%x%x$" or id
  if id:find "^%x+$" and #id <= 32 then return id end
  return nil, ("%q is no trace's id, of up to 32 hexadecimal digits"):format(
    text)
end

function M.configure(parser)
  parser:argument("id", "The trace's id, a traceparent, or the first digits of "
    .. "an id."):argname "ID":args "?":convert(identity)
  parser:option("--slow", "Only traces that took as long or longer, as in "
    .. "10ms."):argname "TIME":convert(options.positive)
  parser:option("--since", "Only traces that began within this time, as in "
    .. "5m."):argname "TIME":convert(options.positive)
  parser:option("--chrome", "Write what is chosen for Chrome's trace viewer, "
    .. "or Perfetto."):argname "FILE"
  parser:option("--export", "Send spans to a collector, by OTLP over HTTP, as "
    .. "they end, until this is stopped. Default URL: "
    .. "$OTEL_EXPORTER_OTLP_ENDPOINT, or http://127.0.0.1:4318.")
    :argname "URL":args "?"
  parser:flag("--once", "With --export: send what there is, and end.")
  parser:option("--every", "With --export: how often files are read; default: "
    .. "1 s."):argname "TIME":convert(options.positive):default(1)
  options.timeout(parser, 5, "With --export: how long the collector may take "
    .. "for a batch; default: %g s.")
  options.json(parser)
  options.place(parser)
end

-- ---- The spans of this host ------------------------------------------------

--- Reads the spans of all agents of the scope, also of those which died.
function M.files(given)
  local host = require "perigee.stats.host"
  local spans = require "perigee.stats.spans"
  local url = require "perigee.cli.client".registry(given)
  local scope = require "perigee.cli.stats".scope(given)
  local list, seen = {}, {}
  -- A file that becomes the last life's meanwhile is there twice, not missed.
  for _, last in ipairs { false, true } do
    for _, path in ipairs(host.paths(url, scope, last)) do
      local file = spans.read(path)
      local life = file and ("%s %s"):format(file.name, file.epoch)
      if file and not seen[life] then
        file.path, seen[life] = path, true
        list[#list + 1] = file
      end
    end
  end
  return list
end

-- Ns since a tree's root began.
local function age(tree)
  return tree.root.file.now - tree.root.start
end

-- How long a tree took, or takes.
local function took(tree)
  local root = tree.root
  return root.took or root.file.state ~= "dead" and age(tree) or 0
end

local function chosen(given, tree)
  return (not given.id or tree.trace:sub(1, #given.id) == given.id)
    and (not given.slow or took(tree) >= given.slow * 1e9)
    and (not given.since or age(tree) <= given.since * 1e9)
end

-- The trees that are asked for; the latest is the last.
local function trees_of(given)
  local traces = require "perigee.stats.trace"
  local list = {}
  for _, spans in pairs(traces.collect(M.files(given))) do
    local tree = traces.tree(spans)
    if chosen(given, tree) then list[#list + 1] = tree end
  end
  table.sort(list, function(a, b)
    local one, two = age(a), age(b)
    return one > two or one == two and a.trace < b.trace
  end)
  return list
end

-- ---- Words ------------------------------------------------------------------

local function time(ns) return ns and units.format_time(ns / 1e9) or nil end

local function name_of(file)
  return file.name ~= "" and file.name or ("process %d"):format(file.pid)
end

local function called(span)
  if not span.method then return "?" end
  return ("%s.%s"):format(span.service, span.method)
end

local function status(span)
  if span.ended then return span.status or "ok" end
  local file = span.file
  if file.state == "dead" then
    return ("never ended: %s is dead"):format(name_of(file))
  end
  return "under way"
end

local DEEP = 20                         -- from there on lines are not indented

local function title(span)
  local indent = ("  "):rep(math.min(span.depth, DEEP))
  local what = span.side == "callee" and name_of(span.file)
    or ("%s -> %s"):format(name_of(span.file),
                           span.peer ~= "" and span.peer or "?")
  return ("%s%s %s"):format(indent, what, called(span))
end

local function row_of(span)
  return { title(span), "+" .. (time(math.max(span.at, 0)) or ""),
           time(span.took), time(span.queues), time(span.wires),
           time(span.lands), time(span.serves), tostring(span.bytes_out),
           tostring(span.bytes_in), status(span) }
end

local HEADINGS = { "CALL", "AT", "TOOK", "QUEUE", "WIRE", "LANDING", "SERVICE",
                   "BYTES OUT", "IN", "STATUS" }

-- Says which times are not as they were measured.
local function tell_shifts(tree, out)
  local told = {}
  for _, span in ipairs(tree.spans) do
    local name = name_of(span.file)
    if span.shift and not told[span.file] then
      told[span.file] = true
      out.line("the clock of %s (host %s) differs: its times were shifted by "
        .. "%s%s, to lie in its callers'", name, span.file.host,
        span.shift < 0 and "-" or "", time(math.abs(span.shift)))
    end
  end
end

local function tell_tree(tree, out)
  out.line("trace %s, begun %s ago", tree.trace, time(math.max(age(tree), 0)))
  local rows = {}
  for i, span in ipairs(tree.spans) do rows[i] = row_of(span) end
  out.columns(HEADINGS, rows)
  tell_shifts(tree, out)
end

local function tell_list(trees, out)
  local rows = {}
  for i, tree in ipairs(trees) do
    local root = tree.root
    rows[i] = { tree.trace, name_of(root.file), called(root),
                time(math.max(age(tree), 0)), time(took(tree)),
                tostring(#tree.spans), status(root) }
  end
  out.columns({ "TRACE", "AGENT", "CALL", "AGO", "TOOK", "SPANS", "STATUS" },
              rows)
end

-- ---- JSON -------------------------------------------------------------------

local FIELDS = { "side", "span", "parent", "session", "peer", "service",
                 "method", "depth", "at", "shift", "took", "queues", "wires",
                 "lands", "serves", "bytes_out", "bytes_in" }

local function plain(span)
  local told = { agent = span.file.name, scope = span.file.scope,
                 host = span.file.host, pid = span.file.pid,
                 process = span.file.state, above = span.above
                   and span.above.span, status = span.status
                   or span.ended and "ok" or nil }
  for _, field in ipairs(FIELDS) do told[field] = span[field] end
  return told
end

local function document(tree)
  local spans = {}
  for i, span in ipairs(tree.spans) do spans[i] = plain(span) end
  return { trace = tree.trace, took = tree.root.took, ago = age(tree),
           spans = require "perigee.cli.json".list(spans) }
end

local function write_chrome(path, trees)
  local text = require "perigee.cli.json".encode(
    require "perigee.cli.trace.chrome".document(trees))
  local file, why = io.open(path, "wb")
  local fine = file and file:write(text, "\n")
  if file then
    local closed, late = file:close()
    fine, why = fine and closed, why or late
  end
  if not fine then failure.failed("writing %s: %s", path, why) end
end

-- ---- The command ------------------------------------------------------------

local function none(given)
  if given.id then
    failure.failed("no agent of this host has spans of trace %s (each keeps "
      .. "its last %d; --scope and --registry look elsewhere)", given.id,
      tonumber(require "perigee.native".C.PERIGEE_STATS_SPANS))
  end
  io.stderr:write(given.path, ": no trace was sampled, or none of these is one "
    .. "that is asked for\n")
end

-- What chooses among traces, or shows them otherwise.
local CHOICES = { "id", "slow", "since", "chrome", "json" }

local function check_export(given)
  for _, name in ipairs(CHOICES) do
    if given[name] then
      failure.misuse("--export sends all spans of a scope: it takes no ID, "
        .. "--slow, --since, --chrome or --json")
    end
  end
end

function M.run(given)
  if given.export then
    check_export(given)
    given.export = given.export[1] or ""
    return require "perigee.cli.trace.export".run(given)
  end
  if given.once then failure.misuse "--once goes with --export" end
  require "perigee.cli.client".library()
  local out, json = require "perigee.cli.out", require "perigee.cli.json"
  local trees = trees_of(given)
  if given.chrome then
    if given.id and #trees == 0 then none(given) end
    return write_chrome(given.chrome, trees)
  elseif given.json then
    local list = {}
    for i, tree in ipairs(trees) do list[i] = document(tree) end
    if given.id and #list == 0 then none(given) end
    out.json(given.id and #list == 1 and list[1] or json.list(list))
  elseif #trees == 0 then
    none(given)
  elseif #trees == 1 and given.id then
    tell_tree(trees[1], out)
  else
    tell_list(trees, out)
  end
  out.finish()
end

return M
