-- SPDX-License-Identifier: Apache-2.0
--- `perigee cache get` and `put`: values, by files or pipes.
local caches = require "perigee.cli.cache.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"

local CHUNK, MOST = 2 ^ 20, 2 ^ 30      -- bytes that are read at a time, at all

-- ---- get -------------------------------------------------------------------

local get = {
  name = "get",
  summary = "Write the value of a key to stdout, or a file.",
}

function get.configure(parser)
  parser:argument("key", "The key."):argname "KEY"
  parser:option("-o --output", "A file in place of stdout. It stays as it is "
    .. "if the key is not there."):argname "FILE"
  parser:option("--wait", "How long to wait until somebody has put the key.")
    :argname "TIME":convert(options.seconds)
  caches.hex(parser)
  caches.configure(parser)
end

local function save(path, value)
  local file, why = io.open(path, "wb")
  if not file then failure.failed("writing %s", why) end
  local fine, late, closed
  fine, why = file:write(value)
  closed, late = file:close()
  if not (fine and closed) then
    failure.failed("writing %s: %s", path, why or late)
  end
end

function get.run(given)
  local key = caches.key(given, given.key)
  return caches.run(given, function(cache)
    local value = caches.check(cache:get(key, { wait = given.wait }))
    if given.output then return save(given.output, value) end
    require "perigee.cli.out".write(value)
  end)
end

-- ---- put -------------------------------------------------------------------

local put = {
  name = "put",
  summary = "Put a value, from stdin or a file.",
}

function put.configure(parser)
  parser:argument("key", "The key."):argname "KEY"
  parser:argument("file", "The file that has the value; default: stdin (-).")
    :argname "FILE":args "?"
  parser:option("--ttl", "How long it lives, and up to 0.14 s more.")
    :argname "TIME":convert(options.positive)
  parser:option("--pin", "soft: it is evicted after all that are not pinned; "
    .. "hard: never."):argname "HOW":choices { "soft", "hard" }
  parser:option("--group", "Entries of a group are evicted together.")
    :argname "NUMBER":convert(options.count)
  parser:option("--parent", "The key before it in a chain, which is not "
    .. "evicted while this one is there."):argname "KEY"
  parser:flag("--if-absent", "Only if the key is not there.")
  caches.hex(parser)
  caches.configure(parser, 30)
end

-- Reads a file to its end: its parts, and its length.
local function parts_of(path)
  local file, why = io.stdin, nil
  if path and path ~= "-" then file, why = io.open(path, "rb") end
  if not file then failure.misuse("%s", why) end
  local parts, length = {}, 0
  repeat
    local part
    part, why = file:read(CHUNK)
    parts[#parts + 1], length = part, length + #(part or "")
    if length > MOST then failure.failed "a value has at most 1 GiB" end
  until not part
  if why then failure.failed("reading %s: %s", path or "stdin", why) end
  if file ~= io.stdin then file:close() end
  return parts, length
end

-- The value in memory that the cache can read. A string would be copied once
-- more.
local function placed(agent, parts, length)
  local region = caches.check(agent.engine:alloc(math.max(length, 1)))
  local at = 0
  for _, part in ipairs(parts) do
    region:slice(at, #part):write(part)
    at = at + #part
  end
  return region:slice(0, length)
end

function put.run(given)
  local key = caches.key(given, given.key)
  local parent = given.parent and caches.key(given, given.parent)
  local parts, length = parts_of(given.file)
  return caches.run(given, function(cache, agent)
    local fine, count, err = cache:put(key, placed(agent, parts, length), {
      ttl = given.ttl, pin = given.pin, group = given.group, parent = parent,
      if_absent = given.if_absent })
    caches.check(fine, count)
    local wanted = given.replicas or 1
    if (count or 1) < wanted then
      io.stderr:write(("%s: %d of %d caches have it now%s\n"):format(
        given.path, count, wanted, err and ": " .. tostring(err) or ""))
    end
  end)
end

return { get = get, put = put }
