-- SPDX-License-Identifier: Apache-2.0
-- Garbage of sessions in Lua's heap is collected soon after many have ended,
-- even if the program allocates nothing that would start the collector.
local cases = require "spec.support.cases"
local perigee = require "perigee"

local SESSIONS = 100

describe("Lua's heap", function()
  after_each(cases.cleanup)

  local function left(weak)
    local count = 0
    for _ in pairs(weak) do count = count + 1 end
    return count
  end

  -- Each client connects, is noticed by the server's engine, and closes.
  local function come_and_go(server, client, address)
    local weak = setmetatable({}, { __mode = "k" })
    local list = {}
    for i = 1, SESSIONS do list[i] = assert(client:connect(address)) end
    for _ = 1, 100 do
      for _, session in pairs(server.sessions) do weak[session] = true end
      if left(weak) >= SESSIONS then break end
      perigee.sleep(0.01)
    end
    assert.equal(SESSIONS, left(weak))
    for i = 1, SESSIONS do list[i]:close() end
    return weak
  end

  it("forgets sessions that have ended", function()
    local server = assert(cases.engine())
    local client = assert(cases.engine())
    local listener = assert(server:listen(cases.address()))
    local weak = come_and_go(server, client, listener.address)
    listener.arrived = {}
    for _ = 1, 300 do
      perigee.sleep(0.01)
      if left(weak) == 0 then break end
    end
    assert.equal(0, left(weak))
  end)
end)
