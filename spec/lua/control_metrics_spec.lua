-- SPDX-License-Identifier: Apache-2.0
-- What a control server tells of itself at /metrics, and to whom.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local exposition = require "spec.support.exposition"
local needing = require "spec.support.needing"

local ask, entry, refused = asking.ask, asking.entry, asking.refused

needing("the metrics of a control server", { control }, function()
  after_each(asking.finish)

  -- The text, the samples and the headers of /metrics now.
  local function told(headers)
    local answer = assert(asking.client:ask(asking.request("GET", "/metrics",
                                                           nil, headers)))
    assert.equal(200, answer.status)
    local kind = answer.headers["content-type"]
    return answer.body,
           select(2, exposition.parse(answer.body, kind:find "openmetrics")),
           answer.headers
  end

  local function value(name, labels)
    return exposition.value(select(2, told()), "perigee_ctrl_" .. name, labels)
  end

  it("count answers by what was asked for, and what there is", function()
    asking.begin()
    ask("PUT", "agents/one", entry "1")
    ask("PUT", "agents/two", entry "2")
    ask("PUT", "agents/two", entry "3")
    ask("POST", "agents/one/renew?epoch=1")
    ask("BREW", "/nowhere")
    local function answers(method, status, collection)
      return value("answers_total", { collection = collection or "agents",
        method = method, status = tostring(status) })
    end
    assert.equal(2, answers("PUT", 201))
    assert.equal(1, answers("PUT", 409))
    assert.equal(1, answers("POST", 204))
    assert.equal(1, answers("other", 404, "none"))
    assert.is_true(value "rounds_total" >= 4)
    assert.is_true(value("commits_total", { result = "kept" }) >= 1)
    assert.equal(1, value "ready")
    assert.is_true(value "connections" >= 1)
    assert.is_true(value "resident_bytes" > value "heap_bytes")
    if control.is_over_store() then return end
    assert.equal(2, value("records", { collection = "agents" }))
  end)

  it("count leases that have ended", function()
    asking.begin()
    if control.is_over_store() then return end
    ask("PUT", "agents/one?ttl=0.2", entry "1")
    ask("PUT", "agents/two", entry "2")
    cases.await(function() return value "leases_ended_total" == 1 end)
    assert.equal(1, value("records", { collection = "agents" }))
  end)

  it("are OpenMetrics for who wants that", function()
    asking.begin()
    local text, _, headers = told { "Accept: application/openmetrics-text" }
    assert.matches("openmetrics", headers["content-type"])
    assert.matches("# EOF\n$", text)
    assert.matches("text/plain", (select(3, told()))["content-type"])
  end)

  it("are what Prometheus' own checker takes", function()
    if os.execute "command -v promtool >/dev/null" ~= 0 then
      return pending "promtool is missing (Debian's prometheus)"
    end
    asking.begin()
    ask("PUT", "agents/one", entry "1")
    local path = cases.folder .. "/text"
    local file = assert(io.open(path, "w"))
    file:write((told()))
    file:close()
    local pipe = io.popen(("promtool check metrics < %s 2>&1; echo $?")
      :format(path))
    assert.equal("0\n", pipe:read "*a")
    pipe:close()
  end)

  it("are for who has a token for all scopes, once there are any", function()
    local server = asking.begin()
    told(asking.STRANGER)
    local function bearer(options)
      local token = server:command("token new " .. options)
      return { "Authorization: Bearer " .. token }
    end
    local one, all = bearer "--scope s --role admin", bearer "--role read"
    cases.await(function()
      return ask("GET", "/metrics", nil, asking.STRANGER) == 401
    end)
    refused(403, "denied", "GET", "/metrics", nil, one)
    told(all)
    assert.equal(405, (ask("PUT", "/metrics", "{}", all)))
  end)
end)
