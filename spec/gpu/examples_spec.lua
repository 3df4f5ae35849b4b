-- SPDX-License-Identifier: Apache-2.0
-- The examples with GPU memory, by the driver that PERIGEE_CUDA_LIBRARY names
-- (the fake one of this folder, or the machine's).
local cases = require "spec.support.cases"
local examples = require "spec.support.examples"
local perigee = require "perigee"

local NO_DEVICE = 77
local SMALL = "--block 1K --blocks 32"

local RUNS = {
  { "gpu_write" }, { "gpu_write", "--peer-kind host" },
  { "gpu_call" }, { "gpu_call", "--kind host --peer-kind cuda:0" },
  { "gpu_send_recv" }, { "gpu_send_recv", "--peer-kind host" },
  { "gpu_pages", "--block 1K" }, { "gpu_pages", "--peer-kind host " .. SMALL },
}

local NAMES = { "gpu_write", "gpu_call", "gpu_send_recv", "gpu_pages" }

describe("examples/", function()
  after_each(cases.cleanup)

  local function ran(...) return examples.ran(examples.anywhere(...)) end

  for _, run in ipairs(RUNS) do
    local name, words = run[1], run[2] or ""
    it(("%s.lua %s checks itself, or says that there is no GPU")
       :format(name, words), function()
      local lines, how, code, id = ran(name, words)
      assert.equal("exit", how)
      if code == NO_DEVICE then
        assert.equal(1, #lines)
        assert.is_nil((perigee.engine {}:alloc(1, { kind = "cuda:0" })))
        return pending(lines[1])
      end
      assert.equal(0, code, table.concat(lines, "\n"))
      assert.equal("ok", lines[#lines])
      assert.is_true(#lines >= 2)
      assert.equal(0, examples.followers(id))
      assert.equal("", examples.left())
    end)
  end

  for _, name in ipairs(NAMES) do
    it(name .. ".lua says why there is no such GPU, and ends in 77", function()
      local lines, how, code = ran(name, "--kind cuda:99")
      assert.same({ "exit", NO_DEVICE }, { how, code })
      assert.equal(1, #lines)
      assert.matches("CUDA", lines[1])
      assert.equal("", examples.left())
    end)

    it(name .. ".lua tells its options", function()
      local lines, how, code = ran(name, "--help")
      assert.same({ "exit", 0 }, { how, code })
      assert.matches("%-%-kind KIND .*cuda:0", table.concat(lines, "\n"))
      local _, _, wrong = ran(name, "--kinds cuda:0 2>/dev/null")
      assert.equal(1, wrong)
    end)
  end
end)
