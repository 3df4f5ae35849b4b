-- SPDX-License-Identifier: Apache-2.0
-- The sentences of errors: where it went wrong, with what, and what can be
-- done.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

-- Expects nil and an error of this kind that says this.
local function says(kind, text, got, err)
  assert.is_nil(got)
  assert.equal(kind, err.kind, tostring(err))
  assert.matches(text, tostring(err), 1, true)
end

-- Expects misuse at a line of this file that says this.
local function misuse(text, f)
  local fine, why = pcall(function()
    local result = f()                  -- no tail call
    return result
  end)
  assert.is_false(fine)
  assert.matches("^spec/lua/sentences_spec%.lua:%d+: ", why)
  assert.matches(text, why, 1, true)
end

describe("an error", function()
  local server, client, session, region, remote, service

  setup(function()
    server = assert(cases.agent("worker", { engine = { pool = 2 ^ 22 } }))
    client = assert(cases.agent("client", { engine = { pool = 2 ^ 22 } }))
    local memory = server.engine:alloc(2 ^ 23)
    server.engine:alloc(4096, { name = "kv", access = "rw" })
    server:serve { name = "s", methods = {
      get = function(n) return memory:slice(0, n) end,
      put = function(slice) return slice.length end,
      region = function() return memory end,
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
    } }
    session = assert(client:session "worker")
    region = client.engine:alloc(2 ^ 22)
    remote = assert(session:region "kv")
    service = assert(client:proxy("worker", "s", { timeout = 20 }))
  end)
  teardown(cases.cleanup)

  it("of a region that is given as a slice names it", function()
    local part = region:slice(0, 4096)
    misuse("session:write: a slice is meant, not an unnamed region, of which "
      .. "region:slice() is all", function()
      return session:write { from = region, to = remote:slice() }
    end)
    misuse('a slice is meant, not region "kv" of worker, of which', function()
      return session:write { from = part, to = remote }
    end)
    misuse("a slice is meant, not an unnamed region", function()
      return session:send(region)
    end)
    misuse("argument 1 is an unnamed region, of which", function()
      return service:put(region)
    end)
    misuse("or nothing, not an unnamed region, of which", function()
      return service:echo(region)
    end)
    misuse("option into of with must be a slice, as region:slice()", function()
      return service:with { into = region }
    end)
    says("remote", "s.region returned an unnamed region, of which",
         service:region())
    assert.equal("a number", require "perigee.memory.slice".named(7))
  end)

  it("of a slice names what is no number", function()
    local wanted = "a slice's offset and length are integers of at least 0, "
      .. "not a string"
    for _, owner in ipairs { region, remote, region:slice() } do
      misuse(wanted, function() return owner:slice "a" end)
      misuse(wanted, function() return owner:slice(0, "a") end)
      misuse("lies outside of", function()
        return owner:slice(owner.length + 1)
      end)
    end
  end)

  it("of a reply without room names into", function()
    says("no_memory", "the pool has no room for the reply (option pool): name "
      .. "another place for its bytes (into)", service:get(2 ^ 23))
    says("too_large", "the reply is longer than the place that was named for "
      .. "it (into)", service:with { into = region:slice(0, 10) }:get(20))
  end)

  it("of a loan over half of the pool says so", function()
    says("too_large", "its block would take more than half of the pool",
      service:with { request_capacity = 3 * 2 ^ 20 }:echo(print))
    says("too_large", "no block of 33554432 bytes to lend: that is more than "
      .. "the pool has (option pool)", service:with { capacity = 2 ^ 25 }
      :copy "x")
  end)

  it("of a transport that there is not names those that there are", function()
    says("unsupported", 'there is no transport "rdma"; this build has shm, ',
         client.engine:connect(server.address, { transport = "rdma" }))
    says("unsupported", "(RDMA is called verbs)",
         client.engine:endpoint { transport = "rdma" })
  end)

  it("of a name that nobody has says where it was looked for", function()
    says("not_found", ("no agent of that name is in scope %s (asked: %s/%s)")
      :format(cases.scope, require "perigee.registry.folder".base(),
              cases.scope), client:session("nobody", { timeout = 1 }))
  end)

  it("of a name whose holder does not answer says the same", function()
    local child = process.start(function(child)
      assert(child.cases.agent "mortal")
      child.say "there"
      child.attend()
    end)
    child:expect "there"
    child:kill()
    -- This happens where its name is seen before the kernel has let go of it.
    local folder = require "perigee.registry.folder"
    local lookup = folder.lookup
    folder.lookup = function(_, scope, name)
      return { name = name, scope = scope, addresses = {
        ("unix:%s/%s.sock"):format(folder:path(scope), name) } }
    end
    local got, err = client:session("mortal", { timeout = 1 })
    folder.lookup = lookup
    says("not_found", "no agent of that name is in scope " .. cases.scope
      .. " (asked: /", got, err)
  end)

  it("of a mesh names who is missing, and how many came", function()
    local got, err = client:mesh({ "worker", "nobody", "nemo" }, 0.2)
    says("timeout", "meshing 3 agents: 1 of 3 came in time, without nobody, "
      .. "nemo (connecting to nobody: no agent of that name", got, err)
    assert.matches("; connecting to nemo: no agent", err.message, 1, true)
  end)

  it("of a rendezvous says how many came, and who", function()
    local other = server
    local meeting = require "perigee".spawn(other.rendezvous, other, "k", 3, 2)
    says("timeout", "meeting 3 agents at k: 2 of 3 came in time (client, "
      .. "worker)", client:rendezvous("k", 3, 1))
    says("timeout", "meeting 3 agents at k: ", meeting:wait(20))
  end)

  it("of memory of an earlier life says what to do", function()
    local engine = cases.engine()
    local first = assert(engine:connect(server.address))
    local old = assert(first:region "kv")
    first:close()
    local second = assert(engine:connect(server.address, { timeout = 5 }))
    says("stale", ('region "kv" is of an earlier life of %s: look it up again')
      :format(server.address),
      second:write({ from = engine:alloc(8):slice(),
                     to = old:slice(0, 8) }):wait())
  end)

  it("of what took too long names the time and the memory", function()
    local child = process.start(function(child)
      local engine = child.cases.engine()
      engine:alloc(2 ^ 22, { name = "kv", access = "rw" })
      local listener = engine:listen "tcp://127.0.0.1:0"
      child.say(listener.address)
      assert(listener:accept(20))
      child.attend()
    end)
    local engine = cases.engine()
    local own = engine:alloc(2 ^ 22)
    local address = child:read(20 * cases.slow)
    local far = assert(engine:connect(address, { transport = "tcp" }))
    local kv = assert(far:region "kv")
    local prepared = assert(far:prepare_write { timeout = 0.05,
      { from = own:slice(0, 64), to = kv:slice(0, 64) },
      { from = own:slice(64, 64), to = kv:slice(128, 64) } })
    child:signal "STOP"
    local memory = ('4 MiB to region "kv" of %s at 0: it did not end within '
      .. "50 ms"):format(address)
    says("timeout", "write of " .. memory, far:write({ from = own:slice(),
      to = kv:slice(), timeout = 0.05 }):wait())
    says("timeout", ('read of 64 B from region "kv" of %s at 4096: it did not '
      .. "end within 50 ms"):format(address),
      far:read({ from = kv:slice(4096, 64), to = own:slice(0, 64),
                 timeout = 0.05 }):wait())
    says("timeout", ('write of 128 B in 2 parts to region "kv" of %s at 0 and '
      .. "on: it did not end within 50 ms"):format(address),
      prepared:post():wait())
    says("timeout", ("recv of 10 B with %s: it did not end within 10 ms")
      :format(address), far:recv(own:slice(0, 10), { timeout = 0.01 }):wait())
    says("timeout", "recv_imm with " .. address .. ": it did not end within",
         far:recv_imm({ timeout = 0.01 }):wait())
    child:signal "CONT"
  end)
end)
