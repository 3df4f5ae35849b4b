-- SPDX-License-Identifier: Apache-2.0
-- `perigee metrics` as somebody sees it who runs it, and as a scraper does.
local cjson = require "cjson.safe"
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
                             { "--listen", "nonsense:x:y" },
                             { "--registry", "folder:here" } } do
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

  it("takes no file of tokens that is not there, and makes none", function()
    local path = command.folder() .. "/none.db"
    local status, _, errors = command.run("metrics", "--listen", "127.0.0.1:0",
                                          "--tokens", path)
    assert.equal(2, status)
    assert.matches("^perigee metrics: opening %-%-tokens: [^\n]*none%.db: "
      .. "[^\n]+ %(perigee ctrl token new [^\n]+\n$", errors)
    assert.is_nil(command.content(path))
  end)

  it("listens beyond loopback only with TLS and tokens", function()
    local status, _, errors = command.run("metrics", "--listen",
                                          "0.0.0.0:9470")
    assert.equal(2, status)
    assert.is_truthy(errors:find("--insecure", 1, true))
  end)

  it("takes no port for a host", function()
    for _, address in ipairs { "9470", "9470:", "http://9470", ":9470" } do
      local status, _, errors = command.run("metrics", "--listen", address)
      assert.equal(2, status)
      assert.matches("--listen must be a URL as http://127.0.0.1:9470, not "
        .. address .. "\n", errors, 1, true)
    end
  end)

  it("refuses a page of another origin", function()
    local url = serve()
    local status, why = get(url, "-H 'Host: evil.example'")
    assert.equal(403, status)
    assert.is_truthy(why:find("--names of perigee metrics", 1, true))
    assert.is_true((get(url, "-H 'Origin: http://evil.example'")) >= 400)
  end)
end)

describe("perigee metrics --page", function()
  if not control.is_there() then
    return it("serves", function() pending(control.needs .. " is missing") end)
  end

  local function page()
    local url, server = serve "--page"
    assert(server:read(30 * process.slow))
    return (url:gsub("metrics$", "")), server
  end

  -- The events that come within so many seconds: lists of data by name.
  local function events(url, seconds)
    local _, text = get(url .. "events", "-N", "-m", seconds)
    local all = { history = {}, state = {} }
    for name, data in text:gmatch "event: (%w+)\ndata: ([^\n]*)\n\n" do
      local value = cjson.decode(data)
      table.insert(all[name], value)
    end
    return all
  end

  local function row_of(state, name)
    for _, each in ipairs(state.agents) do
      if each.name == name then return each end
    end
  end

  it("serves a document that runs and loads nothing but what is in it",
     function()
    local url = page()
    local _, text = get(url, "-i")
    local head, body = text:match "^(.-)\r\n\r\n(.*)$"
    local policy = head:match "Content%-Security%-Policy: ([^\r]*)"
    assert.is_truthy(policy:find("default-src 'none';", 1, true))
    assert.is_nil(policy:find "unsafe")
    local nonce = policy:match "script%-src 'nonce%-([^']+)'"
    for tag in body:gmatch "<(s%a+[^>]*)>" do
      if tag:find "^script" or tag:find "^style" then
        assert.equal(nonce, tag:match ' nonce="([^"]*)"')
      end
    end
    body = body:gsub("http://www%.w3%.org/2000/svg", "")  -- a name, no address
    assert.is_nil(body:find "https?://")
    assert.is_nil(body:find " src=")
    assert.is_nil(body:find " style=" or body:find " on%a+=")
    assert.is_nil(body:find "innerHTML" or body:find "eval%(")
    local _, again = get(url, "-i")
    assert.is_nil(again:find(nonce, 1, true))   -- another one each time
  end)

  it("tells at first what has been, and then what is", function()
    start()
    local url = page()
    local first, second
    assert.is_true(command.eventually(function()
      local all = events(url, 5)
      first, second = all.state[1], all.state[2]
      return second and #all.history == 1
        and #all.history[1].points >= 1 and #all.history[1].bounds == 20
    end))
    for _, state in ipairs { first, second } do
      assert.equal("cli", row_of(state, "worker").scope)
    end
    assert.equal(0, row_of(second, "worker").served)
    assert.equal(0, second.point.failed_answers)
  end)

  it("tells of an agent's methods and links", function()
    start()
    local url = page()
    local one
    assert.is_true(command.eventually(function()
      local status, text = get(url .. "agent?scope=cli&name=worker")
      one = status == 200 and cjson.decode(text)
      return one
    end))
    local ended = {}
    for _, each in ipairs(one.methods) do
      ended[each.side .. each.method] = each.calls
      assert.equal(21, #each.bins)
    end
    assert.equal(50, ended.serveradd)
    assert.equal(50, ended.clientadd)
    assert.equal("worker", one.links[1].peer)
    assert.equal(404, (get(url .. "agent?scope=cli&name=nobody")))
    assert.equal(404, (get(url .. "agent?scope=..&name=..")))
    assert.equal(404, (get(url .. "agent")))
  end)

  it("ends its streams when it is ended", function()
    local url, server = page()
    local reader = process.spawn { "curl", "-sN", url .. "events" }
    assert.is_truthy(assert(reader:read(30 * process.slow)):find "history")
    server:signal "TERM"
    assert.same({ "exit", 0 }, { server:wait() })
    reader:wait()
  end)

  it("is for this host alone, as a browser has no token", function()
    for _, words in ipairs { { "127.0.0.1:0", "--tokens", "x" },
                             { "0.0.0.0:0", "--insecure" } } do
      local status, _, errors = command.run("metrics", "--page", "--listen",
                                            unpack(words))
      assert.equal(2, status)
      assert.is_truthy(errors:find "%-%-page is for loopback")
    end
    assert.equal(404, (get((serve():gsub("metrics$", "")))))
  end)

  it("is not printed", function()
    local status, text, errors = command.run("metrics", "--page")
    assert.equal(2, status)
    assert.equal("", text)
    assert.matches("^perigee metrics: %-%-page is served: it wants %-%-listen, "
      .. "as 127%.0%.0%.1:9470\n$", errors)
  end)
end)
