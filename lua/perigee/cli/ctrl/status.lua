-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl status`: does a server run, and is it ready?
local options = require "perigee.cli.ctrl.options"

local M = {
  name = "status",
  summary = "Tell whether the server runs. The exit status is 1 if not.",
}

function M.configure(parser)
  options.store(parser)
  parser:option("--pid", "The file that start was given."):argname "FILE"
  parser:flag("--json", "Print JSON.")
end

function M.run(given)
  local out = require "perigee.cli.out"
  local process = require "perigee.cli.ctrl.process"
  options.complete(given)
  local found = process.find(given.pid)
  if given.json then
    out.json { running = found ~= nil, pid = found and found.pid,
               url = found and found.url, store = given.shown }
  elseif found then
    out.line("running as process %d at %s, from %s", found.pid, found.url,
             given.shown)
  else
    out.line("not running from %s", given.shown)
  end
  out.finish()
  return found and 0 or 1
end

return M
