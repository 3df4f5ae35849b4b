-- SPDX-License-Identifier: Apache-2.0
-- Floors over RDMA: the programs of the package perftest between the same two
-- cores on the same devices. For each burst the worker starts the server and
-- the driver the client. Both are killed when their time is over.

local histogram = require "perigee.bench.histogram"
local process = require "bench.lib.process"

local M = {}

local PROGRAMS = {
  ib_write_lat = true, ib_read_lat = true, ib_send_lat = true,
  ib_write_bw = true, ib_read_bw = true, ib_send_bw = true,
}
local LISTENING = 5   -- seconds until a server listens
local LIMIT = 8       -- seconds that a burst may take beyond its time
local ATTEMPTS = 3    -- of a burst, as over rxe one hangs now and then
local SLOWER = 8      -- factor by which a guess grows after a burst hangs
local FEWEST, MOST = 20, 20000 -- exchanges in a burst
local LARGEST = 2 ^ 20 -- bytes of one message; larger sizes by the rate
local INLINE = 220     -- largest inline send, as in Perigee (option rdma)
-- First guess of an exchange's time in us, and of its bytes per us. A guess
-- that is too fast would let the first burst outlast its limit.
local GUESS_US, GUESS_BYTES = 100, 30

-- ---- Devices ---------------------------------------------------------------

local function settings(text)
  local found, key = {}
  for word in (text or ""):gmatch "[^%s,]+" do
    local name, value = word:match "^(%w+)=(.*)$"
    if name then
      key = name
      found[key] = value
    elseif key then -- of several values the first one counts
      found[key] = found[key]
    end
  end
  return found
end

-- Returns the port that an engine with this option `rdma` uses (the first of
-- several), the index of its GID and the settings; or nil and why there is
-- none.
function M.device(text)
  text = (text and text ~= "") and text or os.getenv "PERIGEE_RDMA"
  local given, best = settings(text)
  local name, port = (given.nics or ""):match "^([^:]+):?(%d*)$"
  for _, one in ipairs(require "perigee".devices { state = "active" } or {}) do
    local fits = one.name == name and (port == "" or one.port == tonumber(port))
    if fits or not name and (not best or one.rate > best.rate) then
      best = best and name and best or one
    end
  end
  if not best then return nil, "there is no active RDMA port" end
  return best, tonumber(given.gid) or best.gid, given
end

-- ---- The server, in the worker ---------------------------------------------

local servers, last_port = {}, nil -- by port

local function start(program, rdma, words, seconds)
  local device, gid, given = M.device(rdma)
  local command = { "timeout", "-s", "KILL", ("%.0f"):format(seconds), "sh",
                    "-c", 'exec "$@" 2>&1', "sh", program,
                    "-F", "-d", device.name, "-i", device.port }
  local function add(...)
    for _, word in ipairs { ... } do command[#command + 1] = word end
  end
  if device.link ~= "infiniband" then add("-x", gid) end
  if given.mtu then add("-m", given.mtu) end
  if given.sl then add("-S", given.sl) end
  if given.qps and program:find "_bw$" then add("-q", given.qps) end
  add(unpack(words))
  return assert(process.spawn(command))
end

local function is_listening(port)
  local wanted = ("^%%s*%%d+: %%x+:%04X %%x+:%%x+ 0A "):format(port)
  for _, path in ipairs { "/proc/net/tcp", "/proc/net/tcp6" } do
    for line in io.lines(path) do
      if line:find(wanted) then return true end
    end
  end
end

-- Returns true once a server listens at that port, nil if none does in time.
local function comes_up(port)
  local perigee = require "perigee"
  local limit = process.now() + LISTENING * 1e9
  repeat
    if is_listening(port) then return true end
    perigee.sleep(0.005)
  until process.now() > limit
end

-- Ends the server at that port, or all servers.
function M.stop(port)
  for at, server in pairs(servers) do
    if not port or at == port then
      servers[at] = nil
      server:stop()
    end
  end
  return true
end

-- Starts a server of that program on the worker's device for the driver.
-- Returns its TCP port and the address at which the driver finds it, or nil
-- and why not.
function M.serve(rdma, program, words, seconds)
  if not PROGRAMS[program] then return nil, "there is no such floor" end
  if not process.installed(program) then
    return nil, program .. " is not there; install the package perftest"
  end
  local device, gid = M.device(rdma)
  if not device then return nil, gid end
  for _ = 1, ATTEMPTS do
    last_port = 20000 + (last_port and last_port + 1 or process.pid() * 13)
                        % 12000
    local port = last_port
    words[#words + 1], words[#words + 2] = "-p", port
    if not is_listening(port) then
      servers[port] = start(program, rdma, words, seconds)
      if comes_up(port) then
        local address
        for _, one in ipairs(device.gids) do
          if one.index == gid then
            address = one.address:match "^::ffff:([%d.]+)$"
          end
        end
        return port, address or "127.0.0.1"
      end
      M.stop(port)
    end
    words[#words], words[#words - 1] = nil, nil
  end
  return nil, program .. "'s server did not come up"
end

-- ---- Bursts, in the driver -------------------------------------------------

-- Reads half round trips (for reads: round trips) in us; returns a histogram
-- of ns.
local function latencies(text, scale)
  local pool = histogram.new()
  for us in text:gmatch "\n%d+, ([%d.e+-]+)" do
    pool:add(tonumber(us) * 1e3 * scale)
  end
  return pool
end

-- Returns the mean time of a message, from the average rates in MiB/s and in
-- messages per us: the former has more digits for long messages, the latter
-- for short ones.
local function rate(text, size, scale)
  local pool = histogram.new()
  local mib, messages =
    text:match "\n%s*%d+%s+%d+%s+[%d.]+%s+([%d.]+)%s+([%d.]+)%s*\n"
  if mib and tonumber(messages) > 0 then
    local us = size < 4096 and 1 / messages or size / (mib * 2 ^ 20) * 1e6
    pool:add(us * 1e3 * scale)
  end
  return pool
end

local function words_of(self, size, count)
  local words = { "-s", ("%d"):format(size), "-n", ("%d"):format(count) }
  local function add(...)
    for _, word in ipairs { ... } do words[#words + 1] = word end
  end
  if self.rate then
    add("-t", self.depth)
  elseif size <= INLINE and self.program ~= "ib_read_lat" then
    add("-I", INLINE)
  end
  if self.events then add "-e" end
  return words
end

local function once(self, seconds)
  local given, limit = self.run.given, LIMIT + 4 * seconds
  local size = math.min(self.size, LARGEST)
  local count = math.min(MOST, math.max(seconds / (self.guess * 1e-6), FEWEST))
  if self.rate then count = math.max(count, 2 * self.depth) end
  local words = words_of(self, size, count)
  local proxy = self.run.proxy
  local port, address = proxy:perftest(self.program, words, limit)
  if not port then return nil, tostring(address) end
  process.sleep(given.spin or 0) -- until the worker sleeps
  words[#words + 1], words[#words + 2] = "-p", port
  -- only the client's output is read
  if not self.rate then words[#words + 1] = "-H" end
  words[#words + 1] = address
  local child = start(self.program, given.rdma, words, limit)
  local text = child:rest()
  local status = child:wait()
  proxy:perftest_end(port)
  local scale = self.scale * self.size / size
  local pool = self.rate and rate(text, size, scale) or latencies(text, scale)
  if status ~= 0 or pool.count == 0 then
    return nil, ("%s ended with status %d: %s"):format(
      self.program, status, text:match "([^\n]+)%s*$" or "it said nothing")
  end
  self.guess = math.max(pool:mean() / 1e3 / scale * (self.twice or 1), 0.5)
  return { [self.name] = pool }
end

-- A floor as rounds.lua wants it: function(seconds) --> { what = histogram } or
-- nil, reason. what: program; size, in bytes; scale, what its time is
-- multiplied by; depth, messages under way (of programs that tell a rate);
-- events (true: it sleeps until they come). Nil and why, where there is none.
function M.of(run, what)
  if run.given.no_floor then return nil end
  if not process.installed(what.program) then
    return nil, what.program .. " is not there; install the package perftest"
  end
  local device, why = M.device(run.given.rdma)
  if not device then return nil, why end
  local self = {
    run = run, program = what.program, size = what.size,
    scale = what.scale or 1, depth = what.depth or 1, events = what.events,
    rate = what.program:find "_bw$" ~= nil,
    twice = what.program:find "_lat$" and 2,
  }
  self.name = self.program .. (self.rate and " -t " .. self.depth or "")
              .. (self.events and " -e" or "")
  self.guess = GUESS_US + math.min(self.size, LARGEST) / GUESS_BYTES
  return function(seconds)
    local pools, reason
    for _ = 1, ATTEMPTS do
      pools, reason = once(self, seconds)
      if pools then return pools end
      self.guess = self.guess * SLOWER
    end
    return nil, reason
  end
end

return M
