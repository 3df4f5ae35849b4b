-- SPDX-License-Identifier: Apache-2.0
-- What `/metrics` costs who serves it: reading the stats files of AGENTS agents
-- with METHODS methods each and writing the text, beside a C program that reads
-- and prints as much (floor_metrics.c). The two take turns; times are of the
-- processor, for this process alone.
--
--   luajit bench/metrics.lua [--agents 64] [--methods 50] [--turns 20] [--json]

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local floor = require "bench.lib.floor"
local host = require "perigee.stats.host"
local json = require "perigee.bench.json"
local machine = require "bench.lib.machine"
local metrics = require "perigee.stats.metrics"
local perigee = require "perigee"
local process = require "bench.lib.process"

local TARGET = 3

local parser = argparse("luajit bench/metrics.lua",
                        "What /metrics costs who serves it.")
parser:option("--agents", "Agents."):convert(tonumber):default "64"
parser:option("--methods", "Methods of each."):convert(tonumber):default "50"
parser:option("--turns", "Turns of each program."):convert(tonumber)
  :default "20"
parser:flag("--json", "One JSON document instead of the table.")
local given = parser:parse()

local SCOPE = "bench-metrics-" .. process.pid()

-- An agent that serves so many methods; each is called by it once.
local function agent_of(i)
  local agent = assert(perigee.agent { name = "a" .. i, scope = SCOPE })
  local methods = {}
  for k = 1, given.methods do methods["m" .. k] = function() end end
  agent:serve { name = "service", methods = methods }
  return agent
end

local function call_all(caller, agent)
  local proxy = assert(caller:proxy(agent.name, "service"))
  for k = 1, given.methods do proxy["m" .. k](proxy) end
  proxy:close()
end

-- The last of three, whose memory has its pages: ms, series and bytes.
local function floor_turn(paths)
  local pipe = io.popen(("%s/floor_metrics 3 '%s' | tail -n 1"):format(
    floor.folder, table.concat(paths, "' '")))
  local ns, series, bytes = pipe:read("*n", "*n", "*n")
  pipe:close()
  assert(ns, "floor_metrics has failed")
  return ns / 1e6, series, bytes
end

local function own_turn(told)
  told.until_ = 0
  local began = process.spent()
  local text = told:text()
  return (process.spent() - began) / 1e6, text
end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local agents, caller = {}, assert(perigee.agent { scope = SCOPE })
for i = 1, given.agents do agents[i] = agent_of(i) end
for _, agent in ipairs(agents) do call_all(caller, agent) end

local told = metrics.new { scopes = { SCOPE }, series = 1e7 }
local paths = host.paths(nil, SCOPE)
local own, floors, series, bytes, text = {}, {}, nil, nil, nil
for i = 1, given.turns do
  own[i], text = own_turn(told)
  floors[i], series, bytes = floor_turn(paths)
end
for _, agent in ipairs(agents) do agent:close() end
caller:close()

local _, lines = text:gsub("\n[^#]", "")
local row = { agents = given.agents, methods = given.methods, series = lines,
              bytes = #text, own_ms = median(own), floor_ms = median(floors),
              floor_series = series, floor_bytes = bytes }
row.ratio = row.own_ms / row.floor_ms
if given.json then
  print(json.document({ bench = "metrics", transport = "none",
                        machine = machine.describe { pin = {} },
                        figures = {}, rows = { row } }, "agents"))
else
  print(("%d agents of %d methods: %d series, %.1f MB\n"
    .. "  perigee metrics  %6.1f ms\n  in C             %6.1f ms  (%d series, "
    .. "%.1f MB)\n  ratio            %6.2f  (to reach: %g)"):format(
    row.agents, row.methods, row.series, row.bytes / 1e6, row.own_ms,
    row.floor_ms, row.floor_series, row.floor_bytes / 1e6, row.ratio, TARGET))
end
