-- SPDX-License-Identifier: Apache-2.0
-- The control server's reading of a request's target: which handler it is for,
-- and what it asks of that.
local control = require "spec.support.control"
local needing = require "spec.support.needing"

needing("the control server's targets", { control }, function()
  local routes = require "perigee.control.routes"
  local server = { state = {} }

  local function found(target, method)
    return routes.found(server, { method = method or "POST", target = target,
                                  header = function() end })
  end

  it("name a scope, a kind, and a name", function()
    local call = found "/v1/scopes/s%2d1/agents/a%3Ab/renew?epoch=e"
    assert.is_false(call.status)
    assert.same({ "s-1", "agents", "a:b", "e" },
                { call.scope, call.kind, call.name, call.query.epoch })
    call = found("http://here:1/v1/scopes/s/watch?for=1", "GET")
    assert.same({ "s", "watch", "1" }, { call.scope, call.kind,
                                         call.query["for"] })
    assert.is_nil(call.name)
  end)

  it("are nothing where there are more segments, fewer, or empty ones",
     function()
    for _, target in ipairs {
      "/", "/v1/scopes/", "/v1/scopes/s", "/v1/scopes/s/", "/v1/scopes//agents",
      "/v1/scopes/s/agents/a/renew/", "/v1/scopes/s/agents/a/renew/more",
      "/v1/scopes/s/agents//renew", "/v1/scopes/s/agents/a/other",
      "/v2/scopes/s/agents/a/renew", "/v1/scopes/s/none/a/renew" } do
      assert.equal(404, found(target).status, target)
    end
    assert.equal(405, found("/v1/scopes/s/agents/a/renew", "PUT").status)
  end)

  it("have a query, each parameter once", function()
    local function query(text)
      local call = found("/v1/scopes/s/agents/a/renew?" .. text)
      return call.status or call.query
    end
    assert.same({}, query "")
    assert.same({ a = "" }, query "a")
    assert.same({ a = "", b = "" }, query "a=&b")
    assert.same({ a = "b=c", d = "e" }, query "&&a=b=c&d=e&")
    assert.same({ ["a b"] = "c d+" }, query "a+b=c%20d%2B")
    assert.same({ a = "1", b = "=" }, query "a=1&=2&b=%3D")
    assert.equal(400, query "a=1&b=2&a=3")
    assert.equal(400, query "a=1&%61=2")
  end)

  -- The bytes that plain searches for a text look at while f runs.
  local function searched(what, f)
    local find, sum = string.find, 0
    rawset(string, "find", function(text, needle, at, plain)
      local from, to = find(text, needle, at, plain)
      if needle == what then sum = sum + (from or #text + 1) - (at or 1) end
      return from, to
    end)
    local fine, why = pcall(f)
    rawset(string, "find", find)
    assert(fine, why)
    return sum
  end

  it("are searched once, however many parameters have no value", function()
    local target = "/v1/scopes/s/agents/a/renew?" .. ("&"):rep(2000)
    for _, what in ipairs { "&", "=" } do
      local sum = searched(what, function()
        assert.is_false(found(target).status)
      end)
      assert.is_true(sum <= #target, sum)
    end
  end)
end)
