-- SPDX-License-Identifier: Apache-2.0
-- Names in Redis, with a server of the spec's own: the state when it is killed,
-- stopped, emptied or full of other keys. spec/lua/redis_access_spec.lua tells
-- who may use it.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local redis = require "spec.support.redis"
local registries = require "perigee.registry"

local eventually, names, watched = cases.await, backends.names, backends.watched

needing("Redis", { redis }, function()
  local server, registry

  before_each(function()
    server = redis.start()
    registry = redis.address(cases)
  end)
  after_each(cases.cleanup)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  -- Takes a name that lasts while this process only waits for programs.
  local function take_for_long(name)
    return take(name, { registry = (registry:gsub("ttl=[%d.]+",
                                                  "ttl=" .. 60 * cases.slow)) })
  end

  local function key(name)
    return ("'perigee:{%s}:name:%s'"):format(cases.scope, name)
  end

  -- The changes that were told, but for the new terms of names that were taken
  -- anew.
  local function without_changes(told)
    local list = {}
    for _, each in ipairs(told) do
      if not each:find "^changed" then list[#list + 1] = each end
    end
    return list
  end

  it("has names again after it was killed and came back empty", function()
    local one, two = assert(take "one"), assert(take "two")
    local session = assert(two:session "one")
    local told = watched(two)
    eventually(function() return #told == 2 end)
    server:kill()
    local none, err
    for _ = 1, 2 do none, err = two:lookup("one", { timeout = 2 }) end
    assert.is_nil(none)
    assert.is_truthy(({ peer_lost = 1, timeout = 1, closed = 1 })[err.kind],
                     err.kind)
    server:begin()
    eventually(function() return names(two) == "one two" end)
    assert.equal(session, (two:session "one"))
    assert.same({ "up one", "up two" }, without_changes(told))
    local three = assert(take "three")
    eventually(function() return #without_changes(told) == 3 end)
    one:close()
    eventually(function() return #without_changes(told) == 4 end)
    assert.same({ "up one", "up two", "up three", "down one" },
                without_changes(told))
    three:close()
  end)

  it("has names again after it was emptied", function()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    for _ = 1, 3 do
      server:ask "FLUSHALL"
      eventually(function() return names(one) == "one" end)
    end
    assert(take "two")
    eventually(function() return #without_changes(told) == 2 end)
    assert.same({ "up one", "up two" }, without_changes(told))
  end)

  it("tells of an end though connections break more often than names end",
     function()
    local person = process.start(backends.person, "Redis")
      :expect("ready", 30 * cases.slow)
    person:tell "hold mortal"
    person:expect("yes", 30 * cases.slow)
    local watcher = assert(take_for_long "watcher")
    local told = watched(watcher)
    eventually(function() return #told == 2 end)
    person:kill()
    eventually(function()               -- several times in a TTL
      server:ask "CLIENT KILL TYPE normal"
      perigee.sleep(0.4 * cases.slow)
      return #told == 3
    end)
    assert.same("down mortal", told[3])
  end)

  it("that is stopped is waited for as long as was said", function()
    local one, two = assert(take "one"), assert(take "two")
    local session = assert(two:session "one")
    server.process:signal "STOP"
    for _, f in ipairs { "lookup", "list", "regions" } do
      local none, err = two[f](two, f ~= "list" and "one" or { timeout = 0.05 },
                               { timeout = 0.05 })
      assert.is_nil(none)
      assert.equal("timeout", err.kind, tostring(err))
    end
    assert.is_truthy(session.handle)
    server.process:signal "CONT"
    eventually(function() return names(one) == "one two" end)
  end)

  it("has no name twice after all took and gave back names", function()
    local one = assert(take "a:b.c-d_e")
    assert.equal(1, tonumber(server:ask("EXISTS " .. key "a%3Ab%2Ec-d_e")))
    assert.equal("a:b.c-d_e", names(one))
    one:close()
    local left = server:ask "DBSIZE"
    assert.equal("1", left)             -- the stream of changes
  end)

  it("has a name that another took while the connection was lost", function()
    local one = assert(take "one")
    local entry = server:ask("GET " .. key "one"):gsub('"one"', '"two"')
    local connection = registries.open(registry).connection
    local ask = connection.ask
    finally(function() connection.ask = nil end)
    function connection.ask(self, commands, ...)
      local replies = ask(self, commands, ...)
      if commands[1][1] == "WATCH" then
        connection.ask = nil
        server:ask(("SET %s '%s' PX 60000"):format(key "two", entry))
        self:lose("peer_lost", "it hung up")
      end
      return replies
    end
    local none, err = take "two"
    assert.is_nil(none)
    assert.equal("name_taken", err.kind, tostring(err))
    assert.equal(entry, server:ask("GET " .. key "two"))
    one:close()
  end)

  it("has a name that another took for good", function()
    local said = {}
    local log = perigee.log
    perigee.log = function(level, text) said[#said + 1] = level .. text end
    local one = assert(take "one")
    local text = server:ask("GET " .. key "one")
    text = text:gsub('"epoch":"%x+"', '"epoch":"0123456789abcdef"')
    server:ask(("SET %s '%s'"):format(key "one", text))
    eventually(function() return #said > 0 end)
    perigee.log = log
    assert.equal(1, #said)
    assert.matches("^error.*keeping the name one in scope", said[1])
    assert.equal(text, server:ask("GET " .. key "one"))
    one:close()
    assert.equal(text, server:ask("GET " .. key "one"))
  end)

  -- Puts another's entry of the name one in place, for some milliseconds (-1:
  -- for good).
  local function usurp(text, milliseconds)
    local other = text:gsub('"epoch":"%x+"', '"epoch":"0123456789abcdef"')
    assert.equal("OK", server:ask(("SET %s '%s'%s"):format(key "one", other,
      milliseconds > 0 and " PX " .. milliseconds or "")))
  end

  -- Expects that another's entry has the TTL that usurp() gave it, which is
  -- far longer than the agent's.
  local function is_left(milliseconds)
    local left = tonumber(server:ask("PTTL " .. key "one"))
    if milliseconds < 0 then return assert.equal(-1, left) end
    assert.is_true(left > milliseconds / 2, ("it has %d ms"):format(left))
  end

  for what, milliseconds in pairs { ["its TTL"] = 3600000, ["none"] = -1 } do
    it("has a name that another took for as long as that says, which is "
       .. what, function()
      local one = assert(take "one")
      local text = server:ask("GET " .. key "one")
      usurp(text, milliseconds)
      eventually(function() return one.lease.over end)
      is_left(milliseconds)
      one:close()
    end)

    it("has a name that another took amid a renewal for as long as that says, "
       .. "which is " .. what, function()
      local one = assert(take "one")
      local text = server:ask("GET " .. key "one")
      local connection = registries.open(registry).connection
      local ask = connection.ask
      finally(function() connection.ask = nil end)
      function connection.ask(self, commands, ...)
        if commands[#commands][1] == "GETEX" then
          connection.ask = nil
          usurp(text, milliseconds)
        end
        return ask(self, commands, ...)
      end
      eventually(function() return one.lease.over end)
      is_left(milliseconds)
      one:close()
    end)
  end

  it("may have keys of others among ours", function()
    local one = assert(take_for_long "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    server:ask(("SET %s junk"):format(key "junk"))
    server:ask(("SET %s '%s'"):format(key "deep", ("["):rep(5000)))
    server:ask(("SET %s '{\"name\":\"other\",\"scope\":\"x\"}'")
      :format(key "other"))
    server:ask(("RPUSH %s a b"):format(key "list"))
    for _, name in ipairs { "junk", "deep", "other", "list", "gone", "%00" } do
      server:ask(("ZADD 'perigee:{%s}:names' 0 '%s'"):format(cases.scope, name))
    end
    server:ask(("XADD 'perigee:{%s}:changes' '*' a b"):format(cases.scope))
    server:ask(("XADD 'perigee:{%s}:changes' '*' name x entry junk")
      :format(cases.scope))
    assert.equal("one", names(one))
    for name, kind in pairs { junk = "name_taken", other = "name_taken",
                              list = "protocol" } do
      local none, err = take(name)
      assert.is_nil(none)
      assert.equal(kind, err.kind, tostring(err))
      none, err = one:lookup(name)
      assert.is_nil(none)
      assert.equal(kind == "protocol" and kind or "not_found", err.kind)
    end
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.same({ "up one", "up two" }, told)
    eventually(function()
      return server:ask(("ZSCORE 'perigee:{%s}:names' gone")
        :format(cases.scope)) == ""
    end)
  end)

  it("is asked by an idle agent to renew its name, by three commands, and "
    .. "nothing else", function()
    local one = assert(take "one")
    assert.is_false(one.lease.dirty)
    local monitor = server:monitor()
    eventually(function() return #monitor.words() >= 6 end)
    local words = table.concat(monitor.words(), " ", 1, 6)
    assert.is_truthy(("get pttl getex "):rep(3):find(words, 1, true), words)
    assert.equal("one", names(one))
  end)

  it("that answers with names for ever is not listened to", function()
    local one = assert(take "one")
    local connection = registries.open(registry).connection
    local ask, pages = connection.ask, 0
    finally(function() connection.ask = nil end)
    local page = {}
    for i = 1, 500 do page[i] = ("a%03d"):format(i) end
    function connection.ask(self, commands, ...)
      if commands[1][1] ~= "ZRANGEBYLEX" then
        return ask(self, commands, ...)
      end
      pages = pages + 1
      assert(pages < 100, "it is asked for ever")
      return { page, { "1", "0" } }
    end
    local none, err = one:list()
    assert.is_nil(none)
    assert.equal("protocol", err.kind)
    assert.matches("no names in order", tostring(err), 1, true)
  end)

  local function index() return ("'perigee:{%s}:names'"):format(cases.scope) end

  -- What is told and listed of the names beside what is odd.
  local function sees(watcher)
    eventually(function()
      return names(watcher) == "one two watcher"
        and backends.names_in(watcher:list { prefix = "t" } or {}) == "two"
    end)
    local told, _, watch = watched(watcher, { prefix = "t" })
    eventually(function() return #told == 1 end)
    assert.equal("up two", told[1])
    watch:close()
  end

  it("passes over what is no name in its index, and puts the rest in order",
     function()
    local one, two = assert(take_for_long "one"), assert(take_for_long "two")
    local watcher = assert(take_for_long "watcher")
    for _, odd in ipairs { "0 ''", "0 'no name'", "5 aa", "-3 zz", "7 one",
                           "2 '../x'", "0 '%'" } do
      assert.is_truthy(server:ask(("ZADD %s %s"):format(index(), odd))
        :find "^[01]$")
      sees(watcher)
    end
    assert.equal("0", server:ask(("ZCOUNT %s (0 +inf"):format(index())
      :gsub("%(0", "'(0'")))
    one:close()
    two:close()
  end)

  it("tells of a change after which more came at once than it keeps", function()
    local one = assert(take_for_long "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    local text = server:ask("GET " .. key "one"):gsub('"one"', '"two"')
    local scope = ("perigee:{%s}:"):format(cases.scope)
    assert.equal("done", server:ask(([[EVAL "
      redis.call('SET', KEYS[1] .. 'name:two', ARGV[1])
      redis.call('ZADD', KEYS[1] .. 'names', 0, 'two')
      local function tell(name, entry)
        redis.call('XADD', KEYS[1] .. 'changes', 'MAXLEN', '~', 10000, '*',
                   'name', name, 'entry', entry)
      end
      tell('two', ARGV[1])
      for i = 1, 11000 do tell('other', 'junk') end
      return 'done'" 1 '%s' '%s']]):format(scope, text)))
    eventually(function() return told[2] end)
    assert.same({ "up one", "up two" }, told)
  end)

  it("tells of a change before which came more than a reply may have",
     function()
    local one = assert(take_for_long "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    local feed = one.registry.feeds[cases.scope]
    local text = server:ask("GET " .. key "one"):gsub('"one"', '"two"')
    local scope = ("perigee:{%s}:"):format(cases.scope)
    assert.equal("done", server:ask(([[EVAL "
      local function tell(name, entry)
        redis.call('XADD', KEYS[1] .. 'changes', '*', 'name', name, 'entry',
                   entry)
      end
      for i = 1, 70 do tell('other', string.rep('x', 1048576)) end
      redis.call('SET', KEYS[1] .. 'name:two', ARGV[1])
      redis.call('ZADD', KEYS[1] .. 'names', 0, 'two')
      tell('two', ARGV[1])
      return 'done'" 1 '%s' '%s']]):format(scope, text)))
    eventually(function() return told[2] end)
    assert.same({ "up one", "up two" }, told)
    assert.is_false(feed.failed, "the changes could not be read")
  end)

  it("has names where its index is something else", function()
    local one = assert(take_for_long "one")
    local watcher = assert(take_for_long "watcher")
    server:ask(("SET %s text"):format(index()))
    local two = assert(take_for_long "two")
    sees(watcher)
    two:close()
    eventually(function() return names(watcher) == "one watcher" end)
    assert.equal("text", server:ask("GET " .. index()))
    one:close()
  end)

  it("passes over names that are longer than any, also without its index",
     function()
    local one = assert(take_for_long "one")
    local long = ("n"):rep(65)
    local text = server:ask("GET " .. key "one"):gsub('"one"', '"%%s"')
    for _, name in ipairs { long, long:sub(2) } do
      server:ask(("SET %s '%s'"):format(key(name), text:format(name)))
      server:ask(("ZADD %s 0 %s"):format(index(), name))
    end
    assert.equal(long:sub(2) .. " one", names(one))
    server:ask(("SET %s text"):format(index()))
    assert.equal(long:sub(2) .. " one", names(one))
  end)

  it("that finds keys for ever is not listened to", function()
    local one = assert(take_for_long "one")
    server:ask(("SET %s text"):format(index()))
    local connection = one.registry.connection
    local ask, found = connection.ask, 0
    finally(function() connection.ask = nil end)
    function connection.ask(self, commands, ...)
      if commands[1][1] ~= "SCAN" then return ask(self, commands, ...) end
      local page = {}
      for i = 1, 1000 do
        page[i] = ("perigee:{%s}:name:%060d"):format(cases.scope, found + i)
      end
      found = found + 1000
      assert(found < 400000, "it is asked for ever")
      return { { "1", page } }
    end
    local none, err = one:list { timeout = 60 * cases.slow }
    assert.is_nil(none)
    assert.equal("too_large", err.kind, tostring(err))
    assert.matches("more than 262144 names", tostring(err), 1, true)
  end)

  it("has a name until its time is over of who ended without giving it back",
     function()
    local one = assert(take "one")
    local told = watched(one)
    -- A process may leave its connections open: the system closes them.
    local command = ([[ASAN_OPTIONS=detect_leaks=0 spec/support/with luajit -e '
      local agent = assert(require "perigee".agent { name = "two",
        scope = "%s", registry = "%s" })
      agent:watch({}, function() end)
      assert(agent:lookup "two")' && echo ended]]):format(cases.scope,
                                                            registry)
    local function run()                -- the loop runs meanwhile
      process.spawn { "sh", "-c", command }:expect("ended", nil, cases.pump)
    end
    run()
    eventually(function() return #told == 3 end)
    assert.same({ "up one", "up two", "down two" }, told)
    run()
    assert(take "two")                  -- at once: its address refuses
  end)

  it("goes on after a stop of the loop", function()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    perigee.run(function() perigee.stop() perigee.sleep(1) end)
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.equal("one two", names(one))
  end)
end)
