-- SPDX-License-Identifier: Apache-2.0
-- bench/figures.lua: its plan, its arithmetic, its page and pictures from rows
-- that were recorded, and one short run of it.
if (os.getenv "PERIGEE_PRELOAD" or "") ~= "" then
  return pending "figures: not under a sanitizer, which is for our own code"
end

local bench_process = require "bench.lib.process"
local cjson = require "cjson"
local figures = require "bench.lib.figures.rows"
local options = require "bench.lib.options"
local page = require "bench.lib.figures.page"
local pictures = require "bench.lib.figures.pictures"
local plan = require "bench.lib.figures.plan"
local runs = require "bench.lib.figures.runs"

-- A row of compare.lua as its JSON has it.
local function row(peer, path, size, p50, more)
  local one = { peer = peer, path = path, size = size, p50_us = p50,
                line_ns = 100,
                mode = "echo", calls_per_s = 1e6 / p50, why = cjson.null,
                floor = cjson.null, cpu_client_us = 1, cpu_server_us = 1 }
  for name, value in pairs(more or {}) do one[name] = value end
  return one
end

-- Three sizes over shared memory: at the second there is no rival, at the third
-- no echo in place.
local ROWS = {
  row("perigee", "shm", 64, 0.5), row("perigee-inplace", "shm", 64, 0.6),
  row("floor-raw", "shm", 64, 0.4, { floor = true }),
  row("ucx-a", "shm", 64, 1), row("ucx-b", "shm", 64, 0.8),
  row("ucx-tcp", "tcp", 64, 0.1),
  row("perigee", "shm", 128, 0.5), row("perigee-inplace", "shm", 128, 1.8),
  row("ucx-a", "shm", 128, 1, { p50_us = cjson.null, why = "it died" }),
  row("perigee", "shm", 256, 2), row("ucx-a", "shm", 256, 1),
}
local SIZES = { 64, 128, 256 }

describe("the plan of the figures", function()
  local function parts(more)
    local given = { sizes = { 64, 96, 128, 1536, 2048 }, rivals = {},
                    seconds = 0.1, results = "results" }
    for name, value in pairs(more or {}) do given[name] = value end
    return plan.parts(given)
  end

  it("has two sizes for each power of two", function()
    assert.equal("64,96,128,192,256", plan.sizes(64, 256))
    local sizes = assert(options.sizes(plan.sizes(64, 2 ^ 26)))
    assert.equal(41, #sizes)
    assert.same({ 64, 96, 2 ^ 26 }, { sizes[1], sizes[2], sizes[41] })
  end)

  it("has a part for four sizes by a path, and some for calls", function()
    local names, groups = {}, {}
    for _, part in ipairs(parts()) do
      assert.is_nil(names[part.name])
      names[part.name], groups[part.group] = part, true
      assert.is_true(part.weight > 0)
    end
    assert.same({ 64, 96, 128, 1536 }, names["tcp-64"].sizes)
    assert.same({ 2048 }, names["tcp-2K"].sizes)
    for _, group in ipairs(plan.GROUPS) do assert.is_true(groups[group]) end
  end)

  it("measures those rivals that have the path and the mode", function()
    local rivals = {
      { name = "a", path = "shm", modes = { echo = true } },
      { name = "b", path = "tcp", modes = { echo = true } },
      { name = "c", path = "shm", modes = { put = true } },
    }
    local words = {}
    for _, part in ipairs(parts { rivals = rivals }) do
      words[part.name] = table.concat(part.command, " ")
    end
    assert.matches("floor-inplace,a ", words["shm-64"], 1, true)
    assert.matches("floor-inplace-tcp,b ", words["tcp-64"], 1, true)
    assert.matches("perigee-prepared,c ", words.put, 1, true)
    assert.matches("perigee,perigee-c ", words.fanout, 1, true)
  end)

  it("measures only while the cores are as near as it is told", function()
    local function words(line)
      return table.concat(parts { line = line }[1].command, " ")
    end
    assert.matches("--attempts 8 --line 0-250", words "0-250", 1, true)
    assert.is_nil(words():find("--line", 1, true))
  end)

  it("tells the time that is left by how long the parts took so far", function()
    local list = { { weight = 1 }, { weight = 1 }, { weight = 4 } }
    assert.equal(6, runs.left(list, 0, 0))
    assert.equal(8, runs.left(list, 2, 4))
    assert.equal(0, runs.left(list, 3, 9))
  end)
end)

describe("the figures", function()
  local echoes = figures.echoes(ROWS, "shm", SIZES)

  it("compare with the quickest of the others by the same path", function()
    assert.same({ "ucx-b", 0.8 }, { echoes[1].name, echoes[1].rival })
    assert.near(0.625, echoes[1].raw_ratio, 1e-9)
    assert.near(0.75, echoes[1].inplace_ratio, 1e-9)
    assert.near(1.25, echoes[1].raw_floor, 1e-9)
  end)

  it("have no ratio where no other was measured", function()
    local one = echoes[2]
    assert.equal(0.5, one.raw)
    assert.is_nil(one.rival or one.name or one.raw_ratio or one.floor)
  end)

  it("tell what twice the bytes take, where both were measured", function()
    assert.near(1, echoes[1].raw_twice, 1e-9)
    assert.near(3, echoes[1].inplace_twice, 1e-9)
    assert.near(4, echoes[2].raw_twice, 1e-9)
    assert.is_nil(echoes[2].inplace_twice or echoes[3].raw_twice)
  end)

  it("tell nothing of twice the bytes where the cores were not as near",
     function()
    local function twice(line)
      local rows = { row("perigee", "shm", 64, 1, { line_ns = 100 }),
                     row("perigee", "shm", 128, 3, { line_ns = line }) }
      return figures.echoes(rows, "shm", SIZES)[1].raw_twice
    end
    assert.near(3, twice(110), 1e-9)
    assert.is_nil(twice(400))
  end)

  it("are told in short: how many are ahead, the mean, the worst, cliffs",
     function()
    local told = figures.summary(echoes, "raw")
    assert.same({ 2, 1, 1, 256, 128 }, { told.count, told.ahead, told.cliffs,
                                         told.ratio_size, told.step_size })
    assert.near(math.sqrt(0.625 * 2), told.mean, 1e-9)
    assert.near(2, told.ratio, 1e-9)
    assert.is_nil(figures.summary(figures.echoes(ROWS, "tcp", SIZES), "raw"))
  end)

  it("compare rates where many are under way, and processor time of paced \z
      calls", function()
    local function of(mode, list)
      for _, one in ipairs(list) do one.mode = mode end
      return figures.calls(list)[1]
    end
    local rate = of("pipelined", { row("perigee", "shm", 64, 1),
                                   row("ucx-a", "shm", 64, 4),
                                   row("ucx-b", "shm", 64, 2) })
    assert.same({ "ucx-b", true }, { rate.name, rate.more })
    assert.near(2, rate.ratio, 1e-9)
    local paced = of("paced", { row("perigee", "shm", 64, 1),
      row("unix", "unix", 64, 9, { cpu_client_us = 3, cpu_server_us = 2 }) })
    assert.near(0.4, paced.ratio, 1e-9)
    local put = of("put", { row("perigee-fresh", "shm", 64, 1) })
    assert.is_nil(put.theirs or put.name or put.ratio)
    assert.equal(0, #figures.calls {})
  end)
end)

describe("the page of figures", function()
  local measured = { seconds = 0.3, rows = ROWS, name = "figures",
    days = "on a day", rivals = "UCX", shm = figures.echoes(ROWS, "shm", SIZES),
    tcp = figures.echoes(ROWS, "tcp", SIZES),
    machine = { cpu = "some", cores = 2, caches = "L1 48K", kernel = "6",
                luajit = "LuaJIT" } }
  local text = page.text(measured)

  it("has a row for each size, bold where Perigee is behind or a cliff is",
     function()
    assert.matches("| 64 | 100 | 0.500 | 0.600 | 0.800 | ucx-b | 0.63 x | \z
                    0.75 x |", text, 1, true)
    assert.matches("| 1.00 x | **3.00 x** |", text, 1, true)
    assert.matches("| 256 | 100 | 2.00 |  | 1.00 | ucx-a | **2.00 x** |", text,
                   1, true)
  end)

  it("has empty cells where nothing was measured", function()
    assert.matches("| 128 | 100 | 0.500 | 1.80 |  |  |  |  |", text, 1, true)
  end)

  it("shows both pictures, which have a line for what was measured", function()
    assert.matches("](figures-time.svg)", text, 1, true)
    assert.matches("](figures-ratio.svg)", text, 1, true)
    local time, ratio = pictures.draw(measured)
    assert.matches(">raw, shared memory</text>", time, 1, true)
    assert.matches(">10 us</text>", time, 1, true)
    assert.matches('class="rule"', ratio, 1, true)
    assert.matches(">2.0</text>", ratio, 1, true)
  end)

  it("has no picture of what was not measured", function()
    assert.same({}, { pictures.draw { shm = {}, tcp = {} } })
  end)
end)

-- ---- The program -----------------------------------------------------------

describe("bench/figures.lua", function()
  local folder

  local function run(more)
    local child = assert(bench_process.spawn { "sh", "-c", ("exec luajit \z
      bench/figures.lua --only shm --sizes 64 --seconds 0.01 --peers unix \z
      --results %s --out %s/page.md --json %s/all.json %s 2>&1")
      :format(folder, folder, folder, more or "") })
    local text = child:rest()
    return child:wait(), text
  end

  local function read(name)
    local file = io.open(folder .. "/" .. name)
    local text = file and file:read "*a"
    if file then file:close() end
    return text
  end

  before_each(function()
    folder = io.popen "mktemp -d /tmp/perigee-figures.XXXXXX":read "*l"
    bench_process.setenv("PERIGEE_COMPARE_LOCKS", "-figures-"
                         .. bench_process.pid())
  end)

  after_each(function() os.execute("rm -rf " .. folder) end)

  it("measures, and writes what it has anew without measuring", function()
    if bench_process.cores() < 2 then
      return pending "there is one core only"
    end
    local status, text = run()
    assert.equal(0, status, text)
    assert.matches("[1 of 1] shm-64 took ", text, 1, true)
    assert.matches("\n  64: raw %d", text)
    local rows = cjson.decode(read "all.json").rows
    assert.equal(4, #rows) -- raw, in place, two floors
    for _, one in ipairs(rows) do
      assert.equal(cjson.null, one.why)
      assert.is_true(one.calls > 0 and one.checked > 0)
    end
    local written = read "page.md"
    assert.matches("\n| 64 | %d", written)
    assert.matches("<svg", read "page-time.svg", 1, true)
    os.remove(folder .. "/page.md")
    status, text = run "--resume"
    assert.equal(0, status, text)
    assert.matches("^0 of ", text)
    assert.equal(written, read "page.md")
  end)

  it("keeps what a part has found in which a peer was wrong, marked", function()
    if bench_process.cores() < 2 then
      return pending "there is one core only"
    end
    local part = { name = "wrong", weight = 1, command = { "compare.lua",
      "--also", "spec/support/planted_peers.lua", "--peers", "planted-flips",
      "--modes", "echo", "--sizes", "64", "--seconds", "0.01", "--rounds", "1",
      "--results", folder, "--json" } }
    local lines = {}
    local failed = runs.all({ part }, "bench/", folder,
      function(line) lines[#lines + 1] = line end,
      function(_, document) return ": " .. document.rows[1].why, true end)
    assert.same({ "wrong" }, failed)
    assert.matches("^%[1 of 1%] wrong took .* left: wrong bytes", lines[1])
    local document, marked = runs.stored(folder, part)
    assert.equal("planted-flips", document.rows[1].peer)
    assert.is_true(marked)
    part.command[#part.command + 1] = "--attempts"
    assert.is_nil(runs.stored(folder, part))
  end)

  it("keeps what a part has told before it failed, marked", function()
    local file = assert(io.open(folder .. "/half.lua", "w"))
    file:write [[print '{"rows":[{"peer":"one"}]}' os.exit(1)]]
    assert(file:close())
    local part, line = { name = "half", weight = 1, command = { "half.lua" } }
    local failed = runs.all({ part }, folder .. "/", folder,
      function(text) line = text end, function() return ": one row", false end)
    assert.same({ "half" }, failed)
    assert.matches("left: one row\n  half.lua ended with status 1", line, 1,
                   true)
    local document, marked = runs.stored(folder, part)
    assert.equal("one", document.rows[1].peer)
    assert.is_true(marked)
  end)

  it("says which part failed, and what it has not", function()
    local status, text = run "--sizes 3 --seconds 1e-9 --draw"
    assert.equal(1, status)
    assert.matches("nothing was measured", text, 1, true)
    local floors = os.getenv "PERIGEE_FLOORS"
    bench_process.setenv("PERIGEE_FLOORS", "/nowhere")
    status, text = run()
    bench_process.setenv("PERIGEE_FLOORS", floors or "build/bench")
    assert.equal(1, status)
    assert.matches("failed: shm-64", text, 1, true)
    assert.matches("compare.lua ended with status 1", text, 1, true)
  end)
end)
