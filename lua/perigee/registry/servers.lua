-- SPDX-License-Identifier: Apache-2.0
--- Chooses which of several equal servers is asked. Some may be away, or hang:
-- take what they are sent, and say nothing.
--
-- A question is asked at the present server. A question that is not answered
-- there in HEDGE seconds is asked at the next server, too, and so on; the first
-- answer counts. So any question may be asked twice. A server that hangs is
-- asked last, until it answers something.
--
--   a server       event                                   becomes
--   present        it fails                                not present: the
--                                                          next one is
--   present        another has answered before it          not present; hung
--   hung           it answers                              not hung
--   any            it hangs, or does not answer in time    its streams end
--                  whether it is there
--
-- A reader of a server's stream calls check() now and then, because a silent
-- stream says nothing of its server.
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"

local M = {}

local HEDGE = 0.3                       -- seconds
local PAUSE = 0.05                      -- seconds, after all have failed
local QUIET = 0.7                       -- seconds until it is asked for itself
local ALIVE = 0.7                       -- seconds that it has for an answer

--- Seconds between two calls of check().
M.LOOK = 0.3

local Servers = {}
Servers.__index = Servers

--- The servers at urls. patience: seconds for an answer. options:
--
--   repeats         all are asked again and again while there is time; else
--                   once
--   judge(answer, kind, code)    of what a server has answered, or why it has
--                   not: "final"; "passing": another one may do better; or
--                   "useless": no other would, unless it is another's fault
--   drop(answer)    ends an answer that nobody wants
--   probe(url, seconds)    asks whether a server is there, in a task; nil if it
--                   does not answer
function M.new(urls, patience, options)
  return setmetatable({
    urls = urls, patience = patience, options = options, at = 1, hung = {},
    heard = {}, probing = {}, streams = {}, share = patience / #urls,
  }, Servers)
end

-- ---- Who answers -----------------------------------------------------------

-- The first server from the present one on for which f(url) is true.
local function first_of(servers, f)
  local urls = servers.urls
  for i = 0, #urls - 1 do
    local url = urls[(servers.at + i - 1) % #urls + 1]
    if f(url) then return url end
  end
end

local function is_spare(servers, url)
  return url ~= servers.urls[servers.at] and not servers.hung[url]
end

--- Makes another server the present one, if url is that now.
function Servers:leave(url)
  local urls = self.urls
  if urls[self.at] ~= url then return end
  local other = first_of(self, function(each) return is_spare(self, each) end)
  self.at = self.at % #urls + 1
  while other and urls[self.at] ~= other do self.at = self.at % #urls + 1 end
end

--- A server has said something.
function Servers:hear(url)
  self.heard[url], self.hung[url] = loop.now(), nil
end

--- Ends the streams of a server: who reads them goes on elsewhere.
function Servers:cut(url)
  local list = {}
  for stream, from in pairs(self.streams) do
    if from == url then list[#list + 1] = stream end
  end
  for _, stream in ipairs(list) do self:close(stream) end
end
jit.off(Servers.cut)

-- ---- Is it there? ----------------------------------------------------------

local function probe(servers, url)
  local answer, kind = servers.options.probe(url, ALIVE)
  servers.probing[url] = 0
  if answer then return servers:hear(url) end
  if kind == "closed" then return end
  servers.hung[url] = true
  servers:leave(url)
  servers:cut(url)
end

-- A stop of the loop ends the task.
local function check(servers, url)
  local now = loop.now()
  if now - (servers.probing[url] or 0) < 2e9 * ALIVE then return end
  servers.probing[url] = now
  tasks.spawn(probe, servers, url)
end

--- Keeps a stream of a server's, to be ended by close().
function Servers:keep(stream, url)
  self.streams[stream] = url
  self:hear(url)
end

function Servers:close(stream)
  self.streams[stream] = nil
  stream:close()
end

--- Sees to it that a stream ends if its server hangs and there is another one.
-- Does not wait.
function Servers:check(stream)
  local url = self.streams[stream]
  if not url or #self.urls == 1 then return end
  if loop.now() - (self.heard[url] or 0) >= QUIET * 1e9 then
    check(self, url)
  end
end

--- The seconds until a stream is to be checked: at most that many.
function Servers:pace(seconds)
  return #self.urls > 1 and math.min(M.LOOK, seconds) or seconds
end

-- A server is slower than another one. That alone ends no stream, for it may
-- have much to do.
local function doubt(servers, url)
  servers.hung[url] = true
  servers:leave(url)
  for _, from in pairs(servers.streams) do
    if from == url then return check(servers, url) end
  end
end
jit.off(doubt)

-- ---- Asking ----------------------------------------------------------------
--
-- A run is one question: { asked: the servers of this round, open: the attempts
-- that have not ended, results: what has ended and was not looked at, due: when
-- another one is asked }.

local function drop(run, answer)
  if answer then run.servers.options.drop(answer) end
end

-- Was an attempt begun so long before a time that its server hangs?
local function is_late(run, attempt, time)
  return time - attempt.since >= 0.9e9 * run.hedge
end

local function ended(run, attempt, answer, kind, why, code)
  local servers, url = run.servers, attempt.url
  run.open[attempt] = nil
  run.n = run.n - 1
  if answer then
    servers:hear(url)
  elseif kind == "timeout" and is_late(run, attempt, loop.now()) then
    servers.hung[url] = true
  end
  if run.over then return drop(run, answer) end
  run.results[#run.results + 1] = { attempt = attempt, answer = answer,
                                    kind = kind, why = why, code = code }
  futures.settle(run.news, true)
end

local function try(run, attempt)
  ended(run, attempt, run.f(attempt.url, loop.left(run.deadline)))
end

-- The next server to be asked in this round; nil: none.
local function next_url(run)
  local servers = run.servers
  return first_of(servers, function(url)
    return not run.asked[url] and not servers.hung[url]
  end) or first_of(servers, function(url) return not run.asked[url] end)
end

local function begin(run)
  local servers, url = run.servers, next_url(run)
  if not url then
    run.asked = {}
    url = next_url(run)
  end
  local attempt = { url = url, since = loop.now() }
  run.asked[url], run.open[attempt], run.n = true, true, run.n + 1
  run.tries = run.tries + 1
  local spare = run.tries < #servers.urls
  run.due = (spare or servers.options.repeats)
    and loop.deadline(spare and run.hedge or servers.share) or math.huge
  if #servers.urls == 1 then return try(run, attempt) end
  tasks.spawn(try, run, attempt)
end

-- Those that were asked long before one that has answered hang.
local function outrun(run, attempt)
  for other in pairs(run.open) do
    if is_late(run, other, attempt.since) and other.url ~= attempt.url then
      doubt(run.servers, other.url)
    end
  end
end
jit.off(outrun)

local function finish(run)
  run.over = true
  for _, each in ipairs(run.results) do drop(run, each.answer) end
end

-- Is there nobody left who may do better than who has failed?
local function is_hopeless(run, verdict)
  local n, repeats = #run.servers.urls, run.servers.options.repeats
  run.useless = verdict == "useless" and run.useless + 1 or 0
  return run.n == 0 and (run.useless >= n or not repeats and run.tries >= n)
end

-- Looks at what an attempt has ended in. Is that the end?
local function take(run, result)
  local servers, options = run.servers, run.servers.options
  local url = result.attempt.url
  local verdict = options.judge(result.answer, result.kind, result.code)
  if run.best then drop(run, run.best.answer) end
  run.best = result
  if verdict == "final" then
    outrun(run, result.attempt)
    return true
  end
  servers:leave(url)
  if not result.answer and (#servers.urls > 1 or options.repeats) then
    servers:cut(url)
  end
  if is_hopeless(run, verdict) then return true end
  if run.tries < #servers.urls then
    run.due = loop.now()
  elseif run.n == 0 and options.repeats then
    run.due = loop.deadline(PAUSE)
  end
end

-- Waits until something has ended, or another one is to be asked.
local function await(run)
  local now = loop.now()
  if now >= run.due then return begin(run) end
  run.news = futures.new()
  loop.wait(run.news, math.min(run.due, run.deadline))
end

--- Calls f(url, seconds), which waits, for one server after the other. Returns
-- the answer of the first that has one; or nil, a kind, why and f's code. Waits
-- for so many seconds at most.
function Servers:ask(seconds, f)
  local run = { servers = self, f = f, deadline = loop.deadline(seconds),
                asked = {}, open = {}, n = 0, results = {}, tries = 0,
                useless = 0, due = 0, news = futures.new(), best = false,
                over = false, hedge = math.min(HEDGE, self.share) }
  begin(run)
  while true do
    local result = table.remove(run.results, 1)
    if result then
      if take(run, result) then break end
    elseif loop.state.stopping then
      finish(run)
      return nil, "closed", "the loop was stopped"
    elseif loop.now() >= run.deadline then
      break
    else
      await(run)
    end
  end
  finish(run)
  if not run.best then return nil, "timeout", "it does not answer" end
  return run.best.answer, run.best.kind, run.best.why, run.best.code
end

return M
