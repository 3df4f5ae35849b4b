-- SPDX-License-Identifier: Apache-2.0
-- The control server keeps all that it has answered when it is killed, stopped
-- or out of disk. All but what is of its file goes for servers over a store,
-- too (make control-stores).
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 60 * cases.slow

local ask, entry, refused = asking.ask, asking.entry, asking.refused
local eventually, request = cases.await, asking.request

needing("the control server", { control }, function()
  local server
  local of_file = control.is_over_store() and function() end or it

  local function begin(...) server = asking.begin(...) end
  after_each(asking.finish)

  -- Makes, changes and removes entities, until no answer comes. state: the kind
  -- of each by name (false: it is removed) as it was acknowledged; nil while
  -- that is unknown. Adds to `state.count` for each answer.
  local function write(state, next_name)
    local function did(method, name, kind)
      state[name] = nil
      local answer = asking.client:ask(request(method, "entities/" .. name,
        kind and { kind = kind } or nil))
      if not answer then return false end
      assert(answer.status < 300, answer.status)
      state[name], state.count = kind, state.count + 1
      return true
    end
    while true do
      local name, also = next_name()
      if not did("PUT", name, "made") or not did("PUT", name, "changed")
        or also and not did("DELETE", name, false) then
        return
      end
    end
  end

  local function all_there()
    local there, after = {}, ""
    repeat
      local _, page = ask("GET", "entities?limit=1000" .. after)
      for _, each in ipairs(page.items) do there[each.name] = each.kind end
      after = page.next and "&after=" .. page.next
    until not after
    return there
  end

  it("has all that it acknowledged after each kill -9", function()
    begin()
    local state, n = { count = 0 }, 0
    local function next_name()
      n = n + 1
      return "e" .. n, n % 3 == 0
    end
    for _ = 1, 5 do
      local writers, before = {}, state.count
      for i = 1, 8 do writers[i] = perigee.spawn(write, state, next_name) end
      eventually(function() return state.count - before > 150 end)
      server:kill()
      for _, writer in ipairs(writers) do writer:wait(LONG) end
      server:begin()
      local there = all_there()
      for name, kind in pairs(state) do
        if name ~= "count" then assert.equal(kind or nil, there[name], name) end
      end
    end
  end)

  of_file("begins leases anew when it comes back, for one ttl", function()
    begin()
    ask("PUT", "agents/one?ttl=5", entry())
    server:kill()
    process.usleep(5.1)
    server:begin()
    assert.equal(200, (ask("GET", "agents/one")))
    refused(409, "name_taken", "PUT", "agents/one", entry "2")
    eventually(function() return ask("GET", "agents/one") == 404 end)
  end)

  of_file("ends no lease because it was stopped itself", function()
    begin()
    ask("PUT", "agents/one?ttl=5", entry())
    server.process:signal "STOP"
    process.usleep(5.5)
    server.process:signal "CONT"
    assert.equal(200, (ask("GET", "agents/one")))
  end)

  of_file("has one process for a file", function()
    begin()
    local other = process.spawn { "luajit", "lua/perigee/cli/perigee", "ctrl",
      "serve", "--store", server.store, "--listen", "http://127.0.0.1:0",
      "--pid", server.store .. ".other", "--log", "/dev/null" }
    assert.same({ "exit", 1 }, { other:wait(LONG) })
    assert.equal(200, (ask("GET", "/readyz")))
  end)

  it("has nothing of who was refused since the disk did not take another's",
     function()
    local servers = require "perigee.control"
    cases.engine()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local here = assert(servers.open { host = "127.0.0.1", port = 0,
                                       store = cases.folder .. "/here.db" })
    asking.use { url = "http://127.0.0.1:" .. here.port }
    local commit = here.storage.commit
    function here.storage.commit(storage)
      here.storage.commit = commit
      storage:discard()
      return nil, "no_memory", "the disk is full"
    end
    local asked = {}
    for i = 1, 4 do
      asked[i] = asking.client:send(request("PUT", "agents/one",
                                            entry(tostring(i))))
    end
    local kept
    for i, each in ipairs(asked) do
      local status = assert(each:wait(LONG)).status
      if status == 201 then kept = tostring(i) end
    end
    local status, body = ask("GET", "agents/one")
    assert.equal(kept and 200 or 404, status)
    assert.equal(kept, body.epoch)
    here:close()
    here.ended:wait(LONG)
  end)

  of_file("passes over rows of its file that are no records", function()
    begin()
    assert.equal(201, (ask("PUT", "agents/good", entry())))
    assert.equal(201, (ask("PUT", "entities/good", '{"kind":"x"}')))
    server:kill()
    local stores = require "perigee.net.store"
    local file = assert(stores.open(server.store))
    local put = assert(file:prepare(
      "INSERT INTO records VALUES ('s', ?1, ?2, 1, 0, ?3)"))
    for kind, texts in pairs {
      agents = { '{"x', "null", '{"name":"row2","scope":"s","epoch":"1"',
                 '{"name":"other","scope":"s","epoch":"1","addresses":["a"]' },
      entities = { "", '"row1"', '{"name":"row2","kind":"x"},{"a":1',
                   '{"name":"row3"' } } do
      for i, text in ipairs(texts) do
        assert(put:run(kind, "row" .. i - 1, text))
      end
    end
    assert(put:run("entities", 'a"', '{"name":"a\\"","kind":"x"'))
    file:close()
    server:begin()
    for _, kind in ipairs { "agents", "entities" } do
      local status, page = ask("GET", kind)
      assert.equal(200, status)
      assert.same({ "good" }, { page.items[1].name })
      assert.is_nil(page.items[2])
    end
    for _, kind in ipairs { "services", "regions" } do
      assert.equal(200, (ask("GET", kind)))
    end
    assert.equal(201, (ask("PUT", "agents/row0", entry())))
    assert.equal(200, (ask("GET", "agents/row0")))
    local log = assert(io.open(server.store .. ".log"))
    assert.matches("rows of the store are no records", log:read "*a", 1, true)
    log:close()
  end)

  -- Its records are in memory that no collector frees.
  it("frees what it has read if it cannot listen", function()
    local files = require "perigee.control.file"
    local known = require "perigee.control.known"
    local servers = require "perigee.control"
    local states = require "perigee.control.state"
    cases.engine()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local store = cases.folder .. "/busy.db"
    local storage = assert(files.open(store))
    local state = assert(states.open(storage))
    for i = 1, 3 do
      state:put("s", "entities", "e" .. i,
                ('{"name":"e%d","kind":"k"'):format(i), 0, { kind = "k" })
    end
    assert(state:commit())
    state:close()
    storage:close()
    local made, freed, new, free = 0, 0, known.new, known.free
    function known.new(...) made = made + 1 return new(...) end
    function known.free(record)
      freed = freed + (record and 1 or 0)
      return free(record)
    end
    finally(function() known.new, known.free = new, free end)
    local none, err = servers.open { store = store, host = "192.0.2.1",
                                     port = 1, wanted = false }
    assert.is_nil(none)
    assert.is_string(err.kind)
    assert.same({ 3, 3 }, { made, freed })
  end)

  it("forgets scopes in which there is nothing any more", function()
    local files = require "perigee.control.file"
    local states = require "perigee.control.state"
    cases.engine()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local storage = assert(files.open(cases.folder .. "/scopes.db"))
    local state = assert(states.open(storage))
    for i = 1, 100 do
      state:put("s" .. i, "agents", "one", '{"kind":"x"', 10,
                { kind = "x" })
    end
    local watched = state:collection("watched", "agents")
    watched.watchers[1] = {}
    state:collection("read", "agents")
    assert(state:commit())
    for i = 2, 100 do
      state:remove(state:known("s" .. i, "agents").records.one)
    end
    assert(state:commit())
    local before = state:known("s2", "agents").changes:revision()
    state:tidy()
    local left = {}
    for scope in pairs(state.scopes) do left[#left + 1] = scope end
    table.sort(left)
    assert.same({ "s1", "watched" }, left)
    local anew = state:collection("s2", "agents")
    assert.is_nil(anew.changes:since(before))
    storage:close()
  end)

  of_file("acknowledges nothing that the disk does not take, and goes on",
     function()
    begin({}, nil, "trap '' XFSZ; ulimit -f 300; ")
    local large = { kind = "x", metadata = { x = ("x"):rep(4000) } }
    local kept, status = 0
    repeat
      status = ask("PUT", "entities/a" .. kept, large)
      if status == 201 then kept = kept + 1 end
    until status ~= 201 or kept > 1000
    assert.is_true(status == 507 or status == 503, status)
    assert.is_true(kept > 0)
    refused(404, "not_found", "GET", "entities/a" .. kept)
    assert.equal(200, (ask("GET", "entities/a0")))
    assert.equal(503, (ask("GET", "/readyz")))
    server:kill()
    server.before = ""
    server:begin()
    for i = 0, kept - 1 do
      assert.equal(200, (ask("GET", "entities/a" .. i)))
    end
    assert.equal(404, (ask("GET", "entities/a" .. kept)))
    assert.equal(201, (ask("PUT", "entities/a" .. kept, large)))
    assert.equal(200, (ask("GET", "/readyz")))
  end)
end)
