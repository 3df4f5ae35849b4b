-- SPDX-License-Identifier: Apache-2.0
-- Two hosts: a name that one of them wants is the other's, which is dead, or
-- is not to be taken as dead.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local tables = require "spec.support.table_registry"

local EPOCH = "00000000000000aa"

-- Listens on the far host, as the engine of an epoch.
local function listening(child, perigee_, _, address, epoch)
  local engine = assert(perigee_.engine {
    epoch = tonumber(epoch), scope = child.cases.scope,
    secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=" })
  child.say(assert(engine:listen(address)).address)
  perigee_.run()
end

describe("a name of a holder on another host", function()
  local possible, why = hosts.possible()

  before_each(function() if possible then assert(hosts.start()) end end)
  after_each(hosts.finish)

  local function over(...)
    local registry, loser = tables.new(), nil
    local holder = { name = "one", scope = cases.scope, epoch = EPOCH,
                     machine = "another", addresses = { ... } }
    function registry.hold(_, entry, epoch)
      loser = epoch
      if epoch then return entry end
      return nil, "name_taken", "another has it", holder
    end
    local agent = cases.agent("one", { registry = registry,
                                       secret = hosts.SECRET })
    if agent then agent:close() end
    return loser
  end

  local function at(host) return ("tcp://%s:9"):format(host) end

  local function far(epoch)
    return hosts.far(listening, ("tcp://%s:0"):format(hosts.FAR), epoch)
      :read(30 * cases.slow)
  end

  it("is lost where that host's number refuses", function()
    if not possible then return pending(why) end
    assert.equal(EPOCH, over("unix:/no/such.sock", at(hosts.FAR)))
    assert.equal(EPOCH, over(far(0xbb)))
  end)

  it("is not lost where the number is this host's as well", function()
    if not possible then return pending(why) end
    assert.is_nil(over(at(hosts.NEAR)))
  end)

  it("is not lost while one of its addresses answers", function()
    if not possible then return pending(why) end
    assert.is_nil(over(at(hosts.FAR), far(0xaa)))
  end)
end)
