-- SPDX-License-Identifier: Apache-2.0
-- The page of `perigee metrics --page` in a browser, headless Chromium, which
-- is driven by WebDriver.
local browsers = require "spec.support.browser"
local command = require "spec.support.command"
local control = require "spec.support.control"
local planted = require "spec.support.planted_stats"
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

local browser

local function value(expression) return browser:value(expression) end

local function text(id) return browser:text(id) end

local function becomes(f) assert.is_true(command.eventually(f)) end

-- ---- The programs -----------------------------------------------------------

local function serve(port)
  local server = command.start("metrics", "--page", "--listen",
                               "127.0.0.1:" .. port)
  assert(server:read(30 * process.slow))
  return server
end

-- Is all there that these take? Else says what is missing.
local function is_there()
  local missing = not control.is_there() and control.needs .. " is missing"
    or not browsers.is_there()
    and "chromedriver is missing (Debian's chromium-driver)"
  if missing then it("is shown", function() pending(missing) end) end
  return not missing
end

-- An agent that works, and a page that shows it; returns the server.
local function shown()
  local worker = command.start("run", command.file("worker.lua", WORKER))
  assert(worker:read(30 * process.slow))
  local port = sockets.free_port()
  local server = serve(port)
  browser = browsers.open(("http://127.0.0.1:%d/"):format(port),
                          command.folder())
  becomes(function() return text "rows":find "worker\tcli\t%a+\t[1-9]" end)
  return server, port
end

local function close()
  if browser then browser:close() end
  browser = nil
  command.clean()
end

describe("the page of perigee metrics", function()
  if not is_there() then return end

  after_each(close)

  it("shows what goes on, heals, and asks for nothing from elsewhere",
     function()
    local server, port = shown()

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
    becomes(function()
      return text "link-rows":find "cli/worker\tcli/worker\tshm\t1\t0\t[1-9]"
    end)
    assert.same({}, browser:does("/se/log", { type = "browser" }))
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

describe("the page, without a mouse and without eyes,", function()
  if not is_there() then return end

  local MANY = 300

  -- As many more agents, behind the one that works.
  setup(function()
    local folder = command.folder() .. "/perigee"
    local registry = "folder:" .. folder
    os.execute(("mkdir -m 700 '%s'"):format(folder))
    for i = 1, MANY do
      local name = ("z:%d"):format(i)
      planted.write(registry, "many", name,
                    planted.short(planted.new(name, "many"), 1))
    end
    shown()
  end)
  teardown(close)

  local function key(code)
    browser:does("/actions", { actions = { { type = "key", id = "keyboard",
      actions = { { type = "keyDown", value = code },
                  { type = "keyUp", value = code } } } } })
  end
  local TAB, ENTER = "\238\128\132", "\238\128\135"

  local ACTIVE = "document.activeElement"

  -- What assistive technology is told of the first element like this.
  local function computed(css, what)
    local found = browser:does("/element", { using = "css selector",
                                             value = css })
    local id = select(2, next(found))
    return browser:drive("GET", ("%s/element/%s/computed%s"):format(
      browser.session, id, what))
  end

  local function wait_for_events(n)
    value [[(window.seen = 0, window.own_show ??= show,
             window.show = state => { own_show(state); seen++; })]]
    becomes(function() return value "seen" >= n end)
  end

  before_each(function()
    value "document.querySelector('#close').click()"
  end)

  it("is used by the keyboard, and keeps the focus where it is", function()
    value "document.querySelector('#only').focus()"
    for _ = 1, 16 do                    -- past the headings
      key(TAB)
      if value(ACTIVE .. ".closest('#rows') !== null") then break end
    end
    assert.equal("worker", value(ACTIVE .. ".innerText"))
    assert.equal("solid", value("getComputedStyle(" .. ACTIVE
                                .. ").outlineStyle"))
    value("(window.had = " .. ACTIVE .. ")")
    wait_for_events(2)
    assert.is_true(value(ACTIVE .. " === had"))
    key(ENTER)
    assert.equal("one", value(ACTIVE .. ".id"))
    becomes(function() return text "methods":find "calc%.add" end)
    key(TAB)
    assert.equal("close", value(ACTIVE .. ".id"))
    key(ENTER)
    assert.is_true(value(ACTIVE .. " === had"))
  end)

  it("tells assistive technology what it shows, and no more than that",
     function()
    value "document.querySelector('#rows button').click()"
    becomes(function() return text "methods":find "calc%.add" end)
    value "document.querySelector('#methods button').click()"
    becomes(function() return text "summary":find "^A half within %d" end)
    assert.same({}, value [[[...document.querySelectorAll("table")].filter(t =>
      !t.caption?.textContent.trim()
      || [...t.querySelectorAll("th")].some(h => !h.scope)
      || [...t.tBodies[0].rows].some(r => !r.hasAttribute("aria-hidden")
        && r.cells[0].scope !== "row")).map(t => t.outerHTML)]])
    assert.equal("status", computed("#said", "role"))
    assert.equal("button", computed("#rows button", "role"))
    assert.equal("worker", computed("#rows button", "label"))
    assert.equal("rowheader", computed("#bins th", "role"))
    assert.equal("columnheader", computed("#heads th", "role"))
    assert.equal("region", computed(".table", "role"))
    assert.equal("Agents", computed(".table", "label"))
    assert.matches("^Calls in a second: begun %d", computed("svg", "label"))
    value [[(window.said = 0, new MutationObserver(() => said++).observe(
      document.body, { subtree: true, childList: true, characterData: true,
                       attributes: false }),
      document.querySelectorAll("[role=status], [aria-live]").forEach(each =>
        new MutationObserver(() => said += 1000).observe(each, { subtree: true,
          childList: true, characterData: true })))]]
    wait_for_events(2)
    local changes = value "said"        -- none of what is read out by itself
    assert.is_true(changes > 0 and changes < 1000, tostring(changes))
  end)

  it("has the rows that are in sight, of as many as there are", function()
    local function rows()
      return value "document.querySelectorAll('#rows tr:not(.gap)').length"
    end
    local function in_sight()
      return value [[(() => {
        const at = document.activeElement.getBoundingClientRect();
        const all = agents.region.getBoundingClientRect();
        return at.top >= all.top && at.bottom <= all.bottom; })()]]
    end
    becomes(function() return value "agents.all.length" == MANY + 1 end)
    assert.is_true(rows() < 100)
    assert.equal(tostring(MANY + 2),
                 value "agents.table.getAttribute('aria-rowcount')")
    value "agents.region.scrollTo(0, 1e6)"
    becomes(function() return text "rows":find "z:99\t" end)
    assert.is_nil(text "rows":find "worker\t")
    assert.is_true(rows() < 100)
    assert.equal(tostring(MANY + 2), value [[
      agents.below.previousSibling.getAttribute('aria-rowindex')]])

    -- One that has the focus moves, and is still seen.
    value "agents.below.previousSibling.button.focus()"
    assert.is_true(in_sight())
    value "agents.columns[0].head.firstChild.click()"
    assert.equal("z:99", value(ACTIVE .. ".innerText"))
    assert.is_true(in_sight())
    value "agents.columns[0].head.firstChild.click()"
    assert.equal("z:99", value(ACTIVE .. ".innerText"))
    value "agents.region.scrollTo(0, 0)"
    becomes(function() return text "rows":find "worker\t" end)
    assert.is_true(value(ACTIVE .. " === agents.region"))
  end)

  -- The texts whose contrast with what is behind them is below 4.5.
  local FAINT = [[(() => {
    const part = v => (v /= 255) <= 0.04045 ? v / 12.92
      : ((v + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) =>
      0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const numbers = text => text.match(/[\d.]+/g).map(Number);
    const behind = each => {
      for (; each; each = each.parentElement) {
        const at = numbers(getComputedStyle(each).backgroundColor);
        if (at.length < 4 || at[3] === 1) return at;
      }
    };
    const all = [...document.querySelectorAll("body *")].filter(each =>
      each.checkVisibility() && [...each.childNodes].some(n =>
        n.nodeType === 3 && n.data.trim()) && each.tagName !== "SCRIPT");
    const faint = all.filter(each => {
      const a = light(numbers(getComputedStyle(each).color));
      const b = light(behind(each));
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
    });
    return [all.length > 50, ...new Set(faint.map(each =>
      each.className + " " + each.tagName + ": " + each.innerText))];
  })()]]

  it("has texts that stand out, in light and in dark", function()
    value "document.querySelector('#rows button').click()"
    becomes(function() return text "methods":find "calc%.add" end)
    value "document.querySelector('#methods button').click()"
    -- Each state is in the chosen row and in another one.
    value [[(() => { window.show = () => {};
      for (const name of ["asleep", "busy", "dead", "failing", "lost", "first",
                          "second"])
        for (const at of ["#rows tr[aria-current]", "#methods tr", "figure"]) {
          const cell = document.createElement("span");
          cell.className = name;
          cell.textContent = name;
          (document.querySelector(at + " td") ?? document.querySelector(at))
            .append(cell);
        } })()]]
    for _, scheme in ipairs { "light", "dark" } do
      browser:asks("Emulation.setEmulatedMedia", ('{"features":[{"name":'
        .. '"prefers-color-scheme","value":"%s"}]}'):format(scheme))
      assert.equal(scheme == "dark",
                   value "matchMedia('(prefers-color-scheme: dark)').matches")
      assert.same({ true }, value(FAINT), scheme)
    end
  end)
end)
