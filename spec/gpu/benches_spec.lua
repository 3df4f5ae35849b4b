-- SPDX-License-Identifier: Apache-2.0
-- Benches with --kind, by the driver that PERIGEE_CUDA_LIBRARY names (the fake
-- one of this folder, or the machine's): rows of every mode, with checked bytes
-- and a floor by CUDA's driver. Their times mean nothing here.
local cases = require "spec.support.cases"
local cjson = require "cjson"
local perigee = require "perigee"

local BRIEF = " --json --turns 1 --seconds 0.02"
local KV = " --shape kv:layers=2,blocks=8,block=2K"

-- Returns what a command prints, and its status.
local function shell(line)
  local pipe = io.popen(("(%s) 2>&1; echo \" status $?\""):format(line))
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.*) status (%d+)\n$"
  return said, tonumber(status)
end

-- Runs a bench; returns its rows.
local function rows_of(bench, words)
  local text, status = shell(("luajit bench/%s.lua %s%s"):format(bench, words,
                                                                 BRIEF))
  assert.equal(0, status, text)
  return cjson.decode(text).rows
end

describe("a bench with --kind", function()
  local there

  setup(function()
    there = perigee.engine {}:alloc(4096, { kind = "cuda:0" }) ~= nil
  end)

  -- Benches make their folders below it.
  before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
  after_each(cases.cleanup)

  local function on_gpu(what, f)
    it(what, function()
      if not there then return pending "there is no GPU" end
      f()
    end)
  end

  -- mode, kinds, and the floor's name: what is copied, and how its end is seen.
  local WRITES = {
    { "write", "cuda:0", "cuda:0", "^inside%-" },
    { "read", "cuda:0", "cuda:0", "^inside%-" },
    { "write", "host", "cuda:0", "^to%-" },
    { "read", "host", "cuda:0", "^from%-" },
    { "write", "cuda:0", "host", "^from%-" },
    { "write_imm", "cuda:0", "host", "^from%-" },
    { "send", "cuda:0", "cuda:0", "^inside%-" },
    { "prepared_write", "cuda:0", "cuda:0", "^inside%-" },
    { "first_write", "cuda:0", "cuda:0", "^first%-" },
  }
  for _, case in ipairs(WRITES) do
    local mode, here, peer, floor = unpack(case)
    on_gpu(("transfers %s of %s and %s"):format(mode, here, peer), function()
      local rows = rows_of("transfer", ("--transport shm --sizes 8,8K "
        .. "--mode %s --kind %s,%s"):format(mode, here, peer))
      assert.equal(2, #rows)
      for _, row in ipairs(rows) do
        assert.same({ mode, here, peer }, { row.operation, row.kind,
                                            row.peer_kind })
        assert.matches(floor, row.floor)
        assert.is_true(row.calls > 0 and row.ratio > 0)
      end
    end)
  end

  on_gpu("transfers several at once, and blocks, without a floor", function()
    for _, words in ipairs { "--mode write,read,send --window 3",
                             "--mode strided_write,strided_read" } do
      for _, row in ipairs(rows_of("transfer", "--transport shm --sizes 4K "
                                   .. "--kind cuda:0 " .. words)) do
        assert.matches("^none for", row.no_floor)
      end
    end
  end)

  on_gpu("brings blocks to pages, and tells the processor's time", function()
    local rows = rows_of("transfer", "--transport shm --kind cuda:0 "
                         .. "--mode pages,pages_post" .. KV)
    assert.matches("^pages%-%a+%-%a+$", rows[1].floor)
    assert.matches("^pages%-post%-%a+$", rows[2].floor)
    assert.same({ 2 * 8 * 2048, 2, 8, 2048 }, { rows[1].size, rows[1].layers,
                                                rows[1].blocks, rows[1].block })
    assert.is_true(rows[1].cpu_us > 0)
  end)

  on_gpu("measures ranks", function()
    local text, status = shell("luajit bench/transfer.lua --json --mode write "
      .. "--num-iteration 3 --kind cuda:0,host" .. KV)
    assert.equal(0, status, text)
    local row = cjson.decode(text).rows[1]
    assert.same({ "write kv contiguous", "cuda:0", "host" },
                { row.operation, row.kind, row.peer_kind })
  end)

  on_gpu("measures calls whose slices lie and land there", function()
    local rows = rows_of("rpc", "--transport shm --sizes 8K --landings 2 "
                         .. "--mode put,raw,landings --kind cuda:0")
    local modes = {}
    for i, row in ipairs(rows) do
      modes[i] = row.mode .. " " .. row.kind .. " " .. row.peer_kind
    end
    assert.same({ "put cuda:0 cuda:0", "raw cuda:0 cuda:0",
                  "landings cuda:0 cuda:0" }, modes)
    assert.equal("write and echo", rows[1].floor)
  end)

  on_gpu("measures calls beside a transfer of such memory", function()
    local row = rows_of("rpc", ("--transport shm --mode loaded --load 1M "
      .. "--kind cuda:0 --at unix:%s/loaded.sock"):format(cases.folder))[1]
    assert.equal("cuda:0", row.kind)
    assert.is_true(row.p99_ratio > 0 and row.transfers > 0)
  end)

  on_gpu("shows the kinds in the table", function()
    local text = shell("luajit bench/transfer.lua --mode write --sizes 8 "
      .. "--turns 1 --seconds 0.02 --no-floor --kind cuda:0,host")
    assert.matches("\nwrite cuda:0,host +8 ", text)
  end)

  it("says that it was not run where there is no such memory", function()
    for _, line in ipairs { "bench/transfer.lua --mode write,read",
                            "bench/transfer.lua --ranks 2",
                            "bench/rpc.lua --mode put" } do
      local text, status = shell("luajit " .. line .. " --kind cuda:99")
      assert.equal(77, status, text)
      assert.matches("\nnot run: .*CUDA", text)
      text, status = shell("luajit " .. line .. " --kind cuda:99 --json")
      assert.equal(77, status, text)
      local document = cjson.decode(text)
      assert.matches("CUDA", document.not_run)
      assert.same({}, document.rows)
    end
  end)

  it("refuses what is no kind", function()
    local text, status = shell "luajit bench/rpc.lua --kind cuda:0,"
    assert.equal(1, status)
    assert.matches("is no kind", text)
  end)
end)

describe("floor_cuda", function()
  local floors = os.getenv "PERIGEE_FLOORS"
  local command = floors .. "/floor_cuda --seconds 0.02 "

  for _, how in ipairs { "inside", "to", "from", "handle", "first" } do
    it("copies, checks and tells times as JSON: " .. how, function()
      local text, status = shell(command .. "--json --how " .. how
                                 .. " 8 5000 3000000")
      if status == 77 then return pending(text) end
      assert.equal(0, status, text)
      local sizes = {}
      for line in text:gmatch "[^\n]+" do
        local told = cjson.decode(line)
        assert.matches("^" .. how .. "%-%a+$", told.floor)
        assert.is_true(told.p50_ns > 0 and told.p50_ns <= told.p99_ns)
        sizes[told.size] = true
      end
      assert.same({ [8] = true, [5000] = true, [3000000] = true }, sizes)
    end)
  end

  it("copies blocks in no order, in batches where the driver has them",
     function()
    local words = "--count 5000 --stride 3072 --how pages 2048"
    local text, status = shell(command .. words)
    if status == 77 then return pending(text) end
    assert.equal(0, status, text)
    assert.matches("^pages%-%a+%-query", text)
  end)

  it("says why it was not run", function()
    for _, words in ipairs { "--how inside --devices 99,99 8",
                             "--how first --devices 0,99 8" } do
      local text, status = shell(command .. words)
      assert.equal(77, status, text)
      assert.matches("^not run: ", text)
    end
  end)
end)
