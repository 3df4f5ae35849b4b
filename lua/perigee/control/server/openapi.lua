-- SPDX-License-Identifier: Apache-2.0
--- The server's document in OpenAPI 3.0, as JSON.
local json = require "cjson"

local VERSION = require "perigee.version"

local NAME = { type = "string", minLength = 1, maxLength = 64,
               pattern = "^[A-Za-z0-9_:-][A-Za-z0-9._:-]*$" }
local TEXT, COUNT = { type = "string" }, { type = "number" }
local OBJECT = { type = "object" }
local SECONDS = { type = "number", minimum = 0, maximum = 2 ^ 31,
                  description = "For how many seconds it has been so." }

local function ref(name)
  return { ["$ref"] = "#/components/schemas/" .. name }
end

local function list_of(schema) return { type = "array", items = schema } end

-- ---- Schemas ---------------------------------------------------------------

local SCHEMAS = {
  Entry = {
    type = "object", required = { "addresses", "epoch" },
    additionalProperties = true,
    properties = {
      name = NAME, scope = NAME, kind = TEXT, epoch = { type = "string",
        minLength = 1, description = "Identifies the life of the agent." },
      addresses = { type = "array", items = TEXT, minItems = 1 },
      services = { type = "object", description = "Versions by name." },
      regions = { type = "object",
                  description = "By name: { length, access }" },
      metadata = OBJECT, weight = COUNT, state = TEXT, host = TEXT,
      pid = COUNT, since = { type = "number",
        description = "Seconds for which it has had the name." } } },
  Entity = {
    type = "object", required = { "kind" },
    properties = { name = NAME, scope = NAME, kind = TEXT, endpoint = TEXT,
                   metadata = OBJECT, since = COUNT } },
  Topology = {
    type = "object",
    properties = { edges = list_of({ type = "array", items = NAME,
                                     minItems = 2, maxItems = 2 }),
                   mesh = list_of(NAME) } },
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
                       why = { type = "string", maxLength = 500,
                               description = "At most 500 bytes." } } } } } },
  Page = { type = "object", required = { "items" },
           properties = { items = list_of(OBJECT), next = NAME } },
  Problem = {
    type = "object", required = { "type", "status", "title" },
    properties = { type = TEXT, status = { type = "integer" }, title = TEXT,
                   detail = TEXT, kind = TEXT, holder = ref "Entry" } },
}

-- ---- Operations ------------------------------------------------------------

local function parameter(where, name, schema, text)
  return { name = name, ["in"] = where, schema = schema, description = text,
           required = where == "path" or nil }
end

local SCOPE = parameter("path", "scope", NAME)
local ONE = parameter("path", "name", NAME)
local TTL = parameter("query", "ttl", { type = "number", minimum = 0.1,
                                        maximum = 86400 },
                      "Seconds of its lease.")
local EPOCH = parameter("query", "epoch", TEXT,
                        "The life of the agent that asks.")
local OVER = parameter("query", "over", TEXT,
                       "The epoch of a dead holder, which loses the name.")
local SAME = parameter("header", "If-Match", TEXT)
local OTHER = parameter("header", "If-None-Match", TEXT)
local PAGE = {
  SCOPE, parameter("query", "kind", TEXT), parameter("query", "prefix", TEXT),
  parameter("query", "service", TEXT),
  parameter("query", "after", TEXT, "The `next` of the page before."),
  parameter("query", "limit", { type = "integer", minimum = 1,
                                maximum = 1000 }) }

local function content(kind, schema) return { [kind] = { schema = schema } } end

local function answer(text, schema)
  return { description = text,
           content = schema and content("application/json", schema) or nil }
end

local PROBLEM = { description = "A problem (RFC 9457)",
                  content = content("application/problem+json",
                                    ref "Problem") }

local function operation(summary, parameters, answers, body)
  answers.default = PROBLEM
  return { summary = summary, parameters = parameters, responses = answers,
           requestBody = body and {
             required = true, content = content("application/json", body) },
           security = { { token = {} } } }
end

local function all(what, schema)
  return { get = operation("List " .. what, PAGE,
    { ["200"] = answer("A page", schema) }) }
end

local function one(what, schema, put)
  return {
    get = operation("Read " .. what, { SCOPE, ONE, OTHER }, {
      ["200"] = answer("It", schema), ["304"] = answer "It is the same" }),
    put = operation("Write " .. what, put, {
      ["200"] = answer("It was there", schema),
      ["201"] = answer("It is new", schema) }, schema),
    delete = operation("Remove " .. what, { SCOPE, ONE, EPOCH, SAME },
                       { ["204"] = answer "It is gone" }),
  }
end

local function renewal(what)
  return { post = operation("Begin the lease of " .. what .. " anew",
    { SCOPE, ONE, EPOCH }, { ["204"] = answer "It lives" }) }
end

local function open(summary, schema)
  return { get = { summary = summary, responses = {
    ["200"] = answer("It is", schema), default = PROBLEM } } }
end

local WATCH = operation("Watch by server-sent events",
  { SCOPE, parameter("query", "collection", { type = "string",
      enum = { "agents", "entities", "topology" } }),
    parameter("query", "kind", TEXT), parameter("query", "prefix", TEXT),
    parameter("header", "Last-Event-ID", TEXT) },
  { ["200"] = { description = "Events: all { entries }, change { name, entry "
                  .. "}, where no entry means that it is gone",
                content = content("text/event-stream", TEXT) } })

local SCOPED = "/v1/scopes/{scope}/"

local PATHS = {
  ["/healthz"] = open("Does it run?", OBJECT),
  ["/readyz"] = open("Does it take writes?", OBJECT),
  ["/openapi.json"] = open("This document", OBJECT),
  [SCOPED .. "agents"] = all("agents", ref "Page"),
  [SCOPED .. "agents/{name}"] = one("an agent's entry", ref "Entry",
    { SCOPE, ONE, TTL, OVER, SAME, OTHER }),
  [SCOPED .. "agents/{name}/renew"] = renewal "an agent",
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
      ref "Topology") },
  [SCOPED .. "topology/{name}"] = {
    patch = operation("Report whom an agent is connected to",
                      { SCOPE, ONE, EPOCH }, { ["204"] = answer "Taken" },
                      ref "Report") },
}

local text = json.encode {
  openapi = "3.0.3",
  info = { title = "Perigee's control server", version = VERSION,
           description = "Names of agents and other things, within scopes." },
  paths = PATHS,
  components = {
    schemas = SCHEMAS,
    securitySchemes = { token = { type = "http", scheme = "bearer" } } },
}

-- cjson writes an empty list as an object.
return (text:gsub('"token":{}', '"token":[]'))
