-- SPDX-License-Identifier: Apache-2.0
-- The manual's examples are right: the example of each entry, and the code
-- between fences in the guide, print what they say they print.
local comments = require "spec.manual.comments"
local examples = require "spec.manual.examples"

local GUIDE = "lua/perigee/README.md"

local function check(code, name)
  local promised, said = examples.run(code, name)
  assert.equal(promised, said)
end

describe("the manual's examples", function()
  setup(examples.start)
  teardown(examples.stop)

  for _, entry in ipairs(examples.entries) do
    for _, code in ipairs(entry.name ~= "perigee"
      and comments.texts(entry, "usage") or {}) do
      it("are true of " .. entry.name, function()
        check(code, examples.where(entry))
      end)
    end
  end

  for _, block in ipairs(comments.fenced(GUIDE)) do
    it(("are true in the guide, line %d"):format(block.line), function()
      check(block.code, GUIDE .. ":" .. block.line)
    end)
  end
end)
