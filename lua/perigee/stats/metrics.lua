-- SPDX-License-Identifier: Apache-2.0
--- What the agents of this user on this host count, as text for Prometheus
-- (0.0.4) or as OpenMetrics (1.0), from their stats files. No agent is asked.
--
--   local metrics = require "perigee.stats.metrics".new { series = 10000 }
--   io.write(metrics:text())               -- or metrics:text("openmetrics")
--
-- A text is kept for a while, so that nobody who asks often makes this process
-- read often.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local emit = require "perigee.stats.emit"
local host = require "perigee.stats.host"
local log = require "perigee.runtime.log"
local native = require "perigee.native"
local partial = require "perigee.stats.partial"
local printable = require "perigee.runtime.printable"
local series = require "perigee.stats.series"

local M = {}

-- KEPT: seconds for which a text is kept, at least; SHARE: of the time, at
-- most, in which files are read; FILES: as many are read.
local SERIES, KEPT, SHARE, FILES = 10000, 0.1, 0.25, 4096

--- Media types by the kind of text.
M.TYPES = {
  text = "text/plain; version=0.0.4; charset=utf-8",
  openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8",
}

local Metrics = {}
Metrics.__index = Metrics

--- Makes what tells metrics. options: `registry` (a URL; default: this host's
-- folder), `scopes` (a list; default: all of them), `series`: so many of agents
-- and methods at most; the rest is summed in "other". And of what tells of
-- others than this host's agents: `reported`, a function that returns a list of
-- agents, as perigee.stats.partial reads them, with `path`, a text of each, and
-- `reported`, when it was told (ns); labels have the host then, too. `files`:
-- false if none are read. `families`: a function that returns what stands in
-- place of the files' own numbers (emit.lua). `kept`: seconds for which a text
-- is kept at least.
function M.new(options)
  local costs = options.reported and emit.REPORTED or emit.COSTS
  return setmetatable({
    registry = options.registry, scopes = options.scopes,
    reported = options.reported or false, files = options.files ~= false,
    families = options.families or false, kept = options.kept or KEPT,
    limit = options.series or SERIES, last = {}, texts = {}, until_ = 0,
    series = series.new(options.series or SERIES, costs,
                        options.reported ~= nil),
    has_sessions = false, has_dropped = false, has_refused = {}, reads = 0,
  }, Metrics)
end

-- ---- Reading ----------------------------------------------------------------

local function paths_of(self)
  local list = {}
  for _, scope in ipairs(self.scopes or host.scopes(self.registry)) do
    for _, path in ipairs(host.paths(self.registry, scope)) do
      list[#list + 1] = path
    end
  end
  return list
end

-- A session's counters are in two places for a moment, or in none, while it
-- ends. What only grows is told so.
local function never_less(self, list)
  local last = {}
  for _, told in ipairs(list) do
    local before, counters = self.last[told.path], told.counters
    for name in pairs(emit.GROWING) do
      if before and before.epoch == told.epoch and counters[name] then
        counters[name] = math.max(counters[name], before.counters[name] or 0)
      end
    end
    last[told.path] = { epoch = told.epoch, counters = counters }
  end
  self.last = last
end

-- Says once why a file is refused.
local function refuse(self, path, why, refused)
  refused[path] = why
  if self.has_refused[path] == why then return end
  log.write("warning", ("no metrics of %s: %s"):format(printable.line(path),
                                                       why))
end

-- Reads all files: a list of what was read, and how many were refused.
local function read_all(self)
  local list, refused, n = {}, {}, 0
  for i, path in ipairs(paths_of(self)) do
    local told, why
    if i <= FILES then told, why = partial.read(path, self.has_sessions) end
    if i > FILES then why = ("there are more than %d files"):format(FILES) end
    if told then
      told.path = path
      list[#list + 1] = told
    elseif why then
      n = n + 1
      refuse(self, path, why, refused)
    end
  end
  self.has_refused = refused
  return list, n
end

local function tell_dropped(self, dropped)
  if dropped > 0 and not self.has_dropped then
    log.write("warning", ("%d series are summed as \"other\": there may be %d")
      :format(dropped, self.limit))
  end
  self.has_dropped = dropped > 0
end

-- Reads the files, and decides for how long that is kept.
local function refresh(self)
  local began = native.clock()
  local list, refused = {}, 0
  if self.files then list, refused = read_all(self) end
  for _, each in ipairs(self.reported and self.reported() or {}) do
    list[#list + 1] = each
  end
  never_less(self, list)
  local agents, dropped, doubled, told = self.series:divide(list)
  tell_dropped(self, dropped)
  self.reads = self.reads + 1
  local took = (native.clock() - began) / 1e9
  self.list, self.read_at = told, began
  self.found = { agents = agents, dropped = dropped, read = #list,
                 refused = refused, doubled = doubled, reads = self.reads,
                 took = took, families = self.families and self.families() }
  self.texts = {}
  self.until_ = native.clock() + math.max(self.kept, took / SHARE) * 1e9
end

--- What was read of each agent (perigee.stats.partial), with its file's `path`,
-- sorted, and when (ns). It is made anew where a text would be.
function Metrics:told()
  if native.clock() >= self.until_ then refresh(self) end
  return self.list, self.read_at
end

--- Has told() tell the sessions that are in files, too.
function Metrics:tell_sessions() self.has_sessions = true end

--- The text of all metrics. kind: "text" (the default) or "openmetrics".
function Metrics:text(kind)
  kind = kind or "text"
  self:told()
  self.texts[kind] = self.texts[kind]
    or emit.text(self.found, kind == "openmetrics")
  return self.texts[kind]
end

-- ---- The kind that somebody wants -------------------------------------------

local OPEN, PLAIN = "application/openmetrics-text", "text/plain"

-- The quality that a list of media types gives one, and how exactly.
local function quality(accept, kind)
  local best, exactly = 0, 0
  for range in accept:lower():gmatch "[^,]+" do
    local type = range:match "^%s*([^;%s]*)"
    local how = type == kind and 3 or type == kind:match "^[^/]+/" .. "*" and 2
      or type == "*/*" and 1 or 0
    local q = tonumber(range:match ";%s*q=([%d.]+)" or 1) or 0
    if how > exactly or how == exactly and how > 0 and q > best then
      best, exactly = q, how
    end
  end
  return best, exactly
end

--- The kind of text that an Accept header wants (nil: there is none). It is
-- OpenMetrics only if that is named.
function M.wanted(accept)
  if not accept then return "text" end
  local open, exactly = quality(accept, OPEN)
  local named = exactly == 3 and open > 0 and open >= quality(accept, PLAIN)
  return named and "openmetrics" or "text"
end

return M
