-- SPDX-License-Identifier: Apache-2.0
-- examples/deploy/prometheus: the configuration, rules and dashboard name what
-- `perigee metrics` prints, and Prometheus' own tools take them.
local cases = require "spec.support.cases"
local exposition = require "spec.support.exposition"
local metrics = require "perigee.stats.metrics"
local planted = require "spec.support.planted_stats"

local ROOT = "examples/deploy/prometheus/"
local registry = "folder:" .. cases.folder .. "/planted"

local function read(path)
  local file = assert(io.open(ROOT .. path))
  local text = file:read "*a"
  file:close()
  return text
end

local function output(command)
  local pipe = io.popen(command .. " 2>&1; status=$?; echo; echo $status")
  local said, status = pipe:read "*a":match "^(.*)\n(%d+)\n$"
  pipe:close()
  return tonumber(status), said
end

-- Names of series by which the exporter tells of an agent with everything.
local function printed()
  local file = planted.new("a", "s")
  planted.method(file, 1, 2, "svc", "m", 1).ends[1] = 1
  local session = file.sessions[0]
  session.id, session.transport = 1, "shm"
  planted.write(registry, "s", "a", planted.bytes(file))
  local names = {}
  local text = metrics.new { registry = registry }:text()
  for _, each in ipairs(select(2, exposition.parse(text))) do
    names[each.name] = each.labels
  end
  return names
end

-- Checks each selector of a text: the metric is there, and has those labels.
local function check(text, names)
  local n = 0
  for name, rest in text:gmatch "%f[%w_:](perigee_[%w_]+)(%b{})" do
    assert.is_table(names[name], name)
    for label in rest:gmatch "([%w_]+)%s*[!=][=~]" do
      assert.is_string(names[name][label], name .. " " .. label)
    end
    n = n + 1
  end
  for name in text:gmatch "%f[%w_:](perigee_[%w_]+)" do
    assert.is_table(names[name], name)
  end
  return n
end

-- The texts of fields of that name, anywhere in a document.
local function fields(value, name, list)
  list = list or {}
  for key, each in pairs(value) do
    if type(each) == "table" then
      fields(each, name, list)
    elseif key == name then
      list[#list + 1] = each
    end
  end
  return list
end

local function has(program)
  return output("command -v " .. program) == 0
end

local MISSING = "promtool is missing (Debian's prometheus)"

describe("examples/deploy/prometheus", function()
  before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
  after_each(cases.cleanup)

  it("has rules about metrics that there are", function()
    local text = read "perigee.rules.yml":gsub("#[^\n]*", "")
    assert.is_true(check(text, printed()) > 5)
  end)

  it("has a dashboard of metrics that there are", function()
    local board = require "cjson".decode(read "grafana.json")
    local names, n = printed(), 0
    for _, field in ipairs { "expr", "definition", "query" } do
      for _, text in ipairs(fields(board, field)) do
        n = n + check(text, names)
      end
    end
    assert.is_true(n > 30)
  end)

  it("has a dashboard whose panels do not overlap", function()
    local taken, seen = {}, {}
    local board = require "cjson".decode(read "grafana.json")
    for _, panel in ipairs(board.panels) do
      local at = panel.gridPos
      assert.is_nil(seen[panel.id])
      seen[panel.id] = true
      assert.is_true(at.x + at.w <= 24)
      for y = at.y, at.y + at.h - 1 do
        for x = at.x, at.x + at.w - 1 do
          assert.is_nil(taken[y * 24 + x], panel.title)
          taken[y * 24 + x] = true
        end
      end
    end
  end)

  it("is what promtool takes", function()
    if not has "promtool" then return pending(MISSING) end
    local status, said = output("promtool check config " .. ROOT
                                .. "prometheus.yml")
    assert.equal(0, status, said)
    -- A document's queries as rules, with values for its variables.
    local file = assert(io.open(cases.folder .. "/queries.yml", "w"))
    file:write "groups:\n  - name: x\n    rules:\n"
    local board = require "cjson".decode(read "grafana.json")
    for i, text in ipairs(fields(board.panels, "expr")) do
      text = text:gsub("%$__rate_interval", "1m"):gsub("%$%w+", "x")
      file:write(("      - record: q%d\n        expr: '%s'\n"):format(i, text))
    end
    file:close()
    status, said = output("promtool check rules " .. cases.folder
                          .. "/queries.yml")
    assert.equal(0, status, said)
  end)

  -- Tests the rules: tests in YAML, as promtool's manual has it.
  local function test(tests)
    local path = cases.folder .. "/test.yml"
    local file = assert(io.open(path, "w"))
    file:write(("rule_files: [%s/%sperigee.rules.yml]\n"):format(
      io.popen "pwd":read "*l", ROOT), "evaluation_interval: 1m\ntests:\n",
      tests)
    file:close()
    local status, said = output("promtool test rules " .. path)
    assert.equal(0, status, said)
  end

  it("raises an alarm for an agent that was killed, and no other", function()
    if not has "promtool" then return pending(MISSING) end
    local up = "'perigee_up{scope=\"s\",agent=\"%s\",state=\"dead\"}'"
    test(([[
  - interval: 1m
    input_series:
      - series: %s
        values: '0 0 1x10'
      - series: %s
        values: '0x12'
    alert_rule_test:
      - {eval_time: 1m, alertname: PerigeeAgentDead, exp_alerts: []}
      - eval_time: 5m
        alertname: PerigeeAgentDead
        exp_alerts:
          - exp_labels: {severity: critical, scope: s, agent: killed,
                         state: dead}
            exp_annotations:
              summary: killed in scope s was killed
              description: >-
                Its process has not ended in order, and nobody has its name
                now. perigee autopsy killed --scope s tells what it did last.
]]):format(up:format "killed", up:format "well"))
  end)

  -- An agent of that name and scope may be dead on another host.
  it("raises an alarm for a call that hangs, not for a dead agent's", function()
    if not has "promtool" then return pending(MISSING) end
    local labels = '{instance="%s",scope="s",agent="a"%s}'
    test(([[
  - interval: 1m
    input_series:
      - series: 'perigee_oldest_call_seconds%s'
        values: '70x10'
      - series: 'perigee_up%s'
        values: '0x10'
      - series: 'perigee_oldest_call_seconds%s'
        values: '70x10'
      - series: 'perigee_up%s'
        values: '1x10'
    alert_rule_test:
      - eval_time: 5m
        alertname: PerigeeCallHangs
        exp_alerts:
          - exp_labels: {severity: warning, instance: one, scope: s, agent: a}
            exp_annotations:
              summary: A call of a in scope s is under way for 1m 10s
              description: >-
                perigee autopsy a --scope s tells which, and with whom.
]]):format(labels:format("one", ""), labels:format("one", ',state="dead"'),
           labels:format("two", ""), labels:format("two", ',state="dead"')))
  end)
end)
