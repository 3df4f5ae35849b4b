-- SPDX-License-Identifier: Apache-2.0
-- Sessions with a second lane, as programs see them: agents and engines of one
-- process with the in-process transport for opaque memory.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"

ffi.cdef [[
  extern const char perigee_transport_inproc_additional[1];
  extern const char perigee_memory_opaque[1] __asm__("perigee_memory_opaque");
  void perigee_inproc_break(int dialed);
]]

local function plugin(name)
  return ffi.load(assert(package.searchpath("spec.plugin_" .. name,
                                            package.cpath)))
end

local link, memory = plugin("inproc"), plugin("opaque")
local transports = ffi.new("const struct perigee_transport *[2]")
transports[0] = ffi.cast("const struct perigee_transport *",
                         link.perigee_transport_inproc_additional)
local memories = ffi.new("const struct perigee_memory *[2]")
memories[0] = ffi.cast("const struct perigee_memory *",
                       memory.perigee_memory_opaque)

local function options(more)
  local all = { memories = memories, transports = transports }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end

local SIZE = 300001
local BYTES = cases.bytes(SIZE, 3)

local function opaque(engine, more)
  local all = { kind = "opaque" }
  for key, value in pairs(more or {}) do all[key] = value end
  return assert(engine:alloc(SIZE, all)):slice(0, SIZE)
end

local function filled(engine)
  local slice = opaque(engine)
  slice:write(BYTES)
  return slice
end

describe("a second lane", function()
  after_each(cases.cleanup)

  local function pair(mine, theirs)
    local server = cases.engine(options(theirs))
    local listener = assert(server:listen(cases.address()))
    local engine = cases.engine(options(mine))
    local session = assert(engine:connect(cases.address(), { timeout = 5 }))
    return engine, session, server, assert(listener:accept(5))
  end

  it("carries what calls bring and take, as explain() tells", function()
    local worker = cases.agent("worker", { engine = options() })
    local store = filled(worker.engine)
    worker:serve { name = "kv", version = 1, methods = {
      put = { landing = function() return store end,
              function(slice) return slice.length end },
      get = function() return store end } }
    local driver = cases.agent(nil, { engine = options() })
    local kv = assert(driver:proxy("worker", "kv", { timeout = 5 }))
    assert.equal(SIZE, assert(kv:put(filled(driver.engine))))
    local into = opaque(driver.engine)
    assert(kv:with { into = into }:get())
    assert.equal(BYTES, into:string())
    local told = assert(driver:session("worker")):explain()
    assert.matches("opaque memory, from 4096 bytes on; 1 payloads and 0 items",
                   told.lanes.link, 1, true)
    assert.matches("  beside it link: payloads and one-sided copies",
                   tostring(told), 1, true)
    assert.is_nil(told.considered.link)
    assert.same({ "trace", "lanes", "staging", "drain", "streams",
                  "places", "moves", "windows", "pairs" },
                told.features)
  end)

  it("carries reads and writes of a region of its kind of memory", function()
    local engine, session, server = pair()
    local there = opaque(server, { name = "kv", access = "rw" })
    local remote = assert(session:region("kv")):slice(0, SIZE)
    assert(session:write({ from = filled(engine), to = remote }):wait(5))
    assert.equal(BYTES, there:string())
    local back = opaque(engine)
    assert(session:read({ from = remote, to = back }):wait(5))
    assert.equal(BYTES, back:string())
    assert.matches("0 payloads and 2 items, 600002 bytes",
                   session:explain().lanes.link, 1, true)
  end)

  it("ends what it carries when it breaks, and the session goes on", function()
    local engine, session, server = pair()
    local there = opaque(server, { name = "kv", access = "rw" })
    local remote = assert(session:region("kv")):slice(0, SIZE)
    local from = filled(engine)
    local future = session:write { from = from, to = remote }
    link.perigee_inproc_break(1)
    local done, err = future:wait(5)
    assert.is_nil(done)
    assert.equal("peer_lost", err.kind)
    assert.matches("the lane link is lost: it was broken on purpose",
                   tostring(err), 1, true)
    assert(session:write({ from = from, to = remote }):wait(5))
    assert.equal(BYTES, there:string())
    local told = session:explain()
    assert.equal("open", told.state)
    assert.equal("the lane link is lost: it was broken on purpose",
                 told.lanes.link)
  end)

  it("is left out where a peer does not have it", function()
    for _, without in ipairs { { features = "-lanes" },
                               { transports = ffi.new(
                                 "const struct perigee_transport *[1]") } } do
      local engine, session, server = pair(nil, without)
      local there = opaque(server, { name = "kv", access = "rw" })
      local remote = assert(session:region("kv")):slice(0, SIZE)
      assert(session:write({ from = filled(engine), to = remote }):wait(5))
      assert.equal(BYTES, there:string())
      assert.equal("the peer does not have it", session:explain().lanes.link)
      cases.cleanup()
    end
  end)

  it("is nothing to an engine that was given none", function()
    local none = ffi.new("const struct perigee_transport *[1]")
    local plain = { transports = none }
    local _, session = pair(plain, plain)
    assert.same({}, session:explain().lanes)
    assert.same({ "trace", "staging", "drain", "streams", "places", "moves",
                  "windows", "pairs" },
                session:explain().features)
    assert.truthy(perigee.is_error(select(2, session:region("none"))))
  end)
end)
