-- SPDX-License-Identifier: Apache-2.0
-- Memory of GPUs between two processes of one host (the lane "cuda"), by the
-- fake driver of this folder: who copies, with how many calls of the driver,
-- and what moves through host memory. links_ends_spec.lua has their ends.
local cases = require "spec.support.cases"
local links = require "spec.support.links"

-- Calls of the driver that import memory, and that copy.
local IMPORT = 'count "cuMemImportFromShareableHandle"'
local COPIES = 'count "cuMemcpyAsync" + count "cuMemcpy2DAsync"'
  .. ' + count "cuMemcpyPeerAsync" + count "cuMemcpyBatchAsync"'

local says = links.says

-- All counts begin anew.
local function count_anew(...)
  for _, child in ipairs { ... } do
    child:run(("return %s + %s"):format(IMPORT, COPIES))
  end
end

describe("one-sided access to memory of GPUs", function()
  after_each(cases.cleanup)

  -- The peer writes its bytes and reads them back; each of the two processes
  -- makes so many copies meanwhile.
  local function moved(a, b, by_owner, by_peer)
    b:run "here:slice():write(bytes(here.length, 5))"
    count_anew(a, b)
    says(b, "write()", "true")
    says(a, COPIES, by_owner)
    says(b, COPIES, by_peer)
    says(a, "kv:slice():string() == bytes(kv.length, 5)", "true")
    a:run "kv:slice():write(bytes(kv.length, 8))"
    count_anew(a, b)
    says(b, "read()", "true")
    says(a, COPIES, by_owner)
    says(b, COPIES, by_peer)
    says(b, "here:slice():string() == bytes(here.length, 8)", "true")
  end

  it("takes one copy each, and is opened once", function()
    local a, b = links.pair("", "")
    count_anew(b)
    links.regions(a, b)
    says(b, IMPORT, "1")
    moved(a, b, "0", "1")
    count_anew(b)
    b:run 'count "cuStreamSynchronize" count "cuStreamWriteValue64"'
    for _ = 1, 3 do says(b, "write()", "true") end
    says(b, IMPORT, "0")
    says(b, 'count "cuStreamSynchronize"', "0")
    says(b, 'count "cuStreamWriteValue64"', "3")
    assert.matches("^payloads and one%-sided copies of cuda memory, "
      .. "from 1 bytes on; 0 payloads and 5 items", b:run "return lane()")
  end)

  it("is not by the owner from host memory of who uses a GPU", function()
    local a, b = links.pair("", "")
    b:run 'other = engine:alloc(4096, { kind = "cuda:0" })'
    links.regions(a, b, { here = "host", length = 128 * 1024 })
    moved(a, b, "0", "1")
  end)

  it("is by the owner from host memory of who uses none", function()
    local a, b = links.pair("", "")
    count_anew(b)
    links.regions(a, b, { here = "host", length = 128 * 1024 })
    moved(a, b, "1", "0")
    says(b, IMPORT, "0")
    -- It uses one from now on.
    b:run 'other = engine:alloc(4096, { kind = "cuda:0" })'
    moved(a, b, "0", "1")
  end)

  it("is by the owner for a process without any device", function()
    local a, b = links.pair("", "devices=0")
    links.regions(a, b, { here = "host", length = 128 * 1024 })
    b:run "here:slice():write(bytes(here.length, 5))"
    says(b, "write()", "true")
    says(a, "kv:slice():string() == bytes(kv.length, 5)", "true")
    says(b, "read()", "true")
  end)

  it("is by the owner where memory of other rights is not shared", function()
    for _, access in ipairs { "r", "w" } do
      local a, b = links.pair("", "")
      b:run 'other = engine:alloc(4096, { kind = "cuda:0" })'
      links.regions(a, b, { access = access })
      b:run "here:slice():fill(7)"
      says(b, "write()", access == "w" and "true" or "nil denied")
      says(b, "read()", access == "r" and "true" or "nil denied")
      if access == "w" then
        says(a, "kv:slice():string() == ('\\7'):rep(kv.length)", "true")
      else
        says(b, "here:slice():string() == ('\\1'):rep(here.length)", "true")
      end
      says(b, IMPORT, "0")
      cases.cleanup()
    end
  end)

  it("goes from device to device", function()
    local a, b = links.pair("", "")
    links.regions(a, b, { here = "cuda:1" })
    moved(a, b, "0", "1")
  end)

  it("goes by the owner between devices that do not reach each other",
     function()
    local a, b = links.pair("peers=0", "peers=0")
    links.regions(a, b, { here = "cuda:1", length = 128 * 1024 })
    b:run "here:slice():write(bytes(here.length, 5))"
    says(b, "write()", "true")
    says(a, "kv:slice():string() == bytes(kv.length, 5)", "true")
    says(b, "read()", "true")
    assert.matches("memory of the peer cannot be opened: opening memory: ",
                   b:run "return lane()", 1, true)
  end)

  -- 61 x 8 blocks, with a gap behind each on the owner's side, in another order
  -- on the peer's.
  local function pages(settings)
    local a, b = links.pair(settings, settings)
    links.regions(a, b, { length = 2 ^ 22 })
    b:run [[
      lists = { here = {}, there = {} }
      for i = 0, 60 do
        lists.here[i + 1] = here:slice((60 - i) * 32768, 4096, { count = 8,
          stride = 4096 })
        lists.there[i + 1] = remote:slice(i * 1024, 1024, { count = 8 * 4,
          stride = 65536 })
      end
      here:slice():write(bytes(here.length, 5))
      count "cuStreamWriteValue64" count "cuMemcpyBatchAsync"
    ]]
    return a, b
  end

  -- The owner's bytes are those that the peer's list has.
  local function pages_arrived(a)
    says(a, [[(function()
      local all = bytes(kv.length, 5)
      for i = 0, 60 do
        local there = kv:slice(i * 1024, 1024, { count = 32, stride = 65536 })
        local from = (60 - i) * 32768
        if there:string() ~= all:sub(from + 1, from + 32768) then
          return i
        end
      end
      return true
    end)()]], "true")
  end

  it("of lists and strides takes few tickets", function()
    local a, b = pages ""
    says(b, "wait(session:write { from = lists.here, to = lists.there })",
         "true")
    says(b, 'count "cuStreamWriteValue64"', "1")
    pages_arrived(a)
    b:run "here:slice():fill(0)"
    says(b, "wait(session:read { from = lists.there, to = lists.here })",
         "true")
    says(b, "here:slice(0, 61 * 32768):string() == bytes(61 * 32768, 5)",
         "true")
  end)

  it("of single blocks is one batch of the driver", function()
    local a, b = links.pair("version=12080", "version=12080")
    links.regions(a, b)
    b:run [[
      from, to = {}, {}
      for i = 0, 60 do
        from[i + 1] = here:slice(i * 8192, 4096)
        to[i + 1] = remote:slice((60 - i) * 8192, 4096)
      end
      here:slice():write(bytes(here.length, 5))
      count "cuMemcpyBatchAsync" count "entries" count "cuStreamWriteValue64"
    ]]
    says(b, "wait(session:write { from = from, to = to })", "true")
    says(b, 'count "cuMemcpyBatchAsync"', "1")
    says(b, 'count "entries"', "61")
    says(b, 'count "cuStreamWriteValue64"', "1")
    says(a, [[(function()
      local all = bytes(kv.length, 5)
      for i = 0, 60 do
        if kv:slice((60 - i) * 8192, 4096):string()
           ~= all:sub(i * 8192 + 1, i * 8192 + 4096) then return i end
      end
      return true
    end)()]], "true")
  end)

  it("asks a peer to open nothing of an engine that is idle", function()
    local a, b = links.pair("", "")
    b:run 'other = engine:alloc(4096, { kind = "cuda:0" })'
    a:run [[
      many = {}
      for i = 1, 64 do
        many[i] = engine:alloc(4096, { name = "kv" .. i, kind = "cuda:0",
                                       access = "rw" })
      end
    ]]
    b:run 'host = engine:alloc(64) message = session:recv(host:slice())'
    says(a, "wait(session:send(engine:alloc(64):slice()))", "true")
    says(b, "message:wait(20)", "64")
    says(b, IMPORT, "0")
    says(a, 'count "cuMemExportToShareableHandle"', "0")
  end)
end)

describe("calls with memory of GPUs", function()
  after_each(cases.cleanup)

  local a, b
  local function serve(owner, peer)
    a, b = links.start(owner or ""), links.start(peer or owner or "")
    a:run [[
      agent = assert(cases.agent "worker")
      landings = { host = assert(agent.engine:alloc(2 ^ 20)),
                   gpu = assert(agent.engine:alloc(2 ^ 20,
                     { kind = "cuda:0", access = "rw" })) }
      landings.gpu:slice():fill(1)
      agent:serve { name = "store", version = 1, methods = {
        put = { landing = function(length, key)
                  return landings[key]:slice(0, length)
                end,
                function(slice) landed = slice return slice.length end },
        get = function(key, length)
          return landings[key]:slice(0, length)
        end,
        tell = function(slice) return slice:string() == bytes(2 ^ 20, 3) end,
      } }
    ]]
    b:run [[
      agent = assert(cases.agent())
      store = assert(agent:proxy("worker", "store", { timeout = 20 }))
      plain = assert(agent.engine:alloc(2 ^ 20))
      own = agent.engine:alloc(2 ^ 20, { kind = "cuda:0", access = "rw" })
        or plain
      own:slice():write(bytes(own.length, 3))
    ]]
  end

  local LENGTH = 128 * 1024 -- which one copy takes, also to host memory

  -- The peer puts a slice. So many copies are made by the owner, and some by
  -- the peer ("true") or none ("false").
  local function put(key, by_owner, by_peer)
    a:run "landings.gpu:slice():fill(0) landings.host:slice():fill(0)"
    count_anew(a, b)
    says(b, ("store:put(own:slice(0, %d), %q)"):format(LENGTH, key),
         tostring(LENGTH))
    if by_owner then says(a, COPIES, by_owner) end
    if by_peer then says(b, COPIES .. " > 0", by_peer) end
    says(a, ("landed:string() == bytes(%d, 3)"):format(LENGTH), "true")
  end

  it("land by one copy of the receiver, once it has opened the memory",
     function()
    serve()
    count_anew(a)
    put("gpu", nil, "true") -- through host memory, and it is told of
    put("gpu", "1", "false")
    put("host", "1", "false")
    says(a, IMPORT, "0") -- since the first one
  end)

  it("are answered so", function()
    serve()
    for i, into in ipairs { "own", "plain", "own" } do
      b:run(into .. ":slice():fill(0)")
      a:run "landings.gpu:slice():write(bytes(2 ^ 20, 6))"
      count_anew(a, b)
      says(b, ("store:with({ into = %s:slice() }):get('gpu', %d):string() "
        .. "== bytes(%d, 6)"):format(into, LENGTH, LENGTH), "true")
      says(a, COPIES, i == 1 and "1" or "0")
    end
  end)

  it("pass through host memory where nobody may map it", function()
    serve()
    b:run 'own = agent.engine:alloc(2 ^ 20, { kind = "cuda:0" })'
    b:run "own:slice():write(bytes(own.length, 3))"
    count_anew(a)
    for _ = 1, 5 do put("gpu", nil, "true") end
    says(a, IMPORT, "0")
  end)

  it("pass through host memory to who has no device", function()
    serve("", "devices=0")
    for _ = 1, 5 do
      says(b, ("store:with({ into = plain:slice() }):get('gpu', %d):string() "
        .. "== ('\\1'):rep(%d)"):format(LENGTH, LENGTH), "true")
    end
    says(b, IMPORT, "0")
  end)

  it("land on another device, also if it does not reach the sender's",
     function()
    for _, settings in ipairs { "", "peers=0" } do
      serve(settings)
      a:run 'landings.gpu = agent.engine:alloc(2 ^ 20, { kind = "cuda:1" })'
      for i = 1, 3 do put("gpu", nil, tostring(i == 1)) end
      cases.cleanup()
    end
  end)

  -- The pool gives memory back to the system, which a pin would not notice.
  it("land in the pool, of which nothing is registered", function()
    serve()
    count_anew(a)
    for _ = 1, 5 do says(b, "store:tell(own:slice())", "true") end
    says(a, COPIES .. " >= 32", "true") -- by slots
    says(a, 'total "cuMemHostRegister"', "0")
  end)

  it("have lists of slices of several regions, in one copy for each",
     function()
    serve()
    b:run [[
      other = agent.engine:alloc(65536, { kind = "cuda:0", access = "rw" })
      other:slice():write(bytes(65536, 5))
    ]]
    for i = 1, 4 do
      count_anew(a, b)
      says(b, [[store:put({ own:slice(4096, 8192), own:slice(0, 4096),
                            other:slice(512, 1024),
                            own:slice(0, 100, { count = 3, stride = 5000 }) },
                          "gpu")]], "13612")
      if i > 2 then says(a, COPIES, "4") end -- one for the three blocks
      says(a, [[landed:string() == bytes(2 ^ 20, 3):sub(4097, 12288)
        .. bytes(4096, 3) .. bytes(65536, 5):sub(513, 1536)
        .. bytes(100, 3) .. bytes(2 ^ 20, 3):sub(5001, 5100)
        .. bytes(2 ^ 20, 3):sub(10001, 10100)]], "true")
      b:run "perigee.sleep(0.02)" -- a second memory is opened a little later
    end
    says(a, IMPORT, "0") -- since the first one
  end)

  it("answer lists into lists, and many at a time", function()
    serve()
    a:run [[
      agent:serve { name = "pages", version = 1, methods = {
        get = function(n)
          local list = {}
          for i = 1, n do
            list[i] = landings.gpu:slice((n - i) * 256, 100 + i % 50)
          end
          return list
        end } }
      landings.gpu:slice():write(bytes(2 ^ 20, 9))
    ]]
    b:run [[
      pages = assert(agent:proxy("worker", "pages", { timeout = 20 }))
      function get(n, into)
        local futures, all, texts = {}, bytes(2 ^ 20, 9), {}
        for i = 1, n do
          texts[i] = all:sub((n - i) * 256 + 1, (n - i) * 256 + 100 + i % 50)
        end
        local text = table.concat(texts)
        local half = math.floor(#text / 2)
        for i = 1, 12 do
          local at = (i - 1) * 50000
          futures[i] = { at, pages:with({ into = {
            into:slice(at + half, #text - half),
            into:slice(at, half) } }).async:get(n) }
        end
        for _, f in ipairs(futures) do
          local ok, err = f[2]:wait(20)
          if not ok then return tostring(err) end
          if into:slice(f[1] + half, #text - half):string()
             .. into:slice(f[1], half):string() ~= text then return "no" end
        end
        return "yes"
      end
    ]]
    for _, n in ipairs { 2, 300, 2 } do
      says(b, ("get(%d, own)"):format(n), "yes")
    end
    count_anew(a, b)
    says(b, "get(300, own)", "yes")
    says(a, COPIES, "0")
    says(b, "get(300, plain)", "yes")
  end)
end)

describe("the lane of GPUs", function()
  after_each(cases.cleanup)

  it("is not there on a machine without a driver", function()
    local a, b = links.pair(false, false)
    says(a, "next(session:explain().lanes)", "nil")
    says(b, "#session:explain().lanes", "0")
  end)

  it("tells that the peer does not have it", function()
    local _, b = links.pair(false, "")
    says(b, "lane()", "the peer does not have it")
  end)

  it("carries messages", function()
    local a, b = links.pair("", "")
    links.regions(a, b)
    a:run "kv:slice():write(bytes(kv.length, 4))"
    for i = 1, 3 do
      b:run "message = session:recv(here:slice())"
      count_anew(a, b)
      says(a, "wait(session:send(kv:slice()))", "true")
      says(b, "message:wait(20)", "1048576")
      says(b, "here:slice():string() == bytes(here.length, 4)", "true")
      if i > 1 then says(a, COPIES, "0") end
    end
    assert.matches("%d payloads and 0 items", b:run "return lane()")
  end)
end)
