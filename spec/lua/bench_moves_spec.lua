-- SPDX-License-Identifier: Apache-2.0
-- bench/rpc.lua and bench/transfer.lua in short: what their rows tell. Times
-- mean nothing here.
local cases = require "spec.support.cases"
local cjson = require "cjson"

-- Returns the rows of a bench.
local function rows_of(words)
  local pipe = io.popen(("luajit bench/%s --json 2>&1; echo \" status $?\"")
                        :format(words))
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.*) status (%d+)\n$"
  assert.equal("0", status, said)
  return cjson.decode(said).rows
end

describe("calls beside a transfer", function()
  -- Benches make their folders below it.
  before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
  after_each(cases.cleanup)

  -- Before each of its two bursts the floor sleeps for --spin.
  it("have a load by the time in which it ran", function()
    local row = rows_of(("rpc.lua --mode loaded --load 64K --turns 1 "
      .. "--seconds 0.02 --spin 1 --at unix:%s/a.sock"):format(cases.folder))[1]
    local bytes = row.transfers * row.load
    assert.is_true(bytes / row.load_gb_per_s < 2e9,
                   "the load ran for longer than it was let")
  end)
end)
