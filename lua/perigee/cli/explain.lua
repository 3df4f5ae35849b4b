-- SPDX-License-Identifier: Apache-2.0
--- `perigee explain NAME`: connects, and tells what carries the session.
local client = require "perigee.cli.client"
local options = require "perigee.cli.options"

local M = {
  name = "explain",
  summary = "Connect to an agent and tell what carries the session, and why.",
}

function M.configure(parser)
  options.agent(parser)
  options.json(parser)
  options.place(parser)
  options.timeout(parser, 5)
end

function M.run(given)
  local name = client.peer(given.name)
  local out = require "perigee.cli.out"
  local printable = require "perigee.runtime.printable"
  return client.run(given, function(agent)
    local session, err = client.session(agent, name, given.timeout)
    local told = client.check(session, err, name):explain()
    if given.json then return out.json(told) end
    out.write(printable.lines(tostring(told)), "\n")
  end)
end

return M
