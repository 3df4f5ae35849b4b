-- SPDX-License-Identifier: Apache-2.0
-- What the log tells of what goes on, once somebody asks for it, and that it
-- tells nothing of that before.
local perigee = require "perigee"
local process = require "spec.support.process"
local stats = require "perigee.stats"

describe("what goes on", function()
  local said, before, agents

  before_each(function()
    said, before, agents = {}, perigee.log, {}
    perigee.log = function(level, message)
      said[#said + 1] = level .. ": " .. message
    end
  end)

  after_each(function()
    for _, agent in ipairs(agents) do agent:close() end
    perigee.log = before
  end)

  local function new(make, options, level)
    options.scope = "log-" .. process.pid()
    local made = assert(make(options))
    agents[#agents + 1] = made
    local agent = made.agents and made.agents[1] or made
    local path = agent.address:gsub("^unix:", ""):gsub("%.sock$", ".stats")
    if level then assert(stats.ask_for_level(path, level)) end
    return made
  end

  local function agent_of(name, level, more)
    more = more or {}
    more.name = name
    return new(perigee.agent, more, level)
  end

  -- Waits for a line that is like this.
  local function tells(pattern)
    local limit = process.now() + 10 * process.slow
    repeat
      for _, line in ipairs(said) do
        if line:find(pattern) then return end
      end
      perigee.sleep(0.001)
    until process.now() > limit
    error(("nothing is like %q of\n%s"):format(pattern,
      table.concat(said, "\n")), 2)
  end

  it("is told of at level info: sessions, why they are not better, drains",
     function()
    local a = agent_of("a", "info", { listen = "tcp://127.0.0.1:0",
                                      transport = "tcp" })
    local b = agent_of("b", "info", { transport = "tcp" })
    assert(a:session "b")
    tells("^info: session %d+ with b is open, dialed at unix:.-: over tcp, "
      .. "not shm %(.-%)")
    tells "^info: session %d+ with .- is open, accepted from .-: over tcp"
    assert(b.engine:listen "tcp://127.0.0.1:0")
    tells "^info: listening at tcp://127.0.0.1:%d+$"
    b:drain(1)
    tells "^info: agent b in scope %S+ drains: it takes no new calls$"
    tells "^info: agent b in scope %S+ has drained$"
    b:close()
    tells "^info: agent b in scope %S+ closes$"
    tells "^info: the session with b is lost: "
    for _, line in ipairs(said) do assert.is_nil(line:find "^debug") end
  end)

  it("is told of at level debug: what is tried, and what was ended", function()
    local a = agent_of("a", "debug")
    assert.is_nil(a:session("nobody", { timeout = 0.01 }))
    tells "^debug: .*nobody"
    local listener = assert(a.engine:listen "tcp://127.0.0.1:0")
    listener:close()
    tells "^debug: not listening at tcp://"
    a.engine:connect(listener.address, { timeout = 5 })
    tells "^debug: connecting to tcp://"
    agent_of "b"
    assert(a:session "b"):close()
    tells "^debug: the session with b was closed$"
    a:changed()
    tells "^debug: keeping the name a in scope %S+: it is renewed, with a new "
  end)

  it("is told of a cache: its start, and what it evicts, once", function()
    local cache = new(perigee.cache, { name = "cache:0", memory = 2 ^ 20 },
                      "info")
    local blocks = assert(agent_of("a"):cache "cache:0")
    local value = ("x"):rep(2 ^ 16)
    for i = 1, 64 do assert(blocks:put("k" .. i, value)) end
    tells "^info: the cache of .- has evicted %d+ entries since it last said so"
    local count = #said
    for i = 65, 96 do assert(blocks:put("k" .. i, value)) end
    perigee.sleep(0.15)
    for i = count + 1, #said do assert.is_nil(said[i]:find "evicted") end
    assert.is_true(cache:drain(1))
    tells "drains: it takes no new calls$"
  end)

  it("is not told of until somebody asks, nor at any level of calls", function()
    local a, b = agent_of("a", "debug"), agent_of "b"
    a:serve { name = "s", methods = { f = function() return 1 end } }
    local s = assert(b:proxy("a", "s"))
    assert(s:f())
    local count = #said
    for _ = 1, 100 do assert(s:f()) end
    assert.equal(count, #said)
    agent_of "c"
    said = {}
    assert(b:session "c")
    b:drain(1)
    assert.same({}, said)
  end)
end)
