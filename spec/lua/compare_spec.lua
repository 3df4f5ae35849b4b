-- SPDX-License-Identifier: Apache-2.0
-- bench/compare.lua: its arithmetic from recorded bursts, peers with planted
-- faults, and the adapters that are installed.
if (os.getenv "PERIGEE_PRELOAD" or "") ~= "" then
  return pending "comparisons: not under a sanitizer, which is for our own code"
end

local answer = require "bench.lib.compare.answer"
local bench_process = require "bench.lib.process"
local cjson = require "cjson"
local cores = require "bench.lib.compare.cores"
local distance = require "bench.lib.compare.distance"
local figures = require "bench.lib.compare.figures"
local folders = require "bench.lib.folders"
local pair = require "bench.lib.compare.pair"
local perftest = require "bench.lib.perftest"
local peers = require "bench.lib.compare.peers"
local pictures = require "bench.lib.compare.pictures"
local process = require "spec.support.process"
local report = require "bench.lib.compare.report"
local sessions = require "bench.lib.compare.sessions"
local shapes = require "bench.lib.ranks.shape"

local PATIENCE = 60 * process.slow
local PIN = bench_process.cores() > 1 and { 0, 1 } or { 0, 0 }
local ALSO = "spec/support/planted_peers.lua"

bench_process.setenv("PERIGEE_COMPARE_LOCKS", "-spec-" .. process.pid())
bench_process.ignore_broken_pipes()

local function lines_of(path)
  local file, all = io.open(path), {}
  for line in file and file:lines() or function() end do
    all[#all + 1] = line
  end
  if file then file:close() end
  return all
end

local function eventually(condition)
  local limit = process.now() + 20 * process.slow
  repeat
    if condition() then return true end
    process.usleep(0.02)
  until process.now() > limit
end

-- ---- Arithmetic ------------------------------------------------------------

-- A burst as it was recorded: an answer, and what the harness added.
local function recorded(line, before, after, client, server)
  local burst = assert(answer.parse(line))
  burst.before, burst.after = before, after
  burst.cpu_client, burst.cpu_server = client, server
  burst.elapsed, burst.busy = 0.001, client + server + 0.0001
  return burst
end

local function row_of(name, mode, ...)
  local entry = { peer = { name = name, path = "shm" }, bursts = { ... },
                  memory = 2 ^ 21, repeated = 0 }
  local work = { mode = mode, size = 1000, under = 1 }
  return figures.row(entry, work,
                     distance.about { 100, 100, 100, 110, 400 })
end

describe("the distance of the cores", function()
  it("fits if it is in the range that was asked for, else as it mostly was",
     function()
    local asked = distance.fitting { line = distance.range "100-250" }
    local mostly = distance.about { 300, 310, 320, 100 }
    assert.same({ true, false, false }, { asked(250), asked(99), asked(251) })
    assert.same({ true, false }, { mostly(300), mostly(100) })
    assert.is_true(distance.fits({ before = 0, after = 0 }, asked))
    assert.is_false(distance.fits({ before = 120, after = 400 }, asked))
  end)

  it("is asked for as a range of ns, or as the most", function()
    assert.same({ 0, 250 }, distance.range "250")
    assert.same({ 400, 900 }, distance.range "400-900")
    for _, wrong in ipairs { "", "near", "250-250", "-3", "1-2-3" } do
      local range, why = distance.range(wrong)
      assert.is_nil(range)
      assert.matches("is no range of ns", why, 1, true)
    end
  end)
end)

describe("the table of a comparison", function()
  local near = "ok calls=4 seconds=0.00004 checked=4 ns=8000:2,12000:2"
  local far = "ok calls=2 seconds=0.0004 checked=2 ns=200000:2"

  it("pools the bursts during which the cores did not move", function()
    local row = row_of("a", "echo",
      recorded(near, 100, 110, 0.00002, 0.00003),
      recorded(far, 100, 400, 0.002, 0.002),
      recorded(near, 90, 100, 0.00002, 0.00001))
    assert.equal(8, row.calls)
    assert.equal(8, row.checked)
    assert.equal(3, row.bursts)
    assert.equal(2, row.bursts_kept)
    assert.near(10, row.mean_us, 0.05)
    assert.near(8, row.p50_us, 0.05)
    assert.near(12, row.p99_us, 0.05)
    assert.near(100000, row.calls_per_s, 1e-6)
    assert.near(0.2, row.gb_per_s, 1e-9)
    assert.near(5, row.cpu_client_us, 1e-9)
    assert.near(5, row.cpu_server_us, 1e-9)
    assert.near(0.1, row.others, 1e-9)
    assert.equal(2, row.memory_mib)
  end)

  it("takes all bursts where the cores never settled", function()
    local row = row_of("a", "echo", recorded(near, 400, 10, 0, 0),
                       recorded(far, 10, 400, 0, 0))
    assert.equal(6, row.calls)
    assert.equal(0, row.bursts_kept)
    assert.truthy(report.line(row):find("never settled", 1, true))
  end)

  it("gives each peer what a call costs by it over what ours costs", function()
    local rows = { row_of("ours", "echo", recorded(near, 100, 100, 0, 0)),
                   row_of("far", "echo", recorded(far, 100, 100, 0, 0)),
                   { peer = "none", mode = "echo", size = 1000,
                     why = "is not there", install = "make x" } }
    figures.compare(rows)
    assert.equal(1, rows[1].ratio)
    assert.near(20, rows[2].ratio, 0.2)
    assert.is_nil(rows[3].ratio)
    assert.truthy(report.line(rows[3]):find("make x", 1, true))
    local lines = table.concat(report.ratios(rows, "echo"), "\n")
    assert.truthy(lines:find("20.0", 1, true) or lines:find("19.9", 1, true))
  end)

  it("has columns in the order of peers, though one began late", function()
    local rows = { { peer = "ours", mode = "echo", size = 1, ratio = 1 },
                   { peer = "late", mode = "echo", size = 1 },
                   { peer = "other", mode = "echo", size = 1, ratio = 3 },
                   { peer = "none", mode = "echo", size = 1 },
                   { peer = "late", mode = "echo", size = 2, ratio = 4 } }
    local lines = report.ratios(rows, "echo", { late = "S/Late" })
    assert.matches("size +S/Late +other$", lines[2])
    assert.matches(" 1 +%- +3.00$", lines[3])
  end)

  it("compares rates where many are under way, and processor time where calls \z
      are paced", function()
    local function ratio(mode)
      local rows = { row_of("ours", mode, recorded(near, 100, 100, 1e-6, 1e-6)),
                     row_of("b", mode, recorded(far, 100, 100, 2e-6, 2e-6)) }
      figures.compare(rows)
      return rows[2].ratio
    end
    assert.near(20, ratio "pipelined", 1e-6) -- 0.0002 s a call over 0.00001
    assert.near(4, ratio "paced", 1e-6)      -- 4 us for 2 calls, 2 us for 4
  end)

  it("says of a floor that it is one, and whether nobody looked at its bytes",
     function()
    local row = row_of("a", "echo", recorded(near, 100, 100, 0, 0))
    assert.is_nil(report.line(row):find("floor", 1, true))
    row.floor = true
    assert.matches("(a floor)", report.line(row), 1, true)
    row.checked = 0
    assert.matches("(a floor, no byte is looked at)", report.line(row), 1, true)
  end)

  it("says how each peer waits, which may depend on the mode", function()
    local function line(mode, waits)
      return report.line(figures.row(
        { peer = { name = "a", path = "tcp", waits = waits }, memory = 0,
          bursts = { recorded(near, 100, 100, 0, 0) }, repeated = 0 },
        { mode = mode, size = 64, under = 1 }, distance.about { 100 }))
    end
    assert.matches("^a +tcp +sleeps ", line("echo", "sleeps"))
    assert.matches("^a +tcp +polls ", line("echo", { "polls", paced = "both" }))
    assert.matches("^a +tcp +both ", line("paced", { "polls", paced = "both" }))
    assert.matches("^a +tcp +%d", line("echo"))
  end)

  it("counts the bytes to and from each server of a fan-out", function()
    local burst = recorded(near, 100, 100, 0, 0)
    local function rate(mode)
      local entry = { peer = { name = "a" }, bursts = { burst }, memory = 0,
                      repeated = 0 }
      return figures.row(entry, { mode = mode, size = 1000, under = 8 },
                         distance.about { 100 }).gb_per_s
    end
    assert.near(0.2, rate "pipelined", 1e-9)
    assert.near(1.6, rate "fanout", 1e-9)
  end)

  it("counts the bytes of a put once, and compares those that have puts",
     function()
    local put = row_of("a", "put", recorded(near, 100, 100, 0, 0))
    local echo = row_of("a", "echo", recorded(near, 100, 100, 0, 0))
    assert.near(echo.gb_per_s / 2, put.gb_per_s, 1e-9)
    local able = peers.with_mode({ { name = "a", modes = { echo = true } },
                                   { name = "b", modes = { put = true } } },
                                 "put")
    assert.equal(1, #able)
    assert.equal("b", able[1].name)
  end)

  it("compares the least times of pieces, and the least processor time of \z
      their posts", function()
    local function row(name, more)
      local text = near:gsub(" ns=", more .. " ns=")
      local entry = { peer = { name = name }, memory = 0, repeated = 0,
                      bursts = { recorded(text, 100, 100, 1, 1),
                                 recorded(near, 100, 100, 1, 1) } }
      local work = { mode = "put-pieces", size = 9000, under = 1,
                     plan = { bytes = 1000 } }
      return figures.row(entry, work, distance.about { 100 })
    end
    local rows = { row("ours", " post=0.000002 caller=0.000004"),
                   row("theirs", " post=0.000006 caller=0.000008"),
                   row("silent", "") }
    rows[2].least_us = 24
    figures.compare(rows)
    assert.same({ 1000, 2, 4, 1, 1 }, { rows[1].size, rows[1].post_us,
      rows[1].caller_us, rows[1].ratio, rows[1].post_ratio })
    assert.near(8, rows[1].least_us, 0.05)
    assert.near(0.1, rows[1].gb_per_s, 1e-9)
    assert.near(3, rows[2].ratio, 0.02)
    assert.near(3, rows[2].post_ratio, 1e-9)
    assert.is_nil(rows[1].cpu_client_us)
    assert.is_nil(rows[3].post_us or rows[3].post_ratio)
    assert.matches("least time over that of ours",
                   report.ratios(rows, "put-pieces")[1], 1, true)
    assert.matches("put%-pieces, 2 x 4 of 4K +least", report.header {
      mode = "put-pieces", size = 9000,
      shape = { layers = 2, blocks = 4, block = 4096 } })
  end)

  it("takes no answer that means nothing", function()
    for line, why in pairs {
      ["fine"] = "printed",
      ["ok calls=4 seconds=1 checked=4"] = "ns",
      ["ok calls=x seconds=1 checked=4 ns=5:4"] = "calls",
      ["ok calls=3 seconds=1 checked=4 ns=5:4"] = "calls",
      ["ok calls=4 seconds=0 checked=4 ns=5:4"] = "seconds",
      ["ok calls=4 seconds=nan checked=4 ns=5:4"] = "seconds",
      ["ok calls=4 seconds=1 checked=inf ns=5:4"] = "checked",
      ["ok calls=4 seconds=1 checked=4 ns=1e999:4"] = "ns",
      ["ok calls=4 seconds=1 checked=4 ns=5:4,x"] = "ns",
      ["failed no route"] = "no route",
      ["wrong byte 3"] = "wrong bytes: byte 3",
    } do
      local told, reason = answer.parse(line)
      assert.is_nil(told)
      assert.truthy(reason:find(why, 1, true), reason)
    end
  end)
end)

describe("a picture of a comparison", function()
  local NAME = 12 -- pixels that a name is high

  -- Returns where the peers' names stand, from the top on, and the picture's
  -- height.
  local function names_of(picture)
    local list = {}
    for at in picture:gmatch '<text x="[^"]+" y="([^"]+)">peer%d+</text>' do
      list[#list + 1] = tonumber(at)
    end
    table.sort(list)
    return list, tonumber(picture:match ' height="(%d+)"')
  end

  it("has all names inside, none on another", function()
    for _, count in ipairs { 1, 5, 60 } do
      local rows = {}
      for i = 1, count do
        rows[2 * i - 1] = { peer = "peer" .. i, mode = "echo", size = 64,
                            p50_us = i }
        rows[2 * i] = { peer = "peer" .. i, mode = "echo", size = 1024,
                        p50_us = 1000 + (i % 2) / 100 }
      end
      local list, height = names_of(pictures.draw(rows, "echo", "p50_us",
                                                  "p50"))
      assert.equal(count, #list)
      assert.is_true(list[1] >= NAME and list[count] <= height)
      for i = 2, count do assert.is_true(list[i] - list[i - 1] >= NAME) end
    end
  end)

  it("has the modes of which there are rows", function()
    local rows = { { peer = "a", mode = "put", size = 64, p50_us = 1 } }
    local folder, paths = "results", {}
    assert.is_true(pictures.write(folder, rows, function(path)
      paths[#paths + 1] = path
      return true
    end))
    assert.same({ "results/latency-put.svg" }, paths)
  end)

  it("is an error if it cannot be written", function()
    local rows = { { peer = "a", mode = "put", size = 64, p50_us = 1 } }
    local fine, why = pictures.write("results", rows, function()
      return nil, "no room"
    end)
    assert.is_nil(fine)
    assert.equal("no room", why)
  end)
end)

-- ---- The program -----------------------------------------------------------

describe("bench/compare.lua", function()
  local folder
  local prefix = "" -- words in front of its command line

  local function compare(...)
    local words = { "env", "PLANTED_PIDS=" .. folder .. "/pids",
                    "XDG_RUNTIME_DIR=" .. folder, "sh", "-c",
                    ('exec %s "$@" 2>&1'):format(prefix), "sh", "luajit",
                    "bench/compare.lua", "--also", ALSO, "--results", folder,
                    "--sizes", "64", "--modes", "echo", "--seconds", "0.04",
                    "--rounds", "2", "--attempts", "1", ... }
    if PIN[2] == 0 then words[#words + 1] = "--one-core" end
    return process.spawn(words)
  end

  -- Returns its exit status and all that it printed.
  local function finished(child)
    local text = {}
    for line in function() return child:read(PATIENCE) end do
      text[#text + 1] = line
    end
    local _, status = child:wait(PATIENCE)
    return status, table.concat(text, "\n")
  end

  local function rows_of()
    local document = table.concat(lines_of(folder .. "/compare.json"), "\n")
    local by = {}
    for _, row in ipairs(cjson.decode(document).rows) do by[row.peer] = row end
    return by
  end

  -- Returns whether no process is left that the planted peers have noted.
  local function nothing_left()
    for _, pid in ipairs(lines_of(folder .. "/pids")) do
      local status = table.concat(lines_of("/proc/" .. pid .. "/cmdline"))
      if status:find("planted", 1, true) then return false end
    end
    return true
  end

  before_each(function()
    folder = io.popen "mktemp -d /tmp/perigee-compare.XXXXXX":read "*l"
    prefix = ""
  end)

  after_each(function()
    process.cleanup()
    os.execute("rm -rf " .. folder)
  end)

  it("tells the slow, the wrong, the silent and the absent apart", function()
    local status, text = finished(compare("--peers", "perigee-c,planted"))
    assert.equal(0, status, text)
    local rows = rows_of()
    assert.equal(cjson.null, rows["perigee-c"].why)
    assert.is_true(rows["perigee-c"].calls >= 3)
    assert.equal(1, rows["perigee-c"].ratio)
    assert.is_true(rows["planted-slow"].p50_us > 4900)
    assert.near(rows["planted-slow"].mean_us / rows["perigee-c"].mean_us,
                rows["planted-slow"].ratio, 1e-6)
    for name, why in pairs {
      flips = "wrong bytes", hangs = "said nothing for", babbles = "forty-two",
      mute = "its server said nothing for 0.5 s", dies = "no such device",
      absent = "/nowhere/planted",
    } do
      local row = rows["planted-" .. name]
      assert.truthy(row.why:find(why, 1, true), row.why)
      assert.truthy(text:find("planted%-" .. name .. " +shm +%- "), text)
    end
    assert.equal("make compare-deps planted", rows["planted-absent"].install)
    assert.is_true(nothing_left())
    assert.equal("peer,version", lines_of(folder .. "/planted-slow.csv")[1]
                                 :sub(1, 12))
  end)

  -- Returns the folders of comparisons that are in the spec's own.
  local function left_behind()
    local names = {}
    for _, name in ipairs(folders.entries(folder)) do
      if name:match "^perigee%-bench" then names[#names + 1] = name end
    end
    return names
  end

  it("leaves no process when it is killed, and folders until the next one \z
      makes its own", function()
    local held = folders.new(folder)
    local child = compare("--peers", "planted-slow", "--seconds", "60")
    assert.is_true(eventually(function()
      return #lines_of(folder .. "/pids") >= 2
    end))
    child:kill()
    assert.is_true(eventually(nothing_left))
    assert.equal(2, #left_behind())
    assert.is_true(eventually(function() -- until the lock has gone
      folders.remove(folders.new(folder))
      return #left_behind() == 1
    end))
    assert.equal(held, folder .. "/" .. left_behind()[1])
    folders.remove(held)
    assert.same({}, left_behind())
  end)

  it("has written the rows that are whole when it is interrupted", function()
    local child = compare("--peers", "planted-slow", "--sizes", "64,128",
                          "--seconds", "3")
    assert.is_true(eventually(function()
      return #lines_of(folder .. "/compare.json") > 1
    end))
    child:kill()
    local document = table.concat(lines_of(folder .. "/compare.json"), "\n")
    local rows = cjson.decode(document).rows
    assert.same({ 1, 64 }, { #rows, rows[1].size })
  end)

  it("takes the peer of a name, else a group, else a path, or all that begin \z
      so", function()
    local list = { { name = "a", group = "a" }, { name = "a-c", group = "a" },
                   { name = "b-ipc", group = "b", path = "unix" },
                   { name = "b-tcp", group = "b", path = "tcp" } }
    local function chosen(...)
      local names = {}
      for i, peer in ipairs(assert(peers.chosen(list, { ... }))) do
        names[i] = peer.name
      end
      return table.concat(names, " ")
    end
    assert.equal("a", chosen "a")
    assert.equal("b-ipc b-tcp", chosen "b")
    assert.equal("a b-tcp", chosen("b-tcp", "a"))
    assert.equal("b-tcp", chosen "tcp")
    assert.equal("a a-c", chosen("a*", "a"))
    assert.same({ nil, "c*" }, { peers.chosen(list, { "a", "c*" }) })
  end)

  it("has what goes over RDMA only where there is a device", function()
    local device, reason = perftest.device()
    for _, peer in ipairs(assert(peers.chosen(peers.all "./", { "verbs" }))) do
      local version, why, how = peers.there(peer)
      if device then
        assert.equal(peers.version(peer), version)
      else
        assert.same({ nil, reason, "make compare-rdma" }, { version, why, how })
      end
    end
  end)

  it("gives large payloads more time", function()
    local hangs = assert(peers.chosen(peers.all("./", ALSO),
                                      { "planted-hangs" }))[1]
    local one = assert(pair.start(hangs, PIN, "echo", 2 ^ 26, 1))
    one:go_on()
    local _, why = one:burst("echo", 2 ^ 26, 1, 0.25)
    one:close(true)
    assert.matches("said nothing for 1.75 s", why, 1, true)
  end)

  it("shares no core with another comparison", function()
    assert.is_true(cores.take(PIN))
    local status, text = finished(compare("--peers", "perigee-c"))
    assert.equal(1, status)
    assert.truthy(text:find("another comparison measures on core 0", 1, true),
                  text)
    bench_process.setenv("PERIGEE_COMPARE_LOCKS", "-then-" .. process.pid())
  end)

  local function refuses(why, ...)
    local status, text = finished(compare(...))
    assert.equal(1, status)
    assert.truthy(text:find(why, 1, true), text)
  end

  it("counts only cores that it may use", function()
    if PIN[2] == 0 then return pending "there is one core only" end
    prefix = "taskset -c 0"
    refuses("two cores are needed", "--peers", "perigee-c")
    refuses("no core 1 for us", "--peers", "perigee-c", "--pin", "0,1")
  end)

  it("has pairs of a lower priority than its own where that is real-time",
     function()
    prefix = "chrt --fifo 3"
    if os.execute(prefix .. " true 2>/dev/null") ~= 0 then
      return pending "no process may be a real-time one here"
    end
    local child = compare("--peers", "planted-hangs")
    assert.is_true(eventually(function()
      return #lines_of(folder .. "/pids") >= 2
    end))
    for _, pid in ipairs(lines_of(folder .. "/pids")) do
      local stat = lines_of("/proc/" .. pid .. "/stat")[1]
      -- state is the third field, the priority the fortieth
      assert.matches("^%) %S" .. (" %S+"):rep(36) .. " 2 ",
                     stat:match "%) .*$")
    end
    child:kill()
    assert.is_true(eventually(nothing_left))
  end)

  it("has the blocks of a shape moved in one write", function()
    local status, text = finished(compare("--peers", "perigee-prepared",
      "--modes", "pages", "--shape", "kv:layers=2,blocks=3,block=4K"))
    assert.equal(0, status, text)
    local row = rows_of()["perigee-prepared"]
    assert.equal(cjson.null, row.why)
    assert.same({ "put-pieces", 6 * 4096 }, { row.mode, row.size })
    assert.equal(0, row.checked % row.size)
    assert.is_true(row.least_us > 0 and row.post_us <= row.caller_us)
  end)

  it("measures the other modes where no peer has one of them", function()
    local status, text = finished(compare("--peers", "planted-slow", "--modes",
                                          "paced,echo"))
    assert.equal(0, status, text)
    assert.truthy(text:find("No row of mode paced", 1, true), text)
    assert.is_true(rows_of()["planted-slow"].calls >= 3)
  end)

  it("says what it cannot do", function()
    refuses("two cores are needed", "--peers", "perigee-c", "--pin", "0,0")
    refuses("no core 1023 for us", "--peers", "perigee-c", "--pin", "0,1023")
    refuses("none of these peers has any of these modes", "--peers",
            "planted-slow", "--modes", "paced")
    refuses("no peer \"x\"", "--peers", "x")
    refuses("no results can be written", "--results", "/proc/nowhere",
            "--peers", "perigee-c")
  end)
end)

-- ---- Adapters --------------------------------------------------------------

-- The peers that are here and start quickly: one of each program; all where
-- PERIGEE_COMPARE is "all", all of a path where it is "verbs" (in the guest).
local here, ALL = {}, peers.all "./"
local wanted = os.getenv "PERIGEE_COMPARE" or ""

-- Returns whether the peer is here; each is asked once.
local function is_here(peer)
  if here[peer] == nil then
    peer.starts, peer.late = PATIENCE, PATIENCE -- on a busy machine
    here[peer] = not peer.floor and peers.there(peer) ~= nil
  end
  return here[peer]
end

-- Returns those of them that have that mode; nil: any with one server.
local function installed(mode)
  local chosen, seen = {}, {}
  for _, peer in ipairs(ALL) do
    local first = wanted == "" and not seen[peer.program] and not peer.wheels
    if (mode and peer.modes[mode] or not mode and peer.modes[1] ~= "fanout")
       and (wanted == "all" or wanted == peer.path or first) then
      seen[peer.program] = true
      chosen[#chosen + 1] = is_here(peer) and peer or nil
    end
  end
  return chosen
end

-- Returns what is in shared memory with the number of one of the processes, but
-- not what was there before: processes of the same numbers may have left that.
local function shared_memory_of(pids, before)
  local names, old = {}, {}
  for _, name in ipairs(before) do old[name] = true end
  for _, name in ipairs(folders.entries "/dev/shm") do
    for _, pid in ipairs(pids) do
      if not old[name] and name:find("%f[%d]" .. pid .. "%f[%D]") then
        names[#names + 1] = name
      end
    end
  end
  return names
end

-- Those of a session that were killed need a core to die.
local function ends(session)
  return eventually(function() return #sessions.members(session) == 0 end)
end

-- The state of all pairs while one has its turn. Some systems tell a peer that
-- says nothing for 10 s dead.
local LONG = 15

describe("an adapter", function()
  if wanted == "all" then
    it("goes on after the others' turns, for all that are here", function()
      local started = {}
      for _, peer in ipairs(installed "echo") do
        if not peer.lasting then
          started[#started + 1] = assert(pair.start(peer, PIN, "echo", 64, 1))
        end
      end
      process.usleep(LONG)
      for _, one in ipairs(started) do
        one:go_on()
        local told, why = one:burst("verify", 64, 1, 3)
        assert.truthy(told, ("%s: %s"):format(one.peer.name, why))
        one:close()
      end
    end)
  end

  for _, peer in ipairs(installed "fanout") do
    it(("(%s) sends one payload to each of its servers"):format(peer.name),
       function()
      local one = assert(pair.start(peer, PIN, "fanout", 20000, 3))
      one:go_on()
      for _, size in ipairs { 64, 20000 } do
        local told = assert(one:burst("verify", size, 3, 3))
        assert.equal(3 * size, told.checked)
        told = assert(one:burst("fanout", size, 3, 0.001))
        assert.is_true(told.calls >= 3)
        assert.is_true(told.checked >= 3 * size) -- the last one whole
      end
      local sides = one.sides
      assert.equal(4, #sides)
      one:close()
      for _, side in ipairs(sides) do assert.is_true(ends(side.pid)) end
    end)
  end

  for _, peer in ipairs(installed "loan") do
    it(("(%s) lends what it sends"):format(peer.name), function()
      local one = assert(pair.start(peer, PIN, "loan", 20000, 1))
      one:go_on()
      for _, size in ipairs { 64, 20000 } do
        local told = assert(one:burst("loan", size, 1, 0.001))
        assert.is_true(told.calls >= 3)
        assert.is_true(told.checked >= told.calls)
        assert.equal(size, assert(one:burst("verify", size, 1, 1)).checked)
      end
      one:close()
    end)
  end

  -- Blocks of several layers, which lie apart; the same as a list; and one.
  local KVS = { { 3, 4, 8192 }, { 5, 1, 4096 }, { 1, 1, 4096 } }

  for _, peer in ipairs(installed "put-pieces") do
    it(("(%s) moves pieces"):format(peer.name), function()
      local one = assert(pair.start(peer, PIN, "put-pieces", 2 ^ 17, 1))
      one:go_on()
      for _, kv in ipairs(KVS) do
        local plan = shapes.paged { layers = kv[1], blocks = kv[2],
                                    block = 4096, stride = kv[3] }
        shapes.write(plan, one.folder)
        for _, mode in ipairs { "put-pieces", "get-pieces" } do
          local told = assert(one:burst(mode, plan.span, 1, 0.001))
          assert.is_true(told.calls >= 3)
          assert.equal(kv[1] * kv[2] * 4096, told.checked)
        end
      end
      one:close()
    end)
  end

  for _, peer in ipairs(installed()) do
    it(("(%s) moves every byte and leaves no server"):format(peer.name),
       function()
      local before = folders.entries "/dev/shm"
      local one = assert(pair.start(peer, PIN, peer.modes[1], 20000, 2))
      local server, client = one.server.pid, one.client.pid
      one:go_on()
      for _, size in ipairs { 64, 20000 } do
        local told = assert(one:burst("verify", size, 2, 4))
        assert.equal(4, told.calls)
        assert.equal(4 * size, told.checked)
        for _, mode in ipairs { "echo", "put", "get" } do
          told = peer.modes[mode] and assert(one:burst(mode, size, 1, 0.001))
          assert.is_true(not told or told.calls >= 3)
          assert.is_true(not told or told.checked > size) -- the last one whole
        end
        told = peer.modes.pipelined
               and assert(one:burst("pipelined", size, 2, 0.001))
        assert.is_true(not told or told.checked >= 2 * size + told.calls)
      end
      -- Two rounds, though three calls were asked for.
      assert.equal(4, assert(one:burst("verify", 64, 2, 3)).calls)
      one.client:signal(9)
      assert.is_nil(one:burst(peer.modes[1], 64, 1, 0.001))
      one.server:close_input() -- that alone has to end it
      assert.is_true(eventually(function()
        return one.server:wait(true) ~= nil
      end))
      one:close()
      assert.is_true(ends(server))
      assert.is_true(eventually(function()
        return #shared_memory_of({ server, client }, before) == 0
      end))
    end)
  end
end)
