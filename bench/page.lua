-- SPDX-License-Identifier: Apache-2.0
-- What the page of `perigee metrics --page` costs a browser, headless Chromium,
-- that shows AGENTS agents whose numbers all change: the time from an event to
-- its pixels, the longest frame while somebody scrolls, and the tab's memory
-- over time. The agents are stats files that no engine wrote.
--
--   luajit bench/page.lua [--agents 500] [--minutes 1] [--json]

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local browsers = require "spec.support.browser"
local json = require "perigee.bench.json"
local machine = require "bench.lib.machine"
local planted = require "spec.support.planted_stats"
local process = require "spec.support.process"

local TARGET = 200                      -- ms

local parser = argparse("luajit bench/page.lua",
                        "What the page costs a browser.")
parser:option("--agents", "Agents."):convert(tonumber):default "500"
parser:option("--minutes", "For so long."):convert(tonumber):default "1"
parser:flag("--json", "One JSON document instead of the table.")
local given = parser:parse()

-- ---- The agents -------------------------------------------------------------

local pipe = io.popen "mktemp -d /tmp/perigee-page.XXXXXX"
local folder = pipe:read "*l"
pipe:close()
local registry = "folder:" .. folder .. "/names"

local METHODS = 8

-- An agent that has sessions with the next two and those before it.
local function file_of(i)
  local file, n = planted.new(("worker:%d"):format(i), "bench"), given.agents
  file.head.epoch = i
  for k = 1, METHODS do
    planted.method(file, k, 1 + k % 2, "svc", "m" .. k, 1)
  end
  for k, other in ipairs { i % n + 1, (i + 1) % n + 1, (i - 2) % n + 1,
                           (i - 3) % n + 1 } do
    local row = file.sessions[k - 1]
    row.id, row.state, row.dialed = k, 2, k < 3 and 1 or 0
    row.epoch, row.peer = other, "worker:" .. other
    row.transport = k % 2 == 0 and "tcp" or "shm"
    row.not_shm = k % 2 == 0 and 2 or 0
    row.counters.size = 80
  end
  return file
end

-- Each agent has done something since the last time.
local function work(file)
  file.counters.served = file.counters.served + math.random(1e6)
  for k = 0, 3 do
    local c = file.sessions[k].counters
    c.calls, c.served = c.calls + math.random(1e5), c.served + math.random(1e5)
    c.bytes_sent = c.bytes_sent + math.random(1e8)
    c.bytes_received = c.bytes_received + math.random(1e8)
  end
  for k = 1, METHODS do
    file.methods[k].ends[0] = file.methods[k].ends[0] + math.random(1e5)
    local at = math.random(100, 300)
    file.histograms[k].buckets[at] = file.histograms[k].buckets[at] + 1e4
  end
end

local agents = {}

local function write(agent)
  work(agent.file)
  local out = assert(io.open(agent.path, "r+b"))
  out:write(planted.short(agent.file, METHODS + 1))
  out:close()
end

local function begin(i)
  local file = file_of(i)
  agents[i] = { file = file, path = planted.write(registry, "bench",
    "worker:" .. i, planted.short(file, METHODS + 1)) }
end

-- ---- The page ---------------------------------------------------------------

-- Notes when an event is read, and when the frame that shows it is done.
local WATCH = [[(() => {
  const parse = JSON.parse, shown = window.show;
  window.frames_of = [];
  let began = 0;
  JSON.parse = text => { began = performance.now(); return parse(text); };
  window.show = state => {
    const since = began, done = new MessageChannel();
    shown(state);
    done.port1.onmessage = () => {
      frames_of.push(performance.now() - since);
      done.port1.close();
    };
    requestAnimationFrame(() => done.port2.postMessage(0));
  };
})()]]

-- The longest of 120 frames, of which each scrolls.
local SCROLL = [[window.longest = new Promise(done => {
  let last = performance.now(), longest = 0, n = 0;
  const all = [document.scrollingElement,
               ...document.querySelectorAll(".table")];
  const step = now => {
    longest = Math.max(longest, now - last);
    last = now;
    for (const each of all) each.scrollTop += n < 60 ? 400 : -400;
    if (++n < 120) requestAnimationFrame(step); else done(longest);
  };
  requestAnimationFrame(step);
})]]

local function serve()
  local port = browsers.free_port()
  local server = process.spawn { "luajit", "lua/perigee/cli/perigee", "metrics",
    "--page", "--listen", "127.0.0.1:" .. port, "--registry", registry }
  assert(server:read(60))
  return ("http://127.0.0.1:%d/"):format(port), server
end

-- What the tab has: after its garbage is gone.
local function memory_of(browser)
  browser:asks "HeapProfiler.collectGarbage"
  local told = {}
  for _, each in ipairs(browser:asks "Performance.getMetrics".metrics) do
    told[each.name] = each.value
  end
  return { heap = told.JSHeapUsedSize, nodes = told.Nodes,
           listeners = told.JSEventListeners }
end

local function sorted(list)
  table.sort(list)
  return list
end

local function measure(browser)
  local memory = {}
  local limit = process.now() + 60 * given.minutes
  repeat
    for _ = 1, 5 do
      for _, agent in ipairs(agents) do write(agent) end
      process.usleep(2)
    end
    memory[#memory + 1] = memory_of(browser)
    if os.getenv "PERIGEE_PAGE_TELLS" then
      local m = memory[#memory]
      io.stderr:write(("%d %d %d\n"):format(m.heap, m.nodes, m.listeners))
    end
  until process.now() > limit
  local times = sorted(browser:value "frames_of")
  browser:value(SCROLL)
  return { events = #times, median_ms = times[math.ceil(#times / 2)],
           p99_ms = times[math.ceil(0.99 * #times)],
           scroll_ms = browser:value "longest",
           first = memory[1], last = memory[#memory] }
end

local function run()
  for i = 1, given.agents do begin(i) end
  local url = serve()
  local browser = browsers.open(url, folder)
  browser:asks "Performance.enable"
  process.usleep(5)
  browser:value(WATCH)
  local row = measure(browser)
  browser:close()
  return row
end

local fine, row = xpcall(run, debug.traceback)
process.cleanup()
os.execute(("rm -rf '%s'"):format(folder))
if not fine then error(row, 0) end
row.agents, row.minutes = given.agents, given.minutes
if given.json then
  print(json.document({ bench = "page", transport = "none",
                        machine = machine.describe { pin = {} },
                        figures = {}, rows = { row } }, "agents"))
else
  print(("%d agents, %d events in %g minutes\n"
    .. "  from event to pixels  %.1f ms, 99 of 100 within %.1f (to reach: %d)\n"
    .. "  longest frame while scrolling  %.1f ms\n"
    .. "  memory of the tab's script  %.2f MB, then %.2f\n"
    .. "  nodes  %d, then %d"):format(row.agents, row.events, row.minutes,
    row.median_ms, row.p99_ms, TARGET, row.scroll_ms, row.first.heap / 1e6,
    row.last.heap / 1e6, row.first.nodes, row.last.nodes))
end
