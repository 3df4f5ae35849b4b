-- SPDX-License-Identifier: Apache-2.0
-- What spec/support/run makes of programs that fail, die and hang: here they
-- are shell scripts in the place of two C tests.

describe("the runner of suites", function()
  local folder

  before_each(function()
    local pipe = io.popen "mktemp -d /tmp/perigee-suites.XXXXXX"
    folder = pipe:read "*l"
    pipe:close()
    os.execute(("mkdir -p '%s/build/debug/spec/native'"):format(folder))
  end)
  after_each(function()
    os.execute(("rm -rf '%s'"):format(folder))
  end)

  local function program(name, text)
    local path = folder .. "/build/debug/spec/native/" .. name
    local file = assert(io.open(path, "w"))
    file:write("#!/bin/sh\ncd '", folder, "'\n", text, "\n")
    file:close()
    os.execute(("chmod 700 '%s'"):format(path))
  end

  -- Returns what it prints, and its status.
  local function run(words)
    local pipe = io.popen(("env -u ONLY -u LABEL -u V -u PERIGEE_RUNNING "
      .. "PERIGEE_BUILD='%s/build' TMPDIR='%s' JOBS=2 %s spec/support/run "
      .. "native 2>&1; echo status $?")
      :format(folder, folder, words or ""))
    local text = pipe:read "*a"
    pipe:close()
    return text
  end

  it("counts the tests of all programs, and leaves no file behind", function()
    program("blocks_test", "echo 1..2; echo ok 1 - a; echo 'not ok 2 - b'")
    program("copies_test", "echo 1..1; echo 'ok 1 - c # SKIP'")
    local text = run "AGAIN="
    assert.matches("failed: spec/native/blocks_test: b\n1 passed, 1 failed, "
      .. "1 skipped\nstatus 1\n$", text)
    local pipe = io.popen(("find '%s' -type f ! -name '*_test'"):format(folder))
    assert.equal("", pipe:read "*a")
    pipe:close()
  end)

  it("runs what has failed once more, and while no other runs", function()
    program("blocks_test", [[
      echo 1..1
      if [ -e again ]; then test ! -e busy && echo ok 1 - a; exit; fi
      touch again
      until [ -e busy ]; do sleep 0.01; done
      touch seen
      echo not ok 1 - a; exit 1]])
    program("copies_test", [[
      touch busy
      until [ -e seen ]; do sleep 0.01; done
      sleep 0.3; rm busy
      echo 1..1; echo ok 1 - b]])
    local text = run "AGAIN=1"
    assert.matches("once more: spec/native/blocks_test: a\n2 passed, 0 failed, "
      .. "0 skipped\nstatus 0\n$", text)
  end)

  it("counts who died as a failure, and does not try again", function()
    program("blocks_test", "echo 1..2; echo ok 1 - a; kill -SEGV $$")
    local text = run "AGAIN=1"
    assert.matches("failed: spec/native/blocks_test: died with status 139",
                   text, 1, true)
    assert.is_nil(text:find("once more", 1, true))
    assert.matches("\n1 passed, 1 failed, 0 skipped\nstatus 1\n$", text)
  end)

  it("ends who hangs, and does not try again", function()
    program("blocks_test", "echo 1..1; exec sleep 3600")
    local text = run "AGAIN=1 LIMIT=1"
    assert.matches("failed: spec/native/blocks_test: hung for 1 s", text, 1,
                   true)
    assert.is_nil(text:find("once more", 1, true))
    assert.matches("\n0 passed, 1 failed, 0 skipped\nstatus 1\n$", text)
  end)
end)
