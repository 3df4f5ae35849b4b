-- SPDX-License-Identifier: Apache-2.0
--- `perigee cache events`: what has happened to entries, a line for each.
local caches = require "perigee.cli.cache.client"
local options = require "perigee.cli.options"

local PAUSE = 0.2                       -- seconds between looks, with --follow

local M = {
  name = "events",
  summary = "Print what has happened to entries, a line for each.",
  description = "Prints what a cache still knows of what has happened to its "
    .. "entries: which were sealed (put), replaced, deleted, evicted, or have "
    .. "expired. Events have numbers: --from N goes on where the last one was "
    .. "N - 1. Some that were not asked for in time are lost; a line on stderr "
    .. "says so.",
}

function M.configure(parser)
  parser:option("--from", "Only events from this number on, of one cache.")
    :argname "NUMBER":convert(options.count)
  parser:flag("--follow", "Go on with those that come, until Ctrl-C.")
  options.json(parser, "Print a line of JSON for each event.")
  caches.hex(parser)
  caches.configure(parser)
end

local function tell(event, given)
  local out = require "perigee.cli.out"
  local key = caches.shown(given, event.key)
  if given.json then
    event.key = key
    out.write(require "perigee.cli.json".exact(event), "\n")
  else
    out.line("%-8.0f  %-8s  %10.0f  %s  %s", event.number, event.kind,
             event.length, event.cache, key)
  end
end

-- Tells all that there are; returns from where to go on.
local function tell_all(cache, given, from)
  local out = require "perigee.cli.out"
  repeat
    local list = caches.check(cache:events { from = from })
    if list.lost and from then
      io.stderr:write(given.path, ": some events are lost\n")
    end
    for _, event in ipairs(list) do tell(event, given) end
    out.finish()
    from = list.next
  until #list == 0
  return from
end

function M.run(given)
  return caches.run(given, function(cache)
    local perigee = require "perigee"
    local out, over = require "perigee.cli.out", false
    perigee.spawn(function() over = given.follow and out.unread() end)
    local from = tell_all(cache, given, given.from)
    while given.follow and not over do
      perigee.sleep(PAUSE)
      from = tell_all(cache, given, from)
    end
    if over then
      local failure = require "perigee.cli.failure"
      failure.quietly(failure.UNREAD)
    end
    return 0
  end, function() return 0 end)
end

return M
