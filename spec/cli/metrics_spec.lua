-- SPDX-License-Identifier: Apache-2.0
-- `perigee metrics` as somebody sees it who runs it, and as a scraper does.
local command = require "spec.support.command"
local control = require "spec.support.control"
local exposition = require "spec.support.exposition"
local process = require "spec.support.process"

local WORKER = [[
local perigee = require "perigee"
local agent = assert(perigee.agent { name = "worker" })
agent:serve { name = "calc", methods = {
  add = function(a, b) return a + b end } }
local calc = assert(agent:proxy("worker", "calc"))
for i = 1, 50 do assert(calc:add(i, 1)) end
print "ready"
io.stdout:flush()
perigee.run()
]]

local function start()
  local worker = command.start("run", command.file("worker.lua", WORKER))
  assert(assert(worker:read(30 * process.slow)):find "ready$")
  return worker
end

local function calls(text, open)
  local _, list = exposition.parse(text, open)
  return exposition.value(list, "perigee_calls_total",
    { scope = "cli", agent = "worker", side = "server", method = "add" })
end

-- Starts one that serves; its URL.
local function serve(...)
  local server = command.start("metrics", "--listen", "127.0.0.1:0", ...)
  local url = assert(server:read(30 * process.slow))
  assert(url:find "^http://127%.0%.0%.1:%d+/metrics$", url)
  return url, server
end

-- The status and the body of an answer.
local function get(url, ...)
  local words = table.concat({ ... }, " ")
  local pipe = io.popen(("curl -s -m 20 -w '\n%%{http_code}' %s '%s'")
    :format(words, url))
  local body, status = pipe:read "*a":match "^(.*)\n(%d+)$"
  pipe:close()
  return tonumber(status), body
end

after_each(command.clean)

describe("perigee metrics", function()
  it("prints what the agents of this host count", function()
    start()
    local status, text, errors = command.run "metrics"
    assert.equal(0, status, errors)
    assert.equal(50, calls(text))
    local function printed(...) return (select(2, command.run(...))) end
    assert.equal(50, calls(printed("metrics", "--openmetrics", "--scope",
                                   "cli"), true))
    assert.is_nil(calls(printed("metrics", "--scope", "elsewhere")))
  end)

  it("tells of none if there are none", function()
    local status, text = command.run "metrics"
    assert.equal(0, status)
    assert.is_truthy(text:find "perigee_exporter_files{result=\"read\"} 0\n")
  end)

  it("says what is wrong with what it was told", function()
    for _, words in ipairs { { "--scope", "../x" }, { "--series", "0" },
                             { "--listen", "nonsense:x:y" } } do
      local status, _, errors = command.run("metrics", unpack(words))
      assert.equal(2, status, errors)
    end
  end)
end)

describe("perigee metrics --listen", function()
  if not control.is_there() then
    return it("serves", function() pending(control.needs .. " is missing") end)
  end

  it("serves each form, and knows when it is up", function()
    start()
    local url, server = serve()
    local status, text = get(url)
    assert.equal(200, status)
    assert.equal(50, calls(text))
    local function open()
      return (select(2, get(url, "-H 'Accept: application/openmetrics-text'")))
    end
    assert.equal(50, calls(open(), true))
    assert.equal(200, (get((url:gsub("metrics", "healthz")))))
    assert.equal(404, (get(url .. "/x")))
    assert.equal(405, (get(url, "-X POST")))
    server:signal "TERM"
    assert.same({ "exit", 0 }, { server:wait() })
  end)

  it("tells of an agent that was killed", function()
    local worker = start()
    local url = serve()
    local text = select(2, get(url))
    local pid = tonumber(text:match 'pid="(%d+)"')
    assert.is_truthy(text:find('state="dead"} 0', 1, true))
    process.signal(pid, "KILL")
    assert.is_true(command.eventually(function()
      text = select(2, get(url))
      return text:find('agent="worker",state="dead"} 1', 1, true)
    end))
    assert.equal(50, calls(text))
    worker:close()
  end)

  it("wants tokens if it is told which", function()
    local store = command.folder() .. "/tokens.db"
    local _, token = command.run("ctrl", "token", "new", "--store", store,
                                 "--role", "read")
    local _, other = command.run("ctrl", "token", "new", "--store", store,
                                 "--role", "read", "--scope", "x")
    local url = serve("--tokens", store)
    local function bearer(text)
      return ("-H 'Authorization: Bearer %s'"):format(text:match "perigee_%S+")
    end
    assert.equal(401, (get(url)))
    assert.equal(401, (get(url, bearer "perigee_x")))
    assert.equal(403, (get(url, bearer(other))))
    assert.equal(200, (get(url, bearer(token))))
    assert.equal(200, (get((url:gsub("metrics", "healthz")))))
  end)

  it("listens beyond loopback only with TLS and tokens", function()
    local status, _, errors = command.run("metrics", "--listen",
                                          "0.0.0.0:9470")
    assert.equal(2, status)
    assert.is_truthy(errors:find("--insecure", 1, true))
  end)

  it("refuses a page of another origin", function()
    local url = serve()
    assert.is_true((get(url, "-H 'Host: evil.example'")) >= 400)
    assert.is_true((get(url, "-H 'Origin: http://evil.example'")) >= 400)
  end)
end)
