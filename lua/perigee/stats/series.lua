-- SPDX-License-Identifier: Apache-2.0
--- Chooses which agents and methods of a host have metrics of their own, so
-- that no more series are printed than a limit says. The methods of an agent
-- that have none are summed in its method "other", together with those for
-- which its stats file has no row. Agents that have none are summed in the
-- agent "other".
--
-- Who was chosen stays so while it is there: a series that came and went would
-- look like a counter that begins anew. Agents get methods by turns, so that
-- one with very many leaves some to the others. So does a peer: agents that
-- report (perigee.control.stats) have a field `peer`, whose token they have.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local partial = require "perigee.stats.partial"
local printable = require "perigee.runtime.printable"

local M = {}

local OTHER = "other"
local MEMO = 20000                      -- labels that are remembered
local SHARE = 0.75                      -- of the limit, for one peer

local Series = {}
Series.__index = Series

--- limit: series at most, but those of agent "other". costs: the series of an
-- `agent` without methods and transports, and of a `method` without failures.
-- with_host: labels have the agent's host, too.
function M.new(limit, costs, with_host)
  return setmetatable({ limit = limit, costs = costs, kept = {}, memo = {},
                        remembered = 0, spent = {},
                        with_host = with_host or false }, Series)
end

-- ---- Labels -----------------------------------------------------------------

local ESCAPES = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }

--- The value of a label, in quotes. It comes from peers: bytes that are no
-- UTF-8 are replaced; what would move a terminal's cursor or turn the direction
-- of text is written as an escape.
function M.quoted(text)
  text = printable.lines(printable.utf8(text))
  return '"' .. text:gsub('[\\"\n]', ESCAPES) .. '"'
end

local quoted = M.quoted

-- Labels by what they are made of, of one agent, or of agents ("").
local function memo_of(series, agent)
  if series.remembered >= MEMO then series.memo, series.remembered = {}, 0 end
  series.memo[agent] = series.memo[agent] or {}
  return series.memo[agent]
end

local function remember(series, memo, key, labels)
  memo[key], series.remembered = labels, series.remembered + 1
  return labels
end

local function agent_labels(series, scope, name, host)
  local memo, key = memo_of(series, ""), scope .. "\0" .. name .. "\0" .. host
  if memo[key] then return memo[key] end
  local labels = ("scope=%s,agent=%s"):format(quoted(scope), quoted(name))
  if series.with_host then labels = labels .. ",host=" .. quoted(host) end
  return remember(series, memo, key, labels)
end

-- Those of a method, by its side and the bytes of its names.
local function method_labels(series, agent, method)
  local memo, key = memo_of(series, agent.labels), method.side .. method.names
  return memo[key] or remember(series, memo, key,
    ('%s,side="%s",service=%s,method=%s'):format(agent.labels, method.side,
      quoted(method.names:sub(1, 64):match "^%Z*"),
      quoted(method.names:sub(65):match "^%Z*")))
end

-- ---- Sums -------------------------------------------------------------------

local function add_other(agent, numbers)
  agent.other = agent.other or partial.numbers()
  partial.add(agent.other, numbers)
end

local function add_all(to, more)
  for name, value in pairs(more) do to[name] = (to[name] or 0) + value end
end

-- How many sessions there are by the label of their transport: two names may
-- have the same.
local function by_label(transports)
  local by = {}
  for name, n in pairs(transports) do
    local label = quoted(name)
    by[label] = (by[label] or 0) + n
  end
  return by
end

local function is_before(a, b) return a.labels < b.labels end

local function agent_of(series, told)
  return { labels = agent_labels(series, told.scope, told.name, told.host),
           told = told, peer = told.peer or false, has_host = series.with_host,
           states = { [told.state] = 1 }, counters = told.counters,
           transports = by_label(told.transports), methods = false, other = nil,
           begun = told.begun, oldest_call = told.oldest_call,
           oldest_served = told.oldest_served }
end

-- Adds a method to an agent's by its labels: two names may have the same, once
-- they are printable.
local function add_method(agent, by, labels, numbers)
  local method = by[labels]
  if method then
    local sum = partial.numbers()       -- what was read stays as it is
    partial.add(sum, method.numbers)
    partial.add(sum, numbers)
    method.numbers = sum
    return
  end
  by[labels] = { labels = labels, numbers = numbers, peer = agent.peer }
  table.insert(agent.methods, by[labels])
end

-- Gives an agent its methods. It costs more than all else to make labels, so
-- only who was chosen gets some.
local function name_methods(series, agent)
  local by = {}
  agent.methods = {}
  for _, each in ipairs(agent.told.methods) do
    if each.side == OTHER then
      add_other(agent, each.numbers)
    else
      add_method(agent, by, method_labels(series, agent, each), each.numbers)
    end
  end
end

-- The agent "other", of those that have no series.
local function sum_of(series, agents)
  local sum = { labels = agent_labels(series, OTHER, OTHER, OTHER),
                states = {}, begun = 0, counters = {}, transports = {},
                methods = {}, other = nil, oldest_call = 0, oldest_served = 0 }
  for _, each in ipairs(agents) do
    add_all(sum.states, each.states)
    add_all(sum.counters, each.counters)
    add_all(sum.transports, each.transports)
    sum.begun = sum.begun + each.begun
    sum.oldest_call = math.max(sum.oldest_call, each.oldest_call)
    sum.oldest_served = math.max(sum.oldest_served, each.oldest_served)
    for _, method in ipairs(each.told.methods) do
      add_other(sum, method.numbers)
    end
  end
  return sum
end

-- ---- Choosing ---------------------------------------------------------------

local function method_cost(series, method)
  return series.costs.method + partial.failures(method.numbers)
end

-- What an agent costs at most without methods of its own.
local function agent_cost(series, agent)
  local n = series.costs.agent
  for _ in pairs(agent.transports) do n = n + 1 end
  if not agent.told.methods[1] then return n end
  return n + series.costs.method + partial.statuses - 1
end

-- The methods of the chosen agents by turns: the first ones, then the second
-- ones.
local function by_turns(agents)
  local list, i = {}, 0
  repeat
    i = i + 1
    local before = #list
    for _, agent in ipairs(agents) do
      if agent.chosen then list[#list + 1] = agent.methods[i] end
    end
  until #list == before
  return list
end

-- Has the peer of an agent or method (false: none) so many series left?
local function has_share(series, each, cost)
  local spent = series.spent[each.peer] or 0
  return not each.peer or spent + cost <= SHARE * series.limit
end

local function spend(series, each, cost)
  series.spent[each.peer] = (series.spent[each.peer] or 0) + cost
end

-- Chooses of a list as many as there is room for, among those that had been
-- chosen before, or among the others. Returns what is left.
local function choose(series, list, cost_of, left, before)
  for _, each in ipairs(list) do
    if (series.kept[each.labels] or false) == before then
      local cost = cost_of(series, each)
      each.chosen = cost <= left and has_share(series, each, cost)
      if each.chosen then
        left = left - cost
        spend(series, each, cost)
      end
    end
  end
  return left
end

local function choose_all(series, agents)
  local left = series.limit
  series.spent = {}
  for _, before in ipairs { true, false } do
    left = choose(series, agents, agent_cost, left, before)
    for _, agent in ipairs(agents) do
      if agent.chosen and not agent.methods then name_methods(series, agent) end
    end
    left = choose(series, by_turns(agents), method_cost, left, before)
  end
end

-- Leaves the chosen methods to an agent; how many series the rest would have.
local function divide(series, agent)
  local list, dropped = {}, 0
  for _, method in ipairs(agent.methods) do
    if method.chosen then
      list[#list + 1] = method
    else
      dropped = dropped + method_cost(series, method)
      add_other(agent, method.numbers)
    end
  end
  agent.methods = list
  return dropped
end

local function keep(series, agents)
  series.kept = {}
  for _, agent in ipairs(agents) do
    series.kept[agent.labels] = true
    for _, method in ipairs(agent.methods) do
      series.kept[method.labels] = true
    end
  end
end

-- The series that an agent has none of.
local function lost(series, agent)
  local n = agent_cost(series, agent)
  for _, method in ipairs(agent.told.methods) do
    if method.side ~= OTHER then n = n + method_cost(series, method) end
  end
  return n
end

-- Moves an agent that has the labels of agent "other" to those that are summed
-- in it.
local function join_namesake(series, agents, rest)
  local labels = agent_labels(series, OTHER, OTHER, OTHER)
  for i, agent in ipairs(agents) do
    if agent.labels == labels then
      rest[#rest + 1] = table.remove(agents, i)
      return
    end
  end
end

-- Of two files for one agent, that of a live process counts, or else the later;
-- and a file before a report, which is older and has less.
local function is_better(told, other)
  if (told.state == "dead") ~= (other.state == "dead") then
    return told.state ~= "dead"
  elseif not told.reported ~= not other.reported then
    return not told.reported
  end
  return told.began_at > other.began_at
end

-- Agents by their labels, sorted; how many files were another's double.
local function agents_of(series, list)
  local by, all, doubled = {}, {}, 0
  for _, told in ipairs(list) do
    local agent = agent_of(series, told)
    local other = by[agent.labels]
    if other then doubled = doubled + 1 end
    if not other or is_better(told, other.told) then
      by[agent.labels] = agent
    end
  end
  for _, agent in pairs(by) do all[#all + 1] = agent end
  table.sort(all, is_before)
  return all, doubled
end

--- Divides what was read of agents (a list of perigee.stats.partial's).
-- @treturn table a list of { `labels`, `told` (nil: agent "other"), `states`,
--   `counters`, `transports` (open sessions by quoted names), `oldest_call`,
--   `oldest_served`, `begun`, `methods`: a list of { `labels`, `numbers` },
--   `other`: numbers, or nil }, sorted
-- @treturn number how many series are summed in others
-- @treturn number how many files were doubles
-- @treturn table what was read of all agents, without doubles, sorted alike
function Series:divide(list)
  local all, doubled = agents_of(self, list)
  choose_all(self, all)
  local agents, rest, dropped, told = {}, {}, 0, {}
  for i, agent in ipairs(all) do
    told[i] = agent.told
    local to = agent.chosen and agents or rest
    to[#to + 1] = agent
    dropped = dropped + (agent.chosen and divide or lost)(self, agent)
  end
  keep(self, agents)
  if rest[1] then
    join_namesake(self, agents, rest)
    agents[#agents + 1] = sum_of(self, rest)
  end
  return agents, dropped, doubled, told
end

return M
