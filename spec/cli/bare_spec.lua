-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor on a machine that gives no information, like a bare container.
local case = require "spec.support.doctor_case"
local doctor = require "perigee.cli.doctor"
local verdict = require "perigee.cli.doctor.verdict"

before_each(case.start)
after_each(case.finish)

describe("perigee doctor on a machine that tells nothing", function()
  it("says so, and that is no reason to worry", function()
    local verdicts = doctor.examine(case.fake.machine)
    assert.is_true(#verdicts > 30)
    local unknown = 0
    for _, found in ipairs(verdicts) do
      local line = found.name .. ": " .. found.found
      assert.is_true(verdict.rank[found.status] <= verdict.rank.note, line)
      assert.is_nil(found.found:find "failed", line)
      assert.is_string(found.why)
      if found.found:find "^unknown: " then unknown = unknown + 1 end
    end
    assert.is_true(unknown >= 10)
  end)

  it("names each check once in its group, with a reason", function()
    local seen = {}
    for _, found in ipairs(doctor.examine(case.fake.machine)) do
      assert.is_nil(found.why:find "%.$", found.name)
      assert.is_true(#found.name <= 18, found.name)
      seen[found.group] = (seen[found.group] or 0) + 1
    end
    for _, group in ipairs { "program", "settings", "memory", "processor",
                             "one host", "network", "RDMA", "GPU" } do
      assert.is_true(seen[group] >= 2, group)
    end
  end)

  it("outlives a check that fails", function()
    case.fake.machine.limit = function() error "planted" end
    local found = case.expect("memory", "locked memory", "note",
                         "unknown: this check failed")
    assert.matches("planted", found.found)
  end)
end)
