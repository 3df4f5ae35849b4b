-- SPDX-License-Identifier: Apache-2.0
--- Problem details (RFC 9457). Handlers return them as other answers: a status,
-- a body and headers. `kind` is the kind of Perigee's error that a client makes
-- of it.
local json = require "cjson.safe"

local TITLES = {
  [400] = "Bad Request", [401] = "Unauthorized", [403] = "Forbidden",
  [404] = "Not Found", [405] = "Method Not Allowed", [409] = "Conflict",
  [406] = "Not Acceptable", [412] = "Precondition Failed",
  [413] = "Content Too Large",
  [415] = "Unsupported Media Type", [428] = "Precondition Required",
  [429] = "Too Many Requests", [500] = "Internal Server Error",
  [503] = "Service Unavailable", [507] = "Insufficient Storage",
}

--- Returns the answer for a status: detail says in a sentence what is wrong.
-- more: further fields of the body, plain values. headers: as an answer's. A
-- 503 also tells the client to come back in a second.
local function problem(status, kind, detail, more, headers)
  local body = { type = "about:blank", status = status, title = TITLES[status],
                 kind = kind, detail = detail }
  for name, value in pairs(more or {}) do body[name] = value end
  local all = { "Content-Type", "application/problem+json" }
  if status == 503 then all[3], all[4] = "Retry-After", "1" end
  for _, text in ipairs(headers or {}) do all[#all + 1] = text end
  return status, json.encode(body), all
end
jit.off(problem)

return problem
