-- SPDX-License-Identifier: Apache-2.0
-- `perigee trace --export` and --chrome: what a collector gets, and what
-- becomes of spans if it is slow, refuses or closes.
local cjson = require "cjson"
local command = require "spec.support.command"
local process = require "spec.support.process"

local LONG = 30 * process.slow

-- Calls itself three times, each in a trace of its own.
local AGENT = [[
local perigee = require "perigee"
local agent = assert(perigee.agent { name = "a" })
agent:serve { name = "s", methods = { f = function(x) return x end,
  g = function() error("no", 0) end } }
local s = assert(agent:proxy("a", "s")):with { trace = true }
s:f(1) s:f(2) s:g()
print "ready" io.stdout:flush()
perigee.run()
]]

-- Calls itself, and is not answered.
local WAITER = [[
local perigee = require "perigee"
local agent = assert(perigee.agent { name = "a" })
agent:serve { name = "s", methods = { f = function()
  print "ready" io.stdout:flush()
  perigee.sleep(600)
end } }
local s = assert(agent:proxy("a", "s")):with { trace = true, timeout = 600 }
s.async:f()
perigee.run()
]]

-- A collector that does what the path says, and says what it has got.
local function collector(child)
  local sockets = require "spec.net.sockets"
  local door, port = sockets.listen "127.0.0.1"
  child.say(port)

  local function answer(fd, status, body)
    sockets.send(fd, ("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s"):format(
      status, #body, body))
  end

  local refused = 0
  local paths = { closing = function() end }
  function paths.taking(fd) answer(fd, "200 OK", "{}") end
  function paths.failing(fd) answer(fd, "500 Oops", "\27[31m") end
  function paths.silent(fd) sockets.readable({ fd }, 60) end
  function paths.junk(fd) answer(fd, "200 OK", ("["):rep(10000)) end
  function paths.rejecting(fd)
    answer(fd, "200 OK", '{"partialSuccess":{"rejectedSpans":"2"}}')
  end
  function paths.recovering(fd)
    refused = refused + 1
    answer(fd, refused == 1 and "503 Later" or "200 OK", "")
  end

  while true do
    local fd = sockets.accept(door)
    local head, body = sockets.request(fd)
    if head then
      child.say(head:match "^%u+ (%S+)" .. " " .. (head:match "X%-Key: (%C*)"
        or "") .. " " .. body)
      paths[head:match "^%u+ /(%w+)"](fd)
    end
    sockets.close(fd)
  end
end

local child, at

local function start_agent()
  return command.run_script("agent.lua", AGENT)
end

before_each(function()
  child = process.start(collector)
  at = ("http://127.0.0.1:%s/"):format(child:read(LONG))
end)
after_each(command.clean)

local function export(path, ...)
  local status, text, errors = command.run("trace", "--once", "--export",
                                           at .. path, ...)
  assert.equal("", text)
  return status, errors
end

local function all_spans(document)
  local list = {}
  for _, resource in ipairs(document.resourceSpans) do
    for _, scope in ipairs(resource.scopeSpans) do
      for _, span in ipairs(scope.spans) do
        span.resource = resource.resource
        list[#list + 1] = span
      end
    end
  end
  return list
end

local function spans_in(body) return select(2, body:gsub('"spanId"', "")) end

local function of(attributes, key)
  for _, each in ipairs(attributes) do
    if each.key == key then
      return each.value.stringValue or each.value.intValue
    end
  end
end

describe("a collector of traces", function()
  it("gets each span with its parent, its times and its agent", function()
    start_agent()
    local status, errors = export "taking"
    assert.equal(0, status, errors)
    assert.matches("6 spans were sent, 0 dropped", errors)
    local path, body = child:read(LONG):match "^(%S+)  (.*)$"
    assert.equal("/taking/v1/traces", path)
    local spans, by_id = all_spans(cjson.decode(body)), {}
    assert.equal(6, #spans)
    for _, span in ipairs(spans) do by_id[span.spanId] = span end
    local failed = 0
    for _, span in ipairs(spans) do
      assert.equal("a", of(span.resource.attributes, "service.name"))
      assert.equal(32, #span.traceId)
      assert.matches("^s%.[fg]$", span.name)
      assert.matches("^%d+$", span.startTimeUnixNano)
      assert.is_true(math.abs(span.startTimeUnixNano / 1e9 - os.time()) < 3600)
      assert.is_true(#span.startTimeUnixNano == #span.endTimeUnixNano
                     and span.startTimeUnixNano < span.endTimeUnixNano)
      failed = failed + (span.status.code == 2 and 1 or 0)
      if span.kind == 2 then            -- SERVER
        local parent = by_id[span.parentSpanId]
        assert.equal(3, parent.kind)
        assert.equal(parent.traceId, span.traceId)
        assert.is_truthy(of(span.attributes, "perigee.service_ns"))
      else
        assert.equal("", span.parentSpanId)
        assert.is_truthy(of(span.attributes, "perigee.wire_ns")
                         or span.status.code == 2)
      end
    end
    assert.equal(2, failed)
  end)

  it("is not waited for: what it does not take is dropped and counted",
     function()
    start_agent()
    for path, why in pairs { failing = "it answers 500", closing = "%w",
                             silent = "[Tt]ime" } do
      local status, errors = export(path, "--timeout",
                                    300 * process.slow .. "ms")
      assert.equal(1, status)
      assert.matches("^perigee trace: " .. at .. path .. "/v1/traces: [^\n]*"
        .. why .. "[^\n]*; spans are dropped until it takes them\n", errors)
      assert.matches("\nperigee trace: 0 spans were sent, 6 dropped; [^\n]+\n$",
                     errors)
      assert.is_nil(errors:find "[^\n%g ]")
    end
    local status, errors = export "rejecting"
    assert.equal(1, status)
    assert.matches("4 spans were sent, 2 dropped", errors)
    status, errors = export "junk"
    assert.equal(0, status)
    assert.matches("6 spans were sent, 0 dropped", errors)
  end)

  it("is named by the environment, as OpenTelemetry says", function()
    start_agent()
    local function env(more)
      local status, _, errors = command.shell(more
        .. " perigee trace --export --once")
      assert.equal(0, status, errors)
      return child:read(LONG):match "^(%S+) (%S*) "
    end
    local path, key = env(("OTEL_EXPORTER_OTLP_ENDPOINT=%staking/ "
      .. "OTEL_EXPORTER_OTLP_HEADERS='X-Key=a%%20b,y=z'"):format(at))
    assert.equal("/taking/v1/traces", path)
    assert.equal("a", key)
    assert.equal("/taking/x", (env(("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="
      .. "%staking/x"):format(at))))
    local status, _, errors = command.run("trace", "--export", "file:///x")
    assert.equal(2, status)
    assert.matches("is no URL of a collector", errors)
  end)

  it("gets all spans of a scope: an option that chooses is misuse", function()
    for _, words in ipairs { { "abcd" }, { "--slow", "1s" }, { "--json" },
                             { "--since", "1h" }, { "--chrome", "x" } } do
      local status, _, errors = command.run("trace", "--once", "--export",
                                            at .. "taking", unpack(words))
      assert.equal(2, status)
      assert.matches("^perigee trace: %-%-export sends all spans [^\n]+\n$",
                     errors)
    end
    assert.equal(2, (command.run("trace", "--once")))
  end)

  it("is told without what is secret in its URL", function()
    start_agent()
    for url, status in pairs { ["http://me:secret@127.0.0.1:9"] = 2,
                               ["ftp://me:secret@127.0.0.1:9"] = 2,
                               [at .. "failing?key=secret"] = 1 } do
      local got, _, errors = command.shell((
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT='%s' perigee trace --export --once")
        :format(url))
      assert.equal(status, got)
      assert.matches("^perigee trace: [^\n]+\n", errors)
      assert.is_nil(errors:find("secret", 1, true))
    end
  end)

  it("gets what is new, once, also when it was away", function()
    local agent = start_agent()
    local exporter = command.start("trace", "--every", "20ms", "--export",
                                   at .. "recovering")
    assert.matches("it answers 503; spans are dropped", exporter:read(LONG))
    assert.matches("recovering", child:read(LONG))
    agent:kill()
    start_agent()                       -- another life: six more
    assert.matches("takes spans again; 6 were dropped", exporter:read(LONG))
    local got = 0
    repeat got = got + spans_in(child:read(LONG)) until got == 6
    exporter:signal "INT"
    local last = exporter:read(LONG)
    assert.matches("6 spans were sent, 6 dropped; 0 were gone", last)
  end)

  it("gets what has ended when the command is stopped", function()
    local agent = start_agent()
    local exporter = command.start("trace", "--every", "10m", "--export",
                                   at .. "taking")
    assert.equal(6, spans_in(child:read(LONG)))
    agent:kill()
    start_agent()                       -- another life: six more
    exporter:signal "INT"
    assert.equal(6, spans_in(child:read(LONG)))
    assert.matches("12 spans were sent, 0 dropped", exporter:read(LONG))
  end)

  it("is not waited for after a second signal", function()
    command.run_script("agent.lua", (AGENT:gsub("s:f%(1%)",
      "for i = 1, 300 do %0 end")))     -- more spans than a document has
    local exporter = command.start("trace", "--timeout", "10m", "--export",
                                   at .. "silent")
    assert.matches("silent", child:read(LONG))
    exporter:signal "INT"
    process.usleep(0.3 * process.slow)  -- two at once may be taken for one
    exporter:signal "INT"
    assert.matches("0 spans were sent, 604 dropped", exporter:read(LONG))
  end)
end)

describe("a collector of traces that is told of a call under way", function()
  it("gets it once it has ended, or its process is dead", function()
    local agent = command.run_script("agent.lua", WAITER)
    local status, errors = export "taking"
    assert.equal(0, status, errors)
    assert.matches("0 spans were sent, 0 dropped", errors)
    agent:kill()
    status, errors = export "taking"
    assert.equal(0, status, errors)
    assert.matches("2 spans were sent, 0 dropped", errors)
  end)
end)

describe("a trace for Chrome's viewer", function()
  it("has an event for each span, and a name for each agent", function()
    start_agent()
    local path = command.folder() .. "/chrome.json"
    local status, _, errors = command.run("trace", "--chrome", path)
    assert.equal(0, status, errors)
    local events = cjson.decode(command.content(path)).traceEvents
    assert.equal(7, #events)
    assert.equal("process_name", events[1].name)
    assert.matches("^a %(host ", events[1].args.name)
    local ends = {}
    for i = 2, 7 do
      local event = events[i]
      assert.equal("X", event.ph)
      assert.equal(events[1].pid, event.pid)
      assert.is_true(event.dur > 0 and event.ts >= (ends[event.tid] or 0))
      ends[event.tid] = event.ts + event.dur
    end
    status, _, errors = command.run("trace", "--chrome", "/nowhere/x")
    assert.equal(1, status)
    assert.matches("^perigee trace: writing /nowhere/x: [^\n]+\n$", errors)
  end)
end)
