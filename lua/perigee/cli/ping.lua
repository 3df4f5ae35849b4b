-- SPDX-License-Identifier: Apache-2.0
--- `perigee ping NAME`: how long an agent's loop takes to answer. Each ping is
-- a typed call that every agent answers by itself: it asks for a service
-- without a name, which nobody has. Any answer will do, as the peer may be
-- another program.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local M = {
  name = "ping",
  summary = "Tell how long an agent takes to answer, with a histogram.",
  description = "Makes calls that every agent answers by itself, the first "
    .. "of them uncounted, and tells at the end, or at Ctrl-C, how long they "
    .. "took. The exit status is 1 if one had no answer.",
}

local BARS = 40

function M.configure(parser)
  options.agent(parser)
  parser:option("-c --count", "How many; default: 100.")
    :argname "NUMBER":convert(options.count):default(100)
  parser:option("-i --interval", "From one to the next, as in 10ms; 0: at "
    .. "once; default: 10ms."):argname "TIME":convert(options.seconds)
    :default(0.01)
  options.json(parser)
  options.place(parser)
  options.timeout(parser, 2, "How long connecting, and each answer, may take; "
    .. "default: %g s.")
end

-- ---- Asking ----------------------------------------------------------------

-- Kinds of what comes back once the peer has answered.
local ANSWERS = { no_service = true, no_method = true, remote = true,
                  version = true, protocol = true }

-- Seconds until the agent has answered; or nil and an error.
local function once(agent, name, timeout)
  local loop = require "perigee.runtime.loop"
  local session, err = client.session(agent, name, timeout)
  if not session then return nil, err end
  local began = loop.now()
  local told
  told, err = require "perigee.call.proxy".describe(session, "", timeout)
  if told or ANSWERS[err.kind] then return (loop.now() - began) / 1e9 end
  return nil, err
end

local function pings(agent, given, told)
  local perigee = require "perigee"
  once(agent, given.name, given.timeout)        -- the first one also connects
  for i = 1, given.count do
    local took, err = once(agent, given.name, given.timeout)
    told.sent = told.sent + 1
    if took then
      told.took[#told.took + 1] = took
    else
      told.lost, told.err = told.lost + 1, err
    end
    if given.interval > 0 and i < given.count then
      perigee.sleep(given.interval)
    end
  end
end

-- ---- Telling ---------------------------------------------------------------

-- The bounds 1, 2, 5, 10... microseconds around a time.
local function bound(seconds)
  local upper = 1e-6
  for _, factor in ipairs { 1, 2, 5 } do
    local decade = 10 ^ math.ceil(math.log10(seconds / factor) - 1e-9)
    local candidate = decade * factor
    if candidate >= seconds * (1 - 1e-9)
      and (upper < seconds or candidate < upper) then
      upper = candidate
    end
  end
  return upper
end

local function histogram(took)
  local buckets = {}
  for _, each in ipairs(took) do   -- sorted
    local last = buckets[#buckets]
    if not last or each > last.to then
      last = { to = bound(each), count = 0 }
      buckets[#buckets + 1] = last
    end
    last.count = last.count + 1
  end
  return buckets
end

local function summary(told)
  local took = told.took
  table.sort(took)
  local sum = 0
  for _, each in ipairs(took) do sum = sum + each end
  local function at(share) return took[math.ceil(#took * share)] end
  return { sent = told.sent, lost = told.lost, answered = #took,
           min = took[1], mean = #took > 0 and sum / #took or nil,
           p50 = at(0.5), p99 = at(0.99), max = took[#took],
           histogram = require "perigee.cli.json".list(histogram(took)) }
end

local function write(name, all, out)
  out.line("%s: %d sent, %d answered, %d lost", name, all.sent, all.answered,
           all.lost)
  if all.answered == 0 then return end
  local most = 0
  for _, each in ipairs(all.histogram) do most = math.max(most, each.count) end
  for _, each in ipairs(all.histogram) do
    out.line("  up to %9s  %7d  %s", units.format_time(each.to), each.count,
             ("#"):rep(math.ceil(each.count / most * BARS)))
  end
  out.line("min %s, mean %s, p50 %s, p99 %s, max %s",
           units.format_time(all.min), units.format_time(all.mean),
           units.format_time(all.p50), units.format_time(all.p99),
           units.format_time(all.max))
end

function M.run(given)
  given.name = client.peer(given.name)
  local out = require "perigee.cli.out"
  local told = { sent = 0, lost = 0, took = {} }
  local function tell()
    local all = summary(told)
    if given.json then out.json(all) else write(given.name, all, out) end
    out.finish()
    if told.lost == 0 then return 0 end
    failure.failed("%d of %d pings of %s had no answer: %s", told.lost,
                   told.sent, given.name, client.sentence(told.err, given.name))
  end
  return client.run(given, function(agent)
    pings(agent, given, told)
    return tell()
  end, tell)
end

return M
