-- SPDX-License-Identifier: Apache-2.0
--- The verdicts as one JSON document, one verdict in a line:
--
--   { "status": the worst, "counts": { "ok": 20, ... }, "checks": [
--     { "group", "name", "status", "found", "why", "fix", "command" }, ... ] }
--
-- fix and command are null where there is nothing to do.
local verdict = require "perigee.cli.doctor.verdict"

local FIELDS = { "group", "name", "status", "found", "why", "fix", "command" }

local function line(cjson, found)
  local parts = {}
  for i, field in ipairs(FIELDS) do
    local value = found[field]
    if value == nil then value = cjson.null end
    parts[i] = ('"%s":%s'):format(field, cjson.encode(value))
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

local function counts(verdicts)
  local parts = {}
  for i, status in ipairs(verdict.STATUSES) do
    local count = 0
    for _, found in ipairs(verdicts) do
      if found.status == status then count = count + 1 end
    end
    parts[i] = ('"%s":%d'):format(status, count)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- Writes them; returns nil and why if that fails.
return function(verdicts, output)
  local there, cjson = pcall(require, "cjson")
  if not there then
    return nil, "--json needs lua-cjson: apt-get install lua-cjson, or "
      .. "luarocks --lua-version=5.1 install lua-cjson"
  end
  local lines = {}
  for i, found in ipairs(verdicts) do lines[i] = line(cjson, found) end
  output:write(('{"status":"%s","counts":%s,"checks":[\n%s\n]}\n'):format(
    verdict.worst(verdicts), counts(verdicts), table.concat(lines, ",\n")))
  return true
end
