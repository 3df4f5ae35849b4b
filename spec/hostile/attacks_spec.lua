-- SPDX-License-Identifier: Apache-2.0
-- Every attack beside honest clients, in short, over PERIGEE_TRANSPORT. The
-- server lives, no honest call or connect fails, no byte is wrong, and one
-- second later the server has what it had before.
local cases = require "spec.support.cases"
local judge = require "spec.hostile.judge"
local scenarios = require "spec.hostile.scenarios"

local TRANSPORT = os.getenv "PERIGEE_TRANSPORT" or "shm"
-- A sanitizer has the address space that these want for itself.
local SPARSE = { outboxes = true }

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
