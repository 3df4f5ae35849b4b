-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: its text.
local case = require "spec.support.doctor_case"
local doctor = require "perigee.cli.doctor"
local text = require "perigee.cli.doctor.text"

before_each(case.start)
after_each(case.finish)

describe("what perigee doctor prints", function()
  local function printed(verdicts, colour)
    local parts = {}
    text(verdicts, { write = function(_, ...)
      for i = 1, select("#", ...) do parts[#parts + 1] = (select(i, ...)) end
    end }, colour)
    return table.concat(parts)
  end

  it("fits 80 columns, without colours where no terminal is", function()
    case.rdma "mlx5_0"
    case.limits "Max locked memory   8388608   8388608   bytes"
    for line in printed(doctor.examine(case.fake.machine)):gmatch "[^\n]+" do
      assert.is_true(#line <= 80 or line:find "^ +echo ", line)
      assert.is_nil(line:find "\27")
    end
  end)

  it("says why and what to do, and closes with a summary", function()
    local all = printed {
      { group = "g", name = "one", status = "ok", found = "fine", why = "w" },
      { group = "g", name = "two", status = "warning", found = "low",
        why = "It is slow", fix = "raise it", command = "raise --it" },
    }
    assert.equal([[
g
  ok       one                 fine
  warning  two                 low
           It is slow.
           To do: raise it:
             raise --it

1 warning (two), 1 ok
]], all)
  end)

  it("can be coloured, and stays aligned", function()
    local verdicts = { { group = "g", name = "one", status = "problem",
                         found = "low", why = "w" } }
    local coloured = printed(verdicts, true)
    assert.matches("\27%[31mproblem\27%[0m  one ", coloured)
    assert.equal(printed(verdicts), (coloured:gsub("\27%[%d+m", "")))
  end)
end)
