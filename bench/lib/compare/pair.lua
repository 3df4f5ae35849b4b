-- SPDX-License-Identifier: Apache-2.0
-- A peer's two processes: their start, bursts, rest and end. In mode fanout
-- there are as many servers as calls at once, all on the server's core.
--
-- Each side is the head of a session of its own, pinned, and dies with this
-- process. While other peers have their turns all processes of both sessions
-- are stopped, so that whoever polls takes nothing from the others.

local answer = require "bench.lib.compare.answer"
local cores = require "bench.lib.compare.cores"
local folders = require "bench.lib.folders"
local process = require "bench.lib.process"
local sessions = require "bench.lib.compare.sessions"

local STARTS = 20  -- seconds that a side may take to be ready
local LATE = 20    -- seconds that a burst may take beyond its time
local SPEED = 2 ^ 26 -- bytes a second, by which large payloads have longer
local GRACE = 2    -- seconds until a side that was asked to end is killed
local MOMENT = 0.01

local M = {}
local Pair = {}
Pair.__index = Pair

-- ---- Start -----------------------------------------------------------------

local function environment(peer, mode, pin)
  local words = { "env", "--default-signal=PIPE" }
  for name, value in pairs(peer.env or {}) do
    words[#words + 1] = name .. "=" .. value
  end
  if mode and not peer.lasting then
    words[#words + 1] = "COMPARE_MODE=" .. mode
  end
  if pin[1] == pin[2] then words[#words + 1] = "COMPARE_CORES=1" end
  return words
end

-- Where this process is a real-time one so are the pairs, one step below it: a
-- peer that polls for what never comes would keep both cores from this process,
-- which has to end it.
local function priority()
  local policy, own = process.real_time()
  if not policy or own < 2 then return {} end
  return { "chrt", "--" .. policy, own - 1 }
end

-- Returns the words that start a side of the peer on its core, in a folder,
-- with its messages of error in a file.
local function command_of(self, role, folder, under, more)
  local peer, pin = self.peer, self.pin
  local on = peer.spread == "all" and "0-" .. process.cores() - 1
             or peer.spread and pin[1] .. "," .. pin[2]
             or pin[role == "server" and 2 or 1]
  local words = { "setpriv", "--pdeathsig", "KILL", "setsid", "taskset", "-c",
                  on, "sh", "-c", 'exec 2>"$0"; exec "$@"',
                  folder .. "/" .. role .. ".said" }
  for _, list in ipairs { priority(), environment(peer, self.mode, pin),
                          peer.command, peer.words or {},
                          { role, folder, ("%d"):format(self.size),
                            under }, more } do
    for _, word in ipairs(list) do words[#words + 1] = word end
  end
  return words
end

-- Returns the last line that a side has written to its standard error.
local function said(folder, role)
  local file = io.open(folder .. "/" .. role .. ".said")
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text:match "([^\n]+)%s*$"
end

-- The reason why a side did not say what was expected: its own words, or that
-- it was silent.
local function reason(folder, role, late, seconds)
  local words = said(folder, role)
  local text = late
    and ("its %s said nothing for %g s"):format(role, seconds)
    or ("its %s ended"):format(role)
  return words and text .. ": " .. words or text
end

-- Returns so many seconds, and more where every byte of a large payload is made
-- and compared meanwhile.
local function patience(self, seconds)
  return seconds + math.floor(self.size / SPEED)
end

local function start(self, role, folder, under, more)
  local child = assert(process.spawn(command_of(self, role, folder, under,
                                                more)))
  self.sides[#self.sides + 1] = child
  self[role] = child
  local limit = patience(self, self.peer.starts or STARTS)
  local line, late = child:line(limit)
  if not line then return nil, reason(folder, role, late, limit) end
  local rest = line:match "^ready ?(.*)$"
  if not rest then
    local _, why = answer.parse(line)
    return nil, why or ("its %s printed %q"):format(role, line:sub(1, 60))
  end
  return rest
end

-- Starts the servers, one or for a fan-out several, each for one call at once.
-- Returns their addresses.
local function start_servers(self)
  if self.mode ~= "fanout" then
    local address, why = start(self, "server", self.folder, self.under, {})
    return address and { address }, why
  end
  local addresses = {}
  for i = 1, self.under do
    local folder = folders.inside(self.folder, i)
    local address, why = start(self, "server", folder, 1, {})
    if not address then return nil, why end
    addresses[i] = address
  end
  return addresses
end

-- Starts both sides for payloads up to `size` and `under` calls at once, and
-- stops them until their turn. Returns the pair, or nil and why not; nothing
-- is left then.
function M.start(peer, pin, mode, size, under)
  local self = setmetatable({ peer = peer, pin = pin, mode = mode, size = size,
                              under = under, folder = folders.new(),
                              sides = {} }, Pair)
  local ready
  local addresses, why = start_servers(self)
  if addresses then
    ready, why = start(self, "client", self.folder, under, addresses)
  end
  if not ready then
    self:close()
    return nil, why
  end
  self:rest()
  return self
end

-- ---- Turns -----------------------------------------------------------------

local function each(self, signal)
  if self.peer.rests then return end
  for _, side in ipairs(self.sides) do sessions.signal(side.pid, signal) end
end

function Pair:rest() each(self, sessions.STOP) end

function Pair:go_on() each(self, sessions.CONT) end

-- Has the client make a burst. Returns what answer.lua says of its line, or nil
-- and why there is none; the pair is of no more use then.
function Pair:burst(mode, size, under, seconds)
  local limit = patience(self, self.peer.late or LATE)
                + (mode == "verify" and 0 or seconds)
  self.client:tell(("%s %d %d %.6g\n"):format(mode, size, under, seconds))
  local line, late = self.client:line(limit)
  if not line then return nil, reason(self.folder, "client", late, limit) end
  return answer.parse(line)
end

-- Returns the sum of what a function says of each server's session.
local function of_servers(self, what)
  local sum = 0
  for _, side in ipairs(self.sides) do
    if side ~= self.client then sum = sum + what(side.pid) end
  end
  return sum
end

-- The same with more in the answer, all in seconds: the processor time of both
-- sides, cpu_client and cpu_server (what a daemon outside of the two has used
-- counts as the server's); elapsed; how long the cores were busy.
function Pair:measure(...)
  local client = self.client.pid
  local before = { sessions.cpu(client), of_servers(self, sessions.cpu) }
  local busy, at = cores.busy(self.pin), process.now()
  local told, why = self:burst(...)
  if not told then return nil, why end
  told.elapsed = (process.now() - at) / 1e9
  told.busy = cores.busy(self.pin) - busy
  told.cpu_client = sessions.cpu(client) - before[1]
  told.cpu_server = of_servers(self, sessions.cpu) - before[2] + told.cpu
  return told
end

-- Returns the bytes that both sides have.
function Pair:memory()
  return sessions.memory(self.client.pid)
         + of_servers(self, sessions.memory)
end

-- ---- End -------------------------------------------------------------------

local function ask(child, terminate)
  child:close_input()
  if terminate then child:signal(15) end
end

-- Waits for the end of a side that was asked to, and kills what is left of its
-- session.
local function finish(child)
  local limit = process.now() + GRACE * 1e9
  while not child:wait(true) and process.now() < limit do
    process.sleep(MOMENT)
  end
  sessions.signal(child.pid, sessions.KILL)
  child:wait()
end

-- Ends both sides and removes their folder. failed: the client did not do what
-- it was asked to, and so is not asked politely.
function Pair:close(failed)
  self:go_on()
  if self.client then
    ask(self.client, failed)
    finish(self.client)
  end
  for _, side in ipairs(self.sides) do
    if side ~= self.client then ask(side, true) end
  end
  for _, side in ipairs(self.sides) do
    if side ~= self.client then finish(side) end
  end
  self.client, self.server, self.sides = nil, nil, {}
  folders.remove(self.folder)
end

return M
