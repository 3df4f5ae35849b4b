-- SPDX-License-Identifier: Apache-2.0
--- The page of `perigee metrics --page` and `perigee ctrl --page`: the
-- document, which has all that it needs, the events that keep it up to date,
-- and what it asks of one agent.
--
--   GET /                          the document (document.lua)
--   GET /events                    a stream: "history" once, then "state"
--   GET /links                     who is linked with whom
--   GET /agent?scope=S&name=NAME   an agent's methods and sessions; &host=HOST:
--                                  of that host
--
-- Files are read every two seconds whether somebody looks or not, so that a
-- page that is opened has the last ten minutes.
local document = require "perigee.cli.metrics.document"
local histories = require "perigee.stats.history"
local json = require "perigee.cli.json"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local partial = require "perigee.stats.partial"
local problem = require "perigee.control.problem"
local tokens = require "perigee.control.tokens"

local M = {}

local STEP = 2                          -- seconds
local STREAMS = 32
local BEHIND = 2 ^ 18                   -- bytes after which a client waits

local Page = {}
Page.__index = Page

local JSON = { "Content-Type", "application/json", "Cache-Control", "no-store",
               "X-Content-Type-Options", "nosniff" }
local OPEN = { "Content-Type", "text/event-stream", "Cache-Control",
               "no-store" }
-- Nothing but what the document itself has, and nothing from elsewhere.
local POLICY = "default-src 'none'; script-src 'nonce-%s'; style-src "
  .. "'nonce-%s'; connect-src 'self'; img-src data:; base-uri 'none'; "
  .. "form-action 'none'; frame-ancestors 'none'"

local function event(name, value)
  return ("event: %s\ndata: %s\n\n"):format(name, json.encode(value))
end

--- A page of what perigee.stats.metrics tells.
function M.new(told)
  return setmetatable({ history = histories.new(told, STEP), streams = {},
                        due = 0, state = false, links = false,
                        links_at = false }, Page)
end

-- ---- Requests ---------------------------------------------------------------

local function root()
  local nonce = tokens.new_text()
  if not nonce then
    return problem(503, "no_memory", "there is no random number")
  end
  return 200, document(nonce), {
    "Content-Type", "text/html; charset=utf-8", "Cache-Control", "no-store",
    "Content-Security-Policy", POLICY:format(nonce, nonce),
    "X-Content-Type-Options", "nosniff", "Referrer-Policy", "no-referrer" }
end

-- All that a page needs at first. One that comes back begins with that again.
local function history_of(page)
  return event("history", { step = STEP, kept = histories.KEPT,
                            bounds = partial.bounds,
                            points = json.list(page.history.points) })
end

-- Where it is not said whether a client is trusted, all are.
local function events(call, server)
  local page, trusted = server.page, call.trusted ~= false
  if call.method == "HEAD" then return 200, "", OPEN end
  if #page.streams >= STREAMS or not call.request:may_stream(trusted) then
    return problem(503, "no_memory", "there are as many streams as may be")
  end
  call.stream = function()
    local stream = call.request:stream(200, OPEN, trusted)
    if not stream then return end
    page.streams[#page.streams + 1] = stream
    stream:tell(history_of(page) .. (page.state or ""))
  end
  return 200, ""
end

-- All who ask after one look get the same text.
local function links(_, server)
  local page = server.page
  if page.links_at ~= page.history.read_at then
    local list, more, silent = page.history:links()
    page.links = json.encode { links = json.list(list), more = more,
                               silent = silent }
    page.links_at = page.history.read_at
  end
  return 200, page.links, JSON
end

local function agent(call, server)
  local query = call.query
  local one = server.page.history:agent(query.scope, query.name, query.host)
  if not one then
    return problem(404, "not_found", "there is no such agent now")
  end
  json.list(one.methods)
  json.list(one.links)
  return 200, json.encode(one), JSON
end

--- The routes of its paths (control/asked).
Page.paths = {
  ["/"] = { GET = { run = root, role = "read", gives = false } },
  ["/events"] = { GET = { run = events, role = "read", gives = false } },
  ["/links"] = { GET = { run = links, role = "read", gives = false } },
  ["/agent"] = { GET = { run = agent, role = "read", gives = false } },
}

-- ---- Streams ----------------------------------------------------------------

local function tell(page, text)
  local list = {}
  for _, stream in ipairs(page.streams) do
    if stream:is_gone() or stream:behind() < BEHIND and not stream:tell(text)
    then
      stream:close()
    else
      list[#list + 1] = stream
    end
  end
  page.streams = list
end

local function renew(self)
  local rows, point = self.history:look()
  self.state = event("state", { agents = json.list(rows), point = point })
  tell(self, self.state)
end

--- Reads the files if that is due, and tells all pages. Returns the
-- milliseconds until it is due again. What raises there, because of what files
-- and agents say, does not end the server.
function Page:tick()
  local now = loop.now()
  if now >= self.due then
    local fine, why = pcall(renew, self)
    if not fine then
      log.write("error", "the page is not renewed: " .. tostring(why))
    end
    self.due = now + STEP * 1e9
  end
  return math.max((self.due - now) / 1e6, 0)
end

function Page:close()
  for _, stream in ipairs(self.streams) do stream:close() end
  self.streams = {}
end

return M
