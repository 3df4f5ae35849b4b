-- SPDX-License-Identifier: Apache-2.0
-- bench/transfer.lua as many ranks: how they find each other, by which
-- launcher, and what they say of those who do not come.
local cables = require "bench.lib.cable"
local cases = require "spec.support.cases"
local options = require "bench.lib.options"
local process = require "bench.lib.process"
local shapes = require "bench.lib.ranks.shape"

local BENCH = "luajit bench/transfer.lua "
local KV = "--shape kv:layers=2,blocks=8,block=4K --num-iteration 5 "
local cores = require "bench.lib.process".cores()
local PATIENCE = ("--wait %d "):format(60 * cases.slow)
-- Whatever runs these specs may have been started by a launcher, too.
local CLEAN = "env -u PERIGEE_RANK -u RANK -u WORLD_SIZE -u MASTER_ADDR "
  .. "-u MASTER_PORT -u OMPI_COMM_WORLD_RANK -u PMI_RANK -u SLURM_PROCID "
  .. "-u JOB_COMPLETION_INDEX -u PERIGEE_TRANSPORT "

local job = 0

-- The variables of torchrun, of a job of our own.
local function torchrun(rank, size, more)
  return CLEAN .. ("RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d "
    .. "TORCHELASTIC_RUN_ID=spec-%d-%d %s"):format(rank, size, rank, size,
    process.pid(), job, more or "")
end

-- Returns what a shell's line prints, and its status.
local function shell(line)
  local pipe = io.popen(("(%s) 2>&1; echo \" status $?\""):format(line))
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.*) status (%d+)\n$"
  return said, tonumber(status)
end

local function has_rows(text, names)
  for _, name in ipairs(names) do
    assert.matches("\n" .. name .. " ", "\n" .. text, 1, true)
  end
end

local ALL = { "write kv contiguous 0>2", "write kv contiguous 1>3",
              "write kv contiguous all", "write kv strided 1>3",
              "read kv list 0>2", "read kv list all",
              "read kv layout 0>2", "read kv layout all" }

describe("ranks of bench/transfer.lua", function()
  before_each(function() job = job + 1 end)
  after_each(cases.cleanup)

  it("are started by --ranks alone", function()
    local text, status = shell(CLEAN .. BENCH .. PATIENCE
      .. "--ranks 2 --sizes 4K --num-iteration 5 --num-concurrency 2 "
      .. "--batch-size 3 --qp-num 1 --offsets random --mode write,read")
    assert.same(0, status, text)
    has_rows(text, { "write 0>1", "write all", "read 0>1", "read all" })
  end)

  it("are started by mpirun", function()
    if not process.installed "mpirun" then
      return pending "no mpirun: apt-get install openmpi-bin"
    end
    local text, status = shell(CLEAN .. "mpirun --allow-run-as-root "
      .. "--oversubscribe --bind-to none -np 4 " .. BENCH .. PATIENCE .. KV)
    assert.same(0, status, text)
    has_rows(text, ALL)
  end)

  it("meet at MASTER_ADDR, in two network namespaces", function()
    local cable, why = cables.new()
    if not cable then return pending(why) end
    local lines = {}
    for rank = 0, 3 do
      lines[#lines + 1] = ("nsenter --net=%s %s %s %s %s &"):format(
        rank < 2 and cable.far or cable.near,
        torchrun(rank, 4, "LOCAL_WORLD_SIZE=2 PERIGEE_SECRET="
          .. ("5ec4e7"):rep(8) .. " MASTER_PORT=29500 MASTER_ADDR="
          .. cable.at), BENCH, PATIENCE, KV)
    end
    local text = shell(table.concat(lines, "\n") .. "\nwait")
    cable:remove()
    has_rows(text, ALL)
  end)

  it("say who has not come", function()
    local text, status = shell(torchrun(0, 4) .. BENCH .. "--wait 0.2")
    assert.same(1, status)
    assert.matches("ranks 1, 2, 3 have not come within 0.2 s", text, 1, true)
    text, status = shell(torchrun(2, 4) .. BENCH .. "--wait 0.2")
    assert.same(1, status)
    assert.matches("rank 0 has not come to rank:0 within 0.2 s", text, 1, true)
  end)

  it("of different versions do not start", function()
    local pipe = io.popen(torchrun(0, 2) .. BENCH .. PATIENCE .. "2>&1")
    local agent = cases.agent(nil, { name = "rank:1", scope =
      ("ranks-spec-%d-%d-0"):format(process.pid(), job) })
    local hub
    assert.is_true(cases.eventually(function()
      hub = agent:proxy("rank:0", "ranks")
      return hub
    end))
    local fine, why = hub:join(1, { version = "0.0.9" }, 0)
    assert.is_false(fine)
    assert.matches("rank 1 has version 0.0.9, rank 0 has ", why, 1, true)
    assert.matches(why, pipe:read "*a", 1, true)
    pipe:close()
  end)

  it("have to be an even number, and as many as the launcher says", function()
    local text, status = shell(torchrun(0, 3) .. BENCH)
    assert.same(1, status)
    assert.matches("the number of ranks has to be even", text, 1, true)
    text, status = shell(CLEAN .. BENCH .. "--ranks 2 --mode send")
    assert.same(1, status)
    assert.same("transfer: ranks write, read, prepared_write and "
                .. "prepared_read: no send\n", text)
    text = shell(torchrun(0, 4) .. BENCH .. "--ranks 2")
    assert.matches("--ranks is 2, and torchrun says that there are 4", text, 1,
                   true)
  end)
end)

describe("an engine of bench/transfer.lua", function()
  local function run(words)
    return shell(CLEAN .. "XDG_RUNTIME_DIR=/tmp " .. BENCH .. words)
  end

  it("moves the same shape, every byte compared", function()
    local file = io.open "build/bench/peers/ucx-move-debian"
    if not file then return pending "no UCX: make compare-deps ucx-debian" end
    file:close()
    local text, status = run(KV .. "--engine ucx1.13-posix-put"
      .. (cores < 2 and " --pin 0,0" or ""))
    assert.same(0, status, text)
    has_rows(text, { "write kv contiguous ucx1.13-posix-put",
                     "write kv list ucx1.13-posix-put",
                     "read kv strided ucx1.13-posix-put" })
  end)

  it("says what it cannot do, before all others", function()
    for words, why in pairs {
      ["--engine ucx"] = "--engine moves a --shape",
      ["--engine x " .. KV] = "there is no engine x",
      ["--engine perigee " .. KV] = "perigee moves no fresh lists",
      ["--engine mooncake --mode prepared_write " .. KV] =
        "mooncake moves no prepared lists",
      ["--window 2 --engine ucx " .. KV] = "no --window",
    } do
      local text, status = run(words)
      assert.same(1, status)
      assert.matches("^transfer: [^\n]*" .. why:gsub("%-", "%%-"), text)
    end
  end)
end)

describe("a shape of ranks", function()
  local function parse(text) return shapes.parse(text, options.size) end

  it("is parsed, with defaults, and refused where it is none", function()
    assert.same({ layers = 61, blocks = 4, block = 16384, stride = 32768 },
                parse "kv:blocks=4")
    assert.same(20000, parse "kv:block=16K,stride=20000".stride)
    assert.matches("at least the block", select(2, parse "kv:stride=1"), 1,
                   true)
    assert.matches("no shape", select(2, parse "tree:layers=1"), 1, true)
    assert.matches("'depth=1'", select(2, parse "kv:depth=1"), 1, true)
  end)

  it("moves the same bytes strided, as a list and contiguous", function()
    local plans = shapes.kv(parse "kv:layers=2,blocks=3,block=64,stride=100")
    assert.same({ { 0, 384 } }, plans[1].of(0))
    assert.same({ { 0, 64, 3, 100 }, { 300, 64, 3, 100 } }, plans[2].of(0))
    assert.same({ { 0, 64 }, { 100, 64 }, { 200, 64 }, { 300, 64 },
                  { 400, 64 }, { 500, 64 } }, plans[3].of(0))
    for _, plan in ipairs(plans) do
      assert.same({ 384, 600 }, { plan.bytes, plan.span })
      assert.is_nil(plan.layout)
    end
    local own = shapes.kv(parse "kv:layers=2,blocks=3,block=64,stride=100",
                          true)
    assert.equal(3, #plans)
    assert.same({ block = 64, dims = { { 2, 300 }, { 3, 100 } } },
                own[4].layout)
  end)

  it("has offsets in one place, one after another, or anywhere", function()
    local function offsets(how)
      local plan, list = shapes.batch(2 ^ 20, 2, 1, how), {}
      for k = 0, 2 do
        for _, piece in ipairs(plan.of(k)) do
          assert.is_true(piece[1] + piece[2] <= plan.span)
          list[#list + 1] = piece[1] / 2 ^ 20
        end
      end
      return list
    end
    assert.same({ 0, 0, 0, 0, 0, 0 }, offsets "same")
    assert.same({ 0, 1, 2, 3, 4, 5 }, offsets "spread")
    assert.are_not.same(offsets "spread", offsets "random")
  end)
end)

