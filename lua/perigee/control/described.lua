-- SPDX-License-Identifier: Apache-2.0
--- The parts of documents in OpenAPI 3.0 by which HTTP servers of Perigee's
-- describe themselves at /openapi.json.
local json = require "cjson"

local VERSION = require "perigee.version"

local M = {}

M.TEXT = { type = "string" }

--- A schema that a document has by a name.
function M.ref(name) return { ["$ref"] = "#/components/schemas/" .. name } end

--- The schema "Problem", which every document has.
local PROBLEM = {
  type = "object", required = { "type", "status", "title" },
  properties = { type = M.TEXT, status = { type = "integer" }, title = M.TEXT,
                 detail = M.TEXT, kind = M.TEXT } }

--- A parameter of an operation. where: "path", "query" or "header".
function M.parameter(where, name, schema, text)
  return { name = name, ["in"] = where, schema = schema, description = text,
           required = where == "path" or nil }
end

--- A body of one media type.
function M.content(kind, schema) return { [kind] = { schema = schema } } end

--- An answer, with a body in JSON if it has a schema.
function M.answer(text, schema, headers, links)
  return { description = text, headers = headers, links = links,
           content = schema and M.content("application/json", schema) or nil }
end

local REFUSED = { description = "A problem (RFC 9457)",
                  content = M.content("application/problem+json",
                                      M.ref "Problem") }

--- The operationId of a summary: "Read an agent's entry" is
-- readAnAgentsEntry.
function M.id_of(summary)
  local words = summary:gsub("[^%a%s].*$", ""):gsub("%s+(%a)", string.upper)
  return words:sub(1, 1):lower() .. words:sub(2)
end

--- An operation. answers: by status. body: the content of what it takes.
function M.operation(summary, parameters, answers, body)
  answers.default = REFUSED
  return { summary = summary, parameters = parameters, responses = answers,
           operationId = M.id_of(summary),
           requestBody = body and { required = true, content = body } or nil }
end

--- A path that takes no token.
function M.open(summary, schema)
  return { get = { summary = summary, security = {}, responses = {
    ["200"] = M.answer("It is", schema), default = REFUSED } } }
end

-- READS and WRITES are put in place of by what documents say of those who only
-- read, and of all others.
local READS, WRITES = "READS", "WRITES"
local NEEDS, MAY = '[{"token":[]}]', '[{},{"token":[]}]'

-- reads, writes: JSON of the list of what a request may have; cjson writes an
-- empty list as an object.
local function document(of, reads, writes)
  return (json.encode {
    openapi = "3.0.3",
    info = { title = of.title, version = VERSION,
             description = of.description },
    paths = of.paths, security = WRITES,
    components = {
      schemas = of.schemas,
      securitySchemes = { token = { type = "http", scheme = "bearer" } } },
  }:gsub('"WRITES"', writes):gsub('"READS"', reads)
    :gsub('"security":{}', '"security":[]'))
end

--- A server's documents, as JSON, by what who has no token may: nothing
-- (false), `read`, or all (`admin`). of: title, description, paths, schemas.
function M.documents(of)
  of.schemas.Problem = of.schemas.Problem or PROBLEM
  for _, path in pairs(of.paths) do     -- unless it says so itself
    if path.get and not path.get.security then path.get.security = READS end
  end
  return { [false] = document(of, NEEDS, NEEDS),
           read = document(of, MAY, NEEDS), admin = document(of, MAY, MAY) }
end
jit.off(M.documents)

return M
