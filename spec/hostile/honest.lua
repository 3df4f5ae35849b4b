-- SPDX-License-Identifier: Apache-2.0
-- Honest clients, each a process of its own: one makes checked calls of 64
-- bytes, the other connects, calls and hangs up. Each prints "ready". For each
-- line "report" it then prints the results since the last report: attempts,
-- failures, p50, p99 and the longest in seconds, and the reason of the first
-- failure. Any other line ends it.
local ffi = require "ffi"
local histogram = require "perigee.bench.histogram"
local process = require "spec.support.process"
local victim = require "spec.hostile.victim"

local M = {}

local TIMEOUT, WARM = 20, 20

-- ---- What is counted -------------------------------------------------------

local Count = {}
Count.__index = Count

local function counter()
  return setmetatable({ made = 0, failed = 0, longest = 0, why = "-",
                        pool = histogram.new() }, Count)
end

function Count:add(seconds, why)
  self.made = self.made + 1
  self.longest = math.max(self.longest, seconds)
  self.pool:add(seconds * 1e9)
  if not why then return end
  self.failed = self.failed + 1
  if self.why == "-" then self.why = tostring(why):gsub("%s+", " ") end
end

function Count:tell(say)
  say(self.made, self.failed, self.pool:quantile(0.5) * 1e-9,
      self.pool:quantile(0.99) * 1e-9, self.longest, self.why)
end

-- Repeats once() until the judge ends it.
local function go_on(child, perigee, pause, once)
  local entry = ffi.new("struct spec_poll", 0, 1, 0)
  local count = counter()
  for _ = 1, WARM do once() end
  child.say("ready")
  while true do
    local begun = process.now()
    local why = once()
    count:add(process.now() - begun, why)
    if pause > 0 then perigee.sleep(pause) end
    if ffi.C.spec_poll(entry, 1, 0) ~= 0 then
      if child.hear() ~= "report" then return end
      count:tell(child.say)
      count = counter()
    end
  end
end

local function agent(child, transport)
  return assert(child.cases.agent(nil, { secret = victim.SECRET,
                                         transport = transport }))
end

-- Closes an agent now, instead of in cleanup().
local function forget(child, own)
  own:close()
  local opened = child.cases.opened
  for i = #opened, 1, -1 do
    if opened[i] == own then table.remove(opened, i) end
  end
end

-- ---- Clients that call -----------------------------------------------------

-- Echoes 64 bytes that differ from those of this process's other calls.
local function caller(proxy)
  local serial = 0
  return function()
    serial = serial + 1
    local text = ("%08d"):format(serial % 1e8):rep(8)
    local got, err = proxy:echo(text)
    if got == text then return nil end
    return got and "WRONG BYTES" or err
  end
end

-- Runs as a child of spec/support/process.lua.
function M.call(child, perigee, address, transport, pause)
  local own = agent(child, transport)
  local proxy = assert(own:proxy(address, "calc", { timeout = TIMEOUT,
                                                    reconnect = 0 }))
  go_on(child, perigee, tonumber(pause), caller(proxy))
  own:close()
end

-- Makes every kind of call to the server at lure, which may answer anything.
local function be_lured(own, lure)
  local into = own.engine:alloc(2 ^ 16):slice(0, 100)
  local proxy = own:proxy(lure, "calc", { timeout = 1, reconnect = 0 })
  if not proxy then return end
  local filled = proxy:with { into = into }
  local seen = proxy:with { reader = function(reply) return reply.length end }
  for _ = 1, 20 do
    local asked = {
      proxy.async:add(1, 2), proxy.async:echo("x"), proxy.async:copy("x"),
      filled.async:add(), filled.async:echo("y"), seen.async:copy("y"),
    }
    for _, future in ipairs(asked) do future:wait(1) end
    proxy:add(1)
    proxy:echo("z")
    filled:add(1)
  end
end

-- The same client, which also calls the lure; there, only a raised error is a
-- failure.
function M.prey(child, perigee, address, transport, pause, lure)
  local own = agent(child, transport)
  local proxy = assert(own:proxy(address, "calc", { timeout = TIMEOUT,
                                                    reconnect = 0 }))
  local call, raised = caller(proxy), nil
  perigee.spawn(function()
    while not raised do
      local other = agent(child, transport)
      local fine, why = pcall(be_lured, other, lure)
      if not fine then raised = "a call raised: " .. tostring(why) end
      forget(child, other)
      perigee.sleep(0.002)
    end
  end)
  go_on(child, perigee, tonumber(pause), function() return raised or call() end)
  own:close()
end

-- ---- Clients that connect --------------------------------------------------

-- 20,000 bytes: more than a ring takes, so that they go through a pool.
local LONG = 20000

local function come(own, address)
  local proxy, err = own:proxy(address, "calc", { timeout = 5 })
  if not proxy then return err end
  local sum, why = proxy:add(20, 22)
  if sum ~= 42 then return sum and "A WRONG SUM" or why end
  local text = ("come"):rep(LONG / 4)
  local got, failure = proxy:echo(text)
  if got ~= text then return got and "WRONG BYTES" or failure end
end

-- Runs as a child of spec/support/process.lua.
function M.connect(child, perigee, address, transport, pause)
  go_on(child, perigee, tonumber(pause), function()
    local own = agent(child, transport)
    local why = come(own, address)
    forget(child, own)
    return why
  end)
end

return M
