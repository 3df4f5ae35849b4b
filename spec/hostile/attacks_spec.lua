-- SPDX-License-Identifier: Apache-2.0
-- Every attack for a short time beside honest clients, over PERIGEE_TRANSPORT.
-- The server survives, no honest call or connect fails, no byte is wrong, and
-- one second later the server uses no more than before.
local cases = require "spec.support.cases"
local judge = require "spec.hostile.judge"
local scenarios = require "spec.hostile.scenarios"

local TRANSPORT = os.getenv "PERIGEE_TRANSPORT" or "shm"
-- These need the address space that a sanitizer reserves for itself.
local SPARSE = { outboxes = true, ["holes in rings"] = true }

describe("a server under attack", function()
  after_each(cases.cleanup)

  for _, one in ipairs(scenarios) do
    if one.on[TRANSPORT] and not (cases.sanitized and SPARSE[one.name]) then
      it("is not harmed by " .. one.about, function()
        local case = judge.case { transport = TRANSPORT, encrypt = one.encrypt,
                                  seed = tonumber(os.getenv "SEED") }
        local said = case:attacks({ one }, one.seconds)
        case:close()
        assert(#said == 0, table.concat(said, "\n"))
      end)
    end
  end
end)
