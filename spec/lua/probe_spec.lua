-- SPDX-License-Identifier: Apache-2.0
-- What proves to who wants a name that its holder, which sees another system,
-- is dead. Registries here are tables that tell of a holder.
local cases = require "spec.support.cases"
local folder = require "perigee.registry.folder"
local machine = require "perigee.registry.machine"
local tables = require "spec.support.table_registry"

local EPOCH = "00000000000000aa"

describe("a name", function()
  after_each(tables.finish)

  -- An address of this host at which nobody listens, by the name of a host.
  local function nobody_at(host)
    local engine = cases.engine { secret = "" }
    local listener = assert(engine:listen "tcp://127.0.0.1:0")
    local port = listener.address:match "%d+$"
    listener:close()
    return ("tcp://%s:%s"):format(host, port)
  end

  -- Asks for the name of a holder; returns the epoch of who is to lose it.
  local function over(identity, ...)
    local registry, loser = tables.new(), nil
    local holder = { name = "one", scope = cases.scope, epoch = EPOCH,
                     machine = identity, addresses = { ... } }
    function registry.hold(_, entry, epoch)
      loser = epoch
      if epoch then return entry end
      return nil, "name_taken", "another has it", holder
    end
    local agent, err = cases.agent("one", { registry = registry })
    if agent then agent:close() else assert.equal("name_taken", err.kind) end
    return loser
  end

  it("stays a holder's on another system whose host's name refuses", function()
    local address = nobody_at(folder.system.host())
    assert.is_nil(over("another", "unix:/no/such.sock", address))
    assert.is_nil(over(nil, "unix:/no/such.sock", address))
  end)

  it("stays a holder's on another system whose addresses lead back here",
     function()
    for _, host in ipairs { "127.0.0.1", "127.9.9.9", "[::1]", "localhost",
                            "0.0.0.0", "[::]" } do
      assert.is_nil(over("another", nobody_at(host)), host)
    end
  end)

  it("is lost by a holder on this system that is nowhere", function()
    local here = machine.identity()
    assert.equal(EPOCH, over(here, "unix:/no/such.sock",
                             nobody_at(folder.system.host())))
    assert.equal(EPOCH, over(here, nobody_at "127.0.0.1"))
  end)

  it("stays one's on this system who still listens elsewhere", function()
    local one = cases.engine { secret = "", epoch = 0xaa }
    local there = assert(one:listen "tcp://127.0.0.1:0")
    assert.is_nil(over(machine.identity(), nobody_at "127.0.0.1",
                       there.address))
  end)
end)
