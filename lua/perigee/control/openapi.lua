-- SPDX-License-Identifier: Apache-2.0
--- The server's document in OpenAPI 3.0, as JSON, by what who has no token may:
-- nothing (false), `read`, or all (`admin`).
local described = require "perigee.control.described"

local answer, content, open = described.answer, described.content,
                              described.open
local operation, parameter = described.operation, described.parameter
local ref, id_of = described.ref, described.id_of

local NAME = { type = "string", minLength = 1, maxLength = 64,
               pattern = "^[A-Za-z0-9_:-][A-Za-z0-9._:-]*$" }
local TEXT, COUNT = described.TEXT, { type = "number" }
local OBJECT = { type = "object" }
local SECONDS = { type = "number", minimum = 0, maximum = 2 ^ 31,
                  description = "For how many seconds it has been so." }

-- Names that the path has; a body that has them has the same.
local OWN = { readOnly = true, type = NAME.type, pattern = NAME.pattern }

local function list_of(schema) return { type = "array", items = schema } end

-- A list that may also be written as an empty object, as Lua does.
local function names_of(schema)
  return { anyOf = { list_of(schema),
                     { type = "object", maxProperties = 0 } } }
end

local SUM = { type = "number", minimum = 0, maximum = 1e19 }
local SUMS = { type = "object", additionalProperties = SUM }

-- ---- Schemas ---------------------------------------------------------------

local SCHEMAS = {
  Entry = {
    type = "object", required = { "addresses", "epoch" },
    additionalProperties = true,
    properties = {
      name = OWN, scope = OWN, kind = TEXT, epoch = { type = "string",
        minLength = 1, description = "Identifies the life of the agent." },
      addresses = { type = "array", items = TEXT, minItems = 1 },
      services = { type = "object", description = "Versions by name." },
      regions = { type = "object",
                  description = "By name: { length, access }" },
      metadata = OBJECT, weight = COUNT, state = TEXT, host = TEXT,
      term = { type = "integer", readOnly = true, minimum = 0,
               description = "Raised at each taking of the name." },
      pid = COUNT, since = { type = "number", minimum = -1e12, maximum = 1e12,
        description = "Seconds for which it has had the name." } } },
  Entity = {
    type = "object", required = { "kind" },
    properties = { name = OWN, scope = OWN, kind = TEXT, endpoint = TEXT,
                   metadata = OBJECT,
                   since = { type = "number", readOnly = true } } },
  Topology = {
    type = "object", additionalProperties = false,
    properties = { edges = names_of({ type = "array", items = NAME,
                                      minItems = 2, maxItems = 2 }),
                   mesh = names_of(NAME) } },
  Edge = {
    type = "object", required = { "ends", "dials", "state" },
    properties = {
      ends = { type = "array", items = NAME, minItems = 2, maxItems = 2 },
      dials = NAME, since = SECONDS, why = TEXT, absent = list_of(NAME),
      state = { type = "string",
                enum = { "up", "down", "absent", "unknown" } } } },
  Connections = {
    type = "object", required = { "wanted", "actual" },
    properties = { wanted = ref "Topology", actual = list_of(ref "Edge") } },
  Report = {
    type = "object", required = { "peers" },
    properties = { peers = {
      type = "array", maxItems = 500, description = "Of others it stays what "
        .. "it was.",
      items = {
        type = "object", required = { "name", "state" },
        properties = { name = NAME, seconds = SECONDS,
                       state = { type = "string", enum = { "up", "down" } },
                       why = { type = "string", maxLength = 500 } } } } } },
  Stats = {
    type = "object", required = { "state" },
    description = "What an agent counts since it began. Of longer texts than "
      .. "64 bytes the rest is passed over, and so are other fields.",
    properties = {
      host = TEXT, pid = SUM, began = SUM, begun = SUM, oldest_call = SUM,
      oldest_served = SUM, transports = SUMS, counters = SUMS,
      state = { type = "string",
                enum = { "asleep", "running", "busy", "stopped", "dead" } },
      methods = names_of { type = "object", required = { "side" },
        properties = { side = { type = "string",
                                enum = { "client", "server", "other" } },
          service = TEXT, method = TEXT, out = SUM, into = SUM, longest = SUM,
          sum = SUM, ends = SUMS, bins = SUMS } } } },
  Page = { type = "object", required = { "items" },
           description = "A page with `next` may have fewer items than its "
             .. "limit, or none.",
           properties = { items = list_of(OBJECT), next = NAME } },
  Event = {
    type = "object", required = { "event", "id", "data" },
    properties = { event = { type = "string", enum = { "all", "change" } },
                   id = TEXT, data = { type = "string",
                     description = "JSON: { entries }, { name, entry }" } } },
  Problem = {
    type = "object", required = { "type", "status", "title" },
    properties = { type = TEXT, status = { type = "integer" }, title = TEXT,
                   detail = TEXT, kind = TEXT, holder = ref "Entry" } },
}

-- ---- Operations ------------------------------------------------------------

local SCOPE = parameter("path", "scope", NAME)
local ONE = parameter("path", "name", NAME)
local TTL = parameter("query", "ttl", { type = "number", minimum = 0.1,
                                        maximum = 86400 },
                      "Seconds of its lease.")
local EPOCH = parameter("query", "epoch", TEXT,
                        "The life of the agent that asks.")
local OVER = parameter("query", "over", TEXT,
                       "The epoch of a dead holder, which loses the name.")
local SAME = parameter("header", "If-Match", TEXT,
                       "Fails with 412 unless it has the tag of what is there.")
local OTHER = parameter("header", "If-None-Match", TEXT,
                        "Fails with 412, or a GET with 304, if it has it.")
local PAGE = {
  SCOPE, OTHER, parameter("query", "kind", TEXT),
  parameter("query", "prefix", TEXT), parameter("query", "service", TEXT),
  parameter("query", "after", TEXT, "The `next` of the page before."),
  parameter("query", "limit", { type = "integer", minimum = 1,
                                maximum = 1000 }) }

local ETAG = { ETag = { schema = TEXT, description =
  "A strong tag. It says nothing of `since`, which always grows." } }

local function taken(schema) return content("application/json", schema) end

local function all(what, schema)
  return { get = operation("List " .. what, PAGE,
    { ["200"] = answer("A page", schema, ETAG),
      ["304"] = answer "It is the same" }) }
end

-- The requests that make sense for the record that a PUT has written.
local function links_of(what)
  local it = { scope = "$request.path.scope", name = "$request.path.name" }
  local held = { scope = it.scope, name = it.name,
                 epoch = what == "an agent" and "$request.body#/epoch" or nil }
  local report = what == "an agent" and { parameters = held,
    operationId = id_of "Report what an agent counts" } or nil
  return { read = { operationId = id_of("Read " .. what), parameters = it },
           report = report,
           remove = { operationId = id_of("Remove " .. what),
                      parameters = held },
           renew = { operationId = id_of("Begin the lease of " .. what
                                         .. " anew"), parameters = held } }
end

local function one(what, schema, put)
  local links = links_of(what)
  return {
    get = operation("Read " .. what, { SCOPE, ONE, OTHER }, {
      ["200"] = answer("It", schema, ETAG),
      ["304"] = answer "It is the same" }),
    put = operation("Write " .. what, put, {
      ["200"] = answer("It was there", schema, ETAG, links),
      ["201"] = answer("It is new", schema, ETAG, links) }, taken(schema)),
    delete = operation("Remove " .. what, { SCOPE, ONE, EPOCH, SAME },
                       { ["204"] = answer "It is gone" }),
  }
end

local function renewal(what)
  return { post = operation("Begin the lease of " .. what .. " anew",
    { SCOPE, ONE, EPOCH }, { ["204"] = answer "It lives" }) }
end

local WATCH = operation("Watch by server-sent events",
  { SCOPE, parameter("query", "collection", { type = "string",
      enum = { "agents", "entities", "topology" } }),
    parameter("query", "kind", TEXT), parameter("query", "prefix", TEXT),
    parameter("header", "Last-Event-ID", TEXT,
              "The id of the last event that was seen: what came after it."),
    parameter("query", "from", TEXT, "The same, for who sets no headers."),
    parameter("query", "for", { type = "number", minimum = 0,
                                maximum = 86400 },
              "Seconds after which the stream ends; without, it goes on.") },
  { ["200"] = { description = "Events: all { entries }, change { name, entry "
                  .. "}, where no entry means that it is gone",
                content = content("text/event-stream", ref "Event") } })

local METRICS = { description = "Text, as Accept wants it", content = {
  ["text/plain"] = { schema = TEXT },
  ["application/openmetrics-text"] = { schema = TEXT } } }

local SCOPED = "/v1/scopes/{scope}/"

local PATHS = {
  ["/healthz"] = open("Does it run?", OBJECT),
  ["/readyz"] = open("Does it take writes?", OBJECT),
  ["/openapi.json"] = open("This document", OBJECT),
  ["/metrics"] = { get = operation("Tell Prometheus what the server counts",
                                   nil, { ["200"] = METRICS }) },
  [SCOPED .. "agents"] = all("agents", ref "Page"),
  [SCOPED .. "agents/{name}"] = one("an agent", ref "Entry",
    { SCOPE, ONE, TTL, OVER, SAME, OTHER }),
  [SCOPED .. "agents/{name}/renew"] = renewal "an agent",
  [SCOPED .. "agents/{name}/stats"] = {
    post = operation("Report what an agent counts", { SCOPE, ONE, EPOCH },
                     { ["204"] = answer "Taken" }, taken(ref "Stats")) },
  [SCOPED .. "entities"] = all("entities", ref "Page"),
  [SCOPED .. "entities/{name}"] = one("an entity", ref "Entity",
    { SCOPE, ONE, TTL, SAME, OTHER }),
  [SCOPED .. "entities/{name}/renew"] = renewal "an entity",
  [SCOPED .. "regions"] = all("regions of agents", ref "Page"),
  [SCOPED .. "services"] = all("services of agents", ref "Page"),
  [SCOPED .. "watch"] = { get = WATCH },
  [SCOPED .. "topology"] = {
    get = operation("Read the topology: wanted and actual", { SCOPE },
                    { ["200"] = answer("It", ref "Connections") }),
    put = operation("Say which agents are to be connected",
      { SCOPE, SAME, OTHER }, {
        ["200"] = answer("It was there", ref "Connections"),
        ["201"] = answer("It is new", ref "Connections") },
      taken(ref "Topology")) },
  [SCOPED .. "topology/{name}"] = {
    patch = operation("Report whom an agent is connected to",
                      { SCOPE, ONE, EPOCH }, { ["204"] = answer "Taken" },
                      taken(ref "Report")) },
}

return described.documents {
  title = "Perigee's control server",
  description = "Names of agents and other things, in scopes.",
  paths = PATHS, schemas = SCHEMAS,
}
