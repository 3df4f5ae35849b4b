-- SPDX-License-Identifier: Apache-2.0
-- The page of `perigee metrics --page` in a browser, headless Chromium, which
-- is driven by WebDriver.
local cjson = require "cjson.safe"
local command = require "spec.support.command"
local control = require "spec.support.control"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

-- Serves, and calls itself all the time.
local WORKER = [[
local perigee = require "perigee"
local agent = assert(perigee.agent { name = "worker" })
local methods = { add = function(a, b) return a + b end }
methods["<b>bold</b>"] = methods.add
agent:serve { name = "calc", methods = methods }
perigee.run(function()
  local calc = assert(agent:proxy("worker", "calc"))
  calc["<b>bold</b>"](calc, 1, 1)
  print "ready"
  io.stdout:flush()
  while true do
    for i = 1, 20 do calc:add(i, 1) end
    perigee.sleep(0.02)
  end
end)
]]

local function free_port()
  local fd, port = sockets.listen "127.0.0.1"
  sockets.close(fd)
  return port
end

-- ---- The browser ------------------------------------------------------------

local driver, session

-- One command of WebDriver, with a body in JSON: its value; nil if there is
-- none.
local function drive(method, path, body)
  local file = command.file("webdriver.json", body or "{}")
  local pipe = io.popen(("curl -s -m 60 -X %s %s http://127.0.0.1:%d%s"):format(
    method, method == "POST" and "-H 'Content-Type: application/json' -d @"
    .. file or "", driver, path))
  local answer = cjson.decode(pipe:read "*a")
  pipe:close()
  return answer and answer.value ~= cjson.null and answer.value or nil
end

local function open(url)
  driver = free_port()
  process.spawn { "env", "TMPDIR=" .. command.folder(), "chromedriver",
                  "--port=" .. driver, "--silent" }
  assert(command.eventually(function()
    local status = drive("GET", "/status")
    return status and status.ready
  end))
  local made = drive("POST", "/session", cjson.encode {
    capabilities = { alwaysMatch = {
      ["goog:loggingPrefs"] = { browser = "ALL" },
      ["goog:chromeOptions"] = { args = { "--headless=new", "--no-sandbox",
                                          "--disable-gpu" } } } } })
  session = "/session/" .. assert(made.sessionId, made.message)
  drive("POST", session .. "/url", cjson.encode { url = url })
end

-- The value of an expression in the page.
local function value(expression)
  return drive("POST", session .. "/execute/sync",
               ('{"script":%s,"args":[]}'):format(cjson.encode("return "
                                                               .. expression)))
end

local function text(id)
  return value(("document.getElementById('%s').innerText"):format(id))
end

local function becomes(f) assert.is_true(command.eventually(f)) end

-- ---- The programs -----------------------------------------------------------

local function serve(port)
  local server = command.start("metrics", "--page", "--listen",
                               "127.0.0.1:" .. port)
  assert(server:read(30 * process.slow))
  return server
end

describe("the page of perigee metrics", function()
  if not control.is_there() then
    return it("is shown", function()
      pending(control.needs .. " is missing")
    end)
  elseif os.execute "command -v chromedriver >/dev/null" ~= 0 then
    return it("is shown", function()
      pending "chromedriver is missing (Debian's chromium-driver)"
    end)
  end

  after_each(function()
    if session then drive("DELETE", session) end
    session = nil
    command.clean()
  end)

  it("shows what goes on, heals, and asks for nothing from elsewhere",
     function()
    local worker = command.start("run", command.file("worker.lua", WORKER))
    assert(worker:read(30 * process.slow))
    local port = free_port()
    local server = serve(port)
    open(("http://127.0.0.1:%d/"):format(port))
    becomes(function() return text "rows":find "^worker\tcli\t%a+\t[1-9]" end)

    -- An agent, a method, and a number that grows; names are text.
    value "document.querySelector('#rows button').click()"
    becomes(function() return text "methods":find "calc%.<b>bold</b>" end)
    local function calls()
      return value("document.querySelector('#methods td:nth-child(3)')"
        .. ".innerText")
    end
    local before = calls()
    assert.is_string(before)
    becomes(function() return calls() ~= before end)
    value "document.querySelector('#methods button').click()"
    becomes(function() return text "bins":find "%%" end)
    becomes(function() return text "links":find "worker" end)
    assert.same({}, drive("POST", session .. "/se/log",
                           '{"type":"browser"}'))
    assert.equal(0, value("performance.getEntriesByType('resource').filter("
      .. "each => !each.name.startsWith(location.origin)).length"))

    -- The server goes and comes back.
    server:signal "TERM"
    server:wait()
    becomes(function() return text "said":find "does not answer" end)
    serve(port)
    becomes(function() return text "said" == "up to date" end)

    -- The agent is killed.
    process.signal(tonumber(text "rows":match "(%d+)%s*$"), "KILL")
    becomes(function() return text "rows":find "\tdead\t" end)
    assert.is_truthy(text "count":find "1 dead")
  end)
end)
