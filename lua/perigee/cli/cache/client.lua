-- SPDX-License-Identifier: Apache-2.0
--- Shared by the commands that ask caches.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local printable = require "perigee.runtime.printable"

local M = {}

local NAME = "cache:0"

--- Adds the options of all of them: which caches, and for how long.
function M.configure(parser, timeout)
  parser:option("--name", "The cache's name, or its address; default: " .. NAME
    .. ". Given again: caches that share the keys.")
    :argname "NAME":count "*"
  parser:option("--replicas", "How many of several caches have each key; "
    .. "default: 1."):argname "NUMBER":convert(options.count)
  options.place(parser)
  options.timeout(parser, timeout or 10)
end

--- Adds --hex, of those that take or print keys.
function M.hex(parser)
  parser:flag("--hex", "Keys are written in hexadecimal.")
end

--- A key as its bytes.
function M.key(given, text)
  local key = text
  if given.hex then
    key = #text % 2 == 0 and not text:find "%X" and text:gsub("%x%x",
      function(digits) return string.char(tonumber(digits, 16)) end)
    if not key then
      failure.misuse("%q is not in hexadecimal", client.cut(text))
    end
  end
  if #key < 1 or #key > 512 then
    failure.misuse("a key has 1 to 512 bytes, not %d", #key)
  end
  return key
end

--- A list of keys as their bytes.
function M.keys(given, texts)
  local list = {}
  for i, text in ipairs(texts) do list[i] = M.key(given, text) end
  return list
end

--- A key as it is written: in hexadecimal with --hex.
function M.shown(given, key)
  return given.hex and printable.hex(key) or key
end

-- Advice to the user, by the code of an error or by its kind.
local TO_DO = {
  clients = "some have to leave first",
  forgets = "try again later",
  no_memory = "perigee cache stat tells how full it is; what is pinned hard "
    .. "stays",
  peer_lost = "perigee agents --kind cache tells which caches there are",
  no_service = "is it a cache? perigee agents --kind cache lists them",
}

--- Is it the key that was not found? Else it is a cache, for example.
function M.is_missed(err)
  return err.kind == "not_found" and err.message:find "the %a+ is not there$"
end

--- Ends the command by an error of a cache's.
function M.fail(err)
  if M.is_missed(err) then failure.by(err, tostring(err)) end
  local advice = TO_DO[err.code] or TO_DO[err.kind]
  if advice then failure.by(err, ("%s; %s"):format(tostring(err), advice)) end
  client.fail(err)
end

--- value, or the end of the command by err.
function M.check(value, err)
  if value == nil then M.fail(err) end
  return value
end

--- Runs f(client of the caches, agent) in a task; returns what f returned.
-- interrupted: as of cli/client.
function M.run(given, f, interrupted)
  local names = {}
  for i, name in ipairs(given.name) do names[i] = client.peer(name) end
  if (given.replicas or 1) > math.max(#names, 1) then
    failure.misuse("--replicas %d needs as many caches: --name may be given "
      .. "again", given.replicas)
  end
  local one = #names < 2 and (names[1] or NAME)
  local wanted = { timeout = given.timeout, replicas = given.replicas }
  given.name = one                      -- whom reach_registry looks at
  return client.run(given, function(agent)
    local cache = M.check(agent:cache(one or names, wanted))
    local status, message = f(cache, agent)
    cache:close()
    return status, message
  end, interrupted)
end

return M
