-- SPDX-License-Identifier: Apache-2.0
--- `perigee trace --export`: sends spans of this host's agents to a collector
-- of OpenTelemetry, by OTLP over HTTP in JSON. Files are read from outside, so
-- no agent pays for a collector. Nothing waits for one, either: a batch that it
-- does not take is dropped and counted, with the rest of what was read with it.
local failure = require "perigee.cli.failure"
local otlp = require "perigee.cli.trace.otlp"
local printable = require "perigee.runtime.printable"

local M = {}

local DEFAULT = "http://127.0.0.1:4318"
local PATH = "/v1/traces"

-- ---- Where to ---------------------------------------------------------------

local function with_path(base)
  base = base:gsub("/+$", "")
  return base:sub(-#PATH) == PATH and base or base .. PATH
end

local function environment(name)
  local value = os.getenv(name)
  return value and value:find "%S" and value or nil
end

-- The collector's URL: that of the command, or by OpenTelemetry's rules.
local function url_of(given)
  local named = given.export ~= "" and given.export
  local whole = not named and environment "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
  local url = whole or with_path(named
    or environment "OTEL_EXPORTER_OTLP_ENDPOINT" or DEFAULT)
  if url:find "//[^/]*@" then           -- it is not told: a password is in it
    failure.misuse("a collector's URL has no user here: what it wants to know "
      .. "is in OTEL_EXPORTER_OTLP_HEADERS")
  elseif not url:find "^https?://[^/]" then
    failure.misuse("%q is no URL of a collector, as %s", url, DEFAULT)
  end
  return url
end

-- Lines of the header, by "key=value,key=value".
local function headers_of()
  local lines = { "Content-Type: application/json" }
  local told = environment "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
    or environment "OTEL_EXPORTER_OTLP_HEADERS" or ""
  for key, value in told:gmatch "([^,=%s]+)%s*=%s*([^,]*)" do
    value = value:gsub("%%(%x%x)", function(digits)
      return string.char(tonumber(digits, 16))
    end)
    lines[#lines + 1] = ("%s: %s"):format(key, (value:gsub("%c", "")))
  end
  return lines
end

-- ---- Sending ----------------------------------------------------------------

-- How many spans the collector says that it has rejected.
local function rejected(body, count)
  local told = require "perigee.net.json".decode(body)
  local part = type(told) == "table" and told.partialSuccess
  local n = type(part) == "table" and tonumber(part.rejectedSpans) or 0
  return n > 0 and n <= count and n or 0
end

-- Sends a document. Returns how many of its spans were taken; or nil and why.
local function send(exporter, document)
  local answer, _, why = exporter.client:ask {
    method = "POST", url = exporter.url, headers = exporter.headers,
    body = document.text, timeout = exporter.timeout, limit = 65536,
    tls = { ca = environment "OTEL_EXPORTER_OTLP_CERTIFICATE" },
  }
  if not answer then return nil, why end
  if answer.status < 200 or answer.status > 299 then
    return nil, ("it answers %d"):format(answer.status)
  end
  return document.count - rejected(answer.body, document.count)
end

local function say(...)
  io.stderr:write("perigee trace: ", printable.line((...):format(
    select(2, ...))), "\n")
end

-- Says once that the collector fails, and once that it is well again.
local function note(exporter, why)
  if why and not exporter.failing then
    say("%s: %s; spans are dropped until it takes them", exporter.shown, why)
  elseif exporter.failing and not why then
    say("%s takes spans again; %d were dropped", exporter.shown,
        exporter.dropped)
  end
  exporter.failing = why
end

-- What has not been taken yet counts as dropped: a second signal may end the
-- command meanwhile.
local function send_all(exporter, spans)
  local why
  exporter.dropped = exporter.dropped + #spans
  for _, document in ipairs(otlp.documents(spans)) do
    local taken
    if not why then taken, why = send(exporter, document) end
    exporter.sent = exporter.sent + (taken or 0)
    exporter.dropped = exporter.dropped - (taken or 0)
  end
  note(exporter, why)
end

-- Reads all files, and sends what is new and over.
local function pass(exporter, given)
  local traces = require "perigee.stats.trace"
  local files = require "perigee.cli.trace".files(given)
  local spans = exporter.source:take(files)
  if #spans == 0 then return end
  for _, each in pairs(traces.collect(files)) do traces.tree(each) end
  send_all(exporter, spans)
end
jit.off(pass)                   -- its loop over pairs(), see check.lua

-- ---- The command ------------------------------------------------------------

local function new(given)
  local url = url_of(given)
  local exporter = { url = url, shown = url:match "^[^?]*", -- may have a token
                     headers = headers_of(), source = otlp.source(), sent = 0,
                     dropped = 0, timeout = given.timeout, failing = nil }
  local fine, http = pcall(require, "perigee.net.http")
  if not fine then failure.failed("HTTP needs libcurl: %s", http) end
  -- HTTP is asked for in the loop, which needs an engine.
  local engine, err = require "perigee".engine {}
  if not engine then failure.failed("%s", tostring(err)) end
  local client, _, why = http.new()
  if not client then failure.failed("%s", why) end
  exporter.client, exporter.engine = client, engine
  return exporter
end

-- After the first signal what has ended until then is sent, too; the second one
-- stops the loop.
local function follow(exporter, given)
  local futures = require "perigee.runtime.future"
  local loop, ending = require "perigee.runtime.loop", futures.new()
  if not given.once then
    loop.state.on_signal = function() futures.settle(ending, true) end
  end
  repeat
    local last = given.once or ending:done()
    pass(exporter, given)
    if not last then ending:wait(given.every) end
  until last
end

--- Exports until it is stopped; or, with --once, what there is.
function M.run(given)
  local perigee = require "perigee.cli.client".library()
  local exporter, raised = new(given), nil
  perigee.run(function()
    local fine, what = xpcall(follow, failure.traced, exporter, given)
    raised = not fine and what
  end)
  exporter.client:close()
  exporter.engine:close()
  if raised then error(raised, 0) end
  say("%d spans were sent, %d dropped; %d were gone before they were read",
      exporter.sent, exporter.dropped, exporter.source.missed)
  return exporter.dropped > 0 and given.once and failure.FAILED or 0
end

return M
