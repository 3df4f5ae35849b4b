-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl topology get|put`: who is to be connected, beside who is.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local server = require "perigee.cli.ctrl.options"

local function configure(parser)
  parser:option("--registry", "The server, as http://HOST:7470?token=file:PATH;"
    .. " default: $PERIGEE_REGISTRY if that is one, or else the server that "
    .. "runs here from --store."):argname "URL"
  parser:option("--scope", "The scope; default: $PERIGEE_SCOPE, or default.")
    :argname "SCOPE"
  server.store(parser)
  options.json(parser)
  options.timeout(parser, 5)
end

-- ---- The server ------------------------------------------------------------

-- The address of the server that is meant.
local function address(given)
  local registry = given.registry or os.getenv "PERIGEE_REGISTRY" or ""
  if registry:find "^https?://" then return registry end
  if given.registry then
    failure.misuse "--registry must be a control server, http(s)://HOST:PORT"
  end
  server.complete(given)
  local found = require "perigee.cli.server.process".find(given.pid)
  if found then return found.url end
  failure.failed("no server runs from %s; give --registry, or begin one by "
    .. "perigee ctrl start", given.shown)
end

-- Advice to the user, by the kind of a failure.
local TO_DO = {
  denied = "a token goes into the address, ?token=file:PATH; writing the "
    .. "topology takes one of the role admin",
  peer_lost = "is the server up, and this its address?",
  timeout = "--timeout gives it more time",
}

local function maybe(kind, value) return value == nil or type(value) == kind end

-- Is it an edge, as a server tells of one?
local function is_edge(edge)
  local wrong = require "perigee.registry.topology".wrong
  return type(edge) == "table" and type(edge.state) == "string"
    and edge.ends ~= nil and not wrong { edges = { edge.ends } }
    and not wrong { mesh = edge.absent }
    and maybe("number", edge.since) and maybe("string", edge.why)
end

-- Is it what a server tells of a topology? It may have answered anything.
local function is_topology(value)
  local wrong = require "perigee.registry.topology".wrong
  if type(value) ~= "table" or type(value.wanted) ~= "table"
    or type(value.actual) ~= "table" or wrong(value.wanted) then
    return false
  end
  for _, edge in ipairs(value.actual) do
    if not is_edge(edge) then return false end
  end
  return true
end

-- Asks the server for the topology; returns what it answers.
local function ask(agent, timeout, method, body)
  local clients = require "perigee.registry.http.client"
  local path = ("/v1/scopes/%s/topology"):format(clients.escape(agent.scope))
  local asked = clients.new(agent.registry.target, timeout)
  local value, kind, why = asked:ask(method, path, body)
  if value and not is_topology(value) then
    failure.failed("%s: what it answers is no topology",
                   agent.registry.target.text)
  elseif value then
    return value
  end
  local what = TO_DO[kind]
  failure.failed("%s", what and ("%s; %s"):format(why, what) or why)
end

-- ---- What is told ----------------------------------------------------------

local function reason(edge)
  if edge.absent then
    return ("nobody is called %s"):format(table.concat(edge.absent, " or "))
  end
  return edge.why
end

local function tell(value, given)
  local out = require "perigee.cli.out"
  if given.json then
    local json = require "perigee.cli.json"
    local wanted = value.wanted
    for _, list in pairs { value.actual, wanted.edges, wanted.mesh } do
      json.list(list)
    end
    return out.json(value)
  end
  local rows = {}
  for i, edge in ipairs(value.actual) do
    local one, two = edge.ends[1], edge.ends[2]
    if edge.dials == two then one, two = two, one end
    rows[i] = { one, two, edge.state,
                edge.since and ("%.0f s"):format(edge.since), reason(edge) }
  end
  if rows[1] then
    return out.columns({ "DIALS", "PEER", "STATE", "SINCE", "WHY" }, rows)
  end
  io.stderr:write(("%s: nobody is to be connected in scope %s\n"):format(
    given.path, given.scope or os.getenv "PERIGEE_SCOPE" or "default"))
end

local function run(given, method, body)
  require "perigee.cli.server.listen".check_libraries()
  given.registry = address(given)
  return client.run(given, function(agent)
    tell(ask(agent, given.timeout, method, body), given)
  end)
end

-- ---- get -------------------------------------------------------------------

local get = {
  name = "get",
  summary = "Tell who is to be connected, and who is.",
  description = "Tells who is to be connected, and of each pair who dials, "
    .. "whether they are connected (up, down; absent: one is not there; "
    .. "unknown: none has reported), for how long, and why not.",
  configure = configure,
}

function get.run(given) return run(given, "GET") end

-- ---- put -------------------------------------------------------------------

local put = {
  name = "put",
  summary = "Say who is to be connected.",
  description = "Says which agents are to be connected from now on, in place "
    .. "of what was said before: by options, or by a file in JSON, as "
    .. '{"edges":[["a","b"]],"mesh":["x","y","z"]}. Of a pair the one that is '
    .. "named first dials. Agents that the server holds names of "
    .. "notice within a third of their names' TTL (10 s by default), or at "
    .. "once if they are in a topology already.",
}

local function names(text, n)
  local check = require "perigee.runtime.check"
  local list, wrong = {}, nil
  for name in (text .. ","):gmatch "([^,]*)," do
    wrong = wrong or check.name(name)
    list[#list + 1] = name
  end
  if wrong then return nil, ("%q: a name has %s"):format(text, wrong) end
  if n and #list ~= n then return nil, ("%q are not two names"):format(text) end
  return list
end

function put.configure(parser)
  parser:argument("file", "A file in JSON; -: stdin."):argname "FILE":args "?"
  parser:option("--edge", "Two agents. May be given again.")
    :argname "A,B":count "*":convert(function(text) return names(text, 2) end)
  parser:option("--mesh", "Agents of which each is to be connected to each.")
    :argname "A,B,...":convert(names)
  parser:flag("--none", "Nobody is to be connected.")
  configure(parser)
end

local function content(path)
  local file, why = io.stdin, nil
  if path ~= "-" then file, why = io.open(path, "rb") end
  local text = file and file:read "*a"
  if not text then failure.misuse("reading FILE: %s", why or "it is none") end
  if file ~= io.stdin then file:close() end
  return text
end

local function quoted(list)
  return #list > 0 and '["' .. table.concat(list, '","') .. '"]' or nil
end

-- The body of the options.
local function body_of(given)
  local edges, parts = {}, {}
  for i, edge in ipairs(given.edge) do edges[i] = quoted(edge) end
  if edges[1] then
    parts[1] = '"edges":[' .. table.concat(edges, ",") .. "]"
  end
  if given.mesh then parts[#parts + 1] = '"mesh":' .. quoted(given.mesh) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- Who is to have nobody connected has to say so: a slip would drop all edges.
-- What is no topology is left to the server to tell.
local function check_joins(text)
  local topologies = require "perigee.registry.topology"
  local fine, value = require "perigee.cli.json".decode(text)
  if not fine or type(value) ~= "table" or value[1] ~= nil then return end
  local unknown = topologies.unknown(value)
  if unknown then failure.misuse("%s", unknown) end
  if not topologies.wrong(value) and not topologies.edges(value)[1] then
    failure.misuse "that connects nobody: --none says so"
  end
end

function put.run(given)
  local by_options = given.edge[1] or given.mesh
  local ways = (given.file and 1 or 0) + (by_options and 1 or 0)
    + (given.none and 1 or 0)
  if ways ~= 1 then
    failure.misuse "give either FILE, or --edge and --mesh, or --none"
  end
  local body = given.file and content(given.file) or body_of(given)
  if not given.none then check_joins(body) end
  return run(given, "PUT", body)
end

return { name = "topology", commands = { get, put },
         summary = "Say which agents are to be connected; tell which are." }
