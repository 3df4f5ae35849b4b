-- SPDX-License-Identifier: Apache-2.0
-- The files of a comparison: a CSV for each peer, one JSON, and pictures.

local cjson = require "cjson"
local csv = require "perigee.bench.csv"
local figures = require "bench.lib.compare.figures"
local json = require "perigee.bench.json"
local pictures = require "bench.lib.compare.pictures"
local shell = require "bench.lib.shell"

local M = {}

local function write(path, text)
  local file, why = io.open(path, "w")
  if not file then return nil, why end
  file:write(text)
  return file:close()
end

local function by_peer(rows)
  local order, by = {}, {}
  for _, row in ipairs(rows) do
    if not by[row.peer] then
      by[row.peer] = {}
      order[#order + 1] = row.peer
    end
    table.insert(by[row.peer], row)
  end
  return order, by
end

-- Returns the document. head: what was measured on, with what options.
function M.document(head, rows)
  local texts = {}
  for i, row in ipairs(rows) do texts[i] = json.object(row, figures.FIELDS) end
  return ('{"bench":"compare","machine":%s,"options":%s,"rows":[\n%s\n]}\n')
         :format(json.object(head.machine, { "cpu", "cores", "kernel" }),
                 cjson.encode(head.options), table.concat(texts, ",\n"))
end

-- ---- The folder ------------------------------------------------------------

-- Makes the folder; returns true, or nil and why nothing can be written there.
function M.prepare(folder)
  os.execute(("mkdir -p %s 2>/dev/null"):format(shell.quoted { folder }))
  local path = folder .. "/compare.json"
  local fine, why = write(path, "")
  if not fine then return nil, why end
  os.remove(path)
  return true
end

-- Writes all; returns true, or nil and what could not be written.
function M.write(folder, head, rows)
  local order, by = by_peer(rows)
  local fine, why = write(folder .. "/compare.json", M.document(head, rows))
  for _, name in ipairs(order) do
    if fine then
      fine, why = write(("%s/%s.csv"):format(folder, name),
                        csv.text(figures.FIELDS, by[name]))
    end
  end
  if not fine then return nil, why end
  return pictures.write(folder, rows, write)
end

return M
