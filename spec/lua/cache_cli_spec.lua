-- SPDX-License-Identifier: Apache-2.0
-- The commands of a cache as a user runs them: a cache in the background, and
-- processes that put and get; its orderly end.
local cjson = require "cjson"
local command = require "spec.support.command"
local process = require "spec.support.process"

local shell = command.shell

-- The words of a cache command with the files of this spec's caches.
local function here(words)
  return ("XDG_STATE_HOME='%s' PERIGEE_SCOPE=cli perigee cache %s"):format(
    command.folder(), words)
end

local function cache(words) return shell(here(words)) end

-- Output of a command that has to end well.
local function output(words)
  local status, text, why = cache(words)
  assert.equal(0, status, why)
  return text
end

-- Expects a status and a pattern in the errors of a command.
local function fails(status, pattern, words)
  local got, text, why = cache(words)
  assert.equal(status, got, words .. ": " .. tostring(why))
  assert.matches(pattern, why)
  return text
end

-- Starts a cache in the foreground; returns the process, when it serves.
local function serve(...)
  local started = command.start("cache", "serve", "--pid",
    command.folder() .. "/serve.pid", "--memory", "16M", ...)
  local line
  repeat line = assert(started:read()) until line:find "^serving "
  return started, line
end

-- Once it is told anything, it puts until it is refused, and says how it was.
local function holds_a_lease(child, perigee, _, folder)
  local agent = assert(perigee.agent {
    name = false, scope = "cli", registry = "folder:" .. folder,
    transport = "shm" })
  local blocks = assert(agent:cache("cache:0", { reconnect = 0 }))
  assert(blocks:put("k", "value"))
  local view = assert(blocks:view "k")
  child.say "leased"
  child.hear()
  local fine, err
  repeat
    fine, err = blocks:put("j", "later", { wait = 0 })
    perigee.sleep(0.01)
  until not fine
  child.say(err.kind, (view:string()))
  child.hear()
  agent:close()
end

-- A luajit in front of the path: a server ends at once, and says nothing.
local FAILS_TO_SERVE = ([[
#!/bin/sh
case "$*" in *" serve "*) exit 3;; esac
exec '%s/spec/support/bin/luajit' "$@"
]]):format(command.path:match "^(.*)/lua/perigee/")

-- A process that has a lease of the cache's.
local function leaseholder()
  return process.start(holds_a_lease, command.folder() .. "/perigee")
    :expect "leased"
end

describe("perigee cache", function()
  after_each(function()
    shell(here "stop >/dev/null 2>&1")
    command.clean()
  end)

  it("begins in the background, tells so, and ends", function()
    assert.equal(1, (cache "status"))
    fails(1, "no server runs from .*cache%-cache:0%.pid", "stop")
    local url = output "start --memory 16M"
    assert.matches("^unix:.*/cache:0%.sock\n$", url)
    fails(1, "it runs already, as process %d+ at unix:", "start")
    local told = cjson.decode(output "status --json")
    assert.same({ true, "cache:0" }, { told.running, told.name })
    assert.equal(url, told.url .. "\n")
    assert.matches("^running as process " .. told.pid .. " at ",
                   output "status")
    assert.equal("", output "stop")
    assert.is_true(command.is_gone(told.pid))
    assert.equal(1, (cache "status"))
    local log = command.content(command.folder()
      .. "/perigee/cache-cache:0.log")
    assert.matches("info: serving cache:0 at unix:.*info: it has ended\n$", log)
    assert.is_nil(command.content(command.folder()
      .. "/perigee/cache-cache:0.pid"))
  end)

  it("tells why it does not begin, and not what an earlier one said", function()
    output "start --memory 16M"
    output "stop"
    os.execute(("mkdir '%s/bin'"):format(command.folder()))
    local luajit = command.file("bin/luajit", FAILS_TO_SERVE)
    os.execute(("chmod +x '%s'"):format(luajit))
    local _, _, why = shell(("PATH='%s':$PATH %s"):format(
      luajit:match "^(.*)/", here "start"))
    assert.equal("perigee cache start: it ended without a word\n", why)
    fails(1, "^perigee cache start: option memory of [^\n]*\n$",
          "start --memory 1")
  end)

  it("keeps any bytes that are put, whole", function()
    output "start --memory 16M"
    local bytes = {}
    for i = 1, 3 * 2 ^ 20 do bytes[i] = string.char(i * 7 % 251) end
    local file = command.file("big", table.concat(bytes))
    output("put big '" .. file .. "'")
    output(("get big -o '%s.back'"):format(file))
    assert.equal(command.content(file), command.content(file .. ".back"))
    assert.equal(0, (shell(("printf 'a\\0b' | %s"):format(here "put small"))))
    assert.equal("a\0b", output "get small")
    output "put none </dev/null"
    assert.equal("", output "get none")
    fails(1, 'getting "nope" of cache cache:0: the key is not there',
          "get nope")
    -- A file stays as it is if there is nothing to write.
    fails(1, "the key is not there", ("get nope -o '%s.back'"):format(file))
    assert.equal(#bytes, #command.content(file .. ".back"))
  end)

  it("puts as it is told", function()
    output "start --memory 16M"
    output "put k --if-absent </dev/null"
    fails(1, "the key is there already", "put k --if-absent </dev/null")
    output "put k --ttl 50ms </dev/null"
    assert.is_true(command.eventually(function()
      return (cache "has k") == 1
    end))
    fails(1, "the parent is not there\n$",
          "put child --parent gone </dev/null")
    output "put first --pin hard --group 3 </dev/null"
    output "put child --parent first </dev/null"
    fails(2, "No such file", "put k /none/such")
    fails(1, "reading /tmp: Is a directory", "put k /tmp")
    fails(1, "^perigee cache get: writing /none/x: No such file[^:]*\n$",
          "get first -o /none/x")
  end)

  it("tells how many of several caches have taken a value", function()
    output "start --memory 16M"
    local put = "put key --name cache:0 --name cache:1 --replicas 2"
    fails(0, "1 of 2 caches have it now: .*cache:1", put .. " </dev/null")
    assert.equal("", output "get key")
    fails(1, "the key is there already", put .. " --if-absent </dev/null")
    fails(0, "put: 1 of 2 caches have it now\n$", "put key --name cache:0 "
      .. "--name cache:0 --replicas 2 </dev/null")
    for _, words in ipairs { "--replicas 2", "--name cache:0 --name cache:1 "
                             .. "--replicas 3" } do
      fails(2, "^perigee cache put: %-%-replicas %d needs as many caches: "
        .. "%-%-name may be given again\n$", "put key </dev/null " .. words)
    end
  end)

  it("waits for a key", function()
    output "start --memory 16M"
    local waiting = process.spawn { "sh", "-c", ("export PERIGEE_SCOPE=cli "
      .. "XDG_RUNTIME_DIR='%s'; exec %s cache get later --wait 60 --timeout 90")
      :format(command.folder(), command.path) }
    assert.equal(0, (shell("echo now | " .. here "put later")))
    assert.equal("now", (waiting:read(60 * process.slow)))
    assert.same({ "exit", 0 }, { waiting:wait() })
  end)

  it("tells which keys there are, in letters or in hexadecimal", function()
    output "start --memory 16M"
    for _, key in ipairs { "a.1", "a.2", "b" } do
      output(("put %s </dev/null"):format(key))
    end
    assert.equal(0, (cache "has a.1 b"))
    assert.equal("yes a.1\nno  c\n", fails(1, "", "has a.1 c"))
    assert.same({ { key = "a.1", there = true }, { key = "c", there = false } },
                cjson.decode(fails(1, "", "has --json a.1 c")))
    assert.equal("2\n", output "match a.1 a.2 c b")
    assert.same({ found = 0, of = 2 }, cjson.decode(output "match --json c b"))
    local list = cjson.decode(output "list a. --json")
    table.sort(list)
    assert.same({ "a.1", "a.2" }, list)
    assert.same(1, #cjson.decode(output "list --limit 1 --json"))
    assert.matches("^memory a%.%d\n", output "list a. --where")
    assert.equal("memory",
                 cjson.decode(output "list a. --where --json")[1].where)
    output "put --hex 00ff </dev/null"
    assert.equal("00ff\n", output "list 00 --hex")
    assert.matches('{"$base64":"AP8="}', output "list --json", 1, true)
    fails(2, '"0g" is not in hexadecimal', "has --hex 0g")
    fails(2, "a key has 1 to 512 bytes, not 513", "has " .. ("x"):rep(513))
    output "delete a.1 b"
    fails(1, 'deleting "b" of cache cache:0: the key is not there',
          "delete b a.2")
    assert.equal("00ff\n", output "list --hex")   -- a.2 is gone all the same
  end)

  it("tells how full it is, and what has happened", function()
    output "start --memory 16M"
    shell("echo 123 | " .. here "put k")
    assert.matches("^4 bytes, version %d+, in cache:0 %(memory%)\n$",
                   output "stat k")
    assert.equal(4, cjson.decode(output "stat k --json").length)
    local counters = cjson.decode(output "stat --json")["cache:0"]
    assert.same({ 1, 2 ^ 24 }, { counters.entries, counters.quota })
    assert.matches("^cache:0\n.*quota +16 MiB\n", output "stat")
    output "delete k"
    assert.matches("^1 +sealed +4  cache:0  k\n2 +deleted +4  cache:0  k\n$",
                   output "events")
    local event = cjson.decode(output "events --from 2 --json")
    assert.same({ "deleted", "k", 2 }, { event.kind, event.key, event.number })
  end)

  it("is not started with more memory than there is", function()
    fails(2, "^perigee cache serve: %-%-memory 1000 TiB: there are .+iB of "
      .. "memory here\n", "serve --memory 1000T")
    fails(2, "%-%-memory 512 TiB", "serve --scope one=512T")
    fails(2, "%-%-spill 9 TiB", "serve --kind cuda:0 --spill 9T")
    fails(2, "%-%-scope: they have 3 MiB, and %-%-memory is 2 MiB",
          "serve --memory 2M --scope one=1M --scope two=2M")
  end)

  it("tells how long puts and gets take, and leaves nothing", function()
    output "start --memory 16M"
    local text = output "bench --size 4K --count 20"
    assert.matches("^20 values of 4 KiB\n  put  20, p50 .+, p99 .+, .+B/s\n"
      .. "  get  20, p50 .+, p99 .+, .+B/s\n$", text)
    local told = cjson.decode(output "bench --json -s 0 -c 3")
    assert.same({ 3, 3, 0 }, { told.put.count, told.get.count, told.size })
    assert.equal("", output "list")
    told = cjson.decode(output "bench --json -s 8M -c 3")   -- more than it has
    assert.is_true(told.get.count < told.put.count)
    fails(1, "more than a value may have: 1 GiB, or what its scope has of the "
      .. "cache's memory %(its option memory%)", "bench -s 1000M -c 1")
    fails(1, "no agent of that name", "bench --name none")
  end)

  it("measures no caches that are not there", function()
    fails(1, "none of none, nobody in scope cli can be asked .*no agent of "
      .. "that name", "bench --name none --name nobody")
    output "start --memory 16M"
    local told = cjson.decode(output
      "bench --name cache:0 --name none --json -s 64 -c 8")
    assert.same({ 8, 8 }, { told.put.count, told.get.count })
  end)

  it("follows what happens, until nobody reads it", function()
    output "start --memory 16M"
    local function follow(rest)
      return process.spawn { "sh", "-c", ("export PERIGEE_SCOPE=cli "
        .. "XDG_RUNTIME_DIR='%s'; %s cache events --follow %s"):format(
        command.folder(), command.path, rest) }
    end
    local lines = follow ""
    output "put one </dev/null"
    assert.matches("sealed +0  cache:0  one$", (lines:read()))
    output "delete one"
    assert.matches("deleted +0  cache:0  one$", (lines:read()))
    lines:close()
    lines = follow "| head -1"
    assert.matches("sealed +0  cache:0  one$", (lines:read()))
    assert.same({ "exit", 0 }, { lines:wait() })
  end)

  it("goes on with its memory after it was killed, with --keep", function()
    output("start --memory 16M --keep " .. 10 * process.slow)
    shell("echo kept | " .. here "put k")
    local told = cjson.decode(output "status --json")
    process.signal(told.pid, "KILL")
    assert.is_true(command.eventually(function()
      return command.is_gone(told.pid)
    end))
    assert.equal(1, (cache "status"))
    output "start --memory 16M --keep 1s"
    assert.equal("kept\n", output "get k")
  end)

  it("has a file for what its memory has no room for", function()
    local file = command.folder() .. "/cache.file"
    local start = ("start --memory 4M --slab 1M --file '%s' --file-size 64M")
      :format(file)
    output(start)
    local part = command.file("part", ("x"):rep(2 ^ 20 - 4096))
    for i = 1, 12 do output(("put %d '%s'"):format(i, part)) end
    for i = 1, 12 do assert.equal(2 ^ 20 - 4096, #output("get " .. i)) end
    output "stop"
    output(start)
    assert.equal(2 ^ 20 - 4096, #output "get 1")
  end)

  it("serves several scopes, and keeps them apart", function()
    serve("--scope", "one=4M", "--scope", "two")
    local function of(scope, words)
      return shell("perigee cache " .. words .. " --scope " .. scope)
    end
    assert.equal(0, (of("one", "put k </dev/null")))
    assert.equal(0, (of("one", "has k")))
    assert.equal(1, (of("two", "has k")))
    local _, text = of("one", "stat --json")
    assert.equal(2 ^ 22, cjson.decode(text)["cache:0"].quota)
  end)

  it("keeps scopes apart over TCP by a secret each", function()
    local secrets, words = {}, {}
    for i, scope in ipairs { "one", "two" } do
      secrets[i] = ("%s4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="):format(
        i == 1 and "n" or "m")
      local file = command.file(scope .. ".secret", secrets[i] .. "\n")
      os.execute("chmod 600 '" .. file .. "'")
      words[#words + 1] = "--scope=" .. scope
      words[#words + 1] = ("--secret=%s=%s"):format(scope, file)
    end
    local _, line = serve("--listen", "tcp://127.0.0.1:0", unpack(words))
    local address = line:match "in scope one at .*(tcp://%S+)$"
    local function of(scope, secret)
      return command.shell(("PERIGEE_SECRET='%s' perigee cache put k --name %s "
        .. "--scope %s </dev/null"):format(secret, address, scope))
    end
    assert.equal(0, (of("one", secrets[1])))
    for _, each in ipairs { { "one", secrets[2] }, { "two", secrets[2] } } do
      local status, _, why = of(unpack(each))
      assert.equal(1, status)
      assert.matches("the secret, or the scope, is another", why)
    end
  end)

  it("takes its options from a file, but the command line goes first",
     function()
    local file = command.file("cache.conf", "# a cache\nname cache:7\n"
      .. "memory 8M\nscope one\nscope = two\nevict lfu\npopulate no\nnode 0\n"
      .. "huge no\n")
    output(("start --config '%s' --memory 4M"):format(file))
    local status, text = shell("perigee cache stat --json --name cache:7 "
      .. "--scope two")
    assert.equal(0, status)
    assert.equal(2 ^ 21, cjson.decode(text)["cache:7"].quota)
    output "stop --name cache:7"
    for line, why in pairs { ["evict mru"] = '"mru" is not lru or lfu',
                             ["memory much"] = '"much" is no size',
                             ["memry 1G"] = "there is no option of that name" }
    do
      file = command.file("wrong.conf", "\n" .. line .. "\n")
      fails(2, "wrong.conf:2: " .. why, ("serve --config '%s'"):format(file))
    end
  end)

  it("refuses what cannot be, in a sentence", function()
    for words, why in pairs {
      ["serve --memory 4K"] = "memory of perigee.cache must be "
        .. "bytes, 1 MiB at least",
      ["serve --scope a/b"] = "%-%-scope a/b: its name must be",
      ["serve --secret x"] = "%-%-secret x: it has to be SCOPE=FILE",
      ["serve --slab 3M"] = "slab of perigee.cache must be a power of two",
      ["serve --slab 2G"] = "slab of perigee.cache must be a power of two",
      ["serve --memory 4M --slab 8M"] = "slab of perigee.cache, 8388608 bytes, "
        .. "is more than the 4194304 bytes",
      ["serve --memory 4M --slab 4M --scope a --scope b"] =
        "is more than the 2097152 bytes",
      ["serve --scope a --scope b --scope a"] =
        "%-%-scope a: it is there twice",
      ["serve --scope a=1K"] = "%-%-scope a=1K: it needs 1M at least",
      ["serve --scope a=x"] = '%-%-scope a=x: "x" is no size',
      ["serve --scope a --scope b --listen tcp://127.0.0.1:7999"] =
        "several scopes cannot share a port",
      ["serve --kind cuda:0 --keep 5s"] = 'kind "host", and not of kind "cuda',
      ["serve --node 1024"] = '"1024" is no number of a NUMA node, 0 to 1023',
      ["serve --evict mru"] = '"mru" is not lru or lfu',
      ["serve --name a/b"] = "%-%-name must be",
      ["serve --http here:1:2"] = "%-%-http must be a URL as http://127",
      ["serve --http 9471"] = "%-%-http must be a URL as "
        .. "http://127.0.0.1:8765, not 9471\n",
      ["serve --http 0.0.0.0:0"] = "others than this host are served over "
        .. "https:// and with tokens",
      ["serve --http 127.0.0.1:0 --tls-cert x"] =
        "%-%-tls%-cert and %-%-tls%-key belong together",
      ["get"] = "missing argument 'key'",
      ["put k --ttl 0"] = '^perigee cache put: %-%-ttl: "0" is no time above 0;'
        .. " perigee cache put %-%-help",
      ["has k --name a/b"] = '"a/b" is no agent\'s name',
    } do
      fails(2, why, words)
    end
    fails(1, "no agent of that name.*perigee agents lists", "get k")
    for _, words in ipairs { "list", "stat", "events" } do
      fails(1, "none of cache:8, cache:9 .* can be asked", words
        .. " --name cache:8 --name cache:9")
    end
    fails(1, "^perigee cache start: opening %-%-log: /none/l: No such file"
      .. "[^:]*\n$", "start --log /none/l")
    fails(1, "^perigee cache serve: opening %-%-log: /none/l: No such file"
      .. "[^:]*\n$", "serve --log /none/l")
    local _, _, why = shell "XDG_STATE_HOME=/dev/null perigee cache start"
    assert.matches("^perigee cache start: opening %-%-log: /dev/null/[^\n]*\n$",
                   why)
  end)

  it("does not serve without memory of its kind", function()
    fails(2, "serve: %-%-kind: no kind of memory \"nonsense\"\n$",
          "serve --kind nonsense")
    fails(2, "serve: %-%-listen: \"x\" is no address", "serve --listen x")
    fails(2, "cache start: %-%-http must be a URL", "start --http ftp://x")
    fails(1, "cache start: %-%-listen: \"x\" is no address", "start --listen x")
  end)

  it("ends at SIGTERM when nobody has a lease any more", function()
    local serving = serve("--lease", "60s", "--drain", "60s")
    local child = leaseholder()
    serving:signal "TERM"
    child:tell "ask"
    child:expect "closed value"
    assert.is_false(command.is_gone(serving.pid))
    child:tell "leave"
    assert.same({ "exit", 0 }, { serving:wait() })
  end)

  it("ends at once at the second SIGTERM", function()
    local serving = serve("--lease", "60s", "--drain", "60s")
    leaseholder()
    serving:signal "TERM"
    assert.is_true(command.eventually(function()
      local status, text = shell "perigee lookup cache:0 --json"
      return status == 0 and cjson.decode(text).state == "draining"
    end))
    serving:signal "TERM"
    assert.same({ "exit", 0 }, { serving:wait() })
  end)
end)
