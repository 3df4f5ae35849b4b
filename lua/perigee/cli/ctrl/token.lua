-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl token new|list|revoke`: who may ask the server what. A server
-- that runs notices within a second.
local failure = require "perigee.cli.failure"
local files = require "perigee.cli.server.files"
local options = require "perigee.cli.ctrl.options"
local storages = require "perigee.control.storages"

local ENOENT = 2

local function in_storage(given, f)
  local storage, _, why = storages.tokens(given.store)
  if not storage then return nil, nil, "opening the store: " .. why end
  local fine, kind, reason = f(storage)
  storage:close()
  return fine, kind, reason
end

-- A store that is no file is asked over the network, in a task.
local function in_task(f, ...)
  local perigee = require "perigee"
  local engine, err = perigee.engine {}
  if not engine then failure.failed("%s", tostring(err)) end
  local results = { perigee.run(f, ...) }
  engine:close()
  return unpack(results, 1, 3)
end

-- Calls f with the tokens of the store that complete options name.
local function with_tokens(given, f)
  local fine, kind, reason
  if storages.is_shared(given.store) then
    fine, kind, reason = in_task(in_storage, given, f)
  else
    fine, kind, reason = in_storage(given, f)
  end
  if not fine then failure.failed("%s", tostring(reason or kind)) end
  return fine, kind
end

local function with_storage(given, f)
  require "perigee.cli.server.listen".check_libraries()
  return with_tokens(options.complete(given), f)
end

local function is_missing(path)
  local file, _, code = io.open(path)
  if file then file:close() end
  return code == ENOENT
end

-- The same with a store that has to be there: to open a file makes it.
local function with_known(given, f)
  require "perigee.cli.server.listen".check_libraries()
  options.complete(given, files.folder)
  if not storages.is_shared(given.store) and is_missing(given.store) then
    failure.failed("no store at %s", given.shown)
  end
  return with_tokens(given, f)
end

local function scope(text)
  local wanted = require "perigee.runtime.check".name(text)
  if text == "*" or not wanted then return text end
  return nil, "a scope is " .. wanted .. ", or * for all"
end

local new = {
  name = "new",
  summary = "Make a token, and print it.",
  description = "Makes a token and prints it. Only a hash of it is kept, so "
    .. "nobody can print it again.",
}

function new.configure(parser)
  options.store(parser)
  parser:option("--scope", "The scope that it is for; * (the default): all.")
    :default "*":convert(scope)
  parser:option("--role", "read, register (the default) or admin.")
    :default "register":choices { "read", "register", "admin" }
  parser:option("--note", "A word about whose it is."):default ""
end

function new.run(given)
  local tokens = require "perigee.control.tokens"
  local text, id = with_storage(given, function(storage)
    return tokens.make(storage, given.scope, given.role, given.note)
  end)
  require "perigee.control.mark".make(given.mark)
  io.stderr:write("its id, for revoke: ", id, "\n")
  local out = require "perigee.cli.out"
  out.line("%s", text)
  out.finish()
end

local list = {
  name = "list",
  summary = "List the tokens, without their texts.",
}

function list.configure(parser)
  options.store(parser)
  parser:flag("--json", "Print one JSON document instead of text.")
end

function list.run(given)
  local out = require "perigee.cli.out"
  local all = with_known(given, function(storage)
    return storage:all_tokens()
  end)
  local rows = {}
  for i, token in ipairs(all) do
    token.hash = nil
    rows[i] = { token.id, token.scope, token.role,
                token.revoked and "revoked" or "valid", token.note }
  end
  if given.json then
    out.json(require "perigee.cli.json".list(all))
  else
    out.columns({ "ID", "SCOPE", "ROLE", "STATE", "NOTE" }, rows)
  end
  out.finish()
end

local revoke = { name = "revoke", summary = "Make a token worthless." }

function revoke.configure(parser)
  parser:argument("id", "Its id, as list tells."):args "+"
  options.store(parser)
end

function revoke.run(given)
  with_known(given, function(storage)
    for _, id in ipairs(given.id) do
      local known = false
      for _, token in ipairs(storage:all_tokens() or {}) do
        known = known or token.id == id
      end
      if not known then return nil, "there is no token " .. id end
      local fine, kind, why = storage:revoke_token(id)
      if not fine then return nil, kind, why end
    end
    return true
  end)
end

return {
  name = "token",
  summary = "Make, list and revoke tokens.",
  commands = { new, list, revoke },
  -- Returns all tokens; nil if the store does not answer.
  known = function(given)
    local function all(storage) return storage:all_tokens() end
    if storages.is_shared(given.store) then
      return (in_task(in_storage, given, all))
    end
    return (in_storage(given, all))
  end,
  -- Returns all tokens, or fails.
  list = function(given)
    return with_tokens(given, function(storage) return storage:all_tokens() end)
  end,
}
