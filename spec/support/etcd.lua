-- SPDX-License-Identifier: Apache-2.0
-- An etcd cluster for one spec: processes that listen at an address of this
-- host which no other spec has, keep their data in memory (/dev/shm, so that
-- nothing waits for a disk), and end with the spec.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local process = require "spec.support.process"

local M = { needs = "etcd (etcd-server) or perigee/control.so" }
local started = 0

local Cluster = {}
Cluster.__index = Cluster

function M.is_there()
  return os.execute "command -v etcd >/dev/null 2>&1" == 0
    and package.searchpath("perigee.control", package.cpath) ~= nil
end

--- An address of 127.64.0.0 to 127.127.255.255, by the process.
function M.host()
  local pid = process.pid()
  return ("127.%d.%d.%d"):format(64 + bit.band(bit.rshift(pid, 16), 63),
    bit.band(bit.rshift(pid, 8), 255), bit.band(pid, 255))
end

local function place(i, port)
  return ("%s:%d"):format(M.host(), 2000 + 100 * started + 10 * i + port)
end

--- The address of the cluster that was started last, in the form of option
-- `registry`, for this process and its children. options: "&name=value". Names
-- expire late, as a busy machine may not renew for seconds, unless there is a
-- ttl.
function M.address(of, options)
  return ("%s?ttl=%d&timeout=15%s"):format(os.getenv "PERIGEE_SPEC_ETCD",
    math.ceil(30 * of.slow), options or "")
end

-- Memory, if there is enough for logs of 128 MiB each: etcd waits for disks.
local function folder()
  local pipe = io.popen "df --output=avail /dev/shm 2>/dev/null | tail -n 1"
  local free = tonumber(pipe:read "*a") or 0
  pipe:close()
  return ("%s/etcd-%d-%d"):format(free > 2 ^ 20 and "/dev/shm"
    or cases.folder, process.pid(), started)
end

--- Starts a cluster. options: `n`, how many servers (1); `words`, further ones
-- for each; `tls`, the folder of key.pem and cert.pem.
function M.start(options)
  options = options or {}
  started = started + 1
  local cluster = setmetatable({
    servers = {}, hosts = {}, n = options.n or 1, words = options.words or {},
    tls = options.tls, folder = folder() }, Cluster)
  local members = {}
  for i = 1, cluster.n do
    cluster.hosts[i] = place(i, 1)
    members[i] = ("s%d=http://%s"):format(i, place(i, 2))
  end
  cluster.members = table.concat(members, ",")
  ffi.C.spec_setenv("PERIGEE_SPEC_ETCD", ("etcd%s://%s"):format(
    options.tls and "s" or "", table.concat(cluster.hosts, ",")), 1)
  cases.opened[#cases.opened + 1] = cluster
  cases.engine()
  for i = 1, cluster.n do cluster:begin(i) end
  for i = 1, cluster.n do cluster:await(i) end
  return cluster
end

local function url(cluster, i)
  return ("http%s://%s"):format(cluster.tls and "s" or "", cluster.hosts[i])
end

--- Starts one server, with the data that it left, if any.
function Cluster:begin(i)
  local peers = "http://" .. place(i, 2)
  local alone = self.n == 1
  local words = { "etcd", "--name", "s" .. i,
    "--data-dir", ("%s/%d"):format(self.folder, i),
    "--listen-client-urls", url(self, i),
    "--advertise-client-urls", url(self, i), "--listen-peer-urls", peers,
    "--initial-advertise-peer-urls", peers, "--initial-cluster", self.members,
    "--heartbeat-interval", alone and "10" or "100",
    "--election-timeout", alone and "100" or "1000", "--logger", "zap",
    "--log-level", "fatal", "--log-outputs", self.folder .. "/log",
    unpack(self.words) }
  if self.tls then
    for _, word in ipairs { "--cert-file", self.tls .. "/cert.pem",
                            "--key-file", self.tls .. "/key.pem" } do
      words[#words + 1] = word
    end
  end
  assert(os.execute(("mkdir -p -m 700 '%s'"):format(self.folder)) == 0)
  self.servers[i] = process.spawn(words)
end

--- Waits until a server answers.
function Cluster:await(i)
  assert(cases.eventually(function()
    local answer = self:get("/health", i)
    return answer and answer.health == "true"
  end, 30 * cases.slow))
end

local function answer_of(cluster, request)
  cluster.client = cluster.client or require("perigee.net.http").new()
  request.tls = { ca = cluster.tls and cluster.tls .. "/cert.pem" }
  request.timeout = request.timeout or 60 * cases.slow
  local asked = cluster.client:send(request)
  local answer, _, why = asked:wait(2 * request.timeout)
  return answer and require "cjson.safe".decode(answer.body), why
end

function Cluster:get(path, i)
  return answer_of(self, { url = url(self, i or 1) .. path, timeout = 5 })
end

--- Asks a server (the first) what a path of the gateway is for; returns the
-- answer's table.
function Cluster:ask(path, question, i)
  return answer_of(self, { method = "POST",
    url = url(self, i or 1) .. "/v3/" .. path,
    body = require "cjson".encode(question) })
end

--- Puts a value under a key of a scope.
function Cluster:put(scope, name, value)
  local encode = require("perigee.net.base64").encode
  return assert(self:ask("kv/put", {
    key = encode(("perigee/%s/name/%s"):format(scope, name)),
    value = encode(value) }))
end

--- The value under a key of a scope; nil if there is none.
function Cluster:text(scope, name)
  local base64 = require "perigee.net.base64"
  local told = assert(self:ask("kv/range", {
    key = base64.encode(("perigee/%s/name/%s"):format(scope, name)) }))
  return told.kvs and base64.decode(told.kvs[1].value)
end

--- The number of the server that leads.
function Cluster:leader()
  for i = 1, self.n do
    local told = self:ask("maintenance/status", {}, i)
    if told and told.leader and told.leader == told.header.member_id then
      return i
    end
  end
end

function Cluster:kill(i) self.servers[i or 1]:kill() end

function Cluster:close()
  for _, server in ipairs(self.servers) do server:close() end
  if self.client then self.client:close() end
  os.execute(("rm -rf '%s'"):format(self.folder))
end

return M
