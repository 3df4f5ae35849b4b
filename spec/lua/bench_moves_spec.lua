-- SPDX-License-Identifier: Apache-2.0
-- bench/rpc.lua and bench/transfer.lua: which wrong bytes their loops find, and
-- what their rows tell. Times mean nothing here.
local calls = require "bench.lib.calls"
local cases = require "spec.support.cases"
local cjson = require "cjson"
local ffi = require "ffi"
local first = require "bench.lib.first"
local kinds = require "bench.lib.kinds"
local moves = require "bench.lib.moves"
local options = require "bench.lib.options"
local pages = require "bench.lib.pages"
local payload = require "bench.lib.payload"
local shapes = require "bench.lib.ranks.shape"

-- Bytes of a payload, and how many rounds are made: none of them changes the
-- last byte, so only who compares every byte looks at it.
local SIZE, ROUNDS = 8192, 5
local SHAPE = assert(shapes.parse("kv:layers=1,blocks=2,block=2K,stride=2K",
                                  options.size))
local samples = ffi.new("double[?]", ROUNDS)

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

describe("a bench with its worker", function()
  -- Benches make their folders below it.
  before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
  after_each(cases.cleanup)

  it("finds its own bytes right", function()
    local brief = " --sizes 8K,256K --turns 1 --seconds 0.02 --no-floor"
    for words, count in pairs {
      ["transfer.lua --mode write,read,send,strided_write,strided_read"] = 10,
      ["transfer.lua --mode write,read,send --window 3"] = 6,
      ["rpc.lua --mode put,inplace,landings --landings 2"] = 6,
      ["rpc.lua --mode inplace --window 3"] = 2,
    } do
      assert.equal(count, #rows_of(words .. brief), words)
    end
  end)

  -- Before each of its two bursts the floor sleeps for --spin.
  it("tells the load beside calls by the time in which it ran", function()
    local row = rows_of(("rpc.lua --mode loaded --load 64K --turns 1 "
      .. "--seconds 0.02 --spin 1 --at unix:%s/a.sock"):format(cases.folder))[1]
    local bytes = row.transfers * row.load
    assert.is_true(bytes / row.load_gb_per_s < 2e9,
                   "the load ran for longer than it was let")
  end)
end)

describe("a loop of transfers", function()
  local session, here, check, remote, peer

  before_each(function()
    local server = cases.engine()
    peer = cases.alloc(server, 2 * SIZE, { name = "bench", access = "rw" })
    assert(server:listen(cases.address()))
    local engine = cases.engine()
    session = assert(engine:connect(cases.address()))
    remote = assert(session:region "bench")
    here, check = cases.alloc(engine, 2 * SIZE), cases.alloc(engine, 2 * SIZE)
    for _, region in ipairs { peer, here } do region:slice():fill(1) end
  end)
  after_each(cases.cleanup)

  -- A job whose part begins at an offset. spoil(i): called with each transfer.
  local function job_of(reads, spoil, at)
    at = at or 0
    local mine, theirs = here:slice(at, SIZE), remote:slice(at, SIZE)
    local job = {
      session = session, remote = theirs, check = check, repeats = 1, every = 1,
      view = kinds.view(mine), source = payload.PAGE, target = payload.PAGE,
      blocks = { count = 1, length = SIZE, here = 0, there = 0 },
      place = function(round) return payload.place(SIZE, round) end,
    }
    function job.post()
      local way = reads and session.read or session.write
      local future = way(session, reads and { from = theirs, to = mine }
                                  or { from = mine, to = theirs })
      assert(future:wait())
      if spoil then spoil(at) end
      return future
    end
    return job
  end

  -- What changes a byte at its destination: the last one of the part.
  local function there(at) peer.pointer[at + SIZE - 1] = 7 end
  local function mine(at) here.pointer[at + SIZE - 1] = 7 end

  local LOOPS = {
    write = { there, function(spoil)
      return moves.write(job_of(false, spoil))
    end },
    read = { mine, function(spoil) return moves.read(job_of(true, spoil)) end },
    ["several writes"] = { there, function(spoil)
      return moves.many({ job_of(false), job_of(false, spoil, SIZE) }, false)
    end },
    ["several reads"] = { mine, function(spoil)
      return moves.many({ job_of(true), job_of(true, spoil, SIZE) }, true)
    end },
  }
  for what, case in pairs(LOOPS) do
    it("compares every byte at the end of a step: " .. what, function()
      local spoil, loop = unpack(case)
      assert.equal(ROUNDS, (loop()(samples, ROUNDS, math.huge)))
      assert.has_error(function() loop(spoil)(samples, ROUNDS, math.huge) end,
                       "transfer: wrong bytes")
    end)
  end

  it("compares blocks where they lie", function()
    local job, spoil = job_of(false), function() end
    job.source, job.target = 256, 64
    job.blocks = { count = 2, length = 64, here = 256, there = 64 }
    job.place = function(round) return round % 64, 2 end
    local from = here:slice(0, 64, { count = 2, stride = 256 })
    function job.post()
      local future = session:write { from = from, to = remote:slice(0, 128) }
      assert(future:wait())
      spoil()
      return future
    end
    assert.equal(ROUNDS, (moves.write(job)(samples, ROUNDS, math.huge)))
    function spoil() peer.pointer[127] = 7 end
    assert.has_error(function()
      moves.write(job)(samples, ROUNDS, math.huge)
    end, "transfer: wrong bytes")
  end)

  for what, make in pairs {
    send = function(job) return moves.send(job) end,
    ["several sends"] = function(job) return moves.many_sends { job } end,
  } do
    it("has the peer compare the last message: " .. what, function()
      local job, asked, answers = job_of(false), {}, { false, true }
      function job.is_last(slice)
        asked[#asked + 1] = ffi.string(slice.pointer, slice.length)
        return answers[#asked]
      end
      here.pointer[SIZE - 1] = 5
      make(job)(samples, ROUNDS, math.huge)
      local sent = ffi.string(here.pointer, SIZE)
      assert.equal(2, #asked)             -- again, as it had not come
      assert.is_true(asked[1] == sent and asked[2] == sent, "other bytes")
    end)
  end

  -- What bench/transfer.lua gives to modes that have loops of their own.
  local function run_of(spoil)
    local run = { given = { no_floor = true, turns = 1, seconds = 1e-3,
                            shape = SHAPE },
                  memory = here:slice(), check = check, remote = remote }
    run.proxy = { renew_region = function() return "bench" end }
    run.session = {
      region = function() return remote end,
      read = function(_, spec) return session:read(spec) end,
      write = function(_, spec)
        local future = session:write(spec)
        assert(future:wait())
        spoil()
        return future
      end,
      prepare_write = function(_, spec)
        local transfer = session:prepare_write(spec)
        return { post = function(_, numbers)
          local future = transfer:post(numbers)
          assert(future:wait())
          spoil()
          return future
        end }
      end,
    }
    return run
  end

  it("compares every byte of pages, and of first writes", function()
    for _, case in ipairs { { pages.measure, "pages", 2047 },
                            { first.measure, "first write", SIZE - 1 } } do
      local measure, what, at = unpack(case)
      assert.is_true(measure(run_of(function() end), SIZE).calls > 0)
      assert.has_error(function()
        measure(run_of(function() peer.pointer[at] = 7 end), SIZE)
      end, what .. ": wrong bytes")
    end
  end)
end)

describe("a loop of calls", function()
  local spoiled, proxy, engine, session, remote

  -- A service whose memory changes, if it is spoiled, where nobody looks before
  -- the end of a step.
  local function serve(agent)
    local memory = cases.alloc(agent.engine, 2 * SIZE)
    local reply = memory:slice(0, SIZE):fill(1)
    local landed = memory:slice(SIZE, SIZE)
    local function spoil(pointer)
      if spoiled then pointer[SIZE - 1] = pointer[SIZE - 1] + 1 end
    end
    agent:serve { name = "bench", version = 1, methods = {
      copy = { raw = true, inplace = true, function(request, into)
        local length = into:write(request)
        if length == SIZE then spoil(into.pointer) end
        return length
      end },
      renew = function(length, round)
        payload.stamp(reply.pointer, length, round)
        return true
      end,
      pages = { raw = true, function()
        spoil(reply.pointer)
        return reply
      end },
      put = { landing = function() return landed end, function(slice)
        spoil(landed.pointer)
        return slice.length
      end },
      landed_wrong = function() return false end,
      landed = { raw = true, function() return landed end },
    } }
  end

  before_each(function()
    spoiled = false
    local server = assert(cases.agent "worker")
    local region = cases.alloc(server.engine, SIZE,
                               { name = "bench", access = "rw" })
    assert(server.engine:listen(cases.address()))
    serve(server)
    local agent
    proxy, agent = cases.proxy "bench"
    engine = agent.engine
    local real = assert(engine:connect(cases.address()))
    remote = assert(real:region "bench"):slice(0, SIZE)
    session = { read = function(_, spec) return real:read(spec) end }
    function session.write(_, spec)
      local future = real:write(spec)
      assert(future:wait())
      if spoiled then region.pointer[SIZE - 1] = 7 end
      return future
    end
  end)
  after_each(cases.cleanup)

  local LOOPS = {
    ["inplace, several"] = { "inplace", function()
      return calls.windowed(2, calls.inplace_slots(proxy, SIZE, 2))
    end },
    put = { "put", function()
      return calls.put(proxy, SIZE, engine, nil, 1)
    end },
    ["write and echo"] = { "write", function()
      local from = cases.alloc(engine, SIZE):slice():fill(1)
      return calls.write_and_echo(proxy, session, remote, from, 1)
    end },
    ["one landing"] = { "landings", function()
      return calls.landed(proxy, SIZE, 1, engine)
    end },
    ["two landings"] = { "landings", function()
      return calls.landed(proxy, SIZE, 2, engine)
    end },
  }
  for what, case in pairs(LOOPS) do
    it("compares every byte at the end of a step: " .. what, function()
      local word, make = unpack(case)
      local step = make()
      assert.equal(ROUNDS, (step(samples, ROUNDS, math.huge)))
      spoiled = true
      assert.has_error(function() step(samples, ROUNDS, math.huge) end,
                       word .. ": wrong bytes")
    end)
  end
end)
