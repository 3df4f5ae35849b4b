-- SPDX-License-Identifier: Apache-2.0
--- What the agents of this host did from one look to the next: rates and times
-- of each, and of all together over the last ten minutes.
local errors = require "perigee.runtime.errors"
local links = require "perigee.stats.links"
local partial = require "perigee.stats.partial"
local printable = require "perigee.runtime.printable"
local stats = require "perigee.stats"

local M = {}

M.KEPT = 600                            -- seconds

-- Texts of agents and peers, as a page shows them.
local shown = printable.line

local History = {}
History.__index = History

--- told: perigee.stats.metrics. look() is to be called every `step` seconds.
function M.new(told, step)
  told:tell_sessions()
  return setmetatable({ metrics = told, step = step, points = {}, before = {},
                        list = {}, rows = {}, point = false, read_at = false,
                        sessions = {}, seconds = false },
                      History)
end

-- ---- Differences ------------------------------------------------------------

local BIN, BINS = partial.at.bins, partial.bins

-- How often calls of all its methods were in each bin; and how often peers'
-- calls failed, and others: own ones, and those that have no row.
local function sums_of(told)
  local bins, answers, calls = {}, 0, 0
  for i = 1, BINS do bins[i] = 0 end
  for _, method in ipairs(told.methods) do
    local numbers, failed = method.numbers, 0
    for i = 1, BINS do bins[i] = bins[i] + numbers[BIN + i - 1] end
    for i = partial.at.ends + 1, BIN - 1 do failed = failed + numbers[i] end
    if method.side == "server" then answers = answers + failed end
    if method.side ~= "server" then calls = calls + failed end
  end
  return bins, answers, calls
end

-- The seconds in which such a part of the calls had ended; nil: there are none.
-- Calls are taken to be spread evenly over their bin.
local function quantile(bins, part)
  local all, below, sum = 0, 0, 0
  for i = 1, BINS do all = all + bins[i] end
  if all <= 0 then return nil end
  for i = 1, BINS - 1 do
    local bound = partial.bounds[i]
    if sum + bins[i] >= part * all then
      return below + (bound - below) * (part * all - sum) / bins[i]
    end
    sum, below = sum + bins[i], bound
  end
  return below
end

local function added(to, bins)
  for i = 1, BINS do to[i] = (to[i] or 0) + bins[i] end
end

local RATES = { "calls", "served", "bytes_sent", "bytes_received" }

-- What is counted of an agent now: by name, and its bins.
local function counted(told, now)
  local all = { epoch = told.epoch, at = now }
  for _, name in ipairs(RATES) do all[name] = told.counters[name] or 0 end
  all.bins, all.failed_answers, all.failed_calls = sums_of(told)
  return all
end

-- The rates from what was counted to what is, by the names that rows have, and
-- how many calls were in each of `bins`.
local function rates_of(is, was)
  local seconds, bins = (is.at - was.at) / 1e9, {}
  local function rate(name)
    return math.max(is[name] - was[name], 0) / seconds
  end
  for i = 1, BINS do bins[i] = math.max(is.bins[i] - was.bins[i], 0) end
  return { calls = rate "calls", served = rate "served",
           failed_calls = rate "failed_calls",
           failed_answers = rate "failed_answers",
           sent = rate "bytes_sent", received = rate "bytes_received",
           p50 = quantile(bins, 0.5), p99 = quantile(bins, 0.99), bins = bins }
end

-- What is counted of an agent, with its `rates` since the last look if there
-- was one. An agent that has not reported since is told as it was.
local function compared(told, was, now)
  local at = told.reported or now
  local knows = was and was.epoch == told.epoch
  if knows and was.at == at then return was end
  local is = counted(told, at)
  is.rates = knows and at > was.at and rates_of(is, was) or false
  return is
end

-- ---- Looking ----------------------------------------------------------------

local function sessions_of(told)
  local n = 0
  for _, count in pairs(told.transports) do n = n + count end
  return n
end
jit.off(sessions_of)            -- its loop over pairs(), see check.lua

local function row_of(told)
  return { scope = shown(told.scope), name = shown(told.name),
           state = told.state, host = shown(told.host), pid = told.pid,
           began = told.began_at, sessions = sessions_of(told),
           oldest = math.max(told.oldest_call, told.oldest_served) / 1e9 }
end

local SUMS = { "calls", "served", "failed_calls", "failed_answers", "sent",
               "received" }

local function new_point()
  local point = {}
  for _, name in ipairs(SUMS) do point[name] = 0 end
  return point
end

-- Adds the rates of an agent to its row, and to those of all together: a point
-- and bins.
local function add_rates(rates, row, point, bins)
  for _, name in ipairs(SUMS) do
    row[name] = rates[name]
    point[name] = point[name] + rates[name]
  end
  row.p50, row.p99 = rates.p50, rates.p99
  added(bins, rates.bins)
end

-- The sessions of each life of an agent that tells of them.
local function sessions_by_epoch(list)
  local sessions = {}
  for _, told in ipairs(list) do
    if told.sessions then sessions[tostring(told.epoch)] = told.sessions end
  end
  return sessions
end

-- The rows of what was read at a time, and their sum.
local function measured(self, list, now)
  local rows, before, all, point = {}, {}, {}, new_point()
  for i, told in ipairs(list) do
    local is = compared(told, self.before[told.path], now)
    rows[i], before[told.path] = row_of(told), is
    if is.rates then add_rates(is.rates, rows[i], point, all) end
  end
  self.before = before
  if all[1] then
    point.p50, point.p99 = quantile(all, 0.5), quantile(all, 0.99)
  end
  return rows, point
end

--- Reads how all are now. Where reading takes so long that nothing was read
-- since the last look (perigee.stats.metrics), that is told again.
-- @treturn table a list of { `scope`, `name`, `state`, `host`, `pid`, `began`
--   (seconds since 1970), `sessions`, `oldest` (seconds), and rates in a second
--   since the last look, which are not there the first time: `calls`, `served`,
--   `failed_calls` (own), `failed_answers`, `sent`, `received`, and `p50`,
--   `p99` (seconds) if any was measured }, sorted
-- @treturn table the same of all together: a point, which is kept
function History:look()
  local list, now = self.metrics:told()
  if now ~= self.read_at then
    self.rows, self.point = measured(self, list, now)
    self.sessions = sessions_by_epoch(self.list)
    self.seconds = self.read_at and (now - self.read_at) / 1e9
    self.list, self.read_at = list, now
  end
  table.insert(self.points, self.point)
  if #self.points > M.KEPT / self.step then table.remove(self.points, 1) end
  return self.rows, self.point
end

--- Who is linked with whom (perigee.stats.links) by the last look, with rates
-- since the one before; how many more there are; and how many agents report.
function History:links()
  return links.of(self.list, self.sessions, self.seconds)
end

-- ---- One agent --------------------------------------------------------------

local function method_of(method)
  local numbers, bins = method.numbers, {}
  for i = 1, BINS do bins[i] = numbers[BIN + i - 1] end
  local ends = {}
  for i = 1, partial.statuses - 1 do
    local n = numbers[partial.at.ends + i]
    if n > 0 then
      local kind = errors.kind(-i)
      ends[kind] = (ends[kind] or 0) + n
    end
  end
  return { side = method.side, calls = numbers[0],
           service = shown(method.names:sub(1, 64):match "^%Z*"),
           method = shown(method.names:sub(65):match "^%Z*"),
           sent = numbers[1], received = numbers[2],
           longest = numbers[3] / 1e9, failures = ends, bins = bins,
           p50 = quantile(bins, 0.5), p99 = quantile(bins, 0.99) }
end

local function links_of(told)
  local list = {}
  for _, each in ipairs(told and told.sessions or {}) do
    list[#list + 1] = { peer = shown(each.peer), state = each.state,
                        address = shown(each.address),
                        transport = shown(each.transport),
                        reason = shown(each.reason),
                        not_better = each.not_better,
                        sent = each.counters.bytes_sent or 0,
                        received = each.counters.bytes_received or 0 }
  end
  return list
end

--- One agent of the last look: its methods since it began, each with the kinds
-- of its failures and its calls by bins (partial.bounds), and its sessions,
-- which an agent that has `reported` does not tell; or nil. host: of two that
-- have the name, that one.
function History:agent(scope, name, host)
  for _, told in ipairs(self.list) do
    if shown(told.scope) == scope and shown(told.name) == name
      and (not host or shown(told.host) == host) then
      local methods = {}
      for i, each in ipairs(told.methods) do methods[i] = method_of(each) end
      local reported = told.reported ~= nil
      return { scope = scope, name = name, methods = methods,
               reported = reported,
               links = links_of(not reported and stats.read(told.path)) }
    end
  end
end

return M
