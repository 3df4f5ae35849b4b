-- SPDX-License-Identifier: Apache-2.0
-- Every example runs by itself, from any folder, and leaves nothing running.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local NAMES = { "read", "write", "write_imm", "send_recv", "strided",
                "prepared", "bulk_landing", "inplace",
                "services_calling_services", "fan_in", "sweep", "call" }

local RDMA = { "rdma_read", "rdma_write", "rdma_write_imm", "rdma_send_recv" }
local NO_DEVICE = 77

local function anywhere(name)
  return { "sh", "-c", ([[top=$PWD; mkdir -p -m 700 %s; cd /; TMPDIR=%s \
    PERIGEE_SCOPE=%s exec luajit "$top/examples/%s.lua"]])
    :format(cases.folder, cases.folder, cases.scope, name) }
end

local function left()
  local pipe = io.popen(("find '%s' ! -type d"):format(cases.folder))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- The number of processes that were given this driver's id.
local function followers(id)
  local pipe = io.popen(("grep -laz '^%d$' /proc/[0-9]*/cmdline 2>/dev/null"
    .. " | wc -l"):format(id))
  local count = tonumber(pipe:read("*a"))
  pipe:close()
  return count
end

describe("examples/", function()
  after_each(cases.cleanup)

  -- The lines that it printed, and how it ended.
  local function ran(child)
    local lines = {}
    repeat
      local line = child:read(300)
      lines[#lines + 1] = line
    until not line
    local how, code = child:wait(10)
    return lines, how, code
  end

  for _, name in ipairs(NAMES) do
    it(name .. ".lua checks itself", function()
      local child = process.spawn(anywhere(name))
      local id = child.pid
      local lines, how, code = ran(child)
      assert.same({ "exit", 0 }, { how, code }, table.concat(lines, "\n"))
      assert.equal("ok", lines[#lines])
      assert.is_true(#lines >= 2)
      assert.equal(0, followers(id))
      assert.equal("", left())
    end)
  end

  for _, name in ipairs(RDMA) do
    it(name .. ".lua checks itself, or says that there is no device", function()
      local lines, how, code = ran(process.spawn(anywhere(name)))
      assert.equal("exit", how)
      if code == NO_DEVICE then
        assert.equal(1, #lines)
        assert.matches("RDMA", lines[1])
        assert.equal(0, #(perigee.devices { state = "active" } or {}))
        return pending(lines[1])
      else
        assert.equal(0, code, table.concat(lines, "\n"))
        assert.equal("ok", lines[#lines])
      end
      assert.equal("", left())
    end)
  end

  it("serve.lua serves until it is told to stop", function()
    local child = process.spawn(anywhere("serve"))
    assert.matches("serving", child:read())
    local agent = assert(cases.agent())
    local calc = assert(agent:proxy("worker:0", "calc", { timeout = 5 }))
    assert.equal(3, (calc:add(1, 2)))
    assert.equal("bytes", (calc:echo("bytes")))
    child:signal("TERM")
    child:expect("stopped")
    assert.same({ "exit", 0 }, { child:wait(5) })
  end)
end)
