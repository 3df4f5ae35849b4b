-- SPDX-License-Identifier: Apache-2.0
-- What names at the control server cost: the rows of bench/control.lua. Each is
-- a function of the bench's options, `given`, and of `servers`, by which it
-- starts what it measures: servers.control(words...) and servers.hello(bytes),
-- both with a port, and servers.role(name, options).
--
-- Look-ups and their floor take turns on one connection each.

local histogram = require "perigee.bench.histogram"
local process = require "bench.lib.process"
local resources = require "bench.lib.resources"
local statistics = require "bench.lib.statistics"
local wire = require "bench.lib.wire"

local M = {}

local SCOPE, ONE = "bench", "one"
local TTL, SETTLE = 10, 15              -- seconds
local UNDER = 200                       -- requests under way
local MIB = 2 ^ 20
local WARM_UP = 0.1                     -- of a turn
local LENGTH = 300                      -- of the floor's answers
local TOKEN = ("t"):rep(43)             -- that the floor gets, and passes over

-- ---- Look-ups --------------------------------------------------------------

-- A function that asks for so many seconds, once at least, and adds the times
-- to a histogram. Answers have the text `part`.
local function asker(line, request, part)
  return function(seconds, into)
    local now = process.now()
    local from, over = now + seconds * WARM_UP * 1e9, now + seconds * 1e9
    repeat
      local before = process.now()
      local status, body = line:ask(request)
      now = process.now()
      wire.expect(status, 200, body)
      if not body:find(part, 1, true) then
        error("a look-up gives something else", 0)
      end
      if before >= from then into:add(now - before) end
    until now >= over
  end
end

-- Has one name at a server, and looks it up.
local function looker(server)
  local line = wire.line(server.port)
  wire.expect(line:ask(wire.put(SCOPE, ONE, 3600, server.token)), 201)
  local get = wire.request("GET", wire.path(SCOPE, ONE), server.token)
  return asker(line, get, '"name":"one"')
end

-- Its requests are as long.
local function floor_looker(server)
  local get = wire.request("GET", wire.path(SCOPE, ONE), TOKEN)
  return asker(wire.line(server.port), get, "xxx")
end

-- Two lookers in turns: the histograms of both.
local function in_turns(given, one, other)
  local a, b = histogram.new(), histogram.new()
  for _ = 1, given.turns do
    one(given.seconds, a)
    other(given.seconds, b)
  end
  return a, b
end

local function us(all, q) return all:quantile(q) / 1e3 end

function M.look(given, servers)
  local server, hello = servers.control(), servers.hello(LENGTH)
  local all, floor = in_turns(given, looker(server), floor_looker(hello))
  return { value = us(all, 0.5) / us(floor, 0.5), unit = "x",
           p50_us = us(all, 0.5), p99_us = us(all, 0.99),
           floor = "hello", floor_p50_us = us(floor, 0.5),
           floor_p99_us = us(floor, 0.99) }
end

-- As many as there can be, of some connections that each ask again at once.
function M.rate(given, servers)
  local server, hello = servers.control(), servers.hello(LENGTH)
  wire.expect(wire.line(server.port):ask(wire.put(SCOPE, ONE, 3600,
                                                  server.token)), 201)
  local function of(at, token)
    local crowd = wire.crowd(at.port, given.clients)
    local get = wire.request("GET", wire.path(SCOPE, ONE), token)
    return function()
      return crowd:ask_on(given.seconds, 200, function() return get end)
    end
  end
  local one, other = of(server, server.token), of(hello, TOKEN)
  local rates, floors = {}, {}
  for i = 1, given.turns do rates[i], floors[i] = one(), other() end
  local rate, floor = statistics.median(rates), statistics.median(floors)
  return { value = rate / floor, unit = "x", more_is_better = true,
           per_s = rate, floor = "hello", floor_per_s = floor }
end

function M.beside(given, servers)
  local quiet, crowded = servers.control(), servers.control()
  local crowd = wire.crowd(crowded.port, given.agents)
  crowd:ask_all(UNDER, 200, function()
    return wire.request("GET", "/healthz")
  end)
  local alone, beside = in_turns(given, looker(quiet), looker(crowded))
  return { value = us(beside, 0.5) / us(alone, 0.5), unit = "x",
           p50_us = us(beside, 0.5), p99_us = us(beside, 0.99),
           floor = "alone", floor_p50_us = us(alone, 0.5),
           floor_p99_us = us(alone, 0.99) }
end

-- ---- News ------------------------------------------------------------------

function M.watch(given, servers)
  local server, all = servers.control(), histogram.new()
  local news, line = wire.line(server.port), wire.line(server.port)
  news:follow(wire.request("GET", ("/v1/scopes/%s/watch"):format(SCOPE),
                           server.token))
  news:hear "event: all"
  local over, i = process.now() + given.seconds * given.turns * 1e9, 0
  repeat
    i = i + 1
    local name = ("w%d"):format(i)
    local before = process.now()
    line:follow(wire.put(SCOPE, name, 3600, server.token))
    news:hear(('{"name":"%s","entry":'):format(name))
    all:add(process.now() - before)
    line:hear "HTTP/1.1 201"
    line:hear '"since":'
  until process.now() >= over
  return { value = us(all, 0.5) / 1e3, unit = "ms", p50_us = us(all, 0.5),
           p99_us = us(all, 0.99) }
end

-- ---- Connecting ------------------------------------------------------------

local CALLS = 40

-- The time of a first call to target, by an agent of its own.
local function first_call(perigee, options, target)
  local agent = assert(perigee.agent(options))
  local before = process.now()
  local answer = assert(agent:proxy(target, "bench")):echo "there"
  local ns = process.now() - before
  if answer ~= "there" then error("a call has another answer", 0) end
  agent:close()
  return ns
end

function M.connect(_, servers)
  local perigee = require "perigee"
  local server = servers.control()
  local _, address = servers.role("callee", { registry = server.url })
  local options = { scope = SCOPE, registry = server.url, insecure = true,
                    transport = "tcp" }
  local all, floor = histogram.new(), histogram.new()
  for _ = 1, CALLS do
    all:add(first_call(perigee, options, "callee"))
    floor:add(first_call(perigee, options, address))
  end
  return { value = us(all, 0.5) / us(floor, 0.5), unit = "x",
           p50_us = us(all, 0.5), p99_us = us(all, 0.99), floor = "address",
           floor_p50_us = us(floor, 0.5), floor_p99_us = us(floor, 0.99) }
end

--- Runs in the other process, and tells its address.
function M.callee(registry, tell)
  local perigee = require "perigee"
  local agent = assert(perigee.agent {
    name = "callee", scope = SCOPE, registry = registry, insecure = true,
    listen = "tcp://127.0.0.1:0",
    services = { { name = "bench", version = 1, methods = {
      echo = { raw = true, function(request) return request end } } } } })
  tell(agent.addresses[1])
  perigee.run()
end

-- ---- Writing ---------------------------------------------------------------

-- Commits in a second of SQLite's alone, one row each, in a file like the
-- server's.
local function commits(seconds, store)
  local begin, n = process.now(), 0
  local text = ("x"):rep(LENGTH)
  repeat
    n = n + 1
    assert(store.begin:run())
    assert(store.put:run(SCOPE, ("n%d"):format(n), n, text))
    assert(store.finish:run())
  until process.now() >= begin + seconds * 1e9
  return n / ((process.now() - begin) * 1e-9)
end

local function sqlite(path)
  local store = assert(require "perigee.net.store".open(path))
  assert(store:run [[CREATE TABLE records (scope TEXT, name TEXT, revision
    INTEGER, text TEXT, PRIMARY KEY (scope, name)) WITHOUT ROWID]])
  return { begin = assert(store:prepare "BEGIN IMMEDIATE"),
           put = assert(store:prepare [[INSERT OR REPLACE INTO records
                                        VALUES (?1, ?2, ?3, ?4)]]),
           finish = assert(store:prepare "COMMIT") }
end

function M.durable(given, servers)
  local server, store = servers.control(), sqlite(servers.folder .. "/floor.db")
  local crowd, n = wire.crowd(server.port, given.clients), 0
  local rates, floors = {}, {}
  for i = 1, given.turns do
    rates[i] = crowd:ask_on(given.seconds, 201, function()
      n = n + 1
      return wire.put(SCOPE, ("d%d"):format(n), 3600, server.token)
    end)
    while crowd:take(100) > 0 do end
    floors[i] = commits(given.seconds, store)
  end
  local rate, floor = statistics.median(rates), statistics.median(floors)
  return { value = rate / (floor * given.clients), unit = "x",
           more_is_better = true, per_s = rate, floor = "sqlite",
           floor_per_s = floor * given.clients }
end

-- ---- Many agents -----------------------------------------------------------

local function memory(server) return resources.resident(server.pid) / MIB end

-- Their heads are those of agents, and so are the intervals of their renewals.
function M.agents(given, servers)
  local server = servers.control()
  local empty = memory(server)
  local crowd = wire.crowd(server.port, given.agents)
  crowd:ask_all(UNDER, 201, function(i)
    return wire.put(SCOPE, ("a%d"):format(i), TTL, server.token)
  end)
  local requests = {}
  for i = 1, given.agents do
    requests[i] = wire.renew(SCOPE, ("a%d"):format(i), server.token)
  end
  local shares = {}
  for i = 1, given.turns do
    local before = resources.cpu_of(server.pid)
    local took = crowd:ask_evenly(TTL / 3, 204, function(k)
      return requests[k]
    end)
    shares[i] = (resources.cpu_of(server.pid) - before) / took * 100
  end
  local full = memory(server)
  crowd:close()
  process.sleep(TTL + SETTLE)
  local left = memory(server) - empty
  local function row(value, unit) return { value = value, unit = unit } end
  return row(statistics.median(shares), "%"), row(full, "MiB"),
         row(left, "MiB")
end

-- Registers names that all end at one time, and asks for another one and the
-- floor in turns until they are gone, and a while longer.
function M.ends(given, servers)
  local server, hello = servers.control(), servers.hello(LENGTH)
  local empty, n = memory(server), given.names
  local crowd = wire.crowd(server.port, UNDER)
  local over = process.now() + (5 + n / 2500) * 1e9
  for first = 0, n - 1, UNDER do
    crowd:ask_all(UNDER, 201, function(i)
      local left = math.max(0.1, (over - process.now()) * 1e-9)
      return wire.put(SCOPE, ("e%d"):format(first + i), left, server.token)
    end)
  end
  if process.now() >= over then
    error("this machine takes too long to register --names", 0)
  end
  local ask, ask_floor = looker(server), floor_looker(hello)
  local last = wire.request("GET", wire.path(SCOPE, ("e%d"):format(n)),
                            server.token)
  local all, floor, done = histogram.new(), histogram.new(), nil
  process.sleep(math.max(0, (over - process.now()) * 1e-9))
  local line = wire.line(server.port)   -- who says nothing at first is dropped
  while not done or process.now() < done do
    ask(0, all)
    ask_floor(0, floor)
    process.sleep(0.0003)
    if not done and all.count % 100 == 0 and line:ask(last) == 404 then
      done = process.now() + 2e9
    end
  end
  crowd:close()
  process.sleep(SETTLE + 2)
  local left = memory(server) - empty
  return { value = all:quantile(1) / 1e6, unit = "ms", p50_us = us(all, 0.5),
           p99_us = us(all, 0.99), floor = "hello",
           floor_ms = floor:quantile(1) / 1e6,
           floor_p50_us = us(floor, 0.5), floor_p99_us = us(floor, 0.99) },
         { value = left, unit = "MiB" }
end

return M
