-- SPDX-License-Identifier: Apache-2.0
-- Failures of the environment return nil, err; misuse raises an error that
-- blames the caller.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local KINDS = {}
for kind in ([[timeout cancelled peer_lost remote denied range stale no_service
  no_method version too_large unsupported protocol no_memory closed name_taken
  not_found]]):gmatch("%S+") do KINDS[kind] = true end

local function server(child)
  local calls = 0
  local raised = {
    text = function() error("boom", 0) end,
    code = function() error({ code = "E42", message = "coded" }) end,
    number = function() error({ code = 7 }) end,
    none = function() error() end,
    empty = function() error({}) end,
    hostile = function()
      error(setmetatable({}, { __tostring = function() error("worse") end }))
    end,
    deep = function()
      local function inner() error("from within") end
      inner()
    end,
    index = function() return (nil).field end,
    long = function() error(("long "):rep(100000), 0) end,
    zero = function() error("before\0behind", 0) end,
    zeros = function() error(("\0"):rep(2 ^ 16), 0) end,
    coded = function() error { code = ("c"):rep(1e5), message = "coded" } end,
  }
  child.serve {
    name = "errors", version = 1,
    methods = {
      raises = function(how)
        calls = calls + 1
        raised[how]()
      end,
      raw = { raw = true, function(request) raised[request:string()]() end },
      inplace = { raw = true, inplace = true, function(request)
        raised[request:string()]()
      end },
      own = function(...) return nil, ... end,
      cannot = function() return print end,
      calls = function() return calls end,
    },
  }
end

describe("an error", function()
  local proxy, agent

  setup(function()
    process.start(server):expect("ready")
    proxy, agent = cases.proxy("errors", { timeout = 5 })
  end)
  teardown(cases.cleanup)

  local function is_sentence(err)
    assert.is_true(perigee.is_error(err))
    assert.is_true(KINDS[err.kind] or false, err.kind)
    assert.equal("string", type(err.message))
    assert.is_true(#tostring(err) > 10)
    assert.matches(" ", tostring(err))
  end

  it("of a handler is remote, with message and traceback", function()
    for _, method in ipairs { "raises", "raw", "inplace" } do
      local got, err = proxy[method](proxy, "text")
      assert.is_nil(got)
      is_sentence(err)
      assert.equal("remote", err.kind)
      assert.matches("boom", tostring(err))
      got, err = proxy[method](proxy, "deep")
      assert.is_nil(got)
      assert.matches("from within", tostring(err))
      assert.matches("traceback", err.traceback)
      assert.not_matches("traceback", tostring(err))
    end
  end)

  it("of a handler keeps the code of the table that was raised", function()
    local _, err = proxy:raises("code")
    assert.equal("E42", err.code)
    assert.matches("coded", tostring(err))
    _, err = proxy:raises("number")
    assert.equal(7, err.code)
    _, err = proxy:raises("text")
    assert.is_nil(err.code)
  end)

  it("of a handler is all its text, and a code of some length", function()
    local _, err = proxy:raises("zero")
    assert.matches("before\\0behind", tostring(err))
    _, err = proxy:raises("zeros")
    assert.equal("remote", err.kind)
    assert.matches("\\0\\0", err.message)
    _, err = proxy:raw("coded")
    assert.matches("coded", tostring(err))
    assert.matches("^ccc+$", err.code)
    _, err = proxy:raises("long")
    assert.is_truthy(err.message:find(("long "):rep(13000), 1, true))
    assert.matches("traceback", err.traceback)
  end)

  it("leaves alone where a reply was to land", function()
    local into = cases.alloc(agent.engine, 2 ^ 17):slice()
    into:fill(7)
    for _, how in ipairs { "text", "long" } do
      for _, method in ipairs { "raises", "raw", "inplace" } do
        local given = proxy:with { into = into }
        local got, err = given[method](given, how)
        assert.is_nil(got)
        assert.equal("remote", err.kind)
      end
    end
    assert.is_true(into:string() == ("\7"):rep(2 ^ 17))
  end)

  it("of any shape leaves the server serving", function()
    for _, how in ipairs { "none", "empty", "hostile", "index", "long" } do
      for _, method in ipairs { "raises", "raw", "inplace" } do
        local got, err = proxy[method](proxy, how)
        assert.is_nil(got)
        is_sentence(err)
        assert.equal("remote", err.kind, how)
      end
    end
    local got, err = proxy:cannot()
    assert.is_nil(got)
    assert.equal("remote", err.kind)
    assert.equal("number", type(proxy:calls()))
  end)

  it("is told from a handler's own nil, x, which passes unchanged", function()
    local got, x = proxy:own("just text")
    assert.is_nil(got)
    assert.equal("just text", x)
    got, x = proxy:own({ kind = "timeout", message = "made up" })
    assert.is_nil(got)
    assert.is_false(perigee.is_error(x))
    assert.same({ kind = "timeout", message = "made up" }, x)
    for _, value in ipairs { 1, "x", {}, true, print } do
      assert.is_false(perigee.is_error(value))
    end
    assert.is_false(perigee.is_error(nil))
    assert.is_false(perigee.is_error())
  end)

  it("says what was being done, and to whom", function()
    local _, err = proxy:raises("text")
    assert.matches("raises", tostring(err))
    assert.matches("worker", tostring(err))
    _, err = proxy:with({ timeout = 0.01 }):nowhere()
    assert.matches("nowhere", tostring(err))
    _, err = agent:proxy("nobody", "x")
    assert.matches("nobody", tostring(err))
  end)

  it("has sent == false only where the handler did not run", function()
    local before = proxy:calls()
    local _, err = proxy:raises("text")
    assert.is_true(err.sent ~= false)
    assert.equal(before + 1, (proxy:calls()))
    _, err = proxy:nowhere()
    assert.is_false(err.sent)
    _, err = agent:proxy("nobody", "x")
    assert.is_false(err.sent)
  end)

  it("in a future is what wait returns, as often as it is asked", function()
    local future = proxy.async:raises("text")
    for _ = 1, 3 do
      local got, err = future:wait(5)
      assert.is_nil(got)
      assert.equal("remote", err.kind)
    end
    assert.is_true(future:done())
  end)
end)

describe("misuse", function()
  teardown(cases.cleanup)

  local function blamed(use)
    local fine, message = pcall(use)
    assert.is_false(fine)
    assert.equal("string", type(message))
    assert.matches("errors_spec.lua:", message)
  end

  it("of the top level is raised at the caller's line", function()
    blamed(function() perigee.agent(7) end)
    blamed(function() perigee.agent { nmae = "x" } end)
    blamed(function() perigee.agent { name = 7 } end)
    blamed(function() perigee.engine { operatoins = 1 } end)
    blamed(function() perigee.engine { operations = "many" } end)
    blamed(function() perigee.sleep("long") end)
    blamed(function() perigee.sleep(-1) end)
    blamed(function() perigee.spawn(7) end)
    blamed(function() perigee.run(7) end)
    blamed(function() perigee.wait_all(7) end)
    blamed(function() perigee.wait_any { 7 } end)
    blamed(function() perigee.serve { scope = "x", srevices = {} } end)
    blamed(function() perigee.serve { drain = -1 } end)
    blamed(function() perigee.serve(7) end)
    blamed(function() perigee.context() end)
  end)

  it("of an option that perigee.serve lacks tells all that it has", function()
    local fine, message = pcall(function()
      perigee.serve { name = "w", drain_timeout = 5 }
    end)
    assert.is_false(fine)
    assert.matches('perigee.serve has no option "drain_timeout"', message)
    assert.matches(" drain, ", message)
    assert.matches(" listen, ", message)
  end)

  it("of memory of other agents is raised at the caller's line", function()
    local agent = assert(cases.agent())
    local slice = cases.alloc(agent.engine, 64):slice()
    for _, f in ipairs { "read", "write" } do
      local own, region = f == "read" and "to" or "from",
                          f == "read" and "from" or "to"
      for _, spec in ipairs { { [region] = "kv", at = -1, [own] = slice },
                              { [region] = "kv" }, { [own] = slice }, 7,
                              { [region] = "kv", [own] = { slice, 5 } } } do
        blamed(function() agent[f](agent, "x", spec) end)
      end
      blamed(function() agent[f](agent, "x") end)
    end
  end)

  it("that the core finds is raised at the caller's line", function()
    local agent = cases.agent("found")
    local function faulty()
      local engine = { faults = "drop=often" }
      blamed(function() local made = perigee.engine(engine) return made end)
      blamed(function() perigee.agent { engine = engine } end)
      blamed(function() perigee.serve { engine = engine } end)
      blamed(function() perigee.agent { engine = { rdma = "qps=many" } } end)
      blamed(function() perigee.agent { secret = "short" } end)
    end
    faulty()
    perigee.run(faulty)
    blamed(function() agent:proxy("tcp://127.0.0.1", "one") end)
    blamed(function() agent:session("tcp://127.0.0.1") end)
    blamed(function() agent.engine:connect("tcp://127.0.0.1") end)
    blamed(function() agent.engine:listen("tcp://127.0.0.1") end)
    blamed(function() perigee.agent { listen = "tcp://127.0.0.1" } end)
  end)

  it("of a secret's file is none, but the world's doing", function()
    for path, kind in pairs { ["/nowhere/at/all"] = "not_found",
                              ["/tmp"] = "denied" } do
      for _, make in ipairs { perigee.engine, perigee.agent } do
        local made, err = make { secret = "file:" .. path }
        assert.is_nil(made)
        assert.equal(kind, err.kind)
        assert.matches(path, tostring(err))
      end
    end
  end)

  it("of engines and regions is raised at the caller's line", function()
    local engine = cases.engine()
    blamed(function() engine:alloc() end)
    blamed(function() engine:alloc(-1) end)
    blamed(function() engine:alloc(0.5) end)
    blamed(function() engine:alloc(10, { acces = "r" }) end)
    blamed(function() engine:alloc(10, { access = "x" }) end)
    blamed(function() engine:alloc(10, { access = 1 }) end)
    blamed(function() engine:alloc(10, { name = 1 }) end)
    blamed(function() engine:register(nil, 10) end)
    blamed(function() engine:listen(7) end)
    blamed(function() engine:connect(7) end)
    blamed(function() engine:connect("unix:/x", { tiemout = 1 }) end)
    local region = cases.alloc(engine, 4096)
    blamed(function() region:slice(0, 4097) end)
    blamed(function() region:slice(4097, 0) end)
    blamed(function() region:slice(-1, 1) end)
    blamed(function() region:slice(0, -1) end)
    blamed(function() region:slice(0.5, 1) end)
    blamed(function() region:slice(2 ^ 60, 2 ^ 60) end)
    blamed(function() region:slice(0, 64, { count = 65, stride = 64 }) end)
    blamed(function() region:slice(0, 64, { cuont = 1 }) end)
    blamed(function() region:slice(0, 64, { count = -1, stride = 64 }) end)
    blamed(function() region:slice(0, 100):slice(50, 51) end)
  end)

  it("of services and proxies is raised at the caller's line", function()
    local agent = cases.agent("misused")
    local one = { name = "one", methods = {} }
    local function with(services)
      perigee.agent { name = "again", scope = agent.scope, services = services }
    end
    blamed(function() with(one) end)
    blamed(function() with { one, one } end)
    blamed(function() with { nil, one } end)
    blamed(function() with { 7 } end)
    local again = assert(perigee.agent { name = "again",
                                         scope = agent.scope })
    again:close()
    blamed(function() agent:proxy(7, "one") end)
    blamed(function() agent:proxy("a/b", "one") end)
    blamed(function() agent:proxy("misused", "one", { tiemout = 1 }) end)
    blamed(function() agent:proxy("misused", "one", { timeout = -1 }) end)
    blamed(function() agent:session(7) end)
    agent:serve { name = "dotted", methods = {
      typed = function() end, raw = { raw = true, function() end } } }
    local proxy = assert(agent:proxy("misused", "dotted"))
    for _, value in ipairs { 7, "text", {} } do
      for _, name in ipairs { "typed", "raw" } do
        local call, start = proxy[name], proxy.async[name]
        blamed(function() call(value) end)
        blamed(function() start(value) end)
        assert.matches("dotted%." .. name .. " is called with a colon",
          select(2, pcall(call, value)))
      end
    end
    blamed(function() perigee.spawn(os.time):wait("long") end)
    agent:close()
    blamed(function() agent:serve { name = "late", methods = {} } end)
  end)
end)
