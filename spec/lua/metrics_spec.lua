-- SPDX-License-Identifier: Apache-2.0
-- Metrics of the agents of a host, from their stats files: what is told of
-- honest ones, and that files which lie, or are none, spoil nothing else.
local cases = require "spec.support.cases"
local exposition = require "spec.support.exposition"
local ffi = require "ffi"
local metrics = require "perigee.stats.metrics"
local pages = require "perigee.cli.metrics.page"
local partial = require "perigee.stats.partial"
local perigee = require "perigee"
local planted = require "spec.support.planted_stats"
local summaries = require "perigee.stats.summary"

local registry = "folder:" .. cases.folder .. "/planted"

local function has(program)
  return os.execute(("command -v %s >/dev/null"):format(program)) == 0
end

-- Metrics of what is there now.
local function told(options, kind)
  local all = { registry = registry }
  for name, value in pairs(options or {}) do all[name] = value end
  local text = metrics.new(all):text(kind)
  return text, exposition.parse(text, kind == "openmetrics")
end

local function samples(options) return select(3, told(options)) end

local function plant(name, f)
  local file = planted.new(name, "s")
  if f then f(file) end
  return planted.write(registry, "s", name, planted.bytes(file)), file
end

-- A planted agent with so many own methods, called once, twice, ...
local function plant_methods(name, n)
  return plant(name, function(file)
    for i = 1, n do planted.method(file, i, 2, "svc", "m" .. i, i) end
  end)
end

-- What is logged while f runs.
local function logged(f)
  local before, lines = perigee.log, {}
  perigee.log = function(level, text)
    lines[#lines + 1] = level .. " " .. text
  end
  f()
  perigee.log = before
  return table.concat(lines, "\n")
end

local function outcome(list, result)
  return exposition.value(list, "perigee_exporter_files", { result = result })
end

before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
after_each(cases.cleanup)

describe("metrics of an agent", function()
  it("have its calls, failures and times", function()
    local agent, caller = assert(cases.agent()), assert(cases.agent())
    agent:serve { name = "calc", methods = {
      add = function(a, b) return a + b end,
      fail = function() error("told to", 0) end } }
    local calc = assert(caller:proxy(agent.name, "calc"))
    for i = 1, 160 do assert(calc:add(i, 1)) end
    for _ = 1, 3 do calc:fail() end
    perigee.sleep(0.01)
    local base = agent.address:match "^unix:(.*)/[^/]+/[^/]+$"
    local list = samples { registry = "folder:" .. base,
                           scopes = { agent.scope } }
    local own = { agent = agent.name, side = "server", service = "calc",
                  scope = agent.scope }
    local function value(name, method, more)
      own.method, own.kind = method, more
      return exposition.value(list, name, own)
    end
    assert.equal(160, value("perigee_calls_total", "add"))
    assert.equal(3, value("perigee_calls_total", "fail"))
    assert.equal(3, value("perigee_call_failures_total", "fail", "remote"))
    assert.is_nil(value("perigee_call_failures_total", "add"))
    assert.equal(160, exposition.value(list, "perigee_calls_total",
      { agent = caller.name, side = "client", method = "add" }))
    local measured = value("perigee_call_duration_seconds_count", "add")
    assert.is_true(measured >= 16 and measured <= 160 + 16)
    assert.is_true(value("perigee_call_duration_seconds_sum", "add") > 0)
    assert.equal(1, exposition.sum(list, "perigee_up", { agent = agent.name }))
    assert.equal(1, exposition.value(list, "perigee_sessions",
                                     { agent = agent.name }))
  end)

  it("have no open sessions of a dead agent, but what went through them",
     function()
    for _, name in ipairs { "alive", "dead" } do
      plant(name, function(file)
        local session = file.sessions[0]
        session.id, session.transport = 1, "shm"
        session.counters.size, session.counters.bytes_sent = 80, 7
        if name == "dead" then file.head.pid_started = 1 end
      end)
    end
    local list = samples()
    local function all(name) return exposition.sum(list, name, {}) end
    assert.equal(1, all "perigee_sessions")
    assert.equal(1, exposition.value(list, "perigee_sessions",
                                     { agent = "alive", transport = "shm" }))
    assert.equal(14, all "perigee_sent_bytes_total")
  end)

  it("have what sessions without a row of their own count", function()
    plant("a", function(file)
      file.head.others_open, file.counters.bytes_sent = 3, 5
      file.sums.bytes_sent = 7
    end)
    local list = samples()
    assert.equal(12, exposition.value(list, "perigee_sent_bytes_total", {}))
    assert.equal(3, exposition.value(list, "perigee_sessions",
                                     { transport = "other" }))
  end)

  it("have histograms whose bounds are borders of the file's buckets",
     function()
    plant("a", function(file)
      planted.method(file, 1, 2, "svc", "m", 9)
      for i = 0, 503 do file.histograms[1].buckets[i] = 1 end
      file.histograms[1].sum = 2e9
    end)
    local list, seen, last = samples(), {}, 0
    for _, each in ipairs(list) do
      if each.name == "perigee_call_duration_seconds_bucket" then
        local bound = each.labels.le == "+Inf" and 504
          or 16 * (math.log(tonumber(each.labels.le) * 1e9) / math.log(2) - 6)
        assert.equal(math.floor(bound + 0.5), each.value) -- one in each below
        assert.is_true(math.abs(bound - each.value) < 1e-6)
        assert.is_true(each.value > last)
        last, seen[#seen + 1] = each.value, each.labels.le
      end
    end
    assert.equal(21, #seen)
    assert.equal("+Inf", seen[21])
    assert.equal(504, exposition.value(list,
      "perigee_call_duration_seconds_count", {}))
    assert.equal(2, exposition.value(list, "perigee_call_duration_seconds_sum",
                                     {}))
  end)

  it("have all digits of large counters", function()
    plant("a", function(file) file.counters.bytes_sent = 2ULL ^ 52 + 1 end)
    assert.is_truthy(told():find(
      'perigee_sent_bytes_total{scope="s",agent="a"} 4503599627370497\n', 1,
      true))
  end)

  it("never go back while a session ends", function()
    local all = metrics.new { registry = registry }
    local function sent(bytes, epoch)
      plant("a", function(file)
        file.counters.bytes_sent, file.head.epoch = bytes, epoch
      end)
      all.until_ = 0
      return exposition.value(select(2, exposition.parse(all:text())),
                              "perigee_sent_bytes_total", {})
    end
    assert.equal(1000, sent(1000, 1))
    assert.equal(1000, sent(900, 1))
    assert.equal(10, sent(10, 2))               -- another life
  end)

  it("are those of its living process, if there are two files", function()
    plant("a", function(file) file.counters.calls = 1 end)
    local bytes = planted.bytes((function()
      local file = planted.new("a", "s")
      file.counters.calls, file.head.began_at = 2, 1e9
      return file
    end)())
    planted.write(registry, "s", "b", bytes)
    local list = samples()
    assert.equal(2, exposition.value(list, "perigee_calls_submitted_total", {}))
    assert.equal(1, outcome(list, "doubled"))
  end)
end)

describe("the text of metrics", function()
  it("is what Prometheus' own checker takes", function()
    if not has "promtool" then
      return pending "promtool is missing (Debian's prometheus)"
    end
    plant_methods("a", 20)
    planted.write(registry, "s", "b",
                  planted.bytes(planted.hostile("b", "s")))
    assert.equal("0\n", exposition.promtool((told()),
                                            cases.folder .. "/text"))
  end)

  it("is the same in both forms, but for what OpenMetrics wants", function()
    plant_methods("a", 3)
    local _, families, list = told()
    local _, others, open = told(nil, "openmetrics")
    assert.equal(#families, #others)
    assert.equal(#list, #open)
    for i, each in ipairs(families) do
      local name = each.name
      if each.kind == "counter" then name = name:gsub("_total$", "") end
      if others[i].kind == "info" then name = name:gsub("_info$", "") end
      assert.equal(name, others[i].name)
    end
  end)

  it("is in the same order each time", function()
    for _, name in ipairs { "c", "a", "b" } do plant_methods(name, 5) end
    local function lines()
      return (told():gsub("perigee_exporter_[^\n]*\n", ""))
    end
    local first = lines()
    assert.equal(first, lines())
    assert.is_true(first:find '"a"' < first:find '"b"')
    assert.is_true(first:find '"b"' < first:find '"c"')
  end)

  it("is kept for a moment, and made anew then", function()
    local all = metrics.new { registry = registry }
    plant_methods("a", 1)
    local first = all:text()
    plant_methods("b", 1)
    all.until_ = math.huge                      -- however slow this is
    assert.equal(first, all:text())
    all.until_ = 0
    assert.is_truthy(all:text():find('agent="b"', 1, true))
  end)

  it("is OpenMetrics for those who name it first", function()
    for accept, kind in pairs {
      ["application/openmetrics-text;version=1.0.0,text/plain;q=0.5"]
        = "openmetrics",
      ["application/openmetrics-text; version=1.0.0; charset=utf-8"]
        = "openmetrics",
      ["text/plain;version=0.0.4,application/openmetrics-text;q=0.5"] = "text",
      ["application/openmetrics-text;q=0,*/*"] = "text",
      ["*/*"] = "text", ["application/*"] = "text", [""] = "text",
      ["text/html"] = "text", [";;q=,,"] = "text",
    } do
      assert.equal(kind, metrics.wanted(accept), accept)
    end
    assert.equal("text", metrics.wanted(nil))
  end)
end)

describe("series beyond the limit", function()
  local function count(list)
    local n = 0
    for _, each in ipairs(list) do
      if each.labels.agent and each.labels.agent ~= "other" then n = n + 1 end
    end
    return n
  end

  it("are summed as others of their agent, and told", function()
    for _, name in ipairs { "a", "b", "c" } do plant_methods(name, 40) end
    local whole, some = samples(), nil
    local said = logged(function() some = samples { series = 1000 } end)
    assert.is_truthy(said:find "^warning %d+ series are summed as \"other\"")
    assert.is_true(count(some) <= 1000)
    for _, agent in ipairs { "a", "b", "c" } do
      local labels = { agent = agent }
      assert.equal(exposition.sum(whole, "perigee_calls_total", labels),
                   (exposition.sum(some, "perigee_calls_total", labels)))
      local _, methods = exposition.sum(some, "perigee_calls_total", labels)
      assert.is_true(methods > 3)               -- some for each of them
    end
    assert.equal(0, exposition.value(whole, "perigee_series_dropped", {}))
    local gone = exposition.value(some, "perigee_series_dropped", {})
    assert.is_true(gone >= count(whole) - count(some))
  end)

  it("are summed as another agent if there are very many", function()
    for i = 1, 30 do plant_methods("a" .. i, 2) end
    local whole, some = samples(), samples { series = 1000 }
    assert.is_true(count(some) <= 1000)
    for _, name in ipairs { "perigee_calls_total", "perigee_up",
                            "perigee_call_duration_seconds_count" } do
      assert.equal(exposition.sum(whole, name), (exposition.sum(some, name)))
    end
    assert.is_true(exposition.sum(some, "perigee_up", { agent = "other" }) > 5)
  end)

  it("are of a peer with many agents, rather than of one with few", function()
    local many, few, list = {}, {}, {}
    for i = 1, 100 do
      list[i] = assert(summaries.read { state = "running" })
      list[i].scope, list[i].name, list[i].path = "s", "a" .. i, "s/a" .. i
      list[i].peer = many
    end
    list[100].name, list[100].path, list[100].peer = "z", "s/z", few
    local all = metrics.new { files = false, series = 1000,
                              reported = function() return list end }
    local some = select(2, exposition.parse(all:text()))
    assert.equal(1, exposition.value(some, "perigee_up",
                                     { agent = "z", state = "running" }))
    assert.is_true(count(some) > 500)
    assert.equal(100, (exposition.sum(some, "perigee_up")))
  end)

  -- What many report could else keep a control server from all other work.
  it("are given no labels", function()
    local list, methods = {}, {}
    for i = 1, 30 do
      methods[i] = { side = "client", method = "m" .. i, ends = { ["0"] = 1 } }
    end
    for i = 1, 60 do
      list[i] = assert(summaries.read { state = "running", methods = methods })
      list[i].scope, list[i].name, list[i].path = "s", "a" .. i, "s/a" .. i
    end
    local all = metrics.new { files = false, series = 1000,
                              reported = function() return list end }
    local some = select(2, exposition.parse(all:text()))
    assert.equal(60 * 30, (exposition.sum(some, "perigee_calls_total")))
    assert.is_true(all.series.remembered < 60 + 20 * 30)
  end)

  it("are summed with an agent that has the name of their sum", function()
    local file = planted.new("other", "other")
    planted.method(file, 1, 2, "svc", "m", 7)
    planted.write(registry, "s", "0", planted.bytes(file))
    for i = 1, 30 do plant_methods("a" .. i, 2) end
    local whole, some = samples(), samples { series = 1000 }
    local labels = { agent = "other" }
    assert.equal(7, exposition.sum(whole, "perigee_calls_total", labels))
    assert.equal(exposition.sum(whole, "perigee_calls_total"),
                 (exposition.sum(some, "perigee_calls_total")))
  end)

  it("stay so: who was chosen is not pushed out", function()
    local all = metrics.new { registry = registry, series = 400 }
    local function names()
      all.until_ = 0
      local set = {}
      for _, each in ipairs(select(2, exposition.parse(all:text()))) do
        if each.name == "perigee_calls_total" then
          set[each.labels.agent .. each.labels.method] = true
        end
      end
      return set
    end
    plant_methods("m", 20)
    local before = names()
    plant_methods("a", 20)                      -- sorts before it
    local after = names()
    for name in pairs(before) do
      assert.is_true(after[name], name)
    end
  end)
end)

describe("metrics of names that peers chose", function()
  it("show them as text", function()
    planted.write(registry, "s", "a",
                  planted.bytes(planted.hostile("a", "s")))
    local text, _, list = told()
    assert.is_nil(text:find("[%z\1-\9\11-\31\127]"))
    assert.is_nil(text:find("\226\128\174", 1, true)) -- it turns what follows
    local seen, names = {}, planted.NAMES
    for _, each in ipairs(list) do
      if each.name == "perigee_calls_total" then
        seen[each.labels.method] = each.value
      end
    end
    assert.equal(1, seen[names[1]])
    assert.equal(2, seen[names[2]])
    assert.equal(3, seen[names[3]])
    assert.equal(4, seen[names[4]])
    assert.equal(5, seen["\\x1b[2J"])
    assert.equal(6, seen["\\xe2\\x80\\xaeturned"])
    assert.equal(7, seen["\239\191\189\239\191\189no utf-8"])
    for i = 8, 10 do assert.equal(i, seen[names[i]]) end
    exposition.parse(metrics.new { registry = registry }:text "openmetrics",
                     true)
  end)

  it("are one series where two have the same text", function()
    plant("a", function(file)
      planted.method(file, 1, 1, "svc", "\255", 3)
      planted.method(file, 2, 1, "svc", "\254", 4)
    end)
    assert.equal(7, exposition.value(samples(), "perigee_calls_total", {}))
  end)
end)

describe("a file that is no whole stats file", function()
  local bytes

  before_each(function()
    plant_methods("good", 2)
    local file = planted.new("bad", "s")
    planted.method(file, 1, 2, "svc", "m", 1)
    bytes = planted.bytes(file)
  end)

  -- The file "bad" is refused, and nothing else is.
  local function is_refused()
    local list
    local said = logged(function() list = samples() end)
    assert.equal(1, outcome(list, "refused"))
    assert.equal(1, outcome(list, "read"))
    assert.is_truthy(said:find "^warning no metrics of [^\n]*/bad%.stats: it")
    assert.equal(3, (exposition.sum(list, "perigee_calls_total")))
  end

  it("is refused if it is cut", function()
    for _, length in ipairs { 0, 7, 100, 4095, 4096, 9000, #bytes - 1 } do
      planted.write(registry, "s", "bad", bytes:sub(1, length))
      is_refused()
    end
  end)

  it("is refused if it is not whole yet, or of a version to come", function()
    planted.write(registry, "s", "bad", ("\0"):rep(8) .. bytes:sub(9))
    is_refused()
    planted.write(registry, "s", "bad",
                  bytes:sub(1, 8) .. "\2\0\0\0" .. bytes:sub(13))
    is_refused()
  end)

  it("is refused if it is a link, a pipe or a folder", function()
    local path = planted.write(registry, "s", "bad", "")
    for _, make in ipairs { "ln -s good.stats", "mkfifo", "mkdir" } do
      os.execute(("rm -rf '%s'; cd '%s' && %s bad.stats"):format(path,
        path:match "^(.*)/", make))
      is_refused()
    end
  end)

  it("is refused if it is another user's", function()
    local path = planted.write(registry, "s", "bad", bytes)
    if os.execute(("chown 65534 '%s' 2>/dev/null"):format(path)) ~= 0 then
      return pending "only root gives files to others"
    end
    is_refused()
  end)

  it("raises nothing and ends, whatever is in it", function()
    for spoiled in planted.spoiled(bytes, 12) do
      planted.write(registry, "s", "bad", spoiled)
      local list
      logged(function() list = samples() end)
      assert.equal(3, (exposition.sum(list, "perigee_calls_total",
                                      { agent = "good" })))
    end
  end)

  it("is told once, not each time", function()
    planted.write(registry, "s", "bad", "x")
    local all = metrics.new { registry = registry }
    assert.is_truthy(logged(function() all:text() end):find "bad")
    all.until_ = 0
    assert.equal("", logged(function() all:text() end))
  end)

  it("has rows of an older version read as far as they go", function()
    local file = planted.new("old", "s")
    planted.method(file, 1, 2, "svc", "m", 5)
    file.histograms[1].buckets[40] = 5
    -- Shorter rows of histograms: those of the last buckets are missing.
    local row = 16 + 8 * 100
    local rows = {}
    for i = 0, 63 do rows[i + 1] = ffi.string(file.histograms[i], row) end
    file.head.histograms.row = row
    local text = planted.bytes(file)
    local at = tonumber(file.head.histograms.offset)
    text = text:sub(1, at) .. table.concat(rows) .. ("\0"):rep(#text)
    local path = planted.write(registry, "s", "old", text)
    local one = assert(partial.read(path)).methods[1]
    assert.equal(5, one.numbers[partial.at.bins + 1])
  end)
end)

describe("what agents did from one look to the next", function()
  local histories = require "perigee.stats.history"

  it("is told by rates and times, of each and of all", function()
    local all = metrics.new { registry = registry }
    local history = histories.new(all, 2)
    local function look(served, failed, epoch)
      for _, name in ipairs { "a", "b" } do
        plant(name, function(file)
          file.head.epoch = epoch or 1
          file.counters.served = served
          planted.method(file, 1, 2, "svc", "m", served).ends[8] = failed
          file.histograms[1].buckets[70] = served      -- 1.4 us
        end)
      end
      all.until_ = 0
      return history:look()
    end
    local rows, point = look(100, 1)
    assert.is_nil(rows[1].served)               -- since when?
    assert.equal(0, point.served)
    rows, point = look(300, 3)
    assert.equal("a", rows[1].name)
    assert.is_true(rows[1].served > 0)
    assert.is_true(math.abs(rows[1].failed_answers / rows[1].served - 0.01)
                   < 1e-9)
    assert.is_true(math.abs(point.served - 2 * rows[1].served) < 1e-6)
    assert.is_true(rows[1].p50 > 1.024e-6 and rows[1].p99 <= 2.048e-6)
    rows = look(5, 0, 2)                        -- another life
    assert.is_nil(rows[1].served)
    assert.equal(3, #history.points)
  end)

  it("is told of one that reports by the times of its reports", function()
    local at, served = 1e9, 100
    local all = metrics.new { files = false, reported = function()
      local one = assert(summaries.read { state = "running",
                                           counters = { served = served } })
      one.scope, one.name, one.path, one.epoch = "s", "a", "s/a", "1"
      one.reported = at
      return { one }
    end }
    local history = histories.new(all, 2)
    local function look(...)
      at, served = ...
      all.until_ = 0
      local rows, point = history:look()
      if rows[1].served then assert.equal(rows[1].served, point.served) end
      return rows[1].served
    end
    assert.is_nil(look(1e9, 100))
    assert.equal(100, look(4e9, 400))
    assert.equal(100, look(4e9, 400))           -- it has not reported since
    assert.equal(0, look(6e9, 400))
  end)

  it("is told again while what was read is kept for longer than a step",
     function()
    local all = metrics.new { registry = registry }
    local history = histories.new(all, 2)
    local function look(served)
      plant("a", function(file) file.counters.served = served end)
      all.until_ = 0
      return history:look()
    end
    look(100)
    local rate = look(300)[1].served
    assert.is_true(rate > 0)
    all.until_ = math.huge
    local rows, point = history:look()
    assert.equal(rate, rows[1].served)
    assert.equal(rate, point.served)
    assert.equal(3, #history.points)
    assert.is_true(look(400)[1].served > 0)
  end)

  it("has texts that a page may show, and each agent once", function()
    local all = metrics.new { registry = registry }
    local file = planted.hostile("a\226\128\174", "s")
    planted.method(file, 20, 1, "svc", "\255", 3)
    planted.method(file, 21, 1, "svc", "\254", 4)
    for _, name in ipairs { "a", "b" } do
      planted.write(registry, "s", name, planted.bytes(file))
    end
    local history = histories.new(all, 2)
    local rows = history:look()
    assert.equal(1, #rows)
    assert.equal("a\\xe2\\x80\\xae", rows[1].name)
    local one, calls = history:agent("s", rows[1].name), 0
    for _, each in ipairs(one.methods) do
      assert.is_nil(each.method:find "[%z\1-\31]")
      assert.is_nil(each.method:find("\226\128\174", 1, true))
      calls = calls + each.calls
    end
    assert.equal(55 + 7, calls)
  end)

  it("is kept for ten minutes", function()
    local history = histories.new(metrics.new { registry = registry }, 200)
    for _ = 1, 5 do history:look() end
    assert.equal(3, #history.points)
  end)

  it("that cannot be told ends no server, and is told of", function()
    local page = pages.new(metrics.new { registry = registry })
    local look, said, before = page.history.look, {}, perigee.log
    page.history.look = function() error "no such row" end
    perigee.log = function(_, text) said[#said + 1] = text end
    local due = page:tick()
    perigee.log, page.history.look = before, look
    assert.is_true(due > 0)
    assert.is_false(page.state)
    assert.equal(1, #said)
    assert.matches("page is not renewed: .*no such row", said[1])
  end)
end)
