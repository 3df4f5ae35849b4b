-- SPDX-License-Identifier: Apache-2.0
-- Files that claim to be stats and were written by somebody else: what reads
-- them ends in what can be told, soon, and raises nothing.
local cases = require "spec.support.cases"
local command = require "spec.support.command"
local ffi = require "ffi"
local planted = require "spec.support.planted_stats"
local spans = require "perigee.stats.spans"
local stats = require "perigee.stats"
local traces = require "perigee.stats.trace"

local path, bytes

local function write(text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

setup(function()
  path = os.tmpname()
  local agent = assert(cases.agent())
  agent:serve { name = "s", methods = { f = function() end } }
  local proxy = assert(assert(cases.agent()):proxy(agent.name, "s"))
  for _ = 1, 50 do proxy:f() end
  local traced = proxy:with { trace = true }
  for _ = 1, 5 do traced:f() end
  bytes = command.content((agent.address:match "^unix:(.*)%.sock$") .. ".stats")
  cases.cleanup()
end)

teardown(function() os.remove(path) end)

-- Reads it, and looks at each value.
local function read()
  local told, why = stats.read(path)
  if not told then return assert.is_string(why) end
  for _, list in ipairs { told.methods, told.sessions, told.events,
                          told.under_way } do
    assert.is_true(#list <= 4096)
    for _, each in ipairs(list) do assert.is_table(each) end
  end
  return told
end

-- Reads the spans, and makes all trees of them; returns how many there are.
local function read_spans()
  local told, why = spans.read(path)
  if not told then return assert.is_string(why) and 0 end
  local count = 0
  for _, list in pairs(traces.collect { told }) do
    count = count + #traces.tree(list).spans
  end
  assert.equal(#told.spans, count)
  return count
end

describe("a stats file", function()
  it("that is whole is read", function()
    write(bytes)
    assert.is_true(#read().methods >= 1)
    assert.equal(5, read_spans())
  end)

  it("of any length is read as far as it goes", function()
    for _, length in ipairs { 0, 7, 8, 100, 1023, 4095, 4096, 5000, 20000,
                              #bytes - 1 } do
      write(bytes:sub(1, length))
      read()
      read_spans()
    end
  end)

  it("with any bytes in it raises nothing and ends", function()
    for spoiled in planted.spoiled(bytes, 8) do
      write(spoiled)
      read()
      read_spans()
    end
  end)

  -- Writes words of the first span's row: { field = value }.
  local function write_row(words)
    local head = ffi.new "struct perigee_stats_head"
    ffi.copy(head, bytes, ffi.sizeof(head))
    local file = assert(io.open(path, "r+b"))
    local word = ffi.new "uint64_t[1]"
    for field, value in pairs(words) do
      word[0] = value
      file:seek("set", tonumber(head.spans.offset)
        + ffi.offsetof("struct perigee_stats_span", field))
      file:write(ffi.string(word, 8))
    end
    file:close()
  end

  -- Reads the spans while words are written after so many looks at the rows.
  local function read_while(looks, words)
    local inside = stats.inside
    local before = inside.bytes_of
    function inside.bytes_of(...)
      local copy = before(...)
      looks = looks - 1
      if looks == 0 then write_row(words) end
      return copy
    end
    local told = spans.read(path)
    inside.bytes_of = before
    return told.spans
  end

  it("whose rows are used anew gives no span of which half is another's",
     function()
    for looks = 1, 2 do
      for _, sequence in ipairs { 0, 7 } do
        write(bytes)
        local list = read_while(looks, { sequence = sequence, start = 1 })
        assert.equal(4, #list)
        for _, span in ipairs(list) do assert.not_equal(1, span.start) end
      end
    end
    write(bytes)
    assert.equal(5, #read_while(3, { sequence = 0 }))
  end)

  it("whose span ends meanwhile has it under way", function()
    for looks = 1, 2 do
      write(bytes)
      write_row { ["end"] = 0 }
      local list = read_while(looks, { ["end"] = 2 ^ 50 })
      assert.equal(5, #list)
      assert.is_nil(list[1].ended)
    end
  end)

  it("whose span has a time or a length that cannot be has none of it",
     function()
    for _, field in ipairs { "start", "sent", "landing", "service", "end",
                             "bytes_out", "bytes_in" } do
      write(bytes)
      write_row { [field] = -1LL }
      assert.equal(4, read_spans())
    end
  end)

  it("that is read often has no more types described to LuaJIT", function()
    write(bytes)
    read()
    local before = tonumber(ffi.typeof "struct { char before[1]; }")
    for _ = 1, 300 do read() end
    local after = tonumber(ffi.typeof "struct { char behind[1]; }")
    assert.is_true(after - before < 100, after - before)
  end)

  it("whose spans have any bytes gives those that can be", function()
    local whole = ffi.new("uint8_t[?]", #bytes)
    local head = ffi.new "struct perigee_stats_head"
    ffi.copy(head, bytes, ffi.sizeof(head))
    local at, size = tonumber(head.spans.offset), 5 * head.spans.row
    for round = 1, 60 do
      ffi.copy(whole, bytes, #bytes)
      for _ = 1, round do
        whole[at + math.random(0, size - 1)] = math.random(0, 255)
      end
      write(ffi.string(whole, #bytes))
      assert.is_true(read_spans() <= 1024)
    end
  end)

  it("whose texts do not end has them as long as their fields", function()
    local whole = ffi.new("uint8_t[?]", #bytes)
    ffi.copy(whole, bytes, #bytes)
    ffi.fill(whole + 4096, 32 * 24, 65)         -- names of counters
    write(ffi.string(whole, #bytes))
    for name in pairs(read().counters) do assert.equal(24, #name) end
  end)

  -- A file with 256 rows of events, that has so many; the next one is half
  -- written.
  local function write_events(given)
    local whole = ffi.new("uint8_t[?]", #bytes)
    ffi.copy(whole, bytes, #bytes)
    local head = ffi.cast("struct perigee_stats_head *", whole)
    local rows = ffi.cast("struct perigee_stats_event *",
                          whole + head.events.offset)
    for n = given - 256, given - 1 do
      rows[n % 256].time, rows[n % 256].bytes = n, n
    end
    rows[given % 256].time = given
    head.events_given = given
    write(ffi.string(whole, #bytes))
  end

  local function assert_events(list, first, last)
    assert.equal(last - first + 1, #list)
    for i, each in ipairs(list) do
      assert.equal(first + i - 1, each.time)
      assert.equal(each.time, each.bytes)
    end
  end

  it("whose next event is half written has none of that", function()
    write_events(300)
    assert_events(read().events, 45, 299)
  end)

  it("whose rows of events are used anew meanwhile has those that were not",
     function()
    write_events(300)
    local open = io.open
    local function restore() rawset(io, "open", open) end
    finally(restore)
    rawset(io, "open", function(...)
      local file, proxy = assert(open(...)), {}
      function proxy:seek(...) return file:seek(...) end
      function proxy:close() return file:close() end
      function proxy:read(n)
        if n == 256 * 32 then
          restore()
          write_events(310)
        end
        return file:read(n)
      end
      return proxy
    end)
    assert_events(read().events, 55, 299)
  end)

  it("that claims more events than it can have gives none of these", function()
    local head = ffi.new "struct perigee_stats_head"
    ffi.copy(head, bytes, ffi.sizeof(head))
    head.events.rows = 0xffffffff
    head.events_given = 2 ^ 40
    write(ffi.string(head, ffi.sizeof(head)) .. bytes:sub(ffi.sizeof(head) + 1))
    assert.is_true(#read().events <= 4096)
  end)

  it("is asked for a level of the log only if it is a stats file of its own",
     function()
    local link = path .. ".link"
    for _, each in ipairs { { text = bytes, path = link }, { path = path,
        text = ("no stats file "):rep(200) }, { path = "/dev/null" },
        { path = path .. ".none" } } do
      write(each.text or bytes)
      assert.equal(0, os.execute(("ln -sf '%s' '%s'"):format(path, link)))
      local fine, why = stats.ask_for_level(each.path, "debug")
      os.remove(link)
      assert.is_nil(fine)
      assert.equal(each.path .. ": ", why:sub(1, #each.path + 2))
      assert.equal(each.text or bytes, command.content(path))
    end
    write(bytes)
    assert.is_true(stats.ask_for_level(path, "debug"))
    assert.equal("debug", stats.head(path).log.asked)
    assert.is_true(stats.ask_for_level(path))
    assert.is_nil(stats.head(path).log.asked)
  end)

  it("says why a session is over nothing better, also for a reason to come",
     function()
    local C = require "perigee.native".C
    local file, seen = planted.new("a", "s"), {}
    local row = file.sessions[0]
    row.id, row.transport = 1, "tcp"
    local function told()
      write(planted.bytes(file))
      return stats.read(path).sessions[1].not_better
    end
    assert.equal("", told())
    for code = 1, tonumber(C.PERIGEE_STATS_WHY_SECOND) do
      row.not_shm = code
      local why = told():match "^not shm %((%a[^()%d]+)%)$"
      assert.is_nil(seen[why])
      seen[why] = true
    end
    row.not_shm, row.not_verbs = C.PERIGEE_STATS_WHY_USER, 200
    assert.equal("not shm (the peer runs as another user), not verbs (for "
      .. "reason 200)", told())
    file.head.sessions.row = ffi.offsetof("struct perigee_stats_session",
                                          "not_shm")
    assert.equal("", told())            -- a row of a version before
  end)
end)
