-- SPDX-License-Identifier: Apache-2.0
--- `perigee watch`: agents that come, change and go, a line for each.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"

local M = {
  name = "watch",
  summary = "Print a line for each agent that comes, changes or goes.",
  description = "Prints the agents that there are, and then a line for each "
    .. "that comes (up), changes or goes (down), until Ctrl-C.",
}

function M.configure(parser)
  options.filter(parser)
  options.json(parser, "Print a line of JSON for each change.")
  options.place(parser)
  parser:option("--timeout", "Stop after that time, as in 30 or 5m; default: "
    .. "never."):argname "TIME":convert(options.positive)
end

local function tell(change, given, out)
  local entry = change.entry
  if given.json then
    out.json { kind = change.kind, entry = entry }
  else
    out.line("%-7s  %s  %s pid %s  %s", change.kind, tostring(entry.name),
             tostring(entry.host or "?"), tostring(entry.pid or "?"),
             tostring(entry.state or "?"))
  end
  out.finish()
end

function M.run(given)
  local out = require "perigee.cli.out"
  return client.run(given, function(agent)
    local perigee, unread = require "perigee", false
    local watch = client.check(agent:watch {
      kind = given.kind, prefix = given.prefix, service = given.service })
    perigee.spawn(function()
      unread = out.unread()
      if unread then watch:close() end
    end)
    if given.timeout then
      perigee.spawn(function()
        perigee.sleep(given.timeout)
        watch:close()
      end)
    end
    for change in watch do tell(change, given, out) end
    if watch.err then client.fail(watch.err) end
    if unread then failure.quietly(failure.UNREAD) end
    return 0
  end, function() return 0 end)
end

return M
