-- SPDX-License-Identifier: Apache-2.0
-- The document of --json, with its fields in the order in which people read
-- them.

local M = {}

M.FIELDS = { "size", "window", "calls", "mean_us", "p50_us", "p99_us",
             "p999_us", "calls_per_s", "gb_per_s", "floor_p50_us", "ratio" }

-- Encodes an object with the fields `first` in front (null where missing) and
-- the others sorted by name.
function M.object(values, first)
  local cjson = require "cjson"
  local parts, seen, others = {}, {}, {}
  local function put(name, value)
    parts[#parts + 1] = cjson.encode(name) .. ":" .. cjson.encode(value)
  end
  for _, name in ipairs(first) do
    seen[name] = true
    put(name, values[name] == nil and cjson.null or values[name])
  end
  for name in pairs(values) do
    if not seen[name] then others[#others + 1] = name end
  end
  table.sort(others)
  for _, name in ipairs(others) do put(name, values[name]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- Encodes a document with bench, transport, machine, figures (may be empty),
-- rows, and not_run: why there are none (else nil).
function M.document(document, key)
  local rows = {}
  local cjson = require "cjson"
  for i, row in ipairs(document.rows) do
    rows[i] = M.object(row, { key, unpack(M.FIELDS) })
  end
  local why = document.not_run
  return ('{"bench":%s,"transport":%s,"machine":%s,%s"figures":%s,"rows":[%s]}')
         :format(cjson.encode(document.bench),
                 cjson.encode(document.transport),
                 M.object(document.machine, { "cpu", "cores", "kernel" }),
                 why and '"not_run":' .. cjson.encode(why) .. "," or "",
                 M.object(document.figures, {}), table.concat(rows, ","))
end

return M
