-- SPDX-License-Identifier: Apache-2.0
-- Transfers of many ranks at once: the first half initiates, rank i with rank
-- i + N / 2. Rank 0 prints a line for each of these, and the aggregate: all
-- bytes over the longest time of any rank.

local engines = require "bench.lib.ranks.engine"
local kinds = require "bench.lib.kinds"
local options = require "bench.lib.options"
local meetings = require "bench.lib.ranks.meeting"
local moves = require "bench.lib.ranks.moves"
local perigee = require "perigee"
local places = require "bench.lib.ranks.place"
local process = require "bench.lib.process"
local report = require "bench.lib.report"
local shapes = require "bench.lib.ranks.shape"
local statistics = require "bench.lib.statistics"

local M = {}

local FOREVER = 1e6   -- seconds
local DEAD_AFTER = 60 -- seconds: no rank polls while it fills its memory
local KNOWN = { write = true, read = true, prepared_write = true,
                prepared_read = true }
local DEFAULT = { "write", "read" }

-- ---- What is measured ------------------------------------------------------

local function plans_of(given)
  if given.shape then return shapes.kv(given.shape, true) end
  local plans = {}
  for i, size in ipairs(given.sizes) do
    plans[i] = shapes.batch(size, given.batch, given.window, given.offsets)
  end
  return plans
end

local function modes_of(given)
  if not given.modes_given then return DEFAULT end
  for _, mode in ipairs(given.mode) do
    if not KNOWN[mode] then
      error(("ranks write, read, prepared_write and prepared_read: no %s")
        :format(mode), 0)
    end
  end
  return given.mode
end

-- The settings that all ranks must have in common.
local function key_of(given)
  local parts = { given.batch, given.window, given.offsets, given.seconds,
                  given.num_iteration or 0, table.concat(modes_of(given), "+"),
                  table.concat(given.sizes, "+"),
                  table.concat(kinds.of(given), "+"),
                  given.shape and table.concat({ given.shape.layers,
                    given.shape.blocks, given.shape.block,
                    given.shape.stride }, "x") or "none" }
  return { version = require "perigee.version",
           options = table.concat(parts, ",") }
end

-- ---- A rank ----------------------------------------------------------------

local Rank = {}
Rank.__index = Rank

local function partner_of(place)
  local half = place.size / 2
  return place.rank < half and place.rank + half or nil
end

-- A rank that is dialled by its address listens wherever this host has one.
local function listening(place)
  if not place.master then return nil end
  if place.rank == 0 then return place.master end
  return place.master:find "^tcp://%[" and "tcp://[::]:0" or "tcp://0.0.0.0:0"
end

local function start_agent(self)
  local place, given = self.place, self.given
  given.dead_after = given.dead_after or DEAD_AFTER
  self.agent = assert(perigee.agent {
    name = "rank:" .. place.rank, scope = place.scope,
    listen = listening(place), transport = given.transport,
    engine = options.engine(given, given.rdma) })
  if place.rank > 0 then return end
  self.meeting = meetings.new(place.size, given.wait, key_of(given))
  self.agent:serve(self.meeting:service())
end

-- Looks for rank 0 until it is there; other errors than its absence are final.
local function find_rank_0(self)
  local place, ends = self.place, process.now() + self.given.wait * 1e9
  local address = place.rank > 0 and place.master or "rank:0"
  repeat
    local proxy, err = self.agent:proxy(address, "ranks",
                                        { timeout = FOREVER })
    if proxy then return proxy end
    if err.kind ~= "not_found" and err.kind ~= "peer_lost"
      and err.kind ~= "timeout" and err.kind ~= "no_service" then
      error(tostring(err), 0)
    end
    perigee.sleep(0.05)
  until process.now() > ends
  error(("rank 0 has not come to %s within %g s"):format(address,
    self.given.wait), 0)
end

-- Calls rank 0; raises what is wrong with the job.
local function ask(self, method, ...)
  local result, why = self.hub[method](self.hub, ...)
  if result then return result end
  error(result == nil and "rank 0: " .. tostring(why) or why, 0)
end

local function port_of(self)
  for _, address in ipairs(self.agent.addresses) do
    local port = address:match "^tcp://.*:(%d+)$"
    if port then return tonumber(port) end
  end
  return 0
end

-- The place where the agent of another rank is found.
local function whereabouts(self, rank, all)
  if not self.place.master then return "rank:" .. rank end
  local place = all[rank + 1]
  local host = place.host or self.place.host
  return ("tcp://%s:%d"):format(host, place.port)
end

-- An initiator has two slices of its own, the others a region.
local function take_memory(self, span)
  local engine, both = self.agent.engine, kinds.of(self.given)
  local function alloc(kind, name, access)
    return assert(engine:alloc(span, { kind = kind, name = name,
                                       access = access,
                                       populate = true })):slice()
  end
  if not self.partner then
    self.region = alloc(both[2], "ranks", "rw")
    return
  end
  self.here, self.check = alloc(both[1]), alloc "host"
end

local function join(self, span)
  local rank = self.place.rank
  self.hub = find_rank_0(self)
  ask(self, "join", rank, key_of(self.given), port_of(self))
  local all = ask(self, "all")
  self.seed, self.partner = 0x1234567 * (rank + 1) % 2 ^ 31,
                            partner_of(self.place)
  take_memory(self, span)
  ask(self, "meet", "memory")
  if not self.partner then return end
  self.session = assert(self.agent:session(whereabouts(self, self.partner,
                                                       all)))
  self.remote = assert(self.session:region "ranks")
  self.transport = self.session:explain().transport
end

-- ---- Rows ------------------------------------------------------------------

-- All bytes over the longest time.
local function aggregate(rows)
  local list, seconds, calls = {}, 0, 0
  for _, row in ipairs(rows) do
    list[#list + 1] = { row }
    seconds, calls = math.max(seconds, row.seconds), calls + row.calls
  end
  local all = statistics.together(list, 1)
  all.seconds, all.calls_per_s = seconds, calls / seconds
  all.gb_per_s = all.calls_per_s * all.size / 1e9
  all.rank, all.ranks = "all", #rows
  return all
end

local function print_rows(self, number)
  local rows = {}
  for rank = 0, self.place.size / 2 - 1 do
    rows[#rows + 1] = self.meeting.rows[number][rank]
  end
  for _, row in ipairs(rows) do self.report:row(row) end
  self.report:row(aggregate(rows))
end

local function one_row(self, number, plan, mode)
  local function ready()
    collectgarbage()
    ask(self, "meet", "begin " .. number)
  end
  if self.partner then
    local row = moves.measure(self, plan, mode, self.given, ready)
    shapes.compare(self, plan, row)
    row.rank = ("%d>%d"):format(self.place.rank, self.partner)
    ask(self, "tell", number, self.place.rank, row)
  else
    ready()
  end
  ask(self, "meet", "end " .. number)
  if self.meeting then print_rows(self, number) end
end

local function all_rows(self, plans)
  local number = 0
  for _, mode in ipairs(modes_of(self.given)) do
    for _, plan in ipairs(plans) do
      number = number + 1
      one_row(self, number, plan, mode)
    end
  end
  ask(self, "leave", self.place.rank)
  ask(self, "meet", "over")
end

local function run(self)
  local plans = plans_of(self.given)
  if self.place.rank == 0 then
    self.report = report.new("transfer", "operation", self.given)
  end
  start_agent(self)
  join(self, shapes.span(plans))
  if self.report then self.report:carried_by(self.transport) end
  all_rows(self, plans)
  if self.report then self.report:finish() end
end

-- Tells rank 0 why this rank cannot go on, if that is what others wait for.
local function give_up(self, why)
  if self.meeting then
    self.meeting:break_off("rank 0: " .. why)
  elseif self.hub then
    self.hub:with { timeout = 5 }:give_up(self.place.rank, why)
  end
end

local function is_one_of_several(given)
  local place = places.of(given)
  return place and place.size > 1 or not place and (given.ranks or given.shape)
end

-- Ends a rank whose memory this host does not have.
local function check_kinds(given)
  if not given.kind or not is_one_of_several(given) then return end
  if given.engine then error("--engine moves host memory only", 0) end
  local why = kinds.missing(given)
  if not why then return end
  report.new("transfer", "operation", given):not_run(why)
  os.exit(kinds.NOT_RUN)
end

local function as_rank(given)
  local place = places.of(given)
  if place and place.size == 1 then return end
  if not place and not given.ranks and not given.shape then return end
  modes_of(given) -- what is wrong is told before any rank waits for others
  if not place then places.start(given.ranks or 2) end
  if given.parent then process.die_with_parent(given.parent) end
  if place.size % 2 == 1 then error("the number of ranks has to be even", 0) end
  local self = setmetatable({ given = given, place = place }, Rank)
  local fine, why = pcall(perigee.run, function()
    local went, message = pcall(run, self)
    if not went then
      pcall(give_up, self, tostring(message))
      perigee.sleep(0.2) -- the others are told
      error(message, 0)
    end
  end)
  if self.agent then self.agent:close() end
  if not fine then
    io.stderr:write(("transfer: rank %d: %s\n"):format(place.rank,
                                                       tostring(why)))
  end
  os.exit(fine and 0 or 1)
end

--- Runs the bench as a rank of a job, and ends the process, if a launcher, or
-- --ranks, or --shape says that there are several; else returns. modes_given:
-- whether modes were asked for.
-- root: of the sources, for --engine.
function M.run(given, modes_given, root)
  if given.child_of or given.ranks == 1 then return end
  given.modes_given = modes_given
  local fine, why = pcall(function()
    check_kinds(given)
    if given.engine then engines.run(given, modes_of(given), root) end
    as_rank(given)
  end)
  if fine then return end
  io.stderr:write("transfer: ", tostring(why), "\n")
  os.exit(1)
end
return M
