-- SPDX-License-Identifier: Apache-2.0
-- Connecting to a worker that does not answer. A waiting caller waits as long
-- as its own timeout says, over all steps, whatever timeouts others have. The
-- error gives the reason and names the peer.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

-- Listens, accepts sessions once it is told to, and does not answer when asked
-- to describe its services.
local function silent(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  agent.engine.methods[0].handler = child.hear
  child.say("ready")
  child.hear()
  perigee_.run()
end

describe("connecting to a worker that is silent", function()
  local worker, agent

  before_each(function()
    worker = process.start(silent)
    worker:expect("ready")
    agent = assert(cases.agent(nil, { engine = { hello_timeout = 90 } }))
  end)

  after_each(cases.cleanup)

  it("ends in time while another, more patient, goes on", function()
    local patient = perigee.spawn(function()
      return agent:session("worker", { timeout = 60 })
    end)
    perigee.sleep(0.01)
    local options = { timeout = 0.1 }
    for _, hasty in ipairs {
      function() return agent:session("worker", options) end,
      function() return agent:proxy("worker", "x", options) end } do
      local none, err = hasty()
      assert.is_nil(none)
      assert.equal("timeout", err.kind)
      assert.is_false(err.sent)
      assert.matches("connecting to worker: no answer within 0.1 s",
                     tostring(err), 1, true)
      assert.is_false(patient:done())
    end
  end)

  it("and asking what it serves have one time together", function()
    local part = math.max(1, cases.slow / 3)
    local opening = perigee.spawn(function()
      return agent:proxy("worker", "x", { timeout = 6 * part })
    end)
    perigee.sleep(part)
    worker:tell("answer")
    local none, err = opening:wait(60 * part)
    assert.is_nil(none)
    assert.equal("timeout", err.kind)
    local seconds = tostring(err):match("opening service x of worker.*"
      .. "no answer within ([%d.]+) s")
    assert.is_truthy(seconds, tostring(err))
    assert.is_true(tonumber(seconds) <= 5 * part, tostring(err))
  end)
end)

describe("connecting to a name in the folder", function()
  -- Has the name "worker", with these addresses, and no session with anybody.
  local function holder(child, perigee_, _, ...)
    local folder = require "perigee.registry.folder"
    local agent = assert(perigee_.agent())
    local door = assert(agent.engine:listen(child.cases.address "mute"))
    assert(folder:hold { name = "worker", scope = child.cases.scope,
                         addresses = { ... } })
    child.say(door.address)
    child.hear()
  end

  local agent

  before_each(function() agent = assert(cases.agent()) end)
  after_each(cases.cleanup)

  -- Returns the error of a session, and asserts that no event handler raised.
  local function connect(...)
    local log, said = perigee.log, nil
    finally(function() perigee.log = log end)
    function perigee.log(level, message)
      if level == "error" then said = message end
    end
    process.start(holder, ...):expect(cases.address "mute")
    local asked = perigee.spawn(agent.session, agent, "worker", { timeout = 1 })
    assert.is_true(cases.eventually(function() return asked.ended end),
                   "the attempt goes on for ever")
    assert.is_nil(said)
    local none, err = asked:wait()
    assert.is_nil(none)
    return err
  end

  it("fails where one of its addresses is none", function()
    local err = connect "tcp://x:99999"
    assert.equal("protocol", err.kind)
    assert.matches("connecting to worker: its registry has it at "
      .. "tcp://x:99999: ", tostring(err), 1, true)
  end)

  it("fails where one is none and the one before refuses", function()
    assert.equal("not_found", connect("unix:/proc/version",
                                      "tcp://x:99999").kind)
  end)

  it("fails where one is none and the one before is silent", function()
    assert.equal("timeout", connect(cases.address "mute", "tcp://x:99999").kind)
  end)
end)

describe("the error of connecting", function()
  after_each(cases.cleanup)

  it("is of this peer where several fail at once", function()
    local engine, dialling, addresses = cases.engine(), {}, {}
    for i = 1, 3 do
      addresses[i] = cases.address("nobody" .. i)
      dialling[i] = perigee.spawn(engine.connect, engine, addresses[i],
                                  { timeout = 10 })
    end
    for i = 1, 3 do
      local none, err = dialling[i]:wait(10)
      assert.is_nil(none)
      assert.equal("not_found", err.kind)
      assert.matches("nobody listens at " .. addresses[i], tostring(err), 1,
                     true)
    end
  end)

  it("tells of a socket or a folder that this process may not use", function()
    local child = process.start(function(child, _, ffi_)
      ffi_.cdef "int setuid(unsigned); unsigned getuid(void);"
      local folder = child.cases.folder .. "d"
      local function sh(command)
        assert(os.execute(command:gsub("FOLDER", folder)) == 0)
      end
      sh "rm -rf FOLDER && mkdir -m 755 FOLDER"
      local owner = child.cases.engine()
      assert(owner:listen("unix:" .. folder .. "/socket"))
      sh "chmod 0 FOLDER/socket && chmod 555 FOLDER"
      if ffi_.C.getuid() == 0 then assert(ffi_.C.setuid(65534) == 0) end
      local engine = child.cases.engine()
      local _, err = engine:connect("unix:" .. folder .. "/socket")
      child.say(err.kind, err.message)
      _, err = engine:listen("unix:" .. folder .. "/other")
      child.say(err.kind, err.message)
    end)
    assert.matches("^denied .*: this process may not use unix:", child:read())
    assert.matches("^denied .*cannot listen at unix:", child:read())
    os.execute(("chmod 755 '%sd' && rm -rf '%sd'"):format(cases.folder,
                                                        cases.folder))
  end)

  it("tells of a folder that is not there", function()
    local engine = cases.engine()
    local address = cases.address("x")
    for _, path in ipairs { address:gsub("x.sock$", "none/y"),
                            "unix:/dev/null/y" } do
      for _, what in ipairs { "listen", "connect" } do
        local none, err = engine[what](engine, path)
        assert.is_nil(none)
        assert.equal("not_found", err.kind)
      end
    end
  end)

  it("says what the peer did not do in time", function()
    process.start(silent):expect("ready")
    local agent = assert(cases.agent(nil, { engine = { hello_timeout = 0.1 } }))
    local none, err = agent:session("worker", { timeout = 60 })
    assert.is_nil(none)
    assert.equal("timeout", err.kind)
    assert.matches("connecting to worker: the peer did not finish the "
      .. "handshake in time", tostring(err), 1, true)
  end)

  it("connects where the engine's own times have no limit", function()
    local engine = cases.engine { hello_timeout = math.huge, spin = math.huge,
                                  dead_after = math.huge }
    local listener = assert(engine:listen("tcp://127.0.0.1:0"))
    assert(engine:connect(listener.address, { timeout = 60,
                                              transport = "tcp" }))
  end)
end)
