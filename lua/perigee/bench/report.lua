-- SPDX-License-Identifier: Apache-2.0
-- Rows on their way out: a table that grows as they come, or one JSON document
-- at the end; and the files asked for.

local csv = require "perigee.bench.csv"
local json = require "perigee.bench.json"
local machine = require "perigee.bench.machine"
local plot = require "perigee.bench.plot"
local process = require "perigee.bench.process"
local text = require "perigee.bench.table"

local M = {}
local Report = {}
Report.__index = Report

-- bench: "rpc" or "transfer"; key: the field that names what a row measured.
function M.new(bench, key, options)
  local self = setmetatable({ bench = bench, key = key, options = options,
                              rows = {}, figures = {}, transport = "unknown",
                              terminal = process.is_terminal(2) }, Report)
  if not options.json then print(text.header(key)) end
  return self
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
  if not self.options.json then
    print(text.line(self.key, row))
    io.flush()
  end
end

-- A single number, under a name of its own, with a line about it.
function Report:figure(name, value, line)
  self.figures[name] = value
  self:clear()
  if not self.options.json then print(line:format(value)) end
end

function Report:finish()
  self:clear()
  local options = self.options
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
