-- SPDX-License-Identifier: Apache-2.0
-- The words that a service manager hears at its socket
-- (perigee.runtime.notify).
local cases = require "spec.support.cases"
local ffi = require "ffi"
local manager = require "spec.support.manager"
local process = require "spec.support.process"

local hear = manager.hear

local function serving(child, perigee)
  local notify = require "perigee.runtime.notify"
  local agent = assert(child.cases.agent())
  assert(notify.ready())
  child.say "ready"
  child.attend()
  perigee.sleep(0)
  assert(notify.stopping())
  child.say "stopping"
  child.attend()
  agent:close()
end

describe("a service manager", function()
  local fd

  before_each(function()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  end)
  after_each(function()
    if fd then manager.close(fd) end
    fd = nil
    for _, name in ipairs { "NOTIFY_SOCKET", "WATCHDOG_USEC",
                            "WATCHDOG_PID" } do
      ffi.C.unsetenv(name)
    end
    cases.cleanup()
  end)

  local function set(name, value) ffi.C.spec_setenv(name, value, 1) end

  local function start()
    return process.start(serving):expect("ready", 30 * cases.slow)
  end

  it("hears that a process is ready, and that it ends", function()
    local path = cases.folder .. "/notify"
    fd = manager.open(path)
    set("NOTIFY_SOCKET", path)
    local child = start()
    assert.equal("READY=1", hear(fd))
    child:tell "end"
    child:expect("stopping", 30 * cases.slow)
    assert.equal("STOPPING=1", hear(fd))
  end)

  it("with a watchdog hears again and again that the loop turns", function()
    local name = "perigee-spec-" .. process.pid()
    fd = manager.open("\0" .. name)
    set("NOTIFY_SOCKET", "@" .. name)
    set("WATCHDOG_USEC", "100000")
    start()
    assert.equal("READY=1", hear(fd))
    for _ = 1, 3 do assert.equal("WATCHDOG=1", hear(fd)) end
  end)

  it("that waits for another process hears of no watchdog", function()
    local path = cases.folder .. "/notify"
    fd = manager.open(path)
    set("NOTIFY_SOCKET", path)
    set("WATCHDOG_USEC", "1000")
    set("WATCHDOG_PID", "1")
    local child = start()
    assert.equal("READY=1", hear(fd))
    child:tell "end"
    assert.equal("STOPPING=1", hear(fd))
  end)

  it("is not needed, and may have gone", function()
    local notify = require "perigee.runtime.notify"
    assert.is_false(notify.ready())
    set("NOTIFY_SOCKET", "relative")
    assert.is_false(notify.ready())
    set("NOTIFY_SOCKET", cases.folder .. "/nobody")
    local none, err = notify.ready()
    assert.is_nil(none)
    assert.equal("unsupported", err.kind)
    assert.matches("nobody", err.message)
  end)
end)
