-- SPDX-License-Identifier: Apache-2.0
-- A headless Chromium that is driven by WebDriver: chromedriver, spoken to by
-- curl.
local cjson = require "cjson.safe"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

local M = {}

local Browser = {}
Browser.__index = Browser

--- Whether there is one (Debian's chromium-driver).
function M.is_there()
  return os.execute "command -v chromedriver >/dev/null" == 0
end

local ARGS = { "--headless=new", "--no-sandbox", "--disable-gpu" }

local function is_ready(browser)
  local limit = process.now() + 30 * process.slow
  repeat
    local status = browser:drive("GET", "/status")
    if status and status.ready then return true end
    process.usleep(0.05)
  until process.now() > limit
end

--- Starts one that keeps its files in a folder, shows a page and gathers what
-- is said on the console. process.cleanup() ends it if nobody has.
function M.open(url, folder)
  local port = sockets.free_port()
  local browser = setmetatable({ folder = folder, driver = port }, Browser)
  process.spawn { "env", "TMPDIR=" .. folder, "chromedriver",
                  "--port=" .. browser.driver, "--silent" }
  assert(is_ready(browser))
  local made = browser:drive("POST", "/session", cjson.encode {
    capabilities = { alwaysMatch = {
      ["goog:loggingPrefs"] = { browser = "ALL" },
      ["goog:chromeOptions"] = { args = ARGS } } } })
  browser.session = "/session/" .. assert(made.sessionId, made.message)
  browser:does("/url", { url = url })
  return browser
end

--- One command of WebDriver, with a body in JSON: its value; nil if there is
-- none.
function Browser:drive(method, path, body)
  local name = self.folder .. "/webdriver.json"
  local file = assert(io.open(name, "w"))
  file:write(body or "{}")
  file:close()
  local pipe = io.popen(("curl -s -m 60 -X %s %s http://127.0.0.1:%d%s"):format(
    method, method == "POST" and "-H 'Content-Type: application/json' -d @"
    .. name or "", self.driver, path))
  local answer = cjson.decode(pipe:read "*a")
  pipe:close()
  if answer and answer.value ~= cjson.null then return answer.value end
end

--- The same within the session, with a table.
function Browser:does(path, body)
  return self:drive("POST", self.session .. path,
                    body and cjson.encode(body) or "{}")
end

--- The value of an expression in the page.
function Browser:value(expression)
  return self:drive("POST", self.session .. "/execute/sync",
    ('{"script":%s,"args":[]}'):format(cjson.encode("return " .. expression)))
end

--- The text of the element with that id, as it is seen.
function Browser:text(id)
  return self:value(("document.getElementById('%s').innerText"):format(id))
end

--- What Chromium itself is asked (its DevTools protocol).
function Browser:asks(command, parameters)
  return self:drive("POST", self.session .. "/goog/cdp/execute",
    ('{"cmd":"%s","params":%s}'):format(command, parameters or "{}"))
end

function Browser:close()
  if self.session then self:drive("DELETE", self.session) end
  self.session = nil
end

return M
