-- SPDX-License-Identifier: Apache-2.0
-- Other people's programs over TCP, between the same two cores and addresses:
-- UCX (ucx_perftest), libfabric (fi_pingpong) and iperf3. Each burst starts a
-- server on the worker's side and a client, and reads what the client prints.
--
-- ucx_perftest and fi_pingpong print half of a round trip, which is doubled
-- here. The former prints the median of a burst, the latter only the mean.
-- Neither looks at the bytes that arrived, and neither sends them back.

local histogram = require "perigee.bench.histogram"
local process = require "bench.lib.process"

local M = {}

local LISTENING = 5 -- seconds until a server listens
local LIMIT = 20    -- seconds that a burst may take beyond its time
local ATTEMPTS = 3
local FEWEST, MOST = 10, 200000 -- round trips in a burst
local GUESS_US, GUESS_BYTES = 20, 1000 -- first guess of a round trip

local last_port

local function next_port()
  last_port = last_port or process.pid() * 17
  last_port = 20000 + (last_port + 1) % 12000
  return last_port
end

-- ---- Programs --------------------------------------------------------------

local function ucx(test)
  local function words(peer, port)
    local command = { "env", "UCX_TLS=tcp" }
    if peer.loopback then command[3] = "UCX_NET_DEVICES=lo" end
    command[#command + 1] = "ucx_perftest"
    command[#command + 1] = "-p"
    command[#command + 1] = port
    return command
  end
  return {
    program = "ucx_perftest", package = "ucx-utils", name = "ucx " .. test,
    server = words,
    client = function(peer, port, count)
      local command = words(peer, port)
      for _, word in ipairs {
        peer.host, "-t", test, "-s", ("%d"):format(peer.size), "-n", count,
        "-w", math.ceil(count / 8), "-f",
      } do
        command[#command + 1] = word
      end
      return command
    end,
    parse = function(text)
      local median, all =
        text:match "%s*%d+%s+([%d.]+)%s+%S+%s+([%d.]+)[^\n]*%s*$"
      if not median then return nil end -- it prints 0 for too few samples
      return 2e3 * (tonumber(median) > 0 and median or all)
    end,
  }
end

local function libfabric(provider, endpoint)
  local function words(peer, count)
    return { "fi_pingpong", "-p", provider, "-e", endpoint, "-I", count, "-S",
             ("%d"):format(peer.size) }
  end
  return {
    program = "fi_pingpong", package = "libfabric-bin",
    name = ("libfabric %s %s"):format(provider, endpoint),
    server = function(peer, port, count)
      local command = words(peer, count)
      command[#command + 1], command[#command + 2] = "-B", port
      return command
    end,
    client = function(peer, port, count)
      local command = words(peer, count)
      for _, word in ipairs { "-P", port, peer.host } do
        command[#command + 1] = word
      end
      return command
    end,
    parse = function(text)
      local half = text:match "%ds%s+[%d.]+%s+([%d.]+)%s+[%d.]+%s*$"
      return half and 2e3 * half
    end,
  }
end

-- Returns the time of `depth` messages at its rate.
local function iperf3(name, ...)
  local more = { ... }
  return {
    program = "iperf3", package = "iperf3", name = name, by_time = true,
    server = function(_, port) return { "iperf3", "-s", "-1", "-p", port } end,
    client = function(peer, port, _, seconds)
      local command = { "iperf3", "-c", peer.host, "-p", port, "-J", "-P",
                        peer.streams, "-t", math.max(1, math.ceil(seconds)) }
      for _, word in ipairs(more) do command[#command + 1] = word end
      return command
    end,
    parse = function(text, peer)
      local bits = text:match '"sum_received".-"bits_per_second":%s*([%d.e+]+)'
      return bits and peer.size * peer.depth * 8e9 / tonumber(bits)
    end,
  }
end

local ECHOES = { ucx "tag_lat", ucx "ucp_am_lat", libfabric("tcp", "msg"),
                 libfabric("tcp;ofi_rxm", "rdm") }
local STREAMS = { iperf3 "iperf3", iperf3("iperf3 -l 1M", "-l", "1M") }

-- ---- Bursts ----------------------------------------------------------------

-- UCX looks for devices in /sys, which shows those of the network namespace in
-- which it was mounted.
local SYS = { "unshare", "-m", "sh", "-c",
              'mount -t sysfs sysfs /sys && exec "$@"', "sh" }

-- Starts a command for at most `seconds`, with both outputs in one pipe, on
-- the core and in the namespace of the worker (far) or the driver.
local function start(peer, far, command, seconds)
  local words = {}
  for _, list in ipairs {
    far and peer.netns and { "nsenter", "--net=" .. peer.netns } or {},
    peer.netns and SYS or {},
    { "taskset", "-c", peer.pin[far and 2 or 1], "timeout", "-s", "KILL",
      ("%.0f"):format(seconds), "sh", "-c", 'exec "$@" 2>&1', "sh" }, command,
  } do
    for _, word in ipairs(list) do words[#words + 1] = word end
  end
  return assert(process.spawn(words))
end

-- Returns whether the server listens, as seen from its network namespace.
local function is_listening(server, port)
  local wanted = ("^%%s*%%d+: %%x+:%04X %%x+:%%x+ 0A "):format(port)
  for _, name in ipairs { "tcp", "tcp6" } do
    local file = io.open(("/proc/%d/net/%s"):format(server.pid, name))
    for line in file and file:lines() or function() end do
      if line:find(wanted) then
        file:close()
        return true
      end
    end
    if file then file:close() end
  end
end

local function comes_up(server, port)
  local limit = process.now() + LISTENING * 1e9
  repeat
    if is_listening(server, port) then return true end
    process.sleep(0.005)
  until process.now() > limit
end

-- Returns the ns of a round trip (or of that many bytes), or nil and why not.
local function once(peer, program, seconds)
  local guess = peer.guess[program] or GUESS_US + peer.size / GUESS_BYTES
  local count = math.floor(math.min(
    MOST, math.max(seconds / (guess * 1e-6), FEWEST)))
  local port, limit = next_port(), LIMIT + 4 * seconds
  local server = start(peer, true, program.server(peer, port, count), limit)
  local ns, text
  if comes_up(server, port) then
    local client = start(peer, false,
                         program.client(peer, port, count, seconds), limit)
    text = client:rest()
    ns = client:wait() == 0 and program.parse(text, peer)
  end
  server:stop()
  if not ns then
    return nil, ("%s: %s"):format(program.name, text
      and text:match "([^\n]+)%s*$" or "its server did not come up")
  end
  if not program.by_time then peer.guess[program] = ns / 1e3 end
  return ns
end

local function present(programs)
  local there, why = {}, nil
  for _, program in ipairs(programs) do
    if process.installed(program.program) then
      there[#there + 1] = program
    else
      why = ("%s is not there; install the package %s"):format(
        program.program, program.package)
    end
  end
  return there, why
end

-- Returns a floor for rounds.lua, of those of the programs that are installed
-- and work. peer: size, host, netns, pin, loopback; for streams also depth and
-- streams.
local function floor_of(programs, peer)
  local there, why = present(programs)
  if #there == 0 then return nil, why end
  peer.guess = {}
  local last = {}
  return function(seconds)
    local pools, failed = {}, why
    for i = #there, 1, -1 do
      local program, ns = there[i], nil
      for _ = 1, ATTEMPTS do
        ns, failed = once(peer, program, seconds / #there)
        if ns then break end
      end
      last[program] = ns or last[program]
      if last[program] then
        pools[program.name] = histogram.new()
        pools[program.name]:add(last[program])
      else
        table.remove(there, i)
      end
    end
    if not next(pools) then return nil, failed end
    return pools
  end
end

function M.echoes(peer) return floor_of(ECHOES, peer) end

function M.streams(peer) return floor_of(STREAMS, peer) end

return M
