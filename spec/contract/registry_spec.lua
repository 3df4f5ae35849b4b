-- SPDX-License-Identifier: Apache-2.0
-- Names on one host: they are held for life, taken over from dead processes at
-- once, and refused at once while their owner lives. Folders are private.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function holder(child, perigee_, _, name)
  local agent, err = child.cases.agent(name)
  if not agent then
    child.say(err.kind)
    return
  end
  agent:serve { name = "x", version = 1, methods = {
    same = function(x) return x end } }
  child.say("held")
  perigee_.run()
  agent:close()
end

local function listed()
  local pipe = io.popen(("find '%s' ! -type d"):format(cases.folder))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

describe("a name", function()
  after_each(cases.cleanup)

  it("that is held is refused at once", function()
    process.start(holder, "one"):expect("held")
    local started = process.now()
    for _ = 1, 20 do
      local none, err = cases.agent("one")
      assert.is_nil(none)
      assert.equal("name_taken", err.kind)
      assert.matches("one", tostring(err))
    end
    assert.is_true(process.now() - started < 2 * cases.slow)
    process.start(holder, "one"):expect("name_taken")
    local none, err = perigee.serve { name = "one", scope = cases.scope,
                                      services = {} }
    assert.is_nil(none)
    assert.equal("name_taken", err.kind)
  end)

  it("of a process that was killed is free at once", function()
    for _ = 1, 10 do
      local child = process.start(holder, "mortal"):expect("held")
      child:kill()
      local agent = assert(cases.agent("mortal"))
      agent:close()
    end
  end)

  -- The lock is all that such a build has on its name.
  it("of a process of an older build, which publishes no entry, is found",
     function()
    local function older(child, perigee_, ffi_)
      local agent = assert(child.cases.agent("older"))
      agent:serve { name = "x", version = 1, methods = {
        same = function(x) return x end } }
      local lock = agent.address:match "^unix:(.*)%.sock$" .. ".lock"
      os.remove(lock)
      ffi_.cdef "int open(const char *, int, ...); int flock(int, int);"
      local O_RDWR_CREAT, LOCK_EX = 66, 2
      local descriptor = ffi_.C.open(lock, O_RDWR_CREAT,
                                     ffi_.cast("int", 384))
      child.say(ffi_.C.flock(descriptor, LOCK_EX) == 0 and "held" or "failed")
      perigee_.run()
    end
    local child = process.start(older):expect("held")
    local agent = assert(cases.agent())
    assert.equal(7, assert(agent:proxy("older", "x")):same(7))
    assert.matches("/older.sock$", agent:lookup "older".addresses[1])
    assert.equal("name_taken", select(2, cases.agent("older")).kind)
    child:kill()
    assert.equal("not_found", select(2, agent:lookup "older").kind)
    assert(cases.agent("older")):close()
  end)

  it("that nobody gave is not left by who was killed", function()
    local function nameless(child, perigee_)
      local agent = assert(child.cases.agent())
      child.say("held")
      perigee_.run()
      agent:close()
    end
    local dead, living = {}, process.start(nameless):expect("held")
    for i = 1, 5 do dead[i] = process.start(nameless):expect("held") end
    for i = 1, 5 do dead[i]:kill() end
    assert.matches("anonymous%-.*%.lock", listed())
    local agent = assert(cases.agent("next"))
    local names, count = listed():gsub("/anonymous%-", "%0")
    assert.equal(3, count, names)       -- the files of the one that lives
    assert.matches("anonymous%-" .. living.pid .. "%-", names)
    agent:close()
  end)

  it("that nobody gave is had by many at once", function()
    local function often(child)
      child.say("ready")
      child.attend()
      for _ = 1, 200 do assert(child.cases.agent()):close() end
      child.say("done")
    end
    local all = {}
    for i = 1, 3 do all[i] = process.start(often):expect("ready") end
    for i = 1, 3 do all[i]:tell("go on") end
    for i = 1, 3 do all[i]:expect("done", 60) end
  end)

  it("of a process that is stopped is not free", function()
    local child = process.start(holder, "stopped"):expect("held")
    child:signal("STOP")
    local none, err = cases.agent("stopped")
    assert.is_nil(none)
    assert.equal("name_taken", err.kind)
    child:signal("CONT")
  end)

  it("is given to one of two who race for it, each time", function()
    local function racer(child)
      for line in child.hear do
        local agent, err = child.cases.agent(line)
        child.say(agent and "held" or err.kind)
        child.hear()
        if agent then agent:close() end
        child.say("closed")
      end
    end
    local one, two = process.start(racer), process.start(racer)
    local rounds = math.max(20, math.floor(300 * math.min(1, cases.scale * 10)))
    for round = 1, rounds do
      local name = round % 3 == 0 and "same" or "race" .. round
      one:tell(name)
      two:tell(name)
      local got = { one:read(), two:read() }
      table.sort(got)
      assert.same({ "held", "name_taken" }, got, round)
      one:tell("")
      two:tell("")
      one:expect("closed")
      two:expect("closed")
    end
  end)

  it("left by the dead is given to one of two who race for it", function()
    local function racer(child)
      child.hear()
      local agent, err = child.cases.agent("left")
      child.say(agent and "held" or err.kind)
      child.hear()
    end
    for _ = 1, 10 do
      process.start(holder, "left"):expect("held"):kill()
      local one, two = process.start(racer), process.start(racer)
      one:tell("")
      two:tell("")
      local got = { one:read(), two:read() }
      table.sort(got)
      assert.same({ "held", "name_taken" }, got)
      one:close()
      two:close()
    end
  end)

  it("leaves nothing behind when it is given up", function()
    for i = 1, 5 do
      local agent = assert(cases.agent("name" .. i))
      agent:close()
    end
    assert.equal("", listed())
    assert.equal("", perigee.run(listed))
  end)

  it("of an agent is optional", function()
    local one, two = assert(cases.agent()), assert(cases.agent())
    one:close()
    two:close()
    assert.equal("", listed())
  end)

  it("is 1 to 64 of letters, digits and ._:-, with no leading dot", function()
    local good = { "a", "A.b_c:d-9", ("x"):rep(64), "worker:0", "-", "_" }
    for _, name in ipairs(good) do
      local agent = assert(cases.agent(name))
      agent:close()
    end
    local bad = { "", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0b",
                  ("x"):rep(65), "a\n" }
    for _, name in ipairs(bad) do
      assert.has_error(function() perigee.agent { name = name } end)
      assert.has_error(function() perigee.agent { scope = name } end)
    end
  end)

  it("that makes a socket path over 107 bytes is refused plainly", function()
    local engine = cases.engine()
    local none, err = engine:listen("unix:/tmp/" .. ("x"):rep(103))
    assert.is_nil(none)
    assert.equal("too_large", err.kind)
    assert.matches("107", tostring(err))
    none, err = engine:connect("unix:/tmp/" .. ("x"):rep(103))
    assert.is_nil(none)
    assert.equal("too_large", err.kind)
  end)
end)

describe("the registry's folder", function()
  after_each(cases.cleanup)

  -- The result of a child with another XDG_RUNTIME_DIR.
  local function try(folder)
    local child = process.start(function(child, perigee_, ffi_, where)
      ffi_.cdef "int unsetenv(const char *); int setenv(const char *, const char *, int);" -- luacheck: ignore 631
      if where == "" then
        ffi_.C.unsetenv("XDG_RUNTIME_DIR")
      else
        ffi_.C.setenv("XDG_RUNTIME_DIR", where, 1)
      end
      local agent, err = perigee_.agent { name = "x",
                                          scope = child.cases.scope }
      child.say(agent and "made" or err.kind)
      child.hear()
      if agent then agent:close() end
      child.say("closed")
    end, folder)
    return child:read(), child
  end

  local function mode(path)
    local pipe = io.popen(("stat -c '%%a %%u' '%s'"):format(path))
    local text = pipe:read("*l")
    pipe:close()
    return text
  end

  local function shell(text)
    os.execute((text:gsub("FOLDER", cases.folder)))
  end

  local function owned()
    local pipe = io.popen("id -u")
    local uid = pipe:read("*l")
    pipe:close()
    return "700 " .. uid
  end

  it("is made with mode 0700", function()
    local agent = assert(cases.agent("x"))
    assert.equal(owned(), mode(cases.folder .. "/perigee"))
    assert.equal(owned(), mode(cases.folder .. "/perigee/" .. cases.scope))
    agent:close()
  end)

  it("that others may enter is refused", function()
    shell("mkdir -m 700 FOLDER; mkdir -m 755 FOLDER/perigee;"
      .. "chmod 755 FOLDER/perigee")
    assert.equal("denied", (try(cases.folder)))
  end)

  it("that is a link is refused", function()
    shell("mkdir -m 700 FOLDER FOLDER/other; ln -s other FOLDER/perigee")
    assert.equal("denied", (try(cases.folder)))
  end)

  it("is a private one in the temporary directory otherwise", function()
    local said, child = try("")
    assert.equal("made", said)
    child:tell("")
    child:expect("closed")
  end)

  -- A process whose only folders are those that it makes in these.
  local function person(home)
    return process.start(function(child, perigee_, ffi_, temporary, home_)
      ffi_.cdef "int unsetenv(const char *); int setenv(const char *, const char *, int);" -- luacheck: ignore 631
      ffi_.C.unsetenv("XDG_RUNTIME_DIR")
      ffi_.C.setenv("TMPDIR", temporary, 1)
      if home_ == "" then
        ffi_.C.unsetenv("HOME")
      else
        ffi_.C.setenv("HOME", home_, 1)
      end
      local agent, err = perigee_.agent { name = child.hear(),
                                          scope = child.cases.scope }
      child.say(agent and "made" or err.kind)
      if not agent then return end
      agent:serve { name = "x", version = 1, methods = {
        same = function(x) return x end } }
      for name in child.attend do
        local proxy = agent:proxy(name, "x", { timeout = 5 })
        child.say(proxy and proxy:same("found") or "not found")
      end
      agent:close()
    end, cases.folder .. "/tmp", home or "")
  end

  local OTHER = "setpriv --reuid=65534 --regid=65534 --clear-groups "

  -- Another user has created this user's folder first.
  local function squat()
    shell("mkdir -m 755 FOLDER; mkdir -m 1777 FOLDER/tmp; mkdir FOLDER/home;"
      .. OTHER .. "mkdir FOLDER/tmp/perigee-0")
    assert.equal("700 0", owned())
    assert.equal("755 65534", mode(cases.folder .. "/tmp/perigee-0"))
  end

  local function is_root()
    local can = os.execute(OTHER .. "true 2>/dev/null") == 0
    if can and owned() == "700 0" then return true end
    pending "another user wants root and setpriv"
  end

  it("that another user made first is left for one at home", function()
    if not is_root() then return end
    local home = cases.folder .. "/home"
    squat()
    local one, two = person(home), person(home)
    one:tell("one")
    one:expect("made")
    two:tell("two")
    two:expect("made")
    -- Agents that come when the other's folder is gone find the earlier ones.
    shell("rmdir FOLDER/tmp/perigee-0")
    local three, four = person(home), person(home)
    three:tell("one")
    three:expect("name_taken")
    four:tell("four")
    four:expect("made")
    four:tell("one")
    four:expect("found")
    two:tell("four")
    two:expect("found")
    assert.equal("", mode(cases.folder .. "/tmp/perigee-0") or "")
    assert.equal(owned(), mode(home .. "/.cache/perigee"))
  end)

  it("that another user made first is refused where there is no home",
     function()
    if not is_root() then return end
    squat()
    local one, two = person(), person(cases.folder .. "/tmp/perigee-0")
    one:tell("one")
    one:expect("denied")
    two:tell("two")
    two:expect("denied")
  end)

  it("has its scope from PERIGEE_SCOPE where none is given", function()
    local owner = process.start(function(child, perigee_, ffi_)
      ffi_.cdef "int setenv(const char *, const char *, int);"
      ffi_.C.setenv("PERIGEE_SCOPE", child.cases.scope, 1)
      local agent = assert(perigee_.agent { name = "env" })
      child.say("made")
      perigee_.sleep(60)
      agent:close()
    end)
    owner:expect("made")
    local none, err = cases.agent("env")
    assert.is_nil(none)
    assert.equal("name_taken", err.kind)
  end)
end)
