-- SPDX-License-Identifier: Apache-2.0
-- What a control server tells of itself at /metrics, and to whom.
local asking = require "spec.support.asking"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local exposition = require "spec.support.exposition"
local folder = require "perigee.registry.folder"
local needing = require "spec.support.needing"
local planted = require "spec.support.planted_stats"
local printable = require "perigee.runtime.printable"

local LONG = 60 * cases.slow

local ask, entry, refused = asking.ask, asking.entry, asking.refused

needing("the metrics of a control server", { control }, function()
  local json = require "cjson.safe"

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

  -- ---- What agents report --------------------------------------------------

  -- A report, with more fields.
  local function report(more)
    local all = { state = "running", host = "h", pid = 7, began = 1e9,
                  counters = { calls = 5 }, methods = {} }
    for name, each in pairs(more or {}) do all[name] = each end
    return all
  end

  local function send(name, epoch, body)
    return ask("POST", ("agents/%s/stats?epoch=%s"):format(name, epoch), body)
  end

  -- A method that was called so often, each time in less than 2 us.
  local function method(name, n)
    return { side = "client", service = "svc", method = name,
             ends = { ["0"] = n }, bins = { ["11"] = n } }
  end

  local function of(name, labels)
    return exposition.value(select(2, told()), "perigee_" .. name, labels)
  end

  -- Waits until no agent's report is told; a text is kept for a moment.
  local function await_none()
    cases.await(function() return of("report_age_seconds", {}) == nil end)
  end

  it("have what an agent reports by itself, until it goes", function()
    asking.begin()
    local one = assert(backends.take(control.address(cases), "one"))
    one:serve { name = "calc", methods = { add = function(a, b)
      return a + b
    end } }
    local calc = assert(one:proxy("one", "calc"))
    for i = 1, 10 do assert(calc:add(i, i)) end
    local labels = { scope = one.scope, agent = "one", side = "server",
                     service = "calc", method = "add",
                     host = folder.system.host() }
    cases.await(function() return of("calls_total", labels) == 10 end)
    assert.is_true(of("calls_submitted_total", { agent = "one" }) >= 10)
    assert.equal(1, of("up", { agent = "one", state = "running" }))
    one:close()
    cases.await(function() return of("calls_submitted_total", {}) == nil end)
  end)

  it("have the last report of a name's life", function()
    asking.begin()
    local _, _, headers = ask("PUT", "agents/one", entry "1")
    assert.equal("wanted", headers["perigee-stats"])
    assert.equal(204, (send("one", "1", report {
      methods = { method("a", 7) }, more = { "unknown" } })))
    _, _, headers = ask("POST", "agents/one/renew?epoch=1")
    assert.is_nil(headers["perigee-stats"])
    local labels = { scope = "s", agent = "one", host = "h", method = "a" }
    assert.equal(7, of("calls_total", labels))
    labels.le = "2.048e-06"
    assert.equal(7, of("call_duration_seconds_bucket", labels))
    assert.is_true(of("report_age_seconds", { agent = "one" }) >= 0)
    assert.equal(429, (send("one", "1", report())))
    ask("PUT", "agents/one?over=1", entry "2")
    await_none()
    assert.equal(204, (send("one", "2", report())))
    cases.await(function()
      return of("calls_submitted_total", { agent = "one" }) == 5
    end)
    ask("DELETE", "agents/one?epoch=2")
    await_none()
  end)

  it("cost no agent a request that it would miss", function()
    asking.begin { "--rate", "1" }
    local status, _, headers = ask("PUT", "agents/one", entry "1")
    assert.equal(201, status)
    assert.is_nil(headers["perigee-stats"])
  end)

  it("forget who has not renewed its name", function()
    asking.begin()
    if control.is_over_store() then return end
    ask("PUT", "agents/one?ttl=0.3", entry "1")
    assert.equal(204, (send("one", "1", report())))
    await_none()
  end)

  it("take no junk, and no report in another's name", function()
    asking.begin()
    ask("PUT", "agents/one", entry "1")
    local function fails(status, kind, body, path)
      return refused(status, kind, "POST", path or "agents/one/stats?epoch=1",
                     body)
    end
    for _, body in ipairs { "", "[]", "{", '{"state":1}', "\255" } do
      fails(400, "protocol", body)
    end
    for field, bad in pairs { state = "well", host = 5, pid = -1,
        counters = { calls = "5" }, methods = "none",
        transports = { 1 }, begun = { 1 } } do
      fails(400, "protocol", report { [field] = bad })
    end
    for field, bad in pairs { side = "up", ends = { ["0"] = -1 }, sum = 1e30,
                              bins = { x = "1" }, service = { "s" } } do
      local one = method("a", 1)
      one[field] = bad
      fails(400, "protocol", report { methods = { one } })
    end
    local many = {}
    for i = 1, 34 do many[i] = method("m" .. i, i) end
    fails(400, "protocol", report { methods = many })
    fails(413, "too_large", '{"x":"' .. ("x"):rep(40000) .. '"}')
    fails(409, "name_taken", report(), "agents/one/stats?epoch=2")
    fails(409, "name_taken", report(), "agents/one/stats")
    fails(404, "not_found", report(), "agents/two/stats?epoch=1")
    refused(404, "not_found", "POST", "entities/one/stats", report())
    refused(401, "denied", "POST", "agents/one/stats?epoch=1", report(),
            asking.STRANGER)
    assert.is_nil(of("report_age_seconds", {}))
  end)

  it("show names that agents report as text", function()
    asking.begin()
    ask("PUT", "agents/one", entry "1")
    local list = {}
    for i, name in ipairs(planted.NAMES) do
      list[i] = method(printable.utf8(name), i)
    end
    assert.equal(204, (send("one", "1", report {
      methods = list, host = 'h"\n# EOF', transports = { ['"\n'] = 1,
        ["\1"] = 2, ["\\x01"] = 4, [("y"):rep(15) .. "é"] = 8,
        [("y"):rep(15) .. "ł"] = 16 } })))
    assert.equal(6, of("sessions", { transport = "\\x01" }))
    local sum, n = exposition.sum(select(2, told()), "perigee_calls_total", {})
    assert.equal(#list, n)
    assert.equal(#list * (#list + 1) / 2, sum)
  end)

  -- ---- The page ------------------------------------------------------------

  -- Reads states of the page until f finds in one what it looks for.
  local function await_state(stream, f)
    local text = ""
    while true do
      local part, last = stream:piece(LONG)
      text = text .. assert(part, last) .. (last and "\n" or "")
      for data in text:gmatch "event: state\ndata: ([^\n]*)\n\n" do
        local found = f(assert(json.decode(data)).agents)
        if found then return found end
      end
    end
  end

  local function open_page()
    local stream = assert(asking.client:stream(
      asking.request("GET", "/events", nil, asking.STRANGER)))
    assert.equal(200, stream.status)
    return stream
  end

  it("are on the page with agents of this host and those that report",
     function()
    asking.begin { "--page" }
    local here = assert(backends.take(control.address(cases), "here"))
    ask("PUT", "agents/there", entry "1")
    assert.equal(204, (send("there", "1", report {
      host = "elsewhere", methods = { method("<b>", 7) } })))
    local stream = open_page()
    local rows = await_state(stream, function(list)
      local by = {}
      for _, each in ipairs(list) do by[each.name] = each end
      return by.here and by.there and by
    end)
    stream:close()
    assert.equal("elsewhere", rows.there.host)
    assert.equal(folder.system.host(), rows.here.host)
    local status, one = ask("GET", "/agent?scope=s&name=there&host=elsewhere")
    assert.equal(200, status)
    assert.is_true(one.reported)
    assert.equal("<b>", one.methods[1].method)
    status, one = ask("GET", "/agent?name=here&scope=" .. here.scope)
    assert.equal(200, status)
    assert.is_false(one.reported)
    refused(404, "not_found", "GET", "/agent?scope=s&name=there&host=here")
    here:close()
  end)

  it("are on a page that is for who may read", function()
    local server = asking.begin { "--page" }
    cases.await(function()              -- until the store has told the tokens
      return ask("GET", "/", nil, asking.STRANGER) == 200
    end)
    local stream = open_page()
    local status, _, headers = ask("GET", "/", nil, asking.STRANGER)
    assert.equal(200, status)
    assert.matches("default-src 'none'", headers["content-security-policy"],
                   1, true)
    local token = server:command "token new --role read"
    while stream:piece(LONG) do end     -- it is ended
    stream:close()
    for _, path in ipairs { "/", "/events", "/agent" } do
      refused(401, "denied", "GET", path, nil, asking.STRANGER)
    end
    assert.equal(200, (ask("GET", "/", nil,
                           { "Authorization: Bearer " .. token })))
    refused(403, "denied", "GET", "/", nil, { "Origin: http://evil.example" })
  end)

  it("are on no page unless that is asked for", function()
    asking.begin()
    refused(404, "not_found", "GET", "/")
    refused(404, "not_found", "GET", "/events")
  end)

  -- ---- Forms, and who may read ---------------------------------------------

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
    assert.equal(204, (send("one", "1", report {
      methods = { method("a", 7) }, transports = { shm = 2 } })))
    assert.equal("0\n", exposition.promtool((told()),
                                            cases.folder .. "/text"))
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
