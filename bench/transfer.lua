-- SPDX-License-Identifier: Apache-2.0
-- One-sided transfers and messages between two processes, measured in the same
-- run as a floor: memcpy on the same core, bare sockets over TCP, perftest on
-- the same device over RDMA, or copies by CUDA's driver. See bench/running.md.

local folder = arg[0]:match ".*/" or "./"
local tree = dofile(folder .. "tree.lua")
local driver = require "bench.lib.driver"
local first = require "bench.lib.first"
local floor = require "bench.lib.floor"
local kinds = require "bench.lib.kinds"
local moves = require "bench.lib.moves"
local main = require "bench.lib.main"
local options = require "bench.lib.options"
local pages = require "bench.lib.pages"
local payload = require "bench.lib.payload"
local perftest = require "bench.lib.perftest"
local rank_options = require "bench.lib.ranks.options"
local ranks = require "bench.lib.ranks.main"
local rounds = require "bench.lib.rounds"
local tcp = require "bench.lib.tcp"

local SIZES = "8,64,1K,4K,64K,256K,1M,4M,16M"
local BLOCK, BLOCKS, STRIDES = 64, 1000, { 256, 4096 }
local BLOCKS_DEEP = 64 -- blocks that perftest has under way
local DEFAULT = { "write", "read", "write_imm", "send", "prepared_write",
                  "prepared_read", "strided_write", "strided_read" }
local ALL = { "write", "read", "write_imm", "send", "prepared_write",
              "prepared_read", "strided_write", "strided_read", "pages",
              "pages_post", "first_write" }

local function command_line()
  local parser = options.parser {
    name = "luajit bench/transfer.lua",
    description = "One-sided transfers and messages, next to memcpy.",
    modes = ALL, default = DEFAULT,
  }
  parser:option("--batch --batch-size",
                "Transfers in one list (write and read).")
    :convert(options.whole):default "1"
  parser:option("--window --num-concurrency",
                "Transfers under way at once (not strided).")
    :convert(options.whole):default "1"
  parser:option("--qps --qp-num", "Queue pairs of a session on each NIC.")
    :convert(options.whole)
  parser:flag("--imm", "write is write_imm.")
  parser:option("--count", "Blocks of a strided transfer, 64 B each.")
    :convert(options.whole):default(tostring(BLOCKS))
  parser:option("--stride", "Distance of their starts (256 and 4096).")
    :convert(options.whole)
  rank_options.add(parser)
  local given = options.parse(parser, SIZES)
  if given.stride and given.stride < BLOCK then
    parser:error("--stride is at least " .. BLOCK)
  end
  given.strides = given.stride and { given.stride } or STRIDES
  local strided = table.concat(given.mode, ","):find "strided"
  local span = strided and given.count * math.max(unpack(given.strides)) or 0
  given.largest = math.max(given.largest * given.batch * given.window, span,
                           pages.span(given))
  if given.qps then
    local qps = "qps=" .. given.qps
    given.rdma = given.rdma and given.rdma .. " " .. qps or qps
    given.worker_rdma = given.worker_rdma and given.worker_rdma .. " " .. qps
                        or qps
  end
  for i, mode in ipairs(given.mode) do
    if given.imm and mode == "write" then given.mode[i] = "write_imm" end
  end
  return given
end

-- The post of each mode; from and to are whole slices or lists of them.
local POSTS = {}

function POSTS.write(job)
  local session, from, to = job.session, job.from, job.to
  return function() return session:write { from = from, to = to } end
end

function POSTS.read(job)
  local session, from, to = job.session, job.from, job.to
  return function() return session:read { from = from, to = to } end
end

POSTS.strided_write, POSTS.strided_read = POSTS.write, POSTS.read

function POSTS.prepared_write(job)
  local transfer = job.session:prepare_write { from = job.from, to = job.to }
  return function() return transfer:post() end
end

function POSTS.prepared_read(job)
  local transfer = job.session:prepare_read { from = job.from, to = job.to }
  return function() return transfer:post() end
end

function POSTS.write_imm(job, run)
  local session, from, to = job.session, job.from, job.to
  return function()
    run.immediate = run.immediate + 1
    return session:write_imm({ from = from, to = to }, run.immediate)
  end
end

function POSTS.send(job)
  local session, from = job.session, job.from
  return function() return session:send(from) end
end

-- Makes a list of `batch` transfers that together move job.from to job.to.
local function batched(job, kind, batch)
  local list, part = {}, job.from.length / batch
  for i = 1, batch do
    list[i] = { from = job.from:slice((i - 1) * part, part),
                to = job.to:slice((i - 1) * part, part) }
  end
  local session, submit = job.session, job.session[kind]
  return function() return submit(session, list) end
end

local function is_read(mode) return mode:find "read$" ~= nil end

-- Makes a job of one contiguous block at offset `at`, or of `count` blocks of
-- 64 B that are `stride` apart at their source.
local function job_of(run, mode, size, stride, at)
  local count, reads = run.given.count, is_read(mode)
  local block = stride and BLOCK or size
  local total = stride and BLOCK * count or size
  local remote = at == 0 and run.remote
                 or run.remote:slice(at, total)
  local there = run.remote:slice(at, total)
  local here = run.memory:slice(at, total)
  local rdma = run.transport == "verbs"
  local seldom = kinds.mirrored(run.given)
  local job = { session = run.session, remote = remote, check = run.check,
                repeats = rdma and 1 or moves.repeats(total), seldom = seldom,
                every = (rdma or seldom) and kinds.EVERY or 1,
                settle = seldom and function() run.side.proxy:wrong() end,
                is_last = function(slice)
                  return assert(run.side.proxy:is_last(slice)) == "yes"
                end }
  if stride and not reads then
    job.view = kinds.view(run.memory:slice(0, count * stride))
  else
    job.view = kinds.view(here)
  end
  if stride then
    local scattered = (reads and run.remote or run.memory)
                      :slice(0, block, { count = count, stride = stride })
    if reads then there = scattered else here = scattered end
    job.source, job.target = stride, block
    job.place = function(round) return round % block, count end
    job.blocks = { count = count, length = block,
                   here = reads and block or stride,
                   there = reads and stride or block }
  else
    job.source, job.target = payload.PAGE, payload.PAGE
    job.place = function(round) return payload.place(size, round) end
    job.blocks = { count = 1, length = size, here = 0, there = 0 }
  end
  job.from, job.to = here, there
  if reads then job.from, job.to = there, here end
  return job
end

-- Returns the floor over RDMA: the program that does the same with as many
-- under way; for strided transfers, one that does so with their blocks.
local function rdma_floor(run, mode, size, window, blocks)
  local kind = is_read(mode) and "read" or mode == "send" and "send" or "write"
  local several = window > 1 or blocks
  local program = run.given.floor
                  or ("ib_%s_%s"):format(kind, several and "bw" or "lat")
  return perftest.of(run, { program = program, size = size,
                            depth = blocks and BLOCKS_DEEP or window,
                            scale = blocks or window })
end

local function floor_of(run, mode, size, stride, window)
  if run.given.no_floor then return nil end
  if run.transport == "verbs" then
    if stride then
      return rdma_floor(run, mode, BLOCK, 1, run.given.count)
    end
    return rdma_floor(run, mode, size, window)
  end
  if tcp.concerns(run) then
    return tcp.transfer(run, size, window)
  end
  if kinds.concerns(run) then
    if stride then return nil, "none for blocks of a GPU's memory" end
    if window > 1 then return nil, "none for several under way" end
    return kinds.transfer(run, size, is_read(mode))
  end
  if window > 1 then return nil, "none for several under way" end
  local words = {}
  if stride then
    words, size = { "--count", run.given.count, "--stride", stride }, BLOCK
  end
  return floor.of("floor_memcpy", run.given, words, size)
end

local function may_batch(mode) return mode == "write" or mode == "read" end

local function loop_of(mode, jobs)
  if #jobs > 1 then
    if mode == "send" then return moves.many_sends(jobs) end
    return moves.many(jobs, is_read(mode))
  end
  if mode == "send" then return moves.send(jobs[1]) end
  return (is_read(mode) and moves.read or moves.write)(jobs[1])
end

local function measure(run, mode, size, stride)
  local batch = may_batch(mode) and run.given.batch or 1
  local window = stride and 1 or run.given.window
  local jobs = {}
  for i = 1, window do
    local job = job_of(run, mode, size * batch, stride, (i - 1) * size * batch)
    job.post = batch > 1 and batched(job, mode, batch)
               or POSTS[mode](job, run)
    jobs[i] = job
  end
  local row = { operation = mode, size = jobs[1].from.length, window = window,
                batch = batch, repeats = jobs[1].repeats, stride = stride,
                count = stride and run.given.count, qps = run.given.qps,
                by_rate = window > 1 or nil,
                prepared = mode:find "^prepared" ~= nil }
  if mode == "send" or window > 1 then row.repeats = 1 end
  rounds.measure(row, run.given, loop_of(mode, jobs),
                 floor_of(run, mode, size * batch, stride, window))
  return kinds.mark(row, run.given, run.session)
end

-- Opens a session for each row, because messages and immediates are counted
-- from its start.
local function fresh_session(run)
  if run.session then run.session:close() end
  run.session = run.side:connect "transfer.sock"
  run.remote = assert(run.session:region "bench")
  if run.given.part > 0 then -- other processes write to the region, too
    local length = run.given.largest
    run.remote = run.remote:slice(run.given.part * length, length)
  end
  run.immediate = 0
end

local function one_row(run, mode, size, stride)
  jit.flush() -- no row runs on traces of another
  run.report:progress(mode, size)
  fresh_session(run)
  run.report:row(measure(run, mode, size, stride))
  local wrong = assert(run.side.proxy:wrong())
  if wrong > 0 then payload.wrong(mode, wrong .. " wrong messages") end
end

-- Modes that have loops of their own.
local OWN = { pages = pages.measure, pages_post = pages.measure_post,
              first_write = first.measure }

local function run_own(run, mode)
  for _, size in ipairs(mode == "first_write" and run.given.sizes or { 0 }) do
    jit.flush()
    run.report:progress(mode, size)
    fresh_session(run)
    run.report:row(kinds.mark(OWN[mode](run, size), run.given, run.session))
  end
end

local function run_mode(run, mode)
  if OWN[mode] then
    run_own(run, mode)
  elseif mode:find "^strided" then
    for _, stride in ipairs(run.given.strides) do
      one_row(run, mode, BLOCK * run.given.count, stride)
    end
  else
    for _, size in ipairs(run.given.sizes) do one_row(run, mode, size) end
  end
end

local function private(side, length, kind)
  local region = assert(side.engine:alloc(length, { access = "", kind = kind,
                                                    share = true }))
  return region:slice():fill(1)
end

local given_here = command_line()
if not OWN[given_here.mode[1]] then
  ranks.run(given_here, #given_here.mode < #DEFAULT, folder .. "../")
end

main.run("transfer", "operation", given_here, function(given, out)
  local side = driver.start(given, tree.worker, given.largest)
  local fine, message = pcall(function()
    local run = { given = given, side = side, report = out, proxy = side.proxy,
                  memory = private(side, given.largest, kinds.of(given)[1]),
                  check = private(side, given.largest),
                  gpu = kinds.acquaint(side.engine, given) }
    run.transport = side:transport()
    out:carried_by(run.transport)
    for _, mode in ipairs(given.mode) do run_mode(run, mode) end
  end)
  side:stop()
  if not fine then error(message, 0) end
end)
