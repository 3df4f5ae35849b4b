-- SPDX-License-Identifier: Apache-2.0
-- Ends of memory of GPUs that two processes of one host share (the lane
-- "cuda"), by the fake driver of this folder: regions that close, processes
-- that die, stop or fork, timeouts, devices that break. All that a process has
-- opened of another one's memory it gives back.
local cases = require "spec.support.cases"
local links = require "spec.support.links"

-- What is mapped, and not unmapped yet, of all that a process has mapped.
local MAPPED = 'total "cuMemMap" - total "cuMemUnmap"'
local RESERVED = 'total "cuMemAddressReserve" - total "cuMemAddressFree"'

local says, comes = links.says, links.comes

-- Copies that take so many microseconds.
local function slow(us) return "slow=" .. us end

-- Of so many regions: its own ones and the other process's.
local function is_mapped(child, regions)
  comes(child, ("%s == %d"):format(MAPPED, regions))
  comes(child, ("%s == %d"):format(RESERVED, regions))
end

describe("the end of shared memory of GPUs", function()
  after_each(cases.cleanup)

  it("comes with the region's: who writes there is told `stale`", function()
    local a, b = links.pair("", "")
    links.regions(a, b)
    says(b, "write()", "true")
    is_mapped(b, 2)
    says(a, "kv:close()", "true")
    says(b, "write()", "nil stale")
    says(b, "read()", "nil stale")
    is_mapped(b, 1)
    is_mapped(a, 0)
    -- The next one has its number.
    links.regions(a, b)
    says(b, "write()", "true")
  end)

  it("waits for the peer's copies, and the owner does not", function()
    local a, b = links.pair("", slow(100000))
    links.regions(a, b, { here = "cuda:0" })
    b:run [[ writes = {}
      for i = 1, 8 do
        writes[i] = session:write { from = here:slice(), to = remote:slice() }
      end ]]
    says(a, "kv:close(0.1)", "true")
    is_mapped(a, 0)
    for i = 1, 8 do
      assert.matches("true", b:run(("return wait(writes[%d])"):format(i)))
    end
    is_mapped(b, 1)
  end)

  it("comes with the owner's, who is killed while copies are under way",
     function()
    local a, b = links.pair("", slow(100000))
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
    is_mapped(b, 1)
    says(b, "write()", "nil peer_lost")
    says(b, "here:slice(0, 1):string()", "\0")
  end)

  it("comes with the peer's, who is killed while copies are under way",
     function()
    local a, b = links.pair("", slow(100000))
    links.regions(a, b)
    b:run [[ writes = {}
      for i = 1, 8 do
        writes[i] = session:write { from = here:slice(), to = remote:slice() }
      end ]]
    b:kill()
    comes(a, "session:explain().state == 'ended'")
    says(a, "kv:close()", "true")
    is_mapped(a, 0)
  end)

  it("comes with the session's, which waits for its copies", function()
    for _, closed in ipairs { "session:close()", "engine:close()" } do
      for _, closes in ipairs { "owner", "peer" } do
        local a, b = links.pair("", slow(50000))
        links.regions(a, b)
        b:run [[ writes = {}
          for i = 1, 8 do
            writes[i] = session:write { from = here:slice(),
                                        to = remote:slice() }
          end ]]
        if closes == "owner" then a:run(closed) else b:run(closed) end
        for i = 1, 8 do
          local said = b:run(("return wait(writes[%d])"):format(i))
          assert.is_true(said == "true" or said == "nil peer_lost"
                         or said == "nil closed", said)
        end
        a:run "engine:close()"
        b:run "engine:close()"
        is_mapped(a, 0)
        is_mapped(b, 0)
        for _, child in ipairs { a, b } do
          says(child, [[total "cuDevicePrimaryCtxRetain"
            == total "cuDevicePrimaryCtxRelease"]], "true")
        end
        cases.cleanup()
      end
    end
  end)

  it("does not wait for a peer that is stopped", function()
    local a, b = links.pair("", "")
    links.regions(a, b)
    says(b, "write()", "true")
    b:signal "STOP"
    says(a, "kv:close(1)", "true")
    is_mapped(a, 0)
    b:signal "CONT"
    is_mapped(b, 1)
    says(b, "write()", "nil stale")
  end)

  it("is told to a peer that does not read its socket, once it does",
     function()
    local REGIONS = 400 -- more than as many frames as fit into a socket
    local a, b = links.pair("", "", "regions = 1000")
    a:run(([[ many = {}
      for i = 1, %d do
        many[i] = engine:alloc(4096, { kind = "cuda:0", name = "kv" .. i,
                                       access = "rw" })
      end ]]):format(REGIONS))
    b:run(([[ other = engine:alloc(4096, { kind = "cuda:0" })
      for i = 1, %d do assert(session:region("kv" .. i)) end ]])
      :format(REGIONS))
    b:signal "STOP"
    a:run "for _, region in ipairs(many) do assert(region:close()) end"
    says(a, "session:explain().state", "open")
    b:signal "CONT"
    is_mapped(a, 0)
    is_mapped(b, 1)
    says(b, "session:explain().state", "open")
  end)

  it("does not come while a copy that took too long is under way", function()
    local a, b = links.pair("", slow(300000))
    links.regions(a, b)
    b:run "here:slice():fill(6)"
    b:run "future = session:write { from = here:slice(), to = remote:slice() }"
    says(b, "({ future:wait(0.05) })[2].kind", "timeout")
    says(a, "kv:close(1)", "true")
    is_mapped(b, 1)
    is_mapped(a, 0)
  end)
end)

describe("faults on purpose", function()
  after_each(cases.cleanup)

  it("delay what goes between GPUs", function()
    local a, b = links.pair("", "", 'faults = "seed=3 delay=2ms"')
    links.regions(a, b, { length = 65536 })
    a:run "kv:slice():fill(3)"
    for _ = 1, 3 do
      b:run "message = session:recv(here:slice())"
      says(a, "wait(session:send(kv:slice()))", "true")
      says(b, "message:wait(20)", "65536")
      says(b, "here:slice():string() == ('\\3'):rep(65536)", "true")
      says(b, "write()", "true")
    end
  end)

  it("cut the lane, and nothing else", function()
    local a, b = links.pair("", "", 'faults = "seed=3 cut=0.05"')
    links.regions(a, b, { length = 65536 })
    b:run [[ repeat result = write() until result ~= "true" ]]
    says(b, "result", "nil peer_lost")
    local LOST = 'lane():find("is lost", 1, true)'
    comes(b, LOST)
    comes(a, LOST)
    says(b, "session:explain().state", "open")
    says(b, "write()", "true")
    is_mapped(b, 1)
    says(a, "kv:close()", "true")
    is_mapped(a, 0)
  end)
end)

describe("a child of a process with shared memory of GPUs", function()
  after_each(cases.cleanup)

  -- Defines forked(): how many files of memory a child has let go when it has
  -- closed its engine, which it tells as its status; or that it was killed.
  local FORK = [[
    ffi.cdef "int fork(void); int waitpid(int, int *, int); void _exit(int);"
    ffi.cdef "long readlink(const char *, char *, size_t);"
    function files()
      local n, name = 0, ffi.new "char[64]"
      for fd = 0, 255 do
        local length = ffi.C.readlink("/proc/self/fd/" .. fd, name, 64)
        if length > 0 and ffi.string(name, length):find "fake cuda" then
          n = n + 1
        end
      end
      return n
    end
    function forked()
      local before = files()
      local pid, status = ffi.C.fork(), ffi.new "int[1]"
      if pid == 0 then
        engine:close()
        ffi.C._exit(before - files())
      end
      ffi.C.waitpid(pid, status, 0)
      if status[0] % 128 ~= 0 then return "killed" end
      return bit.rshift(status[0], 8)
    end
  ]]

  it("keeps none of the peer's memory, and the parent all", function()
    local a, b = links.pair("", "")
    links.regions(a, b)
    says(b, "write()", "true")
    b:run(FORK)
    says(b, "forked()", "1")
    b:run "here:slice():write(bytes(here.length, 2))"
    says(b, "write()", "true")
    says(a, "kv:slice():string() == bytes(kv.length, 2)", "true")
  end)

  it("keeps none of what has gone, and is copied still", function()
    local a, b = links.pair("", slow(300000))
    links.regions(a, b)
    b:run(FORK)
    b:run "future = session:write { from = here:slice(), to = remote:slice() }"
    says(a, "kv:close()", "true")
    b:run "cases.pump()" -- it has heard of that
    says(b, "forked()", "1")
    says(b, "wait(future)", "true")
    comes(b, MAPPED .. " == 1")
  end)

  it("lives, if it was made amid a copy to the peer's host memory", function()
    local a, b = links.pair("", slow(300000))
    links.regions(a, b)
    a:run 'plain = engine:alloc(65536, { name = "host", access = "rw" })'
    b:run(FORK)
    b:run [[
      plain = assert(session:region "host")
      future = session:write { from = here:slice(0, 65536),
                               to = plain:slice() }
    ]]
    says(b, "forked()", "1")
    says(b, "wait(future)", "true")
  end)
end)

describe("a device that breaks", function()
  after_each(cases.cleanup)

  it("ends what copies between GPUs, in the driver's words", function()
    local a, b = links.pair("", "fail=stream@20:700")
    links.regions(a, b, { length = 65536 })
    a:run 'plain = engine:alloc(4096, { name = "host", access = "rw" })'
    b:run [[
      for i = 1, 100 do
        local future = session:write { from = here:slice(),
                                       to = remote:slice() }
        ok, err = future:wait(20)
        if not ok then break end
      end
    ]]
    says(b, "err.kind", "closed")
    assert.matches("CUDA_ERROR_ILLEGAL_ADDRESS", b:run "return err.message")
    assert.matches("CUDA_ERROR_ILLEGAL_ADDRESS", b:run "return lane()")
    says(b, "write()", "nil closed")
    -- What is in host memory goes on, and so does the owner.
    b:run 'host = assert(session:region "host") own = engine:alloc(4096)'
    says(b, "wait(session:write { from = own:slice(), to = host:slice() })",
         "true")
    says(a, "#kv:slice():string()", "65536")
    b:run "engine:close()"
    says(a, "kv:close()", "true")
  end)

  it("ends calls", function()
    local a, b = links.start "", links.start "fail=stream@40:700"
    a:run [[
      agent = assert(cases.agent "worker")
      kv = agent.engine:alloc(65536, { kind = "cuda:0", access = "rw" })
      agent:serve { name = "store", version = 1, methods = {
        get = function() return kv:slice() end,
        ping = function() return 1 end } }
    ]]
    b:run [[
      agent = assert(cases.agent())
      store = assert(agent:proxy("worker", "store", { timeout = 20 }))
      own = agent.engine:alloc(65536, { kind = "cuda:0" })
      for i = 1, 100 do
        ok, err = store:with({ into = own:slice() }):get()
        if not ok then break end
      end
    ]]
    says(b, "err.kind", "closed")
    says(b, "store:ping()", "1")
  end)
end)
