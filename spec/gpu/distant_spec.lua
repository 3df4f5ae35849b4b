-- SPDX-License-Identifier: Apache-2.0
-- Memory of GPUs between two processes whose session takes no descriptors, as
-- one over TCP (the lane "cuda"), by fabric handles of the fake driver of this
-- folder. Each process sees another device, as on two hosts of one NVLink
-- domain.
local cases = require "spec.support.cases"
local links = require "spec.support.links"

local OWNER, PEER = "fabric=1 visible=0", "fabric=1 visible=1"

-- Calls of the driver that import memory, and that copy.
local IMPORT = 'count "cuMemImportFromShareableHandle"'
local COPIES = 'count "cuMemcpyAsync" + count "cuMemcpy2DAsync"'
  .. ' + count "cuMemcpyPeerAsync" + count "cuMemcpyBatchAsync"'
local MAPPED = 'total "cuMemMap" - total "cuMemUnmap"'
local EARLY = 'total "freed while imported"'

local says, comes = links.says, links.comes

local function count_anew(...)
  for _, child in ipairs { ... } do
    child:run(("return %s + %s"):format(IMPORT, COPIES))
  end
end

-- The peer writes its bytes and reads others; each of the two processes makes
-- so many copies meanwhile.
local function moved(a, b, by_owner, by_peer)
  b:run "here:slice():write(bytes(here.length, 5))"
  count_anew(a, b)
  says(b, "write()", "true")
  says(a, COPIES .. by_owner, "true")
  says(b, COPIES .. by_peer, "true")
  says(a, "kv:slice():string() == bytes(kv.length, 5)", "true")
  a:run "kv:slice():write(bytes(kv.length, 8))"
  count_anew(a, b)
  says(b, "read()", "true")
  says(a, COPIES .. by_owner, "true")
  says(b, COPIES .. by_peer, "true")
  says(b, "here:slice():string() == bytes(here.length, 8)", "true")
end

describe("memory of GPUs over TCP", function()
  after_each(cases.cleanup)

  it("is imported at its first use, and moved by one copy each", function()
    local a, b = links.distant_pair(OWNER, PEER)
    count_anew(b)
    links.regions(a, b)
    says(b, IMPORT, "0")
    b:run "here:slice():write(bytes(here.length, 3))"
    says(b, "write()", "true")
    says(b, IMPORT, "1")
    moved(a, b, " == 0", " == 1")
    says(b, IMPORT, "0")
    assert.matches("^one%-sided copies of cuda memory, from 1 bytes on; "
      .. "0 payloads and 3 items", b:run "return lane()")
    assert.matches("neither encrypted nor has MACs", b:run "return lane()", 1,
                   true)
  end)

  it("goes to and from host memory of who uses a GPU", function()
    local a, b = links.distant_pair(OWNER, PEER)
    b:run 'other = engine:alloc(4096, { kind = "cuda:0" })'
    links.regions(a, b, { here = "host", length = 128 * 1024 })
    moved(a, b, " == 0", " == 1")
  end)

  it("is staged where a process may use no channel, which both say", function()
    for _, settings in ipairs { "fabric=1 channel=0", "" } do
      local a, b = links.distant_pair(settings, PEER)
      links.regions(a, b, { length = 128 * 1024 })
      moved(a, b, " > 0", " > 0")
      assert.matches("memory has no fabric handle: " .. (settings == "" and
        "it was not made for one" or "CUDA_ERROR_NOT_PERMITTED"),
        a:run "return lane()", 1, true)
      assert.matches("the peer has no fabric handle of its memory",
                     b:run "return lane()", 1, true)
      cases.cleanup()
    end
    for _, settings in ipairs { "fabric=1 channel=0", "fabric=1 channel=2" } do
      local a, b = links.distant_pair(OWNER, settings)
      links.regions(a, b, { length = 128 * 1024 })
      moved(a, b, " > 0", " > 0")
      assert.matches("memory of the peer cannot be opened: opening memory: "
        .. "CUDA_ERROR_NOT_PERMITTED", b:run "return lane()", 1, true)
      says(b, MAPPED, "1")
      says(a, "kv:close(20)", "true")
      cases.cleanup()
    end
  end)

  it("is staged where it does not grant everything", function()
    for _, access in ipairs { "r", "w" } do
      local a, b = links.distant_pair(OWNER, PEER)
      links.regions(a, b, { access = access, length = 65536 })
      count_anew(b)
      says(b, "write()", access == "w" and "true" or "nil denied")
      says(b, "read()", access == "r" and "true" or "nil denied")
      says(b, IMPORT, "0")
      cases.cleanup()
    end
  end)

  it("goes through the host in calls and messages", function()
    local a, b = links.distant_pair(OWNER, PEER)
    links.regions(a, b, { length = 65536 })
    says(b, "write()", "true")
    a:run "kv:slice():write(bytes(kv.length, 4))"
    for _ = 1, 3 do
      b:run "message = session:recv(here:slice())"
      says(a, "wait(session:send(kv:slice()))", "true")
      says(b, "message:wait(20)", "65536")
      says(b, "here:slice():string() == bytes(here.length, 4)", "true")
    end
  end)

  it("is not open to peers who ask for encryption by name", function()
    local a, b = links.distant_pair(OWNER, PEER, "encrypt = true")
    links.regions(a, b, { length = 65536 })
    count_anew(b)
    says(b, "write()", "true")
    says(b, IMPORT, "0")
    assert.matches("neither encrypted nor has MACs, and that is asked for",
                   b:run "return lane()", 1, true)
  end)

  it("is staged if the peer has no driver, which is told", function()
    local _, b = links.distant_pair(false, PEER)
    says(b, "lane()", "the peer does not have it")
  end)

  it("goes by descriptors over a Unix socket", function()
    local a, b = links.pair("fabric=1", "fabric=1")
    links.regions(a, b)
    says(b, "write()", "true")
    assert.matches("^payloads and one%-sided copies", b:run "return lane()")
    b:run 'session:close()'
    says(a, "kv:close(20)", "true")
  end)
end)

describe("the end of memory of GPUs over TCP", function()
  after_each(cases.cleanup)

  it("comes once the peer has closed it, which is told `stale` then",
     function()
    local a, b = links.distant_pair(OWNER, PEER)
    links.regions(a, b)
    says(b, "write()", "true")
    says(b, MAPPED, "2")
    says(a, "kv:close(20)", "true")
    says(b, "write()", "nil stale")
    says(b, "read()", "nil stale")
    says(b, MAPPED, "1")
    says(a, MAPPED, "0")
    says(a, EARLY, "0")
    -- The next one has its number.
    b:run "old = remote"
    links.regions(a, b)
    says(b, "write()", "true")
    says(b, [[wait(session:write { from = here:slice(), to = old:slice() })]],
         "nil stale")
  end)

  it("waits for the peer's copies", function()
    local a, b = links.distant_pair(OWNER, PEER .. " slow=50000")
    links.regions(a, b)
    b:run [[ writes = {}
      for i = 1, 8 do
        writes[i] = session:write { from = here:slice(), to = remote:slice() }
      end
      cases.pump() ]]
    says(a, "kv:close(20)", "true")
    says(a, MAPPED, "0")
    says(a, EARLY, "0")
    for i = 1, 8 do
      local said = b:run(("return wait(writes[%d])"):format(i))
      assert.is_true(said == "true" or said == "nil stale", said)
    end
    says(b, MAPPED, "1")
  end)

  it("waits for a peer that is stopped, until it goes on", function()
    local a, b = links.distant_pair(OWNER, PEER)
    links.regions(a, b)
    says(b, "write()", "true")
    b:signal "STOP"
    says(a, "kv:close(0.1)", "nil")
    says(a, MAPPED, "1")
    b:signal "CONT"
    says(a, "kv:close(20)", "true")
    says(a, EARLY, "0")
    says(b, "write()", "nil stale")
  end)

  it("comes with the peer's, who is killed while copies are under way",
     function()
    local a, b = links.distant_pair(OWNER, PEER .. " slow=50000")
    links.regions(a, b)
    b:run [[ for i = 1, 8 do
        session:write { from = here:slice(), to = remote:slice() }
      end ]]
    b:kill()
    comes(a, "session:explain().state == 'ended'")
    says(a, "kv:close(20)", "true")
    says(a, MAPPED, "0")
  end)

  it("comes with the owner's, who is killed while copies are under way",
     function()
    local a, b = links.distant_pair(OWNER, PEER .. " slow=50000")
    links.regions(a, b)
    b:run [[ writes = {}
      for i = 1, 8 do
        writes[i] = session:write { from = here:slice(), to = remote:slice() }
      end ]]
    a:kill()
    for i = 1, 8 do
      local said = b:run(("return wait(writes[%d])"):format(i))
      assert.is_true(said == "true" or said == "nil peer_lost", said)
    end
    comes(b, MAPPED .. " == 1")
    says(b, "here:slice(0, 1):string()", "\0")
  end)

  it("comes with the session's, for both sides", function()
    for _, closes in ipairs { "owner", "peer" } do
      local a, b = links.distant_pair(OWNER, PEER)
      links.regions(a, b)
      says(b, "write()", "true")
      if closes == "owner" then a:run "session:close()" end
      if closes == "peer" then b:run "session:close()" end
      comes(b, MAPPED .. " == 1")
      says(a, "kv:close(20)", "true")
      a:run "engine:close()"
      b:run "engine:close()"
      says(a, MAPPED, "0")
      says(b, MAPPED, "0")
      cases.cleanup()
    end
  end)
end)
