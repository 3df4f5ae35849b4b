-- SPDX-License-Identifier: Apache-2.0
-- What a process of the soak has, as /proc tells it from outside, and whether
-- it has grown from one rest to another. At a rest no session is open and no
-- operation is under way, so all figures are of what stays.

local M = {}

local MIB = 2 ^ 20

-- The growth that a process may have from its first rest to its last; memory
-- and mappings than half-way, because compiled code and what the allocator
-- keeps grow for minutes (from 7 to 45 MiB, then no more), and whose first
-- session over RDMA came after its first rest has mapped a library and queues
-- since; so these two are judged from the third rest on. It listens for TCP
-- since the first session that moves there, and a connection that a killed peer
-- left in its handshake is closed after two seconds.
local ALLOWED = { descriptors = 4, threads = 0, mappings = 64,
                  memory = 64 * MIB }
local SETTLES = { mappings = true, memory = true }
M.KINDS = { "descriptors", "threads", "mappings", "memory" }

local function text_of(pid, name)
  local file = io.open(("/proc/%d/%s"):format(pid, name))
  if not file then return "" end
  local text = file:read "*a" or ""
  file:close()
  return text
end

local function lines_of(text)
  local _, count = text:gsub("\n", "")
  return count
end

local function descriptors_of(pid)
  local pipe = io.popen(("ls /proc/%d/fd 2>/dev/null"):format(pid))
  local text = pipe:read "*a"
  pipe:close()
  return lines_of(text)
end

--- Returns the figures of a process, memory in bytes.
function M.look(pid)
  local status = text_of(pid, "status")
  local function number(word)
    return tonumber(status:match(word .. ":%s+(%d+)") or 0)
  end
  return { descriptors = descriptors_of(pid), threads = number "Threads",
           mappings = lines_of(text_of(pid, "maps")),
           memory = number "VmRSS" * 1024 }
end

--- Describes what a process is at that does not answer.
function M.state(pid)
  return ("state %s, system call %s"):format(
    text_of(pid, "status"):match "State:%s+(%a)" or "?",
    text_of(pid, "syscall"):match "^%S*")
end

--- Returns a function that tells how often a receiver of the RDMA devices was
-- not ready from now on; 0 where nothing goes by such a device.
function M.devices(transport)
  local monitor = transport ~= "shm" and transport ~= "tcp"
                  and require "perigee".RnrMonitor()
  return function() return monitor and monitor:total_delta() or 0 end
end

--- Returns a sentence for each kind of which the last of these figures has more
-- than allowed.
function M.grown(figures)
  local last, said = figures[#figures], {}
  local half = math.ceil(#figures / 2)
  for _, kind in ipairs(M.KINDS) do
    local first = figures[SETTLES[kind] and half or 1]
    local judged = not SETTLES[kind] or #figures > 2
    if judged and last[kind] - first[kind] > ALLOWED[kind] then
      local unit = kind == "memory" and MIB or 1
      local all = {}
      for i, one in ipairs(figures) do
        all[i] = ("%.0f"):format(one[kind] / unit)
      end
      said[#said + 1] = ("%s%s at its rests: %s"):format(kind,
        unit == MIB and " (MiB)" or "", table.concat(all, ", "))
    end
  end
  return said
end

return M
