-- SPDX-License-Identifier: Apache-2.0
--- A server's answers about itself: to anybody, but for its metrics.
local metrics = require "perigee.stats.metrics"
local openapi = require "perigee.control.openapi"
local problem = require "perigee.control.problem"

local M = {}

local JSON = { "Content-Type", "application/json" }

local function health() return 200, '{"status":"up"}', JSON end

local function ready(_, server)
  if not server.failed then return 200, '{"status":"ready"}', JSON end
  return problem(503, server.kind or "no_memory", server.failed)
end

local function document(_, server)
  local tokens = server.tokens
  return 200, openapi[tokens:is_open() and tokens.strangers], JSON
end

local function told(call, server)
  local kind = metrics.wanted(call.request:header "Accept")
  return 200, server.metrics:text(kind),
    { "Content-Type", metrics.TYPES[kind], "Cache-Control", "no-store",
      "Vary", "Accept" }
end

-- What is there is sent to those who take no such type, too: a scraper's list
-- of types may have none of these.
M.paths = {
  ["/metrics"] = { GET = { run = told, role = "read", gives = false } },
  ["/healthz"] = { GET = { run = health } },
  ["/readyz"] = { GET = { run = ready } },
  ["/openapi.json"] = { GET = { run = document } },
}

return M
