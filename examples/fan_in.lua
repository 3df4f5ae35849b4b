-- SPDX-License-Identifier: Apache-2.0
-- Many callers, one server: each caller is a process of its own. The server
-- counts, and no call is lost, doubled or out of order.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local perigee = require "perigee"

local CALLERS, CALLS, WINDOW = 8, 2000, 32

local function server()
  local agent = assert(perigee.agent { name = "server", scope = common.scope })
  local seen, total = {}, 0
  agent:serve {
    name = "counter", version = 1,
    methods = {
      add = function(caller, n)
        assert(n == (seen[caller] or 0) + 1, "lost, doubled or out of order")
        seen[caller] = n
        total = total + 1
        return total
      end,
      total = function()
        local callers = 0
        for _ in pairs(seen) do callers = callers + 1 end
        return total, callers
      end,
    },
  }
  common.ready()
end

local function caller(number)
  local agent = assert(perigee.agent { scope = common.scope })
  local counter = assert(agent:proxy("server", "counter", { timeout = 20 }))
  common.ready()
  local window = {}
  for n = 1, CALLS do
    local slot = n % WINDOW
    if window[slot] then assert(window[slot]:wait()) end
    window[slot] = counter.async:add(number, n)
  end
  for _, future in pairs(window) do assert(future:wait()) end
  agent:close()
  print("done")
  io.stdout:flush()
end

local function driver()
  local callers = {}
  for i = 1, CALLERS do callers[i] = common.start(arg[0], "caller", i) end
  local finished = 0
  for _, process in ipairs(callers) do
    if process.pipe:read("*l") == "done" then finished = finished + 1 end
    common.stop(process)
  end
  assert(finished == CALLERS, "a caller failed")
  local agent = assert(perigee.agent { scope = common.scope })
  local counter = assert(agent:proxy("server", "counter", { timeout = 5 }))
  local total, seen = counter:total()
  assert(total == CALLERS * CALLS and seen == CALLERS, "calls are missing")
  print(("%d processes made %d calls each, %d at once; %d arrived, in order")
    :format(CALLERS, CALLS, WINDOW, total))
  agent:close()
end

common.main(driver, { server = server, caller = caller }, { "server" })
