-- SPDX-License-Identifier: Apache-2.0
-- Two hosts: everything that a session does works over the cable, for those who
-- have the secret.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local worker = require "spec.net.worker"

local function serving(child, perigee, _, secret, encrypt)
  require("spec.net.worker").serve(child, perigee, {
    listen = "tcp://10.77.7.2:0", secret = secret,
    encrypt = encrypt == "true" })
end

describe("between two hosts", function()
  local possible, why = hosts.possible()
  if not possible then
    it("sessions are made", function() return pending(why) end)
    return
  end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)

  local function start(secret, encrypt)
    return assert(hosts.far(serving, secret, encrypt):read(20))
  end

  local function agent(options)
    options.secret = options.secret or hosts.SECRET
    return assert(cases.agent(nil, options))
  end

  for name, options in pairs {
    ["all kinds of operations"] = {},
    ["all kinds of operations, by four streams"] = { streams = 4 },
    ["all kinds of operations, sealed"] = { encrypt = true },
    ["all kinds of operations, sealed, by four streams"] =
      { encrypt = true, streams = 4 },
  } do
    it(name .. " cross the cable", function()
      local address = start(hosts.SECRET)
      options.encrypt = options.encrypt or false -- the default would be true
      local near = agent(options)
      local proxy = assert(near:proxy(address, "x", { timeout = 30 }))
      local session = assert(near:session(address))
      local here = near.engine:alloc(2 ^ 23)
      for round = 1, 3 do
        worker.all_kinds(cases, proxy, session, here, round)
      end
      local told = session:explain()
      assert.equal("tcp", told.transport)
      assert.equal(options.encrypt or false,
                   told.carrier:find("sealed", 1, true) ~= nil)
    end)
  end

  it("all is sealed if nobody says otherwise", function()
    local address = start(hosts.SECRET)
    local near = agent {}
    assert.equal(5, (assert(near:proxy(address, "x")):same(5)))
    local told = assert(near:session(address)):explain()
    assert.matches("sealed", told.carrier, 1, true)
    assert.matches("by default, beyond loopback", told.security, 1, true)
  end)

  it("the wish of one side to seal is enough", function()
    local address = start(hosts.SECRET, true)
    local near = agent { encrypt = false }
    assert.equal(5, (assert(near:proxy(address, "x")):same(5)))
    local told = assert(near:session(address)):explain()
    assert.matches("sealed", told.carrier, 1, true)
  end)

  it("shared memory cannot be had, and that is said", function()
    local address = start(hosts.SECRET)
    local near = agent { transport = "shm" }
    local none, err = near:proxy(address, "x", { timeout = 5 })
    assert.is_nil(none)
    assert.equal("unsupported", err.kind)
  end)

  it("who has another secret is refused", function()
    local address = start(hosts.SECRET)
    local near = agent { secret = "another secret, as long as that" }
    local none, err = near:proxy(address, "x", { timeout = 5 })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    assert.matches("secret", tostring(err))
    assert.equal(7, (assert(agent({}):proxy(address, "x")):same(7)))
  end)

  it("who has no secret is refused", function()
    local address = start(hosts.SECRET)
    local near = agent { secret = "" }
    local none, err = near:proxy(address, "x", { timeout = 5 })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    assert.matches("secret", tostring(err))
  end)

  it("who has the secret for another scope is refused", function()
    local address = start(hosts.SECRET)
    local none, err = agent({ scope = "other" }):proxy(address, "x",
                                                      { timeout = 5 })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
  end)

  it("nobody listens for others without a secret", function()
    local none, err = cases.agent(nil, { listen = "tcp://10.77.7.1:0",
                                         secret = "" })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    assert.matches("secret", tostring(err))
    assert(cases.agent(nil, { listen = "tcp://10.77.7.1:0", secret = "",
                              insecure = true }))
  end)
end)
