-- SPDX-License-Identifier: Apache-2.0
-- Every example runs by itself, from any folder, and leaves nothing running.
local cases = require "spec.support.cases"
local examples = require "spec.support.examples"
local perigee = require "perigee"
local process = require "spec.support.process"

local NAMES = { "read", "write", "write_imm", "send_recv", "strided",
                "prepared", "bulk_landing", "inplace",
                "services_calling_services", "fan_in", "sweep", "call",
                "cache", "prefill_decode", "cache_cluster" }

local RDMA = { "rdma_read", "rdma_write", "rdma_write_imm", "rdma_send_recv" }
local NO_DEVICE = 77
local anywhere, left, ran = examples.anywhere, examples.left, examples.ran

describe("examples/", function()
  after_each(cases.cleanup)

  for _, name in ipairs(NAMES) do
    it(name .. ".lua checks itself", function()
      local lines, how, code, id = ran(anywhere(name))
      assert.same({ "exit", 0 }, { how, code }, table.concat(lines, "\n"))
      assert.equal("ok", lines[#lines])
      assert.is_true(#lines >= 2)
      assert.equal(0, examples.followers(id))
      assert.equal("", left())
    end)
  end

  it("sweep.lua measures the sizes that it is told, and writes a file",
     function()
    local file = os.tmpname()
    local lines, how, code = ran(anywhere("sweep", "128,2K 50ms " .. file))
    assert.same({ "exit", 0 }, { how, code }, table.concat(lines, "\n"))
    local rows = {}
    for line in io.lines(file) do rows[#rows + 1] = line end
    os.remove(file)
    assert.equal(5, #rows)              -- a head, and two methods by two sizes
  end)

  for _, name in ipairs(RDMA) do
    it(name .. ".lua checks itself, or says that there is no device", function()
      local lines, how, code = ran(anywhere(name))
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
