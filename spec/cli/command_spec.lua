-- SPDX-License-Identifier: Apache-2.0
-- The perigee command, run in a process of its own.
local cjson = require "cjson"

-- Status and output (both streams) of a command, run in a folder outside of the
-- checkout if asked.
local function run(arguments, before)
  local here = io.popen "pwd":read "*l"
  local pipe = io.popen(("%s '%s/lua/perigee/cli/perigee' %s 2>&1; echo $?")
    :format(before or "", here, arguments))
  local text = pipe:read "*a"
  pipe:close()
  local output, status = text:match "^(.-)(%d+)\n$"
  return tonumber(status), output
end

local function document(arguments)
  local status, output = run("doctor --json " .. arguments)
  local found = cjson.decode(output)
  assert.equal((found.status == "ok" or found.status == "note") and 0 or 1,
               status)
  return found
end

describe("the command perigee", function()
  it("tells its version, from any folder", function()
    local status, output = run("--version", "cd / &&")
    assert.equal(0, status)
    assert.matches("^perigee %S+ %(ABI %d+, LuaJIT 2", output)
  end)

  it("has the version that the change log begins with", function()
    local _, output = run "--version"
    local changes = assert(io.open "CHANGELOG.md")
    local newest = changes:read "*a":match "\n## (%S+)"
    changes:close()
    assert.equal(newest, output:match "^perigee (%S+)")
    assert.equal(newest, require "perigee".version)
  end)

  it("says what it can do", function()
    local status, output = run "--help"
    assert.equal(0, status)
    assert.matches("doctor%s+Check what usually goes wrong", output)
    status, output = run "doctor --help"
    assert.equal(0, status)
    assert.matches("%-%-listen ADDRESS", output)
    for line in output:gmatch "[^\n]+" do assert.is_true(#line <= 80, line) end
  end)

  -- The commands of a table of help, as "registry acl".
  local function commands(before, list)
    local _, help = run(before .. "--help")
    for name in (help:match "\nCommands:\n(.*)" or ""):gmatch
        "%f[^\n%z]   (%l+) " do
      list[#list + 1] = before .. name
      commands(before .. name .. " ", list)
    end
    return list
  end

  it("has help for each command, and each in the manual page", function()
    local file = assert(io.open "lua/perigee/cli/perigee.1")
    local page = file:read "*a"
    file:close()
    local list = commands("", {})
    assert.is_true(#list > 10)
    for _, name in ipairs(list) do
      local status, help = run(name .. " --help")
      assert.equal(0, status, name)
      for line in help:gmatch "[^\n]+" do
        assert.is_true(#line <= 80, line)
      end
      for word in name:gmatch "%l+" do
        assert.matches("%.It Cm [^\n]*" .. word, page)
      end
      for option in help:gmatch "\n +%-%-(%l+)" do
        assert.is_true(option == "help"
          or page:find("Fl Fl " .. option, 1, true) ~= nil, option)
      end
    end
  end)

  it("completes commands and options in bash", function()
    local function completed(...)
      local pipe = io.popen(([[bash -c 'eval "$(lua/perigee/cli/perigee
        completion bash)"; COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]}-1))
        _perigee 2>/dev/null; echo "${COMPREPLY[*]}"']]):gsub("perigee\n +",
        "perigee "):format(table.concat({ ... }, " ")))
      local line = pipe:read "*l"
      pipe:close()
      return line
    end
    assert.equal("describe devices", (completed("perigee", "de")))
    assert.equal("acl", (completed("perigee", "registry", "ac")))
    assert.equal("--count", (completed("perigee", "ping", "--co")))
    for _, shell in ipairs { "zsh", "fish" } do
      local status, text = run("completion " .. shell)
      assert.equal(0, status)
      assert.matches("describe", text)
    end
  end)

  it("ends with 2 where it was not asked well", function()
    for arguments, message in pairs {
      [""] = "a command is required", nurse = "unknown command 'nurse'",
      ["doctor --jsn"] = "unknown option '%-%-jsn'",
      ["doctor --listen here"] = "%-%-listen: 'here' is no address",
    } do
      local status, output = run(arguments)
      assert.equal(2, status, arguments)
      local command = arguments:find "^doctor" and "perigee doctor" or "perigee"
      assert.matches("^" .. command .. ": " .. message .. ".-; " .. command
                     .. " %-%-help tells", output)
    end
  end)

  it("says in one sentence what it lacks", function()
    local status, output = run("doctor", "cd / && LUA_INIT="
      .. "'package.preload.argparse = function() error() end'")
    assert.equal(2, status)
    assert.matches("^perigee: the command line needs lua%-argparse: [^\n]*\n$",
                   output)
    status, output = run("doctor --json", "cd / && LUA_INIT="
      .. "'package.preload.cjson = function() error() end'")
    assert.equal(2, status)
    assert.matches("%-%-json needs lua%-cjson: [^\n]*\n$", output)
  end)
end)

describe("perigee doctor", function()
  it("prints one document", function()
    local found = document ""
    local counts = { ok = 0, note = 0, warning = 0, problem = 0 }
    for _, check in ipairs(found.checks) do
      counts[check.status] = counts[check.status] + 1
      for _, field in ipairs { "group", "name", "found", "why" } do
        assert.equal("string", type(check[field]), field)
      end
    end
    assert.same(counts, found.counts)
    assert.is_true(#found.checks > 30)
  end)

  it("finds nothing wrong with what these specs run on", function()
    for _, check in ipairs(document("").checks) do
      if check.group == "program" and check.name ~= "LuaJIT" then
        assert.equal("ok", check.status, check.found)
      end
      assert.is_nil(check.found:find "this check failed", check.found)
    end
  end)

  it("looks at addresses", function()
    local found = {}
    for _, check in ipairs(document("--listen tcp://127.0.0.1:0 "
      .. "--listen unix:/nowhere/at/all.sock").checks) do
      if check.name == "listening" then found[#found + 1] = check.status end
    end
    assert.same({ "ok", "problem" }, found)
  end)

  it("prints the same as text", function()
    local status, output = run "doctor"
    assert.is_true(status <= 1)
    assert.matches("^program\n  %l+ +LuaJIT  ", output)
    assert.matches("%d+ ok\n$", output)
    assert.is_nil(output:find "\27")
  end)

  it("takes a moment", function()
    local started = os.clock()
    local children = tonumber(io.popen(
      "bash -c 'TIMEFORMAT=%U; time lua/perigee/cli/perigee doctor >/dev/null'"
      .. " 2>&1"):read "*l")
    assert.is_true(children < 5 and os.clock() - started < 5)
  end)
end)
