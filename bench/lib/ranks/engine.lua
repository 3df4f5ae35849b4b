-- SPDX-License-Identifier: Apache-2.0
-- KV shapes moved by another system, between two processes of its own: by an
-- adapter of bench/peers that has modes put-pieces and get-pieces. write and
-- read are made of fresh lists, prepared_write and prepared_read of prepared
-- ones, by a peer whose description says `prepared`.

local pairs_of = require "bench.lib.compare.pair"
local peers = require "bench.lib.compare.peers"
local process = require "bench.lib.process"
local report = require "bench.lib.report"
local shapes = require "bench.lib.ranks.shape"
local statistics = require "bench.lib.statistics"

local M = {}

local PATIENCE = 120 -- seconds: all bytes are made, read back and compared

local function fail(...) error((...):format(select(2, ...)), 0) end

-- Returns the peer of that name or group that moves lists that way.
local function peer_of(root, engine, prepared)
  local all, unknown = peers.chosen(peers.all(root), { engine })
  if not all then fail("there is no engine %s", unknown) end
  for _, peer in ipairs(all) do
    if peer.modes["put-pieces"] and (peer.prepared or false) == prepared then
      local version, why, install = peers.there(peer)
      if not version then
        fail("%s is not there: %s; to install: %s", peer.name, why, install)
      end
      peer.starts, peer.late = PATIENCE, PATIENCE
      return peer
    end
  end
  fail("%s moves no %s lists", engine, prepared and "prepared" or "fresh")
end

-- Runs a plan for --seconds, or --num-iteration times.
local function bursts(pair, plan, mode, given)
  local list, calls = {}, 0
  repeat
    local seconds = given.num_iteration and 0 or given.seconds
    local told, why = pair:burst(mode, plan.span, 1, seconds)
    if not told then fail("%s: %s", pair.peer.name, why) end
    list[#list + 1], calls = told, calls + told.calls
  until calls >= (given.num_iteration or 1)
  return list
end

local function is_prepared(mode) return mode:find "^prepared" ~= nil end

local function rows_of_mode(self, mode, peer)
  local way = mode:find "read$" and "get-pieces" or "put-pieces"
  local pair, why = pairs_of.start(peer, self.given.pin, way,
                                   shapes.span(self.plans), 1)
  if not pair then fail("%s: %s", peer.name, why) end
  self.pair = pair
  pair:go_on()
  self.report:carried_by(peer.path)
  for _, plan in ipairs(self.plans) do
    shapes.write(plan, pair.folder)
    local row = statistics.row({
      operation = mode .. " " .. plan.name, size = plan.bytes, window = 1,
      batch = plan.batch, prepared = is_prepared(mode), engine = peer.name,
      version = peer.version, rank = peer.name,
    }, bursts(pair, plan, way, self.given))
    shapes.compare(self, plan, row)
    self.report:row(row)
  end
  pair:close()
  self.pair = nil
end

local function check(given)
  if not given.shape then fail "--engine moves a --shape" end
  if given.window > 1 or given.batch > 1 then
    fail "an engine has one list under way: no --window, no --batch"
  end
end

--- Measures the shape with --engine, in modes of ranks. root: of the sources,
-- with a slash at its end. Ends the process.
function M.run(given, modes, root)
  local self = { given = given }
  process.ignore_broken_pipes()
  local fine, why = pcall(function()
    check(given)
    local movers = {}
    for i, mode in ipairs(modes) do
      movers[i] = peer_of(root, given.engine, is_prepared(mode))
    end
    self.plans = shapes.kv(given.shape)
    self.report = report.new("transfer", "operation", given)
    for i, mode in ipairs(modes) do rows_of_mode(self, mode, movers[i]) end
    self.report:finish()
  end)
  if self.pair then self.pair:close(true) end
  if not fine then io.stderr:write("transfer: ", tostring(why), "\n") end
  os.exit(fine and 0 or 1)
end

return M
