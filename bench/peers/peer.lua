-- SPDX-License-Identifier: Apache-2.0
-- What the adapters in Lua share: the words of their command line, their lines
-- to the harness, and their end.

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
dofile(here .. "../tree.lua")
local descriptor = require "perigee.descriptor"
local perigee = require "perigee"

local M = {}

local PATIENCE = 600 -- seconds: others have their turns
local POOL = 2 ^ 30
M.PATIENCE = PATIENCE

-- Options of an agent whose sessions that transport carries. It polls for 20 ms
-- before it sleeps; in modes `paced` and `fanout`, and where both sides share a
-- core, as by default. bytes: of all payloads under way; of the pool (1 GiB by
-- default) a caller's requests have half at most.
function M.options(transport, bytes)
  local mode = os.getenv "COMPARE_MODE"
  local busy = mode ~= "paced" and mode ~= "fanout"
               and os.getenv "COMPARE_CORES" ~= "1"
  local room = 4 * bytes
  return { transport = transport, engine = { spin = busy and 0.02 or nil,
                                             pool = room > POOL and room or nil,
                                             dead_after = PATIENCE } }
end

--- The address at which a server listens. Those of shared memory and of RDMA
-- meet their clients at a socket in the folder.
function M.address(transport, folder)
  return transport == "tcp" and "tcp://127.0.0.1:0"
         or "unix:" .. folder .. "/echo"
end

function M.say(format, ...)
  io.write(format:format(...), "\n")
  io.flush()
end

-- Nothing is sent to the server's standard input, so there is its end to read.
local function end_with_stdin()
  descriptor.readable(0)
  perigee.stop()
end

--- Serves until standard input ends.
function M.serve(agent)
  perigee.spawn(end_with_stdin)
  perigee.run()
  agent:close()
end

--- Answers bursts until standard input ends. burst(line) returns a histogram,
-- the ns, the number of bytes that were compared, and more words or nil.
function M.answer(burst)
  M.say "ready"
  for line in io.lines() do
    local taken, ns, checked, more = burst(line)
    M.say("ok calls=%d seconds=%.9f checked=%d%s ns=%s", taken.count, ns / 1e9,
          checked, more or "", taken:text())
  end
end

--- Runs the role of the command line: roles.server(), roles.client() or
-- roles.version(), which says Perigee's unless there is one.
function M.main(way, role, roles)
  roles.version = roles.version or function()
    M.say("Perigee %s, %s", perigee.version, jit.version)
  end
  local fine, why = pcall(roles[way == "version" and way or role])
  if fine then return end
  why = tostring(why):gsub("\n.*", "")
  local wrong = why:match "wrong bytes:? ?(.*)"
  M.say("%s %s", wrong and "wrong" or "failed", wrong or why)
  io.stderr:write(why, "\n")
  os.exit(1)
end

return M
