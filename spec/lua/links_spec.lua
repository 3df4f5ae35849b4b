-- SPDX-License-Identifier: Apache-2.0
-- Who is linked with whom, as the stats files of both ends tell.
local cases = require "spec.support.cases"
local histories = require "perigee.stats.history"
local links = require "perigee.stats.links"
local metrics = require "perigee.stats.metrics"
local partial = require "perigee.stats.partial"
local planted = require "spec.support.planted_stats"

local registry = "folder:" .. cases.folder .. "/planted"

local files = {}

local function file_of(name, epoch)
  local file = planted.new(name, "s")
  file.head.epoch = epoch
  files[name] = file
  return file
end

local function session(file, i, epoch, fields)
  local row = file.sessions[i]
  row.id, row.state, row.epoch, row.transport = i + 1, 2, epoch, "tcp"
  row.counters.size = 80
  for name, value in pairs(fields) do row[name] = value end
  return row
end

local function write_all()
  for name, file in pairs(files) do
    planted.write(registry, "s", name, planted.bytes(file))
  end
end

-- The links of two looks, between which f is called. reported: as of metrics.
local function looks(f, reported)
  local told = metrics.new { registry = registry, reported = reported }
  local history = histories.new(told, 1)
  write_all()
  history:look()
  f()
  write_all()
  told.until_ = 0
  history:look()
  return history:links()
end

describe("links of agents", function()
  before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
  after_each(function()
    cases.cleanup()
    os.execute("rm -rf '" .. cases.folder .. "/planted'")
    files = {}
  end)

  it("are one of both ends, with what either of them knows", function()
    local a, b = file_of("a", 11), file_of("b", 22)
    local dialed = session(a, 0, 22, { dialed = 1, peer = "b", not_shm = 3,
                                       lanes = 2, not_verbs = 8 })
    local accepted = session(b, 0, 11, { peer = "a", not_shm = 1 })
    session(a, 1, 22, { ended = 5, transport = "shm" })
    local list, more = looks(function()
      dialed.counters.calls = 1000      -- and reads, of which b does not know
      dialed.counters.bytes_sent, dialed.counters.bytes_received = 500, 9000
      accepted.counters.served = 990
      accepted.counters.bytes_received = 500
      accepted.counters.bytes_sent = 300
    end)
    assert.equal(1, #list)
    assert.equal(0, more)
    local link = list[1]
    assert.same({ "a", "b", "s", "s", "tcp", 1, 2, true, true },
                { link.from, link.to, link.from_scope, link.to_scope,
                  link.transport, link.sessions, link.lanes, link.from_here,
                  link.to_here })
    assert.equal("Not over shared memory: the peer does not offer it. Not over "
      .. "RDMA: no device here can be used.", link.why)
    assert.is_true(link.calls > 0 and link.answered == 0)
    assert.is_true(math.abs(link.received / link.sent - 18) < 1e-6)
    assert.is_true(math.abs(link.calls / link.sent - 2) < 1e-6)
  end)

  it("have names of peers that are elsewhere, which are shown as text",
     function()
    local a = file_of("a", 11)
    session(a, 0, 99, { peer = "far\27[2J", not_shm = 2 })
    session(a, 1, 0, { dialed = 1, address = "tcp://10.0.0.1:7", not_shm = 2 })
    local list = looks(function() end)
    assert.equal(2, #list)
    table.sort(list, function(x, y) return x.from < y.from end)
    assert.same({ "a", "tcp://10.0.0.1:7", true, false },
                { list[1].from, list[1].to, list[1].from_here,
                  list[1].to_here })
    assert.same({ "far\\x1b[2J", "a" }, { list[2].from, list[2].to })
    assert.equal("Not over shared memory: the peer is on another host.",
                 list[2].why)
  end)

  it("are none of the dead, nor what a life before has counted", function()
    local a, b = file_of("a", 11), file_of("b", 22)
    session(a, 0, 22, { dialed = 1 }).counters.calls = 1e6
    session(b, 0, 11, {})
    b.head.pid_started = 1
    local list = looks(function() a.head.epoch = 12 end)
    assert.equal(1, #list)
    assert.equal("unknown", list[1].to)
    assert.equal(0, list[1].calls)
  end)

  it("have no names of agents that report, whatever epoch these say they have",
     function()
    local a, b = file_of("a", 11), file_of("b", 22)
    local dialed = session(a, 0, 22, { dialed = 1, peer = "b" })
    session(b, 0, 11, { peer = "a" })
    local function reported()
      local list = {}
      for i, epoch in ipairs { tostring(11ULL), tostring(22ULL) } do
        list[i] = { name = "zz" .. i, scope = "zz", host = "h", pid = 1,
                    epoch = epoch, path = "zz/" .. i, reported = 1, begun = 0,
                    began_at = 0, state = "running", counters = {},
                    transports = {}, methods = {}, oldest_call = 0,
                    oldest_served = 0 }
      end
      return list
    end
    local list, _, silent = looks(function()
      dialed.counters.calls = 1000
    end, reported)
    assert.equal(1, #list)
    assert.same({ "a", "b", 2 }, { list[1].from, list[1].to, silent })
    assert.is_true(list[1].calls > 0)
  end)

  it("are as many as may be, the busiest, and it is told how many there are "
     .. "beside", function()
    local sessions = {}
    for i = 1, links.MOST + 5 do
      sessions[i] = { epoch = "0", peer = "p" .. i, address = "",
                      transport = "shm", dialed = true, lanes = 0, not_shm = 0,
                      not_verbs = 0, calls = 0, served = 0, sent = i,
                      received = 0 }
    end
    local before = { [tostring(1ULL)] = {} }
    local list, more = links.of({ { epoch = 1ULL, name = "a", scope = "s",
                                    sessions = sessions } }, before, 1)
    assert.equal(links.MOST, #list)
    assert.equal(5, more)
    assert.equal("p" .. links.MOST + 5, list[1].to)
  end)

  it("of files with any bytes are those that can be", function()
    local file = file_of("a", 11)
    for i = 0, 3 do session(file, i, i, { dialed = 1, peer = "p" .. i }) end
    for bytes in planted.spoiled(planted.bytes(file), 12) do
      local path = planted.write(registry, "s", "a", bytes)
      local told = partial.read(path, true)
      if told then
        told.path = path
        local list = links.of({ told }, { [tostring(told.epoch)] = {} }, 1)
        assert.is_true(#list <= 4)
        for _, link in ipairs(list) do
          assert.is_true(link.sent >= 0 and link.calls >= 0)
          for _, text in ipairs { link.from, link.to, link.transport } do
            assert.is_nil(text:find "%c")
          end
        end
      end
    end
  end)
end)
