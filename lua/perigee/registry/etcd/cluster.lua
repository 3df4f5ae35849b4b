-- SPDX-License-Identifier: Apache-2.0
--- The servers of an etcd cluster, asked by the JSON gateway of each (/v3).
--
-- All questions go to one server. They go to the next one when that server
-- fails, hangs or has no leader, until the time for the answer is over
-- (registry/servers). A request may be carried out twice, or be carried out
-- although the answer is a failure.
--
-- With a user the servers want a token, which they forget after some time, and
-- when they restart; then another one is asked for.
local asks = require "perigee.registry.ask"
local control = require "perigee.net.native"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local http = require "perigee.net.http"
local json = require "perigee.net.json"
local loop = require "perigee.runtime.loop"
local servers = require "perigee.registry.servers"
local tasks = require "perigee.runtime.task"

local C = control.C

local M = {}

local LIMIT = 8 * 2 ^ 20                -- bytes of an answer
local UNREAD = 2 ^ 18                   -- bytes of a stream that are kept

local Cluster = {}
Cluster.__index = Cluster

-- ---- Time ------------------------------------------------------------------

-- Notes the server's time that a header tells, in milliseconds.
local function note_date(cluster, text)
  local seconds = tonumber(C.perigee_http_date(text))
  if seconds < 0 then return end
  cluster.date, cluster.dated = seconds * 1000, loop.now()
end

--- The servers' time in milliseconds, to a second or so.
function Cluster:now()
  return self.date + math.floor((loop.now() - self.dated) * 1e-6)
end

-- ---- Failures --------------------------------------------------------------

-- Kinds by gRPC's codes. Another server may do better after a failure of the
-- kinds peer_lost and timeout.
local KINDS = { [2] = "peer_lost", [4] = "timeout", [7] = "denied",
                [8] = "no_memory", [13] = "peer_lost", [14] = "peer_lost",
                [16] = "denied" }
local TEMPORARY = { peer_lost = true, timeout = true }
local SIZE = { ["etcdserver: request is too large"] = true }
local WHO = { ["etcdserver: authentication failed, invalid user ID or password"]
                = true, ["etcdserver: user name is empty"] = true }
local AGAIN = { ["etcdserver: revision of auth store is old"] = true,
                ["etcdserver: invalid auth token"] = true }

-- A kind, why, and gRPC's code, of what a server has answered instead.
local function failure(told)
  local why = tostring(told.message or told.error)
  local code = tonumber(told.code or told.grpc_code) or 2
  local kind = WHO[why] and "denied" or SIZE[why] and "too_large"
  return kind or KINDS[code] or "protocol", why, code
end

-- Judges an answer. One server's refusal of a question holds for all servers.
local function judge(answer, kind, code)
  if answer or kind == "closed" then return "final" end
  if TEMPORARY[kind] then return "passing" end
  return code and "final" or "useless"
end

local function is_refused_token(cluster, code, why)
  return cluster.target.user and (code == 16 or AGAIN[why])
end

-- ---- Questions -------------------------------------------------------------

local function request(cluster, url, path, question, seconds)
  local list = { "Content-Type: application/json" }
  if cluster.token and path ~= "auth/authenticate" then
    list[2] = "Authorization: " .. cluster.token
  end
  return { method = "POST", url = url .. "/v3/" .. path, headers = list,
           body = json.encode(question), limit = cluster.limit,
           tls = cluster.target.tls, timeout = math.max(seconds, 0.001) }
end

-- The decoded answer; or nil, a kind, why and perhaps gRPC's code.
local function read(cluster, status, headers, body)
  local told, kind = json.decode_long(body)
  if kind == "too_large" then return nil, kind, "its answer is too large" end
  if type(told) ~= "table" then
    return nil, "protocol", "what it answers is not etcd's"
  end
  note_date(cluster, headers.date)
  if status == 200 and not told.error then return told end
  return nil, failure(type(told.error) == "table" and told.error or told)
end

-- Asks a server for a token. True; or nil, a kind and why.
local function authenticate(cluster, url, seconds)
  local who = { name = cluster.target.user,
                password = cluster.target.password or "" }
  local answer, kind, why = cluster.client:ask(
    request(cluster, url, "auth/authenticate", who, seconds))
  if not answer then return nil, kind, why end
  local told, code
  told, kind, why, code = read(cluster, answer.status, answer.headers,
                               answer.body)
  if not told then return nil, kind, why, code end
  if type(told.token) ~= "string" or told.token:find "%c" then
    return nil, "protocol", "its token is none"
  end
  cluster.token = told.token
  return true
end

-- Has a token, if one is needed; all who ask a server wait for the same one.
local function log_in(cluster, url, seconds)
  if cluster.token or not cluster.target.user then return true end
  local login = cluster.logins[url]
  if not login or login.ended then
    login = tasks.spawn(authenticate, cluster, url, seconds)
    cluster.logins[url] = login
  end
  loop.wait(login, loop.deadline(seconds))
  if not login.ended then return nil, "timeout", "it does not answer" end
  return futures.results(login)
end

local function once(cluster, url, path, question, seconds)
  local fine, kind, why, code = log_in(cluster, url, seconds)
  if not fine then return nil, kind, why, code end
  local answer
  answer, kind, why = cluster.client:ask(
    request(cluster, url, path, question, seconds))
  if not answer then return nil, kind, why end
  return read(cluster, answer.status, answer.headers, answer.body)
end

-- Asks one server, if need be with another token.
local function try(cluster, url, path, question, seconds)
  local answer, kind, why, code = once(cluster, url, path, question, seconds)
  if not answer and cluster.token and is_refused_token(cluster, code, why) then
    cluster.token = false
    return once(cluster, url, path, question, seconds)
  end
  return answer, kind, why, code
end

local function shown(cluster, why)
  return ("%s: %s"):format(cluster.target.text, why)
end

-- Does f(url, seconds) with one server after the other, until one succeeds, or
-- none can, or the time is over.
local function with_any(cluster, seconds, f)
  local answer, kind, why, code = cluster.servers:ask(seconds, f)
  if answer then return answer end
  return nil, asks.unreached(kind), shown(cluster, why), code
end

--- Asks a question: a table, that path answers with a table. Waits. Or nil, a
-- kind, why, and gRPC's code if etcd has answered with one. seconds: for the
-- answer; default: patience.
function Cluster:ask(path, question, seconds)
  return with_any(self, seconds or self.patience, function(url, left)
    return try(self, url, path, question, left)
  end)
end

-- ---- Streams ---------------------------------------------------------------

local function open(cluster, url, path, question, seconds)
  local fine, kind, why, code = log_in(cluster, url, seconds)
  if not fine then return nil, kind, why, code end
  local asked = request(cluster, url, path, question, seconds)
  -- It ends when the server is in no majority any more.
  table.insert(asked.headers, "Grpc-Metadata-hasleader: true")
  asked.limit = UNREAD
  local stream
  stream, kind, why = cluster.client:stream(asked)
  if not stream then return nil, kind, why end
  note_date(cluster, stream.headers.date)
  stream.server = url
  return stream
end

--- Asks a question that is answered by a stream. Waits for its begin. Read it
-- by next(), and close it by close(). It also ends when its server fails or
-- hangs: who reads it goes on elsewhere.
function Cluster:stream(path, question)
  local stream, kind, why, code = with_any(self, self.patience,
    function(url, left) return open(self, url, path, question, left) end)
  if not stream then return nil, kind, why, code end
  self.servers:keep(stream, stream.server)
  return stream
end

-- The next line of a stream; or nil, a kind and why.
local function line_of(cluster, stream, seconds)
  local list, deadline = cluster.servers, loop.deadline(seconds)
  local line, kind, why
  repeat
    line, kind, why = stream:line(cluster.limit,
                                  list:pace(loop.left(deadline)))
    if not line then list:check(stream) end
  until line or kind ~= "timeout" or loop.now() >= deadline
  if line then list:hear(stream.server) end
  return line, kind, why
end

--- The next part of a stream, a table; or nil, a kind, why and perhaps gRPC's
-- code. `timeout`: it was not there within seconds, and may still come.
function Cluster:next(stream, seconds)
  local line, kind, why = line_of(self, stream, seconds)
  if not line then
    return nil, kind or "peer_lost", shown(self, why or "it hung up")
  end
  local told = json.decode_long(line)
  if type(told) ~= "table" then
    return nil, "protocol", shown(self, "what it answers is not etcd's")
  end
  if type(told.result) == "table" then return told.result end
  local failed, code
  failed = type(told.error) == "table" and told.error or told
  kind, why, code = failure(failed)
  if is_refused_token(self, code, why) then
    self.token, kind = false, "peer_lost"
  end
  return nil, kind, shown(self, errors.shown(why)), code
end

--- Ends a stream.
function Cluster:close(stream) self.servers:close(stream) end

-- ---- Opening ---------------------------------------------------------------

-- Only streams have that function; all else comes from a server.
local function drop(answer)
  if type(answer.close) == "function" then answer:close() end
end

-- Asks whether a server is there.
local function probe(cluster, url, seconds)
  return cluster.client:ask { url = url .. "/version", timeout = seconds,
                              tls = cluster.target.tls }
end

--- The cluster at a target (etcd/address). patience: seconds for an answer.
function M.new(target, patience)
  local client, kind, why = http.new()
  if not client then return nil, kind, why end
  local cluster = setmetatable({
    target = target, patience = patience, client = client, token = false,
    logins = {}, date = 0, dated = 0, limit = LIMIT }, Cluster)
  cluster.servers = servers.new(target.urls, patience, {
    repeats = true, judge = judge, drop = drop,
    probe = function(...) return probe(cluster, ...) end })
  return cluster
end

return M
