-- SPDX-License-Identifier: Apache-2.0
-- What `perigee` tells of agents, and calls them by, with a real one that it
-- serves itself.
local cjson = require "cjson"
local command = require "spec.support.command"

local WORKER = [[
local perigee = require "perigee"
local agent = assert(perigee.agent { name = "worker:0",
  metadata = { note = "red \27[31m" } })
local blocks = {}
agent.engine:alloc(2 ^ 20, { name = "kv", access = "rw" })
agent:serve { name = "calc", version = 3, methods = {
  add = function(a, b) return a + b end,
  fail = function(text) error(text, 0) end,
  count = function(...) return select("#", ...) end,
  many = function() return nil, 2 ^ 53, 2 ^ 53 * 4ULL, { 1, nil, 3 }, 0 / 0,
    "\27[2J\255", "\27\194\155", 0.1 end,
  same = function(value) return value end,
  kind = function(value) return type(value), tostring(value) end,
  keys = function() return { ["\255"] = 1 }, { [1] = "n", ["1"] = "s" },
    { ["$base64"] = "x" }, { [2 ^ 40] = { [1.5] = 7LL } } end,
  slow = function(seconds) perigee.sleep(seconds) return "slept" end,
  echo = { raw = true, idempotent = true,
           function(request) return request end },
  copy = { raw = true, inplace = true, capacity = 5, function(request, reply)
    return reply:write(request)
  end },
} }
agent:serve { name = "store", methods = {
  put = {
    landing = function(length, key)
      blocks[key] = agent.engine:alloc(math.max(length, 1))
      return blocks[key]:slice(0, length)
    end,
    function(slice, key) return slice.length, key end,
  },
  get = function(key)
    if not blocks[key] then return nil, "none" end
    return blocks[key]:slice(0, 5)
  end,
  closed = { landing = function() return nil, "the secret is out" end,
             function() end },
} }
return agent
]]

local worker

setup(function()
  worker = command.start("serve", command.file("worker.lua", WORKER))
  assert.matches("^serving calc and store as worker:0 in scope cli at unix:",
                 worker:read())
end)

teardown(command.clean)

-- The output of a command that has to do well.
local function output(...)
  local status, text, errors = command.run(...)
  assert.equal(0, status, errors)
  return text, errors
end

local function document(...)
  local text = output(...)
  assert.equal(1, select(2, text:gsub("\n", "")))
  return cjson.decode(text)
end

-- The last words of a command that ends in this status.
local function ended(status, ...)
  local got, text, errors = command.run(...)
  assert.equal(status, got, errors)
  assert.equal("", text)
  return errors
end

-- The one sentence that it is.
local function refused(...)
  local errors = ended(...)
  assert.matches("^perigee[^\n]*: [^\n]+\n$", errors)
  return errors
end

-- The error that a call tells as JSON.
local function failed(...)
  local status, text = command.run("call", ...)
  assert.equal(1, status)
  return cjson.decode(text).error
end

describe("perigee call", function()
  it("calls a typed method by JSON", function()
    assert.equal("3\n", output("call", "worker:0", "calc.add", "1", "2"))
    assert.equal("-1.5\n", output("call", "worker:0", "calc.add", "-2", "0.5"))
    assert.equal("3\n", output("call", "worker:0", "calc.count", "null",
                               '{"a": [1, null]}', "null"))
  end)

  it("prints each result as JSON, with all its digits and bytes", function()
    local lines = { "null", "9007199254740992", '"36028797018963968"',
                    "[1,null,3]", '"nan"', '{"$base64":"G1sySv8="}',
                    '"\\u001b\\u009b"', "0.1" }
    local text = output("call", "worker:0", "calc.many"):gsub('"%-nan"',
                                                              '"nan"')
    assert.equal(table.concat(lines, "\n") .. "\n", text)
    assert.equal("[" .. table.concat(lines, ",") .. "]\n",
      (output("call", "worker:0", "calc.many", "--json"):gsub('"%-nan"',
                                                             '"nan"')))
  end)

  it("tells tables that JSON has not, and 64-bit integers", function()
    assert.equal('[{"$entries":[[{"$base64":"/w=="},1]]},'
      .. '{"$entries":[["1","s"],[1,"n"]]},{"$entries":[["$base64","x"]]},'
      .. '{"1099511627776":{"1.5":"7"}}]\n',
      output("call", "worker:0", "calc.keys", "--json"))
    for _, each in ipairs { '{"$base64":"AP/+"}', '["\\u0000",{"a":1}]',
      '{"$entries":[["1",2],[1,{"$base64":"/w=="}]]}', "9007199254740994",
      '"18446744073709551617"' } do
      assert.equal(each .. "\n", output("call", "worker:0", "calc.same", each))
    end
  end)

  it("takes 64-bit integers and bytes, and changes none silently", function()
    for argument, told in pairs {
      ['{"$int64": "-9223372036854775808"}'] = '"-9223372036854775808LL"',
      ['{"$uint64": "18446744073709551615"}'] = '"18446744073709551615ULL"',
      ['"9007199254740993"'] = '"9007199254740993"',
    } do
      local text = output("call", "worker:0", "calc.kind", argument)
      assert.equal(told .. "\n", text:match "\n(.*)$", argument)
    end
    assert.equal("\255\0", output("call", "worker:0", "calc.echo",
                                  '{"$base64":"/wA="}'))
    for argument, why in pairs {
      ["9007199254740993"] = '9007199254740993 would be changed: write '
        .. '{"$int64": "9007199254740993"}',
      ['{"a": [-9007199254740993]}'] = "-9007199254740993 would be changed",
      ["9223372036854775809"] = 'write {"$uint64": "9223372036854775809"}',
      ["18446744073709551617"] = 'write "18446744073709551617", as a string',
      ["-9223372036854775809"] = 'write "-9223372036854775809", as a string',
      ['{"$int64": "9223372036854775808"}'] = "$int64 has to be an integer",
      ['{"$uint64": "-1"}'] = "$uint64 has to be an integer",
      ['{"$base64": "/w"}'] = "$base64 has to be a string of base64",
      ['{"$entries": [1]}'] = "$entries has to be a list of pairs",
    } do
      assert.matches(why, refused(2, "call", "worker:0", "calc.same", argument),
                     1, true)
    end
  end)

  it("tells failures as JSON, a handler's with its traceback", function()
    local err = failed("worker:0", "calc.fail", '"no luck"', "--json")
    assert.equal("remote", err.kind)
    assert.equal("calling calc.fail of worker:0: no luck", err.message)
    assert.is_true(err.sent)
    assert.matches("worker%.lua:8: in function", err.traceback)
    err = failed("worker:0", "calc.with", "--json")
    assert.equal("no_method", err.kind)
    assert.is_false(err.sent)
    assert.is_nil(err.traceback)
    assert.equal("not_found", failed("nobody", "calc.add", "--json").kind)
    assert.equal("peer_lost", failed("nobody", "calc.add", "--json",
      "--registry", "redis+unix:" .. command.folder() .. "/none.sock").kind)
  end)

  it("shows a handler's traceback", function()
    assert.matches("^perigee call: calling calc%.fail of worker:0: no luck\n"
      .. "The handler's traceback:\n.*worker%.lua:8: in function",
      ended(1, "call", "worker:0", "calc.fail", '"no luck"'))
  end)

  it("speaks of a secret where a secret is the cause", function()
    local status, _, why = command.shell("printf 1 | perigee call worker:0 "
      .. "store.closed - --stdin")
    assert.equal(1, status)
    assert.matches("the secret is out\n$", why)
    local guarded = command.start("serve", "--listen", "tcp://127.0.0.1:0",
      command.file("guarded.lua",
        "return { name = 'guarded', secret = ('its own '):rep(8) }"))
    local address = guarded:read():match "tcp://%S+:%d+"
    local ping = " perigee ping -c 1 " .. address
    status, _, why = command.shell(ping)
    assert.equal(1, status)
    assert.matches("who listens has a secret and who dials has none: give it "
      .. "the same one, by option secret or the environment's PERIGEE_SECRET"
      .. "\n$", why)
    status, _, why = command.shell("PERIGEE_SECRET=" .. ("another-"):rep(8)
      .. ping)
    assert.equal(1, status)
    assert.matches("; both sides need the same PERIGEE_SECRET and "
      .. "PERIGEE_SCOPE\n$", why)
    guarded:kill()
  end)

  it("gives and takes bytes", function()
    assert.equal("a b", output("call", "worker:0", "calc.echo", '"a b"'))
    assert.equal('["a b"]\n', output("call", "worker:0", "calc.echo", '"a b"',
                                     "--json"))
    local bytes = ("\0\1\254\255\n"):rep(30000)
    local from, to = command.file("from", bytes), command.folder() .. "/to"
    local status, text = command.shell(("perigee call worker:0 calc.echo "
      .. "--stdin --into %s <%s"):format(to, from))
    assert.equal(0, status)
    assert.same({ into = to, length = #bytes }, cjson.decode(text))
    assert.equal(bytes, command.content(to))
    status, text = command.shell("perigee call worker:0 calc.copy --stdin "
      .. "--capacity 256K <" .. from)
    assert.equal(0, status)
    assert.is_true(text == bytes)
  end)

  it("sends and receives slices", function()
    local status, text = command.shell("printf 12345 | perigee call worker:0 "
      .. "store.put - '\"k\"' --stdin")
    assert.equal(0, status)
    assert.equal('5\n"k"\n', text)
    assert.equal("12345", output("call", "worker:0", "store.get", '"k"'))
    assert.equal("12345", output("call", "worker:0", "store.get", '"k"',
                                 "--capacity", "1K"))
    assert.equal('[{"length":5}]\n',
                 output("call", "worker:0", "store.get", '"k"', "--json"))
  end)

  it("says in a sentence what the world did", function()
    assert.matches("connecting to nobody: no agent of that name is in scope "
      .. "cli %(asked: /.-/perigee/cli%); perigee agents lists",
      refused(1, "call", "nobody", "calc.add"))
    assert.matches("there is no service clac here; there is calc and store",
      refused(1, "call", "worker:0", "clac.add"), 1, true)
    assert.matches("calling calc.with of worker:0: calc has no such method; "
      .. "it has add, copy, count",
      refused(1, "call", "worker:0", "calc.with"), 1, true)
    assert.matches("; --timeout gives it more time",
      refused(1, "call", "worker:0", "calc.slow", "60", "--timeout", "50ms"),
      1, true)
    assert.matches("writing the reply: /nowhere/x: No such file",
      refused(1, "call", "worker:0", "calc.echo", "--into", "/nowhere/x"), 1,
      true)
    assert.equal("perigee call: store.get has no bytes among its results, "
      .. 'which --into needs: they are null, "none"\n',
      refused(1, "call", "worker:0", "store.get", '"zz"', "--into", "/x"))
  end)

  it("refuses what cannot be meant", function()
    for _, case in ipairs {
      { "argument 1, foo, is no JSON", "worker:0", "calc.add", "foo" },
      { "add is no method: write SERVICE.METHOD", "worker:0", "add" },
      { '"tcp://127.0.0.1" has no port', "tcp://127.0.0.1", "calc.add" },
      { "the socket path is empty", "unix:@", "calc.add" },
      { '"-3" is no time', "worker:0", "calc.add", "--timeout", "-3" },
      { "is no agent's name", "a/b", "calc.add" },
      { ("a"):rep(100) .. '..." is no agent', ("a"):rep(9999), "calc.add" },
      { ("["):rep(100) .. "..., is no JSON", "worker:0", "calc.add",
        ("["):rep(9999) },
      { "calc.echo takes bytes", "worker:0", "calc.echo", "7" },
      { "the argument - stands for stdin", "worker:0", "calc.add", "-" },
      { 'perigee call: --timeout: "soon" is no time', "worker:0", "calc.add",
        "--timeout", "soon" },
      { '"1.5" is no size', "worker:0", "calc.add", "--capacity", "1.5" },
      { "--scope must be", "worker:0", "calc.add", "--scope", "a*" },
      { "--registry must be", "worker:0", "calc.add", "--registry", "ftp:x" },
      { "unknown option '--quick'", "worker:0", "calc.add", "--quick" },
    } do
      assert.matches(case[1], refused(2, "call", select(2, unpack(case))), 1,
                     true)
    end
  end)

  it("writes no control characters to the terminal", function()
    local errors = ended(1, "call", "worker:0", "calc.fail", '"\\u001b[2J"')
    assert.matches("\\x1b[2J", errors, 1, true)
    assert.is_nil(errors:find "\27")
    assert.is_nil(refused(2, "call", "\27[2J", "x.y"):find "\27")
  end)
end)

describe("what perigee lists", function()
  it("is agents, services and regions", function()
    local text = output "agents"
    assert.matches("^NAME +KIND +STATE +HOST +PID +SINCE +SERVICES +ADDRESSES",
                   text)
    assert.matches("\nworker:0 +agent +up .- calc,store +unix:/", text)
    assert.matches("\ncalc +3 +worker:0 +up\nstore +1 +worker:0 +up\n$",
                   (output "services"))
    assert.matches("\nkv +1 MiB +rw +worker:0\n$", (output "regions"))
  end)

  it("is JSON, too", function()
    local agents = document("agents", "--json")
    assert.equal("worker:0", agents[1].name)
    assert.same({ calc = 3, store = 1 }, agents[1].services)
    assert.same({ { agent = "worker:0", service = "calc", state = "up",
                    version = 3 },
                  { agent = "worker:0", service = "store", state = "up",
                    version = 1 } }, document("services", "--json"))
    assert.same({ { agent = "worker:0", region = "kv", length = 2 ^ 20,
                    access = "rw" } }, document("regions", "--json"))
    assert.equal("[]\n", (output("agents", "--json", "--prefix", "zz")))
  end)

  it("can be chosen from", function()
    assert.equal(1, #document("agents", "--json", "--service", "calc"))
    assert.equal(0, #document("agents", "--json", "--kind", "cache"))
    assert.equal(0, #document("agents", "--json", "--after", "worker:0"))
    local text, errors = output("agents", "--scope", "empty")
    assert.equal("", text)
    assert.equal("perigee agents: there is no agent in scope empty\n", errors)
    for command_name, what in pairs {
      agents = "agent in scope cli that matches",
      services = "service in scope cli of an agent that matches",
      regions = "region with a name in scope cli of an agent that matches",
    } do
      text, errors = output(command_name, "--prefix", "zz", "--kind", "k")
      assert.equal("", text)
      assert.equal(("perigee %s: there is no %s --kind k --prefix zz\n"):format(
        command_name, what), errors)
    end
  end)

  it("is said to leave out agents with generated names", function()
    assert.equal(1, #document("agents", "--json"))
    assert.is_true(#document("agents", "--json", "--prefix", "anonymous-") > 0)
    for _, name in ipairs { "agents", "services", "regions", "watch" } do
      assert.matches("Without it, generated names, anonymous-..., are left out",
                     (output(name, "--help"):gsub("%s+", " ")), 1, true)
    end
  end)

  it("is told of one agent, with methods and limits", function()
    local text = output("describe", "worker:0")
    assert.matches("service calc, version 3\n    add +typed\n    copy +inplace,"
      .. " a reply of at least 5 B offered\n", text)
    assert.matches("echo +raw, idempotent\n", text)
    assert.matches("put +typed, its slice lands where it says\n", text)
    assert.matches("region kv +1 MiB, access rw\n", text)
    assert.is_nil(text:find "\27")
    local told = document("describe", "worker:0", "--json")
    assert.equal("inplace", told.services.calc.methods.copy.kind)
    assert.equal(5, told.services.calc.methods.copy.capacity)
    assert.is_true(told.limits.message > 2 ^ 20)
    refused(1, "describe", "nobody")
    refused(2, "describe", "tcp://127.0.0.1:1")
  end)

  it("is told of one agent as the registry knows it", function()
    worker:signal "STOP"                -- it is not asked
    local text = output("lookup", "worker:0")
    local told = document("lookup", "worker:0", "--json")
    local line = output("lookup", "worker:0", "--entry")
    worker:signal "CONT"
    assert.matches("^worker:0, an agent, up\n  process %d+ on %S+, for %d+ s\n"
      .. "  at unix:/%S+\n  service calc, version 3\n  service store, version 1"
      .. "\n  region kv +1 MiB, access rw\n  metadata [^\n]*\n$", text)
    assert.is_nil(text:find "\27")
    assert.same({ calc = 3, store = 1 }, told.services)
    assert.same({ "worker:0", "cli", "up" },
                { told.name, told.scope, told.state })
    assert.matches("^perigee%-entry%-1:[%w+/]+=*\n$", line)
    assert.matches("no agent of that name is in scope cli",
                   refused(1, "lookup", "nobody", "--entry"))
    assert.matches("give the agent's name", refused(2, "lookup",
                                                    "tcp://127.0.0.1:1"))
    assert.matches("give one", refused(2, "lookup", "worker:0", "--entry",
                                       "--json"))
  end)

  it("is told of a session", function()
    assert.matches("^session %d+ with worker:0 .- carried by shm",
                   (output("explain", "worker:0")))
    local told = document("explain", "worker:0", "--json")
    assert.equal("shm", told.transport)
    assert.is_true(told.same_host)
    assert.matches("is the agent up, and this its address",
                   refused(1, "explain", "tcp://127.0.0.1:1"))
  end)

  it("is told of the registry", function()
    assert.matches("^folder:/.- answers in .-: 1 agent in scope cli\n$",
                   (output("registry", "status")))
    assert.equal(1, document("registry", "status", "--json").agents)
    local gone = "redis+unix:" .. command.folder() .. "/none.sock"
    for doing, words in pairs {
      ["registry status: asking the registry: "] = { "registry", "status" },
      ["call: looking up worker:0: "] = { "call", "worker:0", "calc.add" },
      ["watch: asking the registry: "] = { "watch" },
    } do
      words[#words + 1], words[#words + 2] = "--registry", gone
      assert.matches(("^perigee %sRedis at [^:]*: .*; is the registry up")
        :format(doing), refused(1, unpack(words)))
    end
  end)

  it("is told of devices", function()
    local status, text = command.run("devices", "--json")
    assert.equal(0, status)
    assert.equal("table", type(cjson.decode(text)))
  end)
end)

describe("perigee ping", function()
  it("ends with a histogram", function()
    local text = output("ping", "worker:0", "-c", "20", "-i", "0")
    assert.matches("^worker:0: 20 sent, 20 answered, 0 lost\n", text)
    local sum = 0
    for count in text:gmatch "up to +%S+ +%l+ +(%d+)  #" do
      sum = sum + tonumber(count)
    end
    assert.equal(20, sum)
    assert.matches("\nmin .-, mean .-, p50 .-, p99 .-, max [^\n]+\n$", text)
  end)

  it("is JSON, too", function()
    local told = document("ping", "worker:0", "-c", "5", "-i", "1ms", "--json")
    assert.equal(5, told.answered)
    assert.is_true(told.min <= told.p50 and told.p50 <= told.p99
                   and told.p99 <= told.max)
  end)

  it("fails where nobody answers", function()
    local status, text, errors = command.run("ping", "nobody", "-c", "2")
    assert.equal(1, status)
    assert.equal("nobody: 2 sent, 0 answered, 2 lost\n", text)
    assert.matches("2 of 2 pings of nobody had no answer: ", errors)
  end)

  it("tells what there is at Ctrl-C", function()
    local pinging = command.start("ping", "worker:0", "-c", "1000000", "-i",
                                  "1ms")
    assert.is_true(command.eventually(function()
      return command.is_running(pinging)
    end))
    pinging:signal "INT"
    assert.matches("^worker:0: %d+ sent", pinging:read())
    assert.equal("exit", (pinging:wait()))
  end)
end)

describe("perigee watch", function()
  it("prints who comes and goes, until Ctrl-C", function()
    local watching = command.start("watch", "--prefix", "guest")
    local told = command.start("watch", "--json", "--prefix", "guest")
    local guest = command.start("serve", "--name", "guest:1",
      command.file("guest.lua", "return { name = 'g', methods = {} }"))
    assert.matches("^up       guest:1  ", watching:read())
    assert.equal("guest:1", cjson.decode(told:read()).entry.name)
    guest:signal "TERM"
    local line
    repeat line = watching:read() until not line or not line:find "^changed"
    assert.matches("^down     guest:1  ", line)
    watching:signal "INT"
    assert.same({ "exit", 0 }, { watching:wait() })
    assert.is_nil((watching:read()))
  end)

  it("ends after --timeout", function()
    local text = output("watch", "--timeout", "100ms")
    assert.matches("^up       worker:0  %S+ pid %d+  up\n", text)
  end)
end)

describe("a call that a signal ends", function()
  for name, number in pairs { INT = 130, TERM = 143 } do
    it(("has the status %d of SIG%s"):format(number, name), function()
      local calling = command.start("call", "worker:0", "calc.slow", "60")
      assert.is_true(command.eventually(function()
        return command.is_running(calling)
      end))
      calling:signal(name)
      assert.same({ "exit", number }, { calling:wait() })
    end)
  end
end)

describe("outputs that end", function()
  it("end the command without a word", function()
    local _, text, errors = command.shell(
      "perigee describe worker:0 | head -c 0; perigee watch | head -1; "
      .. "echo ${PIPESTATUS[0]}")
    assert.matches("^up       worker:0 [^\n]*\n141\n$", text)
    assert.equal("", errors)
  end)

  for path, words in pairs {
    ["perigee agents"] = "agents", ["perigee doctor"] = "doctor --json",
    ["perigee"] = "--version", ["perigee run"] = "run echo x",
  } do
    it(("are an error of perigee %s where they are full"):format(words),
       function()
         local status, _, errors = command.shell(("perigee %s >/dev/full")
           :format(words))
         assert.equal(1, status)
         assert.equal(path .. ": writing the output: No space left on "
           .. "device\n", errors)
       end)
  end

  it("are an error of --help where they are full", function()
    for _, words in ipairs { "", "cache put" } do
      local status, _, errors = command.shell(("perigee %s --help >/dev/full")
        :format(words))
      assert.equal(1, status)
      assert.matches("writing the output: No space left on device\n$", errors)
    end
  end)
end)
