-- SPDX-License-Identifier: Apache-2.0
-- A real Prometheus scrapes `perigee metrics` every 100 ms while calls are
-- made: its rates and quantiles agree with what was called.
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local perigee = require "perigee"
local planted = require "spec.support.planted_stats"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

local LONG = 30 * process.slow

local CONFIG = [[
global: {scrape_interval: 100ms, scrape_timeout: 100ms}
scrape_configs:
  - job_name: perigee
    static_configs: [{targets: ["%s"]}]
]]

local url

-- Starts the exporter of these agents, and of one whose names are hostile, and
-- Prometheus.
local function start(agent)
  local registry = "folder:" .. agent.address:match "^unix:(.*)/[^/]+/[^/]+$"
  planted.write(registry, agent.scope, "evil",
                planted.bytes(planted.hostile("evil", agent.scope)))
  local exporter = process.spawn { "luajit", "lua/perigee/cli/perigee",
    "metrics", "--listen", "127.0.0.1:0", "--registry", registry,
    "--scope", agent.scope }
  local target = assert(exporter:read(LONG)):match "//(.*)/metrics$"
  local config = cases.folder .. "/prometheus.yml"
  local file = assert(io.open(config, "w"))
  file:write(CONFIG:format(target))
  file:close()
  url = "127.0.0.1:" .. sockets.free_port()
  process.spawn { "prometheus", "--config.file=" .. config,
    "--storage.tsdb.path=" .. cases.folder .. "/tsdb", "--log.level=error",
    "--web.listen-address=" .. url }
end

local function ask(path, query)
  local pipe = io.popen(("curl -s -m 20 -G --data-urlencode 'query=%s' "
    .. "'http://%s/api/v1/%s'"):format(query or "", url, path))
  local answer = require "cjson.safe".decode(pipe:read "*a") or {}
  pipe:close()
  return answer.data or {}
end

-- The value of a query that has one; nil: it has none yet.
local function value(query)
  local results = ask("query", query).result or {}
  return results[1] and tonumber(results[1].value[2])
end

-- Fails unless a series has grown by n, by its samples and its rate. For this
-- Prometheus adds what a series may have grown before its first sample and
-- after its last one, which is less than in a mean interval each.
local function check_growth(series, n)
  local samples = ask("query", series .. "[2m]").result[1].values
  assert.equal(n, samples[#samples][2] - samples[1][2], series)
  local rated = value(("rate(%s[2m]) * 120"):format(series)) / n
  assert.is_true(rated > 0.9999 and rated < 1 + 3 / #samples, rated)
end

local function rank(list, part)
  return list[math.max(1, math.ceil(part * #list))]
end

-- The number of the bucket that seconds are in (stats/partial).
local function bucket_of(seconds)
  for i, bound in ipairs(require "perigee.stats.partial".bounds) do
    if seconds <= bound * (1 + 1e-9) then return i end
  end
end

describe("Prometheus", function()
  if os.execute "command -v prometheus >/dev/null" ~= 0 then
    return it("scrapes", function()
      pending "prometheus is missing (Debian's prometheus)"
    end)
  elseif not control.is_there() then
    return it("scrapes", function() pending(control.needs .. " is missing") end)
  end

  after_each(cases.cleanup)

  it("has the rates and quantiles of the calls that were made", function()
    local server, caller = assert(cases.agent "server"), assert(cases.agent())
    server:serve { name = "work", methods = {
      add = function(a, b) return a + b end,
      nap = function(seconds) perigee.sleep(seconds) return true end,
      fail = function() error("told to", 0) end } }
    local work = assert(caller:proxy("server", "work"))
    -- Series begin with the first call.
    work:add(1, 1) work:nap(0) work:fail()
    start(server)
    local function calls(method)
      return ('perigee_calls_total{side="client",method="%s"}'):format(method)
    end
    cases.await(function() return value(calls "nap") == 1 end)
    perigee.sleep(0.5)

    local took = {}
    for i = 1, 300 do
      local began = process.now()
      assert(work:nap(i % 10 == 0 and 0.02 or 0.002))
      took[i] = process.now() - began
    end
    for i = 1, 2000 do assert(work:add(i, 1)) end
    for _ = 1, 50 do work:fail() end
    table.sort(took)
    cases.await(function() return value(calls "fail") == 51 end)
    perigee.sleep(1)

    for method, n in pairs { nap = 300, add = 2000, fail = 50 } do
      check_growth(calls(method), n)
    end
    check_growth('perigee_call_failures_total{side="client",method="fail",'
      .. 'kind="remote"}', 50)
    for _, part in ipairs { 0.5, 0.99 } do
      local told = value(("histogram_quantile(%g, rate("
        .. "perigee_call_duration_seconds_bucket{side=\"client\","
        .. "method=\"nap\"}[2m]))"):format(part))
      local wanted = bucket_of(rank(took, part))
      assert.is_true(math.abs(bucket_of(told) - wanted) <= 1)
    end
    for i = 2, 4 do                     -- a newline, a backslash, a quote
      local name = ("%q"):format(planted.NAMES[i]):gsub("\n", "n")
      assert.equal(i, value(('perigee_calls_total{agent="evil",method=%s}')
        :format(name)))
    end
    local target                        -- a single scrape may come too late
    cases.await(function()
      target = ask "targets".activeTargets[1]
      return target.health == "up"
    end)
    assert.equal("", target.lastError)
  end)
end)
