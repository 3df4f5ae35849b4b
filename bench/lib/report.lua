-- SPDX-License-Identifier: Apache-2.0
-- Prints rows: a table that grows as they come, or one JSON document at the
-- end, and the files asked for. A bench that runs as another's child passes
-- each item on as a line of JSON instead.

local cjson = require "cjson"
local csv = require "perigee.bench.csv"
local json = require "perigee.bench.json"
local machine = require "bench.lib.machine"
local plot = require "perigee.bench.plot"
local process = require "bench.lib.process"
local text = require "perigee.bench.table"

local WIDTH_OF_SHAPES = 42 -- "prepared_write kv contiguous nixl-prepared"
local WIDTH_OF_MODES = 18 -- "strided_write/4096"

local M = {}
local Report = {}
Report.__index = Report

-- bench: "rpc" or "transfer"; key: the field that names what a row measured.
function M.new(bench, key, options)
  local self = setmetatable({ bench = bench, key = key, options = options,
                              rows = {}, figures = {}, told = {},
                              transport = "unknown",
                              terminal = process.is_terminal(2) }, Report)
  self.silent = options.json or options.child_of
  self.width = options.shape and WIDTH_OF_SHAPES or nil
  if options.kind then
    self.width = (self.width or WIDTH_OF_MODES)
                 + #table.concat(options.kind, " ,")
  end
  if not self.silent then print(text.header(key, self.width)) end
  return self
end

local function pass_on(what, values)
  print(cjson.encode { what = what, values = values })
  io.flush()
end

-- Takes a line that a child passed on.
function Report:take(line)
  local record = cjson.decode(line)
  self[record.what](self, unpack(record.values))
end

function Report:carried_by(transport)
  self.transport = transport
  if self.options.child_of then pass_on("carried_by", { transport }) end
end

function Report:progress(what, size)
  if not self.terminal then return end
  io.stderr:write(("\r\27[K%s %s ..."):format(what, size and text.size(size)
                                              or ""))
  io.stderr:flush()
end

function Report:clear()
  if self.terminal then io.stderr:write "\r\27[K" end
end

function Report:row(row)
  self.rows[#self.rows + 1] = row
  self:clear()
  if self.options.child_of then pass_on("row", { row }) end
  if self.silent then return end
  print(text.line(self.key, row, self.width))
  local why = row.no_floor
  if why and not self.told[why] then
    print("  no floor: " .. why)
    self.told[why] = true
  end
  io.flush()
end

-- Reports why nothing was measured.
function Report:not_run(why)
  self:clear()
  if not self.options.json then return print("not run: " .. why) end
  print(json.document({
    bench = self.bench, transport = self.transport, rows = {}, not_run = why,
    machine = machine.describe(self.options), figures = {},
  }, self.key))
end

-- Reports a single number under a name, with a line about it.
function Report:figure(name, value, line)
  self.figures[name] = value
  self:clear()
  if self.options.child_of then pass_on("figure", { name, value, line }) end
  if not self.silent then print(line:format(value)) end
end

function Report:finish()
  self:clear()
  local options = self.options
  if options.child_of then return end
  if options.json then
    print(json.document({
      bench = self.bench, transport = self.transport, rows = self.rows,
      machine = machine.describe(options), figures = self.figures,
    }, self.key))
  end
  if options.csv then assert(csv.write(options.csv, self.key, self.rows)) end
  if options.plot then assert(plot.write(options.plot, self.key, self.rows)) end
end

return M
