-- SPDX-License-Identifier: Apache-2.0
-- `perigee run`: ranks that begin and end together.
local command = require "spec.support.command"

after_each(command.clean)

local function run(text, ...)
  return command.run("run", "-n", "3", command.file("rank.lua", text), ...)
end

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
  table.sort(list)
  return list
end

-- Reads lines of a started command until count of them match pattern; returns
-- the number that each has there.
local function heard(started, count, pattern)
  local found = {}
  for _ = 1, count do
    local line
    repeat line = assert(started:read()) until line:find(pattern)
    found[#found + 1] = tonumber(line:match(pattern))
  end
  return found
end

local function all_gone(pids)
  return command.eventually(function()
    for _, pid in ipairs(pids) do
      if not command.is_gone(pid) then return false end
    end
    return true
  end)
end

describe("perigee run", function()
  it("tells each process its rank, and prints it before each line", function()
    local status, text, errors = run([[
      local me = assert(require "perigee".launch())
      io.stdout:write(("%d of %d, %d of %d on this host: %s\nin "):format(
        me.rank, me.size, me.local_rank, me.local_size, ...))
      io.stdout:flush()
      io.stdout:write "one line\nlast"
      io.stderr:write "an error\n"
    ]], "-x", "--", "y")
    assert.equal(0, status)
    assert.same({ "[0] 0 of 3, 0 of 3 on this host: -x", "[0] in one line",
                  "[0] last", "[1] 1 of 3, 1 of 3 on this host: -x",
                  "[1] in one line", "[1] last",
                  "[2] 2 of 3, 2 of 3 on this host: -x", "[2] in one line",
                  "[2] last" }, lines(text))
    assert.same({ "[0] an error", "[1] an error", "[2] an error" },
                lines(errors))
  end)

  it("gives all the same job, scope and registry", function()
    local status, text = command.run("run", "-n2", "--scope", "mine",
      "--registry", "folder:/tmp/names", "sh", "-c",
      "echo $PERIGEE_JOB $PERIGEE_SCOPE $PERIGEE_REGISTRY")
    assert.equal(0, status)
    local job = text:match "%[0%] (run%S+) mine folder:/tmp/names\n"
    assert.matches("[1] " .. job .. " mine", text, 1, true)
  end)

  it("prints lines when they are written", function()
    local started = command.start("run", command.file("rank.lua", [[
      print "first"
      require "perigee".sleep(3600)
    ]]))
    started:expect "[0] first"
  end)

  it("ends all with the first failure, and as that", function()
    local status, _, errors = run([[
      if os.getenv "PERIGEE_RANK" == "1" then os.exit(7) end
      require "perigee".sleep(3600)
    ]])
    assert.equal(7, status)
    assert.matches("^perigee run: rank 1 %(process %d+%) ended with 7; the "
      .. "others are ended\n$", errors)
    status, _, errors = command.run("run", "-n", "2", "sh", "-c",
      "test $PERIGEE_RANK = 0 || kill -KILL $$; sleep 3600")
    assert.equal(137, status)
    assert.matches("rank 1 .- was killed by SIGKILL", errors)
  end)

  it("kills what does not end", function()
    local status = command.run("run", "-n", "2", "--grace", "100ms", "sh", "-c",
      "test $PERIGEE_RANK = 0 && exit 3; trap '' TERM; sleep 3600; sleep 3600")
    assert.equal(3, status)
  end)

  it("ends with 127 where the program is not there", function()
    local status, _, errors = command.run("run", "no-such-program")
    assert.equal(127, status)
    assert.matches("[0] cannot run no-such-program: No such file", errors, 1,
                   true)
    assert.equal(2, (command.run("run", "/nowhere.lua")))
    assert.equal(2, (command.run("run", "-n", "0", "true")))
    assert.equal(2, (command.run("run")))
  end)

  it("hands signals on", function()
    local started = command.start("run", "-n", "2", "sh", "-c",
      "trap 'echo usr; exit 5' USR1; trap 'echo term; exit 4' TERM; "
      .. "echo up $$; while :; do sleep 0.05; done")
    heard(started, 2, "up (%d+)$")
    started:signal "TERM"
    heard(started, 2, "^%[(%d)%] term$")
    assert.same({ "exit", 4 }, { started:wait() })
  end)

  it("takes signals as they come to a program that serves", function()
    local started = command.start("run", "-n", "2",
      command.file("rank.lua", [[
        local perigee = require "perigee"
        perigee.spawn(print, "up")
        assert(perigee.serve {
          name = "rank:" .. perigee.launch().rank, services = {} })
      ]]))
    for _ = 1, 2 do assert.matches("up$", started:read()) end
    started:signal "INT"
    assert.same({ "exit", 0 }, { started:wait() })
  end)

  it("leaves no process behind, not even of a rank's children", function()
    for _, name in ipairs { "TERM", "KILL" } do
      local started = command.start("run", "-n", "2", "sh", "-c",
        "sleep 3600 & echo child $!; echo self $$; wait")
      local pids = heard(started, 4, " (%d+)$")
      started:signal(name)
      assert.is_string((started:wait()))
      assert.is_true(all_gone(pids), name)
    end
  end)

  it("ends what a rank that is done has left", function()
    local _, text = command.run("run", "sh", "-c",
      "sleep 3600 >/dev/null 2>&1 & echo child $!")
    assert.is_true(all_gone { tonumber(text:match "child (%d+)") })
  end)

  it("ends when nobody reads its output", function()
    local _, text, errors = command.shell
      "perigee run -n 2 yes | head -1; echo ${PIPESTATUS[0]}"
    assert.matches("^%[[01]%] y\n141\n$", text)
    assert.equal("", errors)
  end)
end)
