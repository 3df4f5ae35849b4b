-- SPDX-License-Identifier: Apache-2.0
--- Spans as OTLP, OpenTelemetry's protocol, in JSON: what of them there is to
-- export, each once, and the documents for a collector.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local json = require "perigee.cli.json"
local printable = require "perigee.runtime.printable"

local M = {}

local BATCH = 512                       -- spans of a document

-- ---- What is new ------------------------------------------------------------

local Source = {}
Source.__index = Source

--- Makes a source of spans, each of which it gives once.
-- @treturn table `missed`: how many spans were gone before they were read
function M.source() return setmetatable({ seen = {}, missed = 0 }, Source) end

-- What was given of a life of an agent: `given`, the numbers of its spans that
-- are still in its file; `last`, the highest number that was there.
local function life_of(source, file)
  local key = file.scope .. "/" .. file.name .. "/" .. file.epoch
  local life = source.seen[key] or { given = {}, last = false }
  source.seen[key], life.round = life, source.round
  return life
end

-- A span is given when it has ended; or never will, since its process is dead.
local function is_over(span, file)
  return span.ended or file.state == "dead"
end

local function take(source, file, list)
  local life, kept = life_of(source, file), {}
  local first = file.spans[1] and file.spans[1].number
  if first and life.last then
    source.missed = source.missed + math.max(first - life.last - 1, 0)
  end
  for _, span in ipairs(file.spans) do
    local number = span.number
    if life.given[number] then
      kept[number] = true
    elseif is_over(span, file) then
      kept[number], list[#list + 1] = true, span
    end
    life.last = math.max(life.last or 0, number)
  end
  life.given = kept
end

--- Returns the spans of files (perigee.stats.spans) that were not given yet.
function Source:take(files)
  local list = {}
  self.round = (self.round or 0) + 1
  for _, file in ipairs(files) do take(self, file, list) end
  for key, life in pairs(self.seen) do
    if life.round ~= self.round then self.seen[key] = nil end
  end
  return list
end

-- ---- Documents --------------------------------------------------------------

local function text(key, value)
  return { key = key, value = { stringValue = printable.utf8(value) } }
end

local function whole(key, value)
  return { key = key, value = { intValue = ("%.0f"):format(value) } }
end

-- Ns since 1970 by the clock of the tree's root, with all digits: more than a
-- double has.
local function time(span, ns)
  local all = span.root.file.offset + span.root.start + (ns + span.offset)
  return (tostring(all):gsub("LL$", ""))
end

local PHASES = { queues = "perigee.queue_ns", wires = "perigee.wire_ns",
                 lands = "perigee.landing_ns", serves = "perigee.service_ns",
                 shift = "perigee.clock_shift_ns" }

local function attributes(span)
  local list = { text("rpc.system", "perigee"), text("peer.service", span.peer),
                 whole("perigee.bytes_out", span.bytes_out),
                 whole("perigee.bytes_in", span.bytes_in) }
  if span.method then
    list[#list + 1] = text("rpc.service", span.service)
    list[#list + 1] = text("rpc.method", span.method)
  end
  for field, key in pairs(PHASES) do
    if span[field] then list[#list + 1] = whole(key, span[field]) end
  end
  return list
end

local function status_of(span)
  local failed = span.status
    or not span.ended and "the process died before the call ended"
  return failed and { code = 2, message = failed } or { code = 0 }
end

local KINDS = { callee = 2, caller = 3 }        -- SERVER, CLIENT

local function span_of(span)
  local above = span.above and span.above.span or span.parent
  local last = span.ended or span.given or span.sent or span.start
  return {
    traceId = span.trace, spanId = span.span, parentSpanId = above or "",
    name = printable.utf8(span.method and ("%s.%s"):format(span.service,
                                                           span.method) or "?"),
    kind = KINDS[span.side], attributes = json.list(attributes(span)),
    startTimeUnixNano = time(span, span.start),
    endTimeUnixNano = time(span, last), status = status_of(span),
  }
end

local function resource_of(file)
  return { attributes = json.list {
    text("service.name", file.name), text("service.namespace", file.scope),
    text("service.instance.id", file.epoch), text("host.name", file.host),
    whole("process.pid", file.pid),
  } }
end

local function document(spans)
  local resources, of = {}, {}
  for _, span in ipairs(spans) do
    local list = of[span.file]
    if not list then
      list = json.list {}
      of[span.file] = list
      resources[#resources + 1] = {
        resource = resource_of(span.file),
        scopeSpans = json.list { { scope = { name = "perigee" },
                                   spans = list } },
      }
    end
    list[#list + 1] = span_of(span)
  end
  return json.encode { resourceSpans = json.list(resources) }
end

--- Makes the documents of spans that are in trees (perigee.stats.trace): a list
-- of { text, count }.
function M.documents(spans)
  local list = {}
  for i = 1, #spans, BATCH do
    local batch = {}
    for k = i, math.min(i + BATCH - 1, #spans) do
      batch[#batch + 1] = spans[k]
    end
    list[#list + 1] = { text = document(batch), count = #batch }
  end
  return list
end

return M
