-- SPDX-License-Identifier: Apache-2.0
-- What requests of a round of a control server over Redis have to do with each
-- other: nothing.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local redis = require "spec.support.redis"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

local ask, request = asking.ask, asking.request

needing("a round of a control server over a store",
        { control, redis }, function()
  local json = require "cjson.safe"
  local store

  local function eventually(f)
    return assert.is_true(cases.eventually(f, LONG))
  end

  local function is_ready() return ask("GET", "/readyz") == 200 end

  local function begin(timeout)
    cases.engine()
    store = redis.start()
    asking.use(control.start(nil, nil, nil, redis.address(cases,
      ("&ttl=60&timeout=%g"):format(timeout or LONG))))
    eventually(is_ready)
  end
  after_each(asking.finish)

  local function put(path, i)
    assert.equal(201, (ask("PUT", path, ('{"kind":"k%d"}'):format(i or 1))))
  end

  -- Stops the store, so that these requests wait for each other. Returns their
  -- answers, in order.
  local function together(...)
    store.process:signal "STOP"
    local first, asked = asking.client:send(request("GET", "entities")), {}
    assert.equal(200, (ask("GET", "/healthz")))
    for i, each in ipairs { ... } do asked[i] = asking.client:send(each) end
    assert.equal(200, (ask("GET", "/healthz")))
    store.process:signal "CONT"
    for i, each in ipairs(asked) do asked[i] = assert(each:wait(LONG)) end
    assert(first:wait(LONG))
    return unpack(asked)
  end

  it("lists what there is, though another removes it", function()
    begin()
    for i = 1, 6 do put("entities/" .. i) end
    local one, two, list = together(request("DELETE", "entities/1"),
      request("DELETE", "entities/2"), request("GET", "entities?limit=2"))
    assert.same({ 204, 204 }, { one.status, two.status })
    list = json.decode(list.body)
    assert.equal(2, #list.items)
    assert.equal(list.items[2].name, list.next)
  end)

  it("answers others though a watch cannot begin, or ends", function()
    begin()
    put "entities/a"
    local path = "watch?collection=entities&for=0"
    local brief, one = together(request("GET", path),
                                request("GET", "entities/a"))
    assert.same({ 200, 200 }, { brief.status, one.status })
    assert.matches('"entries":[{"', brief.body, 1, true)
    assert.equal(200, (ask("HEAD", path)))
    store:ask "SET 'perigee:{t}:changes' none"
    brief, one = together(request("GET", "/v1/scopes/t/watch"),
                          request("GET", "entities/a"))
    assert.same({ 503, 200 }, { brief.status, one.status })
  end)

  it("tells watchers of records as large as any", function()
    begin()
    local stream = assert(asking.client:stream(request("GET",
      "watch?collection=entities")))
    local size = 65000
    assert.equal(201, (ask("PUT", "entities/a", {
      kind = "x", endpoint = ("x"):rep(size) })))
    local line
    repeat line = assert(stream:line(2 ^ 20, LONG))
    until line:find('"name":"a"', 1, true)
    assert.is_true(#line > size)
    stream:close()
    assert.equal(200, (ask("GET", "entities/a")))
    assert.equal(200, (ask("GET", "entities")))
  end)

  it("tells the store's time to who watches first", function()
    begin()
    assert.equal(201, (ask("PUT", "agents/a?ttl=600",
      '{"epoch":"1","addresses":["tcp://a:1"],"since":1e6}')))
    asking.server = control.start(nil, nil, nil, asking.server.address)
    eventually(is_ready)
    local answer = assert(asking.client:ask(request("GET", "watch?for=0")))
    assert.matches('"since":10000%d%d%.', answer.body)
  end)

  it("answers what needs no store while that is away", function()
    begin()
    store:kill()
    eventually(function() return ask("GET", "/readyz") == 503 end)
    for wanted, lines in pairs { [200] = { "GET /%68ealthz",
                                           "GET http://localhost/healthz?x=1" },
                                 [404] = { "GET /none", "PUT /v1//" },
                                 [405] = { "POST /v1/scopes/s/entities" },
                                 [400] = { "GET /v1/scopes/s/agents?a&a" },
                                 [204] = { "OPTIONS *" } } do
      for _, line in ipairs(lines) do
        local fd = sockets.dial("tcp://127.0.0.1:" .. asking.server.port)
        sockets.send(fd, line .. " HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(function() return #sockets.readable({ fd }, 0) > 0 end)
        assert.equal(wanted, tonumber(sockets.receive(fd):match " (%d+)"), line)
        sockets.close(fd)
      end
    end
  end)

  it("says that its store is none where tokens are none", function()
    begin()
    local key = "perigee:{%2Ftokens}:name:all"
    store:ask(("SET '%s' '{\"tokens\":[{\"hash\":1}]}'"):format(key))
    eventually(function() return ask("GET", "/readyz") == 503 end)
    store:ask(("DEL '%s'"):format(key))
    eventually(is_ready)
    assert.equal(200, (ask("GET", "entities")))
  end)

  it("has no numbers that JSON cannot tell", function()
    begin()
    for _, since in ipairs { "1e306", "-1e306", "1e300" } do
      assert.equal(400, (ask("PUT", "agents/a",
        ('{"epoch":"1","addresses":["tcp://a:1"],"since":%s}'):format(since))))
    end
    assert.equal(404, (ask("GET", "agents/a")))
  end)

  it("follows no more collections than it may, for strangers half as many",
     function()
    begin()
    local state = require("perigee.control.shared").new(
      require("perigee.control.storages").shared(redis.address(cases)),
      2)
    state.told = function() end
    local known, kind = perigee.spawn(function()
      assert(state:follow("a", "agents"))
      assert.is_nil((state:follow("b", "agents")))
      for _, scope in ipairs { "a", "b", "a" } do
        assert(state:follow(scope, "agents", true))
      end
      return state:follow("c", "agents", true)
    end):wait(LONG)
    assert.same({ nil, "no_memory" }, { known, kind })
    state:close()
  end)

  -- Writes an agent of scope "s" to the store as agents do.
  local function write(name, more)
    local text = ('{"name":"%s","scope":"s","addresses":["tcp://a:1"]%s}')
      :format(name, more or "")
    store:ask(("SET 'perigee:{s}:name:%s' '%s'"):format(name, text))
    store:ask(("ZADD 'perigee:{s}:names' 0 %s"):format(name))
    store:ask(("XADD 'perigee:{s}:changes' '*' name %s entry '%s'"):format(
      name, text))
  end

  it("passes over records in its store with numbers that JSON cannot tell",
     function()
    begin()
    local stream = assert(asking.client:stream(request("GET", "watch")))
    write("a", ',"weight":1e999')
    write("b", ',"services":{"x":-1e999}')
    write("c", ',"began":-1e999')
    local told = perigee.spawn(function()
      repeat local line = assert(stream:line(2 ^ 20, LONG))
      until line:find('"name":"c"', 1, true)
      return true
    end)
    assert.is_true((told:wait(LONG)), "the watcher is not told of c")
    put "entities/a"
    local none, one, list, late = together(request("GET", "agents/a"),
      request("GET", "entities/a"), request("GET", "agents"),
      request("GET", "watch?for=0"))
    assert.same({ 404, 200, 200, 200 },
                { none.status, one.status, list.status, late.status })
    assert.is_nil(list.body:find("inf", 1, true))
    list = json.decode(list.body).items
    assert.same({ 1, "c" }, { #list, list[1].name })
    stream:close()
  end)

  it("refuses what no record can tell, and leaves the name to others",
     function()
    begin()
    -- With the blanks that nobody keeps a body may have so many values.
    local blanks = (" "):rep(8192)
    local many = { ["agents/a?ttl=86400"] =
                     '"addresses":["tcp://a:1"],"epoch":"1","x":['
                     .. ("[],"):rep(5000) .. "[]]",
                   topology = '"edges":[' .. ('["a","b"],'):rep(5000)
                     .. '["a","b"]]' }
    for path, text in pairs(many) do
      local body = ("{%s%s}"):format(text, blanks)
      local status, problem = ask("PUT", path, body)
      assert.same({ 413, "too_large" }, { status, problem and problem.kind })
    end
    assert.equal(404, (ask("GET", "agents/a")))
    assert.equal(201, (ask("PUT", "agents/a", asking.entry())))
    assert.equal(201, (ask("PUT", "topology", { edges = { { "a", "b" } } })))
  end)

  -- What another server over the same store has.
  local function shared_state()
    local state = require("perigee.control.shared").new(
      require("perigee.control.storages").shared(redis.address(cases)))
    state.told = function() end
    return state
  end

  it("ends what follows a collection if that fails, and begins another",
     function()
    begin()
    local state = shared_state()
    local cells = require "perigee.control.cells"
    local record, failing = cells.record, true
    finally(function() cells.record = record end)
    function cells.record(...)
      if failing then error "made up" end
      return record(...)
    end
    local function follow()
      return perigee.spawn(function()
        assert(state:follow("s", "agents", true))
        return state:watched("s", "agents")
      end):wait(LONG)
    end
    local first = assert(follow())
    write "a"
    eventually(function() return state.followed == 0 end)
    failing = false
    local second = assert(follow())
    assert.is_not.equal(first, second)
    eventually(function() return second.records.a end)
    state:close()
  end)

  it("tells a later watcher of an end when that comes, not a lease later",
     function()
    begin()
    assert.equal(201, (ask("PUT", "agents/one?ttl=86400", asking.entry())))
    assert.equal("1", store:ask(("PEXPIRE 'perigee:{s}:name:one' %d"):format(
      5000 * cases.slow)))
    local stream = assert(asking.client:stream(request("GET", "watch")))
    local function hears(text)
      local told = perigee.spawn(function()
        repeat local line = assert(stream:line(2 ^ 20, LONG))
        until line:find(text, 1, true)
        return true
      end):wait(LONG)
      assert.is_true(told, "the watcher is not told " .. text)
    end
    hears '"name":"one"'
    hears 'data: {"name":"one"}'
    stream:close()
  end)

  it("says nothing to watchers, and takes none, while it cannot read changes",
     function()
    begin()
    local state = shared_state()
    local watch = require "perigee.control.watch"
    local function follows()
      return perigee.spawn(function()
        return state:follow("s", "agents", true)
      end):wait(LONG)
    end
    local comments, watcher = 0, { fed = true, stream = {} }
    function watcher.stream.tell(_, part)
      if part == ":\n\n" then comments = comments + 1 end
      return true
    end
    function watcher.stream.close() end
    write "z"
    assert(follows())
    watcher.collection = state:watched("s", "agents")
    watcher.collection.watchers[1] = watcher
    watch.beat(state)
    assert.equal(1, comments)
    local path = "/v1/scopes/s/watch?for=0"
    assert.equal(200, (ask("GET", path)))
    store:ask [[EVAL "return redis.call('XADD', 'perigee:{s}:changes', '*',
      'name', 'a', 'entry', string.rep('x', 3 * 1048576))" 0]]
    eventually(function() return not follows() end)
    eventually(function() return (ask("GET", path)) == 503 end)
    local feed = watcher.collection.feed
    for _ = 1, 10 do
      assert.is_nil((feed.changes:next(function() return true end):wait(LONG)),
                    "a feed that reads no changes says that it does")
      assert.is_nil((follows()))
      assert.equal(503, (ask("GET", path)))
    end
    assert.equal(200, (ask("GET", "agents")))
    comments = 0
    watch.beat(state)
    assert.equal(0, comments)
    store:ask "DEL 'perigee:{s}:changes'"
    eventually(function() return (ask("GET", path)) == 200 end)
    eventually(follows)
    watch.beat(state)
    assert.equal(1, comments)
    state:close()
  end)

  it("passes over names in its store that none can have", function()
    begin()
    put "entities/b"
    local place = "perigee:{s%2Fentities}:name"
    store:ask(([[ZADD '%ss' 0 'a"']]):format(place))
    store:ask(([[SET '%s:a%%22' '{"name":"a\"","kind":"x"}']]):format(place))
    local status, list = ask("GET", "entities?limit=1")
    assert.same({ 200, "b" }, { status, list.items[1].name })
    assert.is_nil(list.next)
  end)
end)
