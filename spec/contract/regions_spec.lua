-- SPDX-License-Identifier: Apache-2.0
-- Regions: one-sided reads and writes, bounds, rights, and refusals.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LENGTH = 2 ^ 22

-- Lends a region for each kind of access, allocated and registered, and stays.
local function owner(child, _, ffi_)
  local engine = child.cases.engine()
  local memory, length = {}, 2 ^ 22
  for name, access in pairs { none = "", r = "r", w = "w", rw = "rw" } do
    local region = child.cases.alloc(engine, length,
                                     { name = name, access = access })
    local whole = region:slice(0, length)
    whole:fill(0x11)
    memory[name] = whole
    local own = ffi_.new("uint8_t[?]", length)
    ffi_.fill(own, length, 0x22)
    memory["own_" .. name] = own
    engine:register(own, length, { name = "own_" .. name, access = access })
  end
  engine:alloc(4096)
  local listener = assert(engine:listen(child.cases.address()))
  child.say("ready")
  local session = assert(listener:accept(10))
  local inbox = engine:alloc(4096):slice(0, 4096)
  -- Answers "NAME OFFSET" with the value of that byte.
  while true do
    local n = session:recv(inbox):wait(30)
    if not n then break end
    local name, offset = ffi_.string(inbox.pointer, n):match("(%S+) (%d+)")
    local owned, at = memory[name], tonumber(offset)
    inbox.pointer[0] = type(owned) == "cdata" and owned[at]
      or child.cases.byte(owned, at)
    assert(session:send(inbox:slice(0, 1)):wait(5))
  end
end

describe("a region", function()
  local engine, session, here

  setup(function()
    process.start(owner):expect("ready")
    engine, session = cases.connect()
    here = cases.alloc(engine, LENGTH)
  end)
  teardown(cases.cleanup)

  -- The value of a byte as its owner reads it.
  local function byte(name, offset)
    local text = name .. " " .. offset
    local slice = here:slice(LENGTH - 4096, #text)
    slice:write(text)
    assert(session:send(slice):wait(5))
    assert(session:recv(here:slice(LENGTH - 1, 1)):wait(5))
    return cases.byte(here:slice(LENGTH - 1, 1))
  end

  for _, prefix in ipairs { "", "own_" } do
    it("counts the bytes of own transfers on any transport", function()
    local remote = assert(session:region("rw"))
    local function counted(expected, moved, length)
      local before = session:explain().counters
      local operation = moved()
      if operation.post then operation = operation:post() end
      assert(operation:wait(10))
      local after = session:explain().counters
      assert.equal(length, after[expected] - before[expected], expected)
      local other = expected == "bytes_sent" and "bytes_received"
        or "bytes_sent"
      assert.equal(before[other], after[other], other)
      assert.equal(before.transfers + 1, after.transfers)
    end
    for _, length in ipairs { 1, 100, 2 ^ 20 + 3 } do
      local own, theirs = here:slice(0, length), remote:slice(0, length)
      local read, write = { from = theirs, to = own },
                          { from = own, to = theirs }
      for _, prepared in ipairs { "", "prepare_" } do
        counted("bytes_received", function()
          return session[prepared .. "read"](session, read)
        end, length)
        counted("bytes_sent", function()
          return session[prepared .. "write"](session, { write, write })
        end, 2 * length)
      end
    end
  end)

  it("is written and read at every size: " .. prefix .. "rw", function()
      local remote = assert(session:region(prefix .. "rw"))
      local sizes = { unpack(cases.sizes) }
      sizes[#sizes + 1] = LENGTH / 2 - 8192
      for round, size in ipairs(sizes) do
        local out, back = here:slice(0, size), here:slice(LENGTH / 2, size)
        local text = cases.bytes(size, round)
        out:write(text)
        back:fill(0)
        local to = remote:slice(round, size)
        assert.is_true((session:write { from = out, to = to }:wait(5)))
        if size > 0 then
          assert.equal(text:byte(size), byte(prefix .. "rw", round + size - 1))
        end
        assert.is_true((session:read { from = to, to = back }:wait(5)))
        assert.is_true(back:string() == text, size)
      end
    end)

    it("refuses what was not granted: " .. prefix, function()
      local slice = here:slice(0, 4096)
      slice:fill(0x77)
      local refused = { none = { "read", "write" }, r = { "write" },
                        w = { "read" } }
      for name, operations in pairs(refused) do
        name = prefix .. name
        local remote, err = session:region(name)
        if not remote then
          assert.equal("denied", err.kind)
        else
          for _, operation in ipairs(operations) do
            local both = { from = slice, to = remote:slice(64, 4096) }
            if operation == "read" then
              both = { from = both.to, to = both.from }
            end
            local done
            done, err = session[operation](session, both):wait(5)
            assert.is_nil(done)
            assert.equal("denied", err.kind, name .. " " .. operation)
          end
        end
        assert.equal(prefix == "" and 0x11 or 0x22, byte(name, 64))
      end
      assert.equal(0x77, cases.byte(slice))
      assert.equal(0x77, cases.byte(slice, 4095))
    end)

    it("grants what it says: " .. prefix, function()
      local slice = here:slice(0, 100)
      local r = assert(session:region(prefix .. "r"))
      assert(session:read { from = r:slice(5, 100), to = slice }:wait(5))
      assert.equal(prefix == "" and 0x11 or 0x22, cases.byte(slice, 99))
      local w = assert(session:region(prefix .. "w"))
      slice:fill(0x33)
      assert(session:write { from = slice, to = w:slice(200, 100) }:wait(5))
      assert.equal(0x33, byte(prefix .. "w", 299))
      assert.not_equal(0x33, byte(prefix .. "w", 300))
    end)
  end

  it("is bounded, here and there", function()
    local remote = assert(session:region("rw"))
    assert.has_error(function() remote:slice(LENGTH - 1, 2) end)
    assert.has_error(function() remote:slice(LENGTH + 1, 0) end)
    assert.has_error(function() remote:slice(2 ^ 52, 2 ^ 52) end)
    assert.has_error(function()
      remote:slice(0, 64, { count = 2, stride = LENGTH })
    end)
    assert.equal(0, remote:slice(LENGTH, 0).length)
    assert.equal(64 * 10, remote:slice(0, 64, { count = 10,
                                                stride = 100 }).length)
  end)

  it("that has no name, or another, is not found", function()
    for _, name in ipairs { "nothing", "RW", "rw ", "r" .. ("w"):rep(254) } do
      local remote, err = session:region(name)
      assert.is_nil(remote)
      assert.equal("not_found", err.kind)
    end
    assert.has_error(function() session:region(("x"):rep(256)) end)
    assert.has_error(function() session:region("") end)
    assert.has_error(function() session:region(nil) end)
  end)

  it("is filled with a byte, also if it is long", function()
    local region = cases.alloc(engine, 2 ^ 22 + 5)
    local slice = region:slice()
    assert.equal(slice, slice:fill(7))
    assert.equal(7, cases.byte(slice))
    assert.equal(7, cases.byte(slice, 2 ^ 22 + 4))
    slice:slice(0, 0):fill(8)
    assert.equal(7, cases.byte(slice))
    slice:slice(0, 4):fill()
    assert.equal(0, cases.byte(slice, 3))
    assert.equal(7, cases.byte(slice, 4))
    for _, wrong in ipairs { 256, -1, 1.5, "a" } do
      local fine, message = pcall(function() slice:fill(wrong) end)
      assert.is_false(fine)
      assert.matches("regions_spec.lua:.*a byte, an integer of 0 to 255",
                     message)
    end
    assert.is_true(region:close(5))
  end)

  it("has a name without a zero byte, as an address is", function()
    local function refused(f, what)
      local fine, message = pcall(f)
      assert.is_false(fine)
      assert.matches("regions_spec.lua:.*without a zero", message)
      assert.matches(what, message)
    end
    refused(function() session:region "shared\0x" end, "session:region")
    refused(function() engine:listen(cases.address("x") .. "\0x") end,
            "engine:listen")
    refused(function() engine:connect(cases.address() .. "\0x") end,
            "engine:connect")
  end)

  it("has a name once in an engine", function()
    assert(engine:alloc(4096, { name = "once" }))
    local none, err = engine:alloc(4096, { name = "once" })
    assert.is_nil(none)
    assert.equal("name_taken", err.kind)
  end)

  it("refuses totals that differ", function()
    local remote = assert(session:region("rw"))
    for _, operation in ipairs { "read", "write", "write_imm" } do
      local from, to = here:slice(0, 10), remote:slice(0, 11)
      if operation == "read" then from, to = to, from end
      assert.has_error(function()
        session[operation](session, { from = from, to = to }, 1)
      end)
    end
  end)

  it("refuses sides that are swapped, missing or of another", function()
    local remote = assert(session:region("rw"))
    local other = cases.alloc(cases.engine(), 4096)
    local a, b = here:slice(0, 10), remote:slice(0, 10)
    for _, bad in ipairs {
      { from = b, to = a }, { from = a, to = a }, { from = b, to = b },
      { from = a }, { to = b }, {}, { from = "a", to = b },
      { from = other:slice(0, 10), to = b }, { from = a, to = b, at = 1 },
    } do
      assert.has_error(function() session:write(bad) end)
    end
    assert.has_error(function() session:write() end)
  end)

  it("leaves the table of a transfer as it was", function()
    local a, b = here:slice(0, 10), assert(session:region("rw")):slice(0, 10)
    local strict = { __newindex = error }
    for _, more in ipairs { {}, { timeout = 5 }, { at = 1 },
                            { timeout = 5, at = 1 } } do
      local spec, seen = setmetatable({ from = a, to = b, at = more.at,
                                        timeout = more.timeout }, strict), {}
      for name in pairs(spec) do
        seen[name] = spec[name]
        local fine, future = pcall(session.write, session, spec)
        assert.equal(not more.at, fine)
        if fine then assert.is_true((future:wait(10))) end
      end
      for _, names in ipairs { spec, seen } do
        assert.equal(a, names.from)
        assert.equal(b, names.to)
        assert.equal(more.timeout, names.timeout)
        assert.equal(more.at, names.at)
      end
    end
  end)

  it("finds a wrong name of a transfer in code that is compiled", function()
    local spec = { from = here:slice(0, 10),
                   to = assert(session:region("rw")):slice(0, 10) }
    for _ = 1, 300 do assert(session:write(spec):wait(10)) end
    spec.size = 4
    local fine, why
    for _ = 1, 100 do
      fine, why = pcall(session.write, session, spec)
      if fine then break end
    end
    assert.is_false(fine)
    assert.matches("size", why)
  end)

  it("is zeroed, and huge ones are possible", function()
    local large = cases.alloc(engine, 2 ^ 30)
    assert.equal(0, cases.byte(large:slice(2 ^ 30 - 1, 1)))
    large:close()
    local none, err = engine:alloc(2 ^ 50)
    assert.is_nil(none)
    assert.is_true(err.kind == "no_memory" or err.kind == "too_large")
  end)

  -- The machine's memory with swap, as in /proc/meminfo.
  local function memory_of_all()
    local file, kib = io.open("/proc/meminfo"), 0
    for name, n in file:read("*a"):gmatch("(%w+):%s+(%d+) kB") do
      if name == "MemTotal" or name == "SwapTotal" then kib = kib + n end
    end
    file:close()
    return kib * 1024
  end

  it("is refused where it is more than the machine has", function()
    if memory_of_all() >= 2 ^ 40 then
      return pending("regions are no larger than what this machine has")
    end
    local none, err = engine:alloc(2 ^ 40)
    assert.is_nil(none)
    assert.equal("no_memory", err.kind)
    assert.matches("is more than the %d+ that this machine", tostring(err))
    none, err = engine:alloc(2 ^ 40, { access = "rw", name = "vast" })
    assert.is_nil(none)
    assert.equal("no_memory", err.kind)
  end)

  it("is all there from the beginning, if that is asked for", function()
    if cases.memory ~= "host" then return end
    local function pages()
      local file = io.open("/proc/self/statm")
      local n = tonumber(file:read("*a"):match("^%d+ (%d+)"))
      file:close()
      return n
    end
    for _, access in ipairs { "", "rw" } do
      local before = pages()
      local region = assert(engine:alloc(2 ^ 24, { access = access,
                                                   populate = true }))
      assert.is_true(pages() - before >= 4096 - 64)
      region:close()
      before = pages()
      region = assert(engine:alloc(2 ^ 24, { access = access }))
      assert.is_true(pages() - before < 1024)
      region:close()
    end
    assert.has_error(function() engine:alloc(1, { populate = 1 }) end)
  end)

  it("is in huge pages, if that is asked for, or is not made", function()
    if cases.memory ~= "host" then return end
    local function huge_pages()
      local kib = 0
      for line in io.lines "/proc/self/smaps" do
        local n = line:match "^AnonHugePages: +(%d+)"
          or line:match "^ShmemPmdMapped: +(%d+)"
        kib = kib + (n or 0)
      end
      return kib / 2048
    end
    for _, access in ipairs { "", "r", "rw" } do
      local before = huge_pages()
      local region, err = engine:alloc(2 ^ 22 + 1, { access = access,
                                                     huge = true })
      if not region then
        assert.equal("unsupported", err.kind)
        return pending("this system makes no huge pages")
      end
      assert.equal(2, huge_pages() - before)
      assert.is_true(region.huge)
      region:close()
    end
    local none, err = engine:alloc(2 ^ 20, { huge = true })
    assert.is_nil(none)
    assert.equal("unsupported", err.kind)
    assert.matches("does not put all of it in huge pages", tostring(err))
    assert.is_false(assert(engine:alloc(2 ^ 22)).huge)
  end)

  it("is mapped until its object and what was prepared are closed", function()
    local transport = os.getenv "PERIGEE_TRANSPORT" or "shm"
    local maps = transport == "shm" and cases.memory == "host" and 1 or 0
    local remote = assert(session:region "r")
    assert.equal(remote, assert(session:region "r"))
    -- What an engine needs for its first copy stays.
    assert.is_true((session:read { from = remote:slice(0, 8),
                                   to = here:slice(0, 8) }:wait(5)))
    local with = cases.mapped()
    local move = assert(session:prepare_read { from = remote:slice(0, 8),
                                               to = here:slice(0, 8) })
    remote:close()
    remote:close()
    assert.equal(with, cases.mapped())
    assert.is_true((move:post():wait(5)))
    move:close()
    assert.equal(with - maps, cases.mapped())
    assert.has_error(function()
      session:read { from = remote:slice(0, 8), to = here:slice(0, 8) }
    end)
    local again = assert(session:region "r")
    assert.not_equal(remote, again)
    assert.equal(with, cases.mapped())
    assert.is_true((session:read { from = again:slice(0, 8),
                                   to = here:slice(0, 8) }:wait(5)))
  end)

  it("that goes over to another session does not end with the first", function()
    local own = cases.engine()
    assert(own:listen(cases.address("moves")))
    cases.alloc(own, 64, { name = "kv", access = "r" })
    local first = assert(engine:connect(cases.address("moves")))
    local second = assert(engine:connect(cases.address("moves")))
    local kv = assert(first:region_apart "kv")
    kv:move_to(assert(second:region_apart "kv"))
    first:close()
    assert.is_true((second:read { from = kv:slice(0, 8), to = here:slice(0, 8) }
      :wait(5)))
  end)

  it("whose owner has made another is stale, and not mapped", function()
    local child = process.start(function(child)
      local own, region = child.cases.engine(), nil
      local listener = assert(own:listen(child.cases.address("anew")))
      for line in child.attend do
        if region then region:close() end
        region = child.cases.alloc(own, 2 ^ 20, { name = "kv", access = "r" })
        region:slice():fill(tonumber(line))
        child.say "made"
        if line == "1" then assert(listener:accept(10)) end
      end
    end)
    local function make(n)
      child:tell(tostring(n))
      child:expect "made"
    end
    make(1)
    local other = assert(engine:connect(cases.address("anew")))
    local before, maps, to = nil, nil, here:slice(0, 8)
    for n = 2, 6 do
      local kv = assert(other:region "kv")
      assert.is_true((other:read { from = kv:slice(0, 8), to = to }:wait(5)))
      assert.equal(n - 1, cases.byte(to))
      local now = cases.mapped()          -- others' may go meanwhile
      assert.is_true(now <= (maps or now))
      maps = now
      if before then
        local from = before:slice(0, 8)
        assert.equal("stale", select(2, other:read { from = from, to = to }
          :wait(5)).kind)
        assert.equal("stale", select(2, other:prepare_read { from = from,
                                                             to = to }).kind)
        local both = { kv:slice(0, 4), before:slice(0, 4) }
        assert.equal("stale", select(2, other:read { from = both, to = to }
          :wait(5)).kind)
      end
      before = kv
      make(n)
    end
    other:close()
  end)

  it("is of a NUMA node, if there is such a one", function()
    if cases.memory ~= "host" then return end
    local policies = io.open "/proc/self/numa_maps"
    for _, access in ipairs(policies and { "", "r" } or {}) do
      local region = assert(engine:alloc(2 ^ 20, { access = access, node = 0 }))
      policies:seek "set"
      local line = ("\n%x prefer:0"):format(region.address)
      assert.is_truthy(policies:read "*a":find(line, 1, true))
      region:close()
    end
    if policies then policies:close() end
    for _, node in ipairs { 999, 1023 } do
      local none, err = engine:alloc(2 ^ 20, { node = node })
      assert.is_nil(none)
      assert.equal("not_found", err.kind)
      assert.matches("can have no memory of that NUMA node", tostring(err))
    end
    for _, node in ipairs { -1, 1024, 0.5, "0" } do
      assert.has_error(function() engine:alloc(1, { node = node }) end)
    end
  end)

  it("is made of another one's memory, which outlives that one", function()
    local child = process.start(function(child)
      local own = child.cases.engine()
      local first = own:alloc(2 ^ 20, { name = "first", access = "r" })
      first:slice(4096, 5):write("hello")
      local again = assert(own:adopt(first:file(), 2 ^ 20, {
        name = "again", access = "r" }))
      first:close()
      local listener = assert(own:listen(child.cases.address("again")))
      child.say("ready", again:slice(4096, 5):string())
      assert(listener:accept(10))
      child.attend()
    end):expect("ready hello")
    local other = assert(engine:connect(cases.address("again")))
    local remote = assert(other:region("again"))
    assert(other:read { from = remote:slice(4096, 5),
                        to = here:slice(0, 5) }:wait(5))
    assert.equal("hello", here:slice(0, 5):string())
    local _, err = other:write { from = here:slice(0, 5),
                                 to = remote:slice(0, 5) }:wait(5)
    assert.equal("denied", err.kind)
    child:close()
  end)

  it("is of a file of sealed size alone, which peers may read", function()
    local own = engine:alloc(8192, { access = "r" })
    assert.has_error(function() engine:adopt(own:file(), 3 * 4096) end)
    assert.has_error(function() engine:adopt(0, 4096) end)
    assert.has_error(function()
      engine:adopt(own:file(), 4096, { access = "rw" })
    end)
    local open = engine:alloc(4096, { access = "rw" })
    assert.has_error(function()
      engine:adopt(open:file(), 4096, { access = "r" })
    end)
    assert(engine:adopt(open:file(), 4096)):close()
    local mine = assert(engine:adopt(own:file(), 8192))
    mine:slice(0, 5):write("alone")       -- only here
    assert.equal(("\0"):rep(5), own:slice(0, 5):string())
    assert.is_nil((mine:file()))
    assert.equal("unsupported", select(2, engine:alloc(1):file()).kind)
    mine:close()
  end)

  it("moves 64 MiB", function()
    local child = process.start(function(child, perigee_)
      local own = child.cases.engine()
      child.cases.alloc(own, 2 ^ 26, { name = "big", access = "rw" })
      local listener = assert(own:listen(child.cases.address("big")))
      child.say("ready")
      assert(listener:accept(10))
      perigee_.run()
    end):expect("ready")
    local mine = cases.alloc(engine, 2 ^ 27)
    local big = assert(engine:connect(cases.address("big"), { timeout = 5 }))
    local remote = assert(big:region("big"))
    local out, back = mine:slice(0, 2 ^ 26), mine:slice(2 ^ 26, 2 ^ 26)
    out:write(cases.bytes(2 ^ 26))
    local whole = remote:slice(0, 2 ^ 26)
    assert(session:explain())
    assert(big:write { from = out, to = whole }:wait(10))
    assert(big:read { from = whole, to = back }:wait(10))
    assert.is_true(out:string() == back:string())
    child:close()
    local done, err
    repeat -- a GPU may read all of it before the death is known
      done, err = big:read { from = whole, to = back }:wait(5)
    until not done
    assert.equal("peer_lost", err.kind)
    perigee.sleep(0)
  end)
end)
