-- SPDX-License-Identifier: Apache-2.0
-- Runs examples as users do: each by itself, from another folder than its own.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

local M = {}

--- The command that runs examples/NAME.lua with further words, from the root.
function M.anywhere(name, words)
  return { "sh", "-c", ([[top=$PWD; mkdir -p -m 700 %s; cd /; TMPDIR=%s \
    PERIGEE_SCOPE=%s exec luajit "$top/examples/%s.lua" %s]])
    :format(cases.folder, cases.folder, cases.scope, name, words or "") }
end

--- Names the files that an example has left behind.
function M.left()
  local pipe = io.popen(("find '%s' ! -type d"):format(cases.folder))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

--- The number of processes that were given this driver's id.
function M.followers(id)
  local pipe = io.popen(("grep -laz '^%d$' /proc/[0-9]*/cmdline 2>/dev/null"
    .. " | wc -l"):format(id))
  local count = tonumber(pipe:read("*a"))
  pipe:close()
  return count
end

--- Runs a command to its end: the lines that it printed, how it ended, and its
-- process's number.
function M.ran(command)
  local child, lines = process.spawn(command), {}
  local pid = child.pid
  repeat
    local line = child:read(300)
    lines[#lines + 1] = line
  until not line
  local how, code = child:wait(10)
  return lines, how, code, pid
end

return M
