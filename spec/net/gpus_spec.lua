-- SPDX-License-Identifier: Apache-2.0
-- Memory of GPUs of two hosts, by fabric handles of the fake driver (spec/gpu):
-- beside a session that is sealed by default, and not beside one that is to be
-- sealed because a side has said so.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local links = require "spec.support.links"

describe("memory of GPUs of two hosts", function()
  local possible, why = hosts.possible()
  if not possible then
    it("is moved by a GPU", function() return pending(why) end)
    return
  end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)
  after_each(cases.cleanup)

  local function pair(options)
    local a = links.start("fabric=1 visible=0", hosts.far)
    local b = links.start "fabric=1 visible=1"
    links.connect(a, b, "tcp://10.77.7.2:0",
                  ("secret = %q, %s"):format(hosts.SECRET, options))
    links.regions(a, b)
    b:run "here:slice():write(bytes(here.length, 5))"
    assert.equal("true", b:run "return write()")
    assert.equal("true", a:run [[
      return kv:slice():string() == bytes(kv.length, 5) ]])
    return b
  end

  local IMPORTS = [[ return total "cuMemImportFromShareableHandle" ]]

  it("is moved by a GPU, also if the session is sealed by default", function()
    local b = pair ""
    assert.matches("sealed", b:run "return session:explain().carrier", 1, true)
    assert.equal("1", b:run(IMPORTS))
    assert.matches("neither encrypted nor has MACs", b:run "return lane()", 1,
                   true)
  end)

  it("passes through the session if that is to be sealed", function()
    for _, asked in ipairs { "true", "'auth'" } do
      local b = pair("encrypt = " .. asked)
      assert.equal("0", b:run(IMPORTS))
      assert.matches("and that is asked for", b:run "return lane()", 1, true)
    end
  end)
end)
