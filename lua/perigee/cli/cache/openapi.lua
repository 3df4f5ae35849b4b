-- SPDX-License-Identifier: Apache-2.0
--- The documents in OpenAPI 3.0 of a cache by HTTP, as JSON
-- (control/described): of one that has several scopes, or not, by what who has
-- no token may.
local described = require "perigee.control.described"

local answer, parameter, ref = described.answer, described.parameter,
                               described.ref
local operation = described.operation

local TEXT, COUNT = described.TEXT, { type = "integer", minimum = 0 }
local BYTES = described.content("application/octet-stream",
                                { type = "string", format = "binary" })

local KEY = parameter("path", "key", { type = "string", minLength = 1 },
  "A key of 1 to 512 bytes. What is no letter or digit is written as %XX, a "
  .. "slash as %2F.")
local TTL = parameter("query", "ttl", { type = "number", minimum = 0.001,
                                        maximum = 2 ^ 31 },
                      "Seconds that the entry lives, and up to 0.14 more.")
local ABSENT = parameter("header", "If-None-Match", TEXT,
                         "*: fails with 412 if the key is there.")

local COUNTERS = { type = "object", additionalProperties = COUNT, properties = {
  entries = COUNT, reserved = COUNT, held = COUNT, leases = COUNT,
  clients = COUNT, hits = COUNT, misses = COUNT, sealed = COUNT,
  evicted = COUNT, expired = COUNT, deleted = COUNT, copies = COUNT,
  failed = COUNT,
  quota = COUNT, slabs = COUNT, huge = COUNT, used = COUNT, values = COUNT,
  hard = COUNT, directory = COUNT, spilled = COUNT, spill_quota = COUNT,
  spill_slabs = COUNT, spill_used = COUNT, spill_values = COUNT,
  spill_evicted = COUNT },
  description = "Numbers of what there is and has been; bytes: quota, slabs, "
    .. "huge, used, values, hard, directory, spill_quota, spill_slabs, "
    .. "spill_used, spill_values." }

local SCHEMAS = {
  Stats = { type = "object", required = { "name", "scopes" },
            properties = { name = TEXT, scopes = {
              type = "object", additionalProperties = COUNTERS } } },
}

local VALUE = { description = "Its value", content = BYTES }

local function paths(several)
  local scope = parameter("query", "scope", TEXT, "The scope.")
  scope.required = several
  return {
    ["/healthz"] = described.open("Does it run?", { type = "object" }),
    ["/openapi.json"] = described.open("This document", { type = "object" }),
    ["/stats"] = { get = operation("Tell how full it is",
      { parameter("query", "scope", TEXT, "This scope alone.") },
      { ["200"] = answer("Counters by scope", ref "Stats") }) },
    ["/v1/entries/{key}"] = {
      get = operation("Get a value", { KEY, scope }, { ["200"] = VALUE }),
      put = operation("Put a value", { KEY, scope, TTL, ABSENT },
                      { ["204"] = answer "It is there" }, BYTES),
      delete = operation("Delete an entry", { KEY, scope },
                         { ["204"] = answer "It is gone" }),
    },
  }
end

local function documents(several)
  return described.documents {
    title = "A cache of Perigee's",
    description = "Small values by their keys. Programs with Perigee read and "
      .. "write the same entries, of any length, by themselves.",
    paths = paths(several), schemas = SCHEMAS,
  }
end

return { [true] = documents(true), [false] = documents(false) }
