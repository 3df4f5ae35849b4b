-- SPDX-License-Identifier: Apache-2.0
--- Shared by commands that ask other agents: an agent of their own, without a
-- name. The agent ends with the command, also if the command fails, is
-- interrupted, or loses the reader of its output. No server is told of it, so a
-- command needs to be allowed to read there, and no more.
local failure = require "perigee.cli.failure"

local ffi = require "ffi"

local M = {}

local SIGPIPE = 13
local SIG_IGN = ffi.cast("void *", 1)

local WHO_IS_THERE = "perigee agents lists who is there, --scope and "
  .. "--registry look elsewhere"
local WHAT_IT_HAS = "perigee describe tells what an agent serves"

-- Advice to the user, by the kind of an error and a pattern of its message. A
-- kind alone does not tell what was sought, or denied: a file, an address or a
-- region is no matter of who is there.
local TO_DO = {
  { "not_found", "^connecting to ", WHO_IS_THERE },
  { "not_found", "^looking up ", WHO_IS_THERE },
  { "timeout", "", "--timeout gives it more time" },
  { "no_service", "", WHAT_IT_HAS },
  { "no_method", "", WHAT_IT_HAS },
  { "peer_lost", "", "perigee agents tells whether it is back" },
  { "name_taken", "^taking the name ",
    "choose another name, or stop the other one" },
  { "name_taken", "^listening at tcp:",
    "take another port, or stop the other one" },
  { "version", "", "install the same version on both sides" },
  { "denied", "^connecting to .*the secret, or the scope, is another",
    "both sides need the same PERIGEE_SECRET and PERIGEE_SCOPE" },
  { "denied", "^connecting to .*runs as another user",
    "on one host both sides need the same user" },
}

-- Other advice, where the library is about to dial an address.
local function advice(err, peer)
  if err.kind == "not_found" and peer and peer:find "^%l+:.*/"
    and err.message:find "^connecting to " then
    return "is the agent up, and this its address?"
  end
  for _, each in ipairs(TO_DO) do
    if err.kind == each[1] and err.message:find(each[2]) then return each[3] end
  end
end

--- An error of Perigee's as one sentence, with what can be done about it.
function M.sentence(err, peer)
  local what = advice(err, peer)
  return what and ("%s; %s"):format(tostring(err), what) or tostring(err)
end

--- Ends the command by an error. peer: to whom, if it was dialled.
function M.fail(err, peer) failure.by(err, M.sentence(err, peer)) end

--- value, or the end of the command by err.
function M.check(value, err, peer)
  if value == nil then M.fail(err, peer) end
  return value
end

--- The message of an error that the library raised, without its place.
function M.bare(raised)
  return (tostring(raised):gsub("^[^:\n]*:%d+: ", ""))
end

--- Calls f, which has been given what the user has: what it raises is misuse.
function M.used(f, ...)
  local results = { pcall(f, ...) }
  if not results[1] then failure.misuse("%s", M.bare(results[2])) end
  return unpack(results, 2, 3)
end

--- Tells whether a peer is given by its address.
function M.is_address(name)
  return name:find "^tcp://" or name:find "^unix:.*[/@]"
end

--- A word of the user's, not too long for a line.
function M.cut(word)
  return #word <= 100 and word or word:sub(1, 100) .. "..."
end

--- Loads the library; the command ends in one sentence where that cannot be.
function M.library()
  local fine, perigee = pcall(require, "perigee")
  if not fine then
    failure.failed("%s; perigee doctor tells more",
                   tostring(perigee):match "^[^\n]*")
  end
  return perigee
end

--- The address of the registry whose agents of this host are looked at from
-- outside: that of --registry, or the environment's; nil: this host's folder.
-- What is no address is misuse. No registry is asked.
function M.registry(given)
  local address = given.registry or os.getenv "PERIGEE_REGISTRY" or ""
  if address == "" and not given.registry then return nil end
  local wrong = require "perigee.registry".wrong(address)
  if not wrong then return address end
  failure.misuse("%s must be a registry, by its address: %s",
    given.registry and "--registry" or "the environment's PERIGEE_REGISTRY",
    wrong)
end

-- Options with wrong values are misuse, told by the option's name.
local function check_place(given)
  local check = require "perigee.runtime.check"
  local registries = require "perigee.registry"
  local wrong = given.registry and registries.check(given.registry)
  if wrong then failure.misuse("--registry must be %s", wrong) end
  local scope = given.scope           -- a list where several are served
  wrong = type(scope) == "string" and check.name(scope)
  if wrong then failure.misuse("--scope must be %s", wrong) end
end

-- Advice to a user whom a registry that is a server does not serve.
local REGISTRY_TO_DO = {
  denied = "its address says as whom it is asked: USER:PASSWORD@ before the "
    .. "host, or ?token=file:PATH, and ca=FILE with TLS",
}

local function fail_registry(err)
  failure.by(err, ("%s; %s"):format(tostring(err), REGISTRY_TO_DO[err.kind]
    or "is the registry up, and this its address?"))
end

-- The error of a list that nobody has asked for, as one of what was asked for.
local function of_asked(err, agent, given)
  local doing = given.name and "looking up " .. given.name
    or "asking the registry"
  local listing = ("listing scope %s"):format(agent.scope)
  local message = tostring(err)
  if message:sub(1, #listing) == listing then
    message = doing .. message:sub(#listing + 1)
  end
  return require "perigee.runtime.errors".new(err.kind, message, err.sent)
end

-- A registry that is a server, and is not there, is told as such, before it is
-- asked for anything.
local function reach_registry(agent, given)
  local has_places = require "perigee.registry".has_places(agent.registry)
  if has_places or given.name and M.is_address(given.name) then return end
  local list, err = agent:list { prefix = agent.name, limit = 1,
                                 timeout = given.timeout or 30 }
  if list then return end
  agent:close()
  fail_registry(of_asked(err, agent, given))
end

-- A folder that is not there is told as such: an agent would make it, and
-- whoever has mistyped it would find nobody.
local function find_folder(given)
  local address = given.registry or os.getenv "PERIGEE_REGISTRY" or ""
  local path = address:match "^folder:(/.+)$"
  if not path or given.name and M.is_address(given.name) then return end
  if require "perigee.registry.folder".is_there(path) then return end
  failure.failed("the registry's folder %s is not there; is this its path? The "
    .. "first agent that takes a name in it makes it", path)
end

-- Is it the error of a registry that is a server? Making an engine, or
-- listening, fails where it is, whatever registry there is.
local function is_of_server(err, given)
  local where = given.registry or os.getenv "PERIGEE_REGISTRY" or ""
  return where ~= "" and not where:find "^folder:"
    and err.kind ~= "name_taken" and err.message:find "^taking the name "
end

-- What the library says of the values of options.
local WRONG = { listen = '(".*" is no address that .*)$',
                kind = "(no kind of memory .*)$" }

local function check_options(given, err)
  for name, pattern in pairs(WRONG) do
    local value = given[name]
    if type(value) == "table" then value = value[1] end
    local wrong = value and err.message:match(pattern)
    if wrong then failure.misuse("--%s: %s", name, wrong) end
  end
end
jit.off(check_options)          -- its loop over pairs(), see check.lua

--- Has make(options) make what is in the registry of --registry. What it
-- raises is misuse.
function M.made(given, make, options)
  check_place(given)
  options.registry = given.registry
  require "perigee.registry".patience = given.timeout or 30
  local fine, made, err = pcall(make, options)
  if not fine then failure.misuse("%s", M.bare(made)) end
  if made then return made end
  check_options(given, err)
  if is_of_server(err, given) then fail_registry(err) end
  M.fail(err)
end

--- Makes an agent with options, those of --registry and --scope among them.
function M.agent(given, options)
  local perigee = M.library()
  options.scope = given.scope
  return M.made(given, perigee.agent, options)
end

--- Checks the name of an agent, or its address.
function M.peer(name)
  local check = require "perigee.runtime.check"
  if M.is_address(name) then return name end
  local wrong = check.name(name)
  if wrong then
    failure.misuse("%q is no agent's name: it has %s; nor an address, as "
      .. "tcp://HOST:PORT or unix:/PATH", M.cut(name), wrong)
  end
  return name
end

--- The session to an agent, by its name or address; or nil and an error. An
-- address that is none is misuse.
function M.session(agent, name, timeout)
  return M.used(agent.session, agent, name, { timeout = timeout })
end

-- Runs f(agent) in the loop, with what it raised passed on. Returns what it
-- returned; or interrupted(), after a signal.
local function within(perigee, agent, f, interrupted)
  local status, message, raised
  local over = false
  perigee.run(function()
    local fine
    fine, status, message = xpcall(f, failure.traced, agent)
    raised, over = not fine and status, true
  end)
  if not over then
    if interrupted then return interrupted() end
    local signal = require "perigee.native".C.perigee_signals_noted()
    return failure.quietly(failure.BY_SIGNAL + signal)
  end
  if raised then error(raised, 0) end
  return status, message
end

--- The seconds that are left of --timeout; for each step of a command.
function M.left(given)
  local loop = require "perigee.runtime.loop"
  given.deadline = given.deadline or loop.deadline(given.timeout)
  return math.ceil(loop.left(given.deadline) * 1000) / 1000
end

--- Runs f(agent) with an agent of the command's own, in a task, and closes the
-- agent; returns what f returned. The results after SIGINT or SIGTERM are those
-- of interrupted(); without it the command ends without a word, by the status
-- of that signal.
function M.run(given, f, interrupted)
  local perigee = M.library()
  ffi.C.perigee_cli_signal(SIGPIPE, SIG_IGN)
  find_folder(given)
  local agent = M.agent(given, { name = false })
  reach_registry(agent, given)
  local fine, status, message = xpcall(within, failure.traced, perigee, agent,
                                       f, interrupted)
  agent:close()
  if not fine then error(status, 0) end
  require "perigee.cli.out".finish()
  return status, message
end

return M
