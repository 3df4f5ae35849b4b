-- SPDX-License-Identifier: Apache-2.0
-- Helpers of the specs for bad links: the devices of the two sides, agents and
-- engines on them, and functions that make the link bad and good again. In a
-- guest (spec/rdma/vm -p) its root may change the link; elsewhere nothing is
-- changed.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local M = {}

-- Guests are slow and share their machine: what ends "at once" ends within so
-- many seconds, far below any timeout given.
M.SOON = 2

-- The most time that an operation may take that must succeed: lost packets are
-- sent again and again, on cores that others use, too.
M.LONG = 120

local function active(name)
  local list = perigee.devices { name = name, state = "active" } or {}
  return #list > 0
end

-- ---- Where the two sides are ------------------------------------------------

-- The only device for both sides; nil and the reason if there is none.
local function one_device()
  local list = perigee.devices { state = "active" } or {}
  if #list == 0 then return nil, "there is no RDMA device" end
  local text = "nics=" .. list[1].name
  return { near = text, far = text }
end

-- The pair whose packets cross a veth link; nil and the reason without one.
local function pair()
  if not (active "rxe1" and active "rxe2") then
    return nil, "there is no pair of soft-RoCE devices (spec/rdma/vm -p)"
  end
  return { near = "nics=rxe1 gid=1", far = "nics=rxe2 gid=1", crossing = true }
end

-- Both sides' options, over the pair if there is one. more: options of both.
function M.anywhere(more)
  local sides, why = pair()
  if not sides then sides, why = one_device() end
  return sides and M.with(sides, more), why
end

-- The same, over the pair only.
function M.across(more)
  local sides, why = pair()
  return sides and M.with(sides, more), why
end

function M.with(sides, more)
  if more then
    sides.near, sides.far = sides.near .. " " .. more, sides.far .. " " .. more
  end
  return sides
end

-- ---- Agents, engines, children ----------------------------------------------

-- Options of engines. The first session opens the device and loads its driver,
-- which may take more than a second if several processes do it at once.
function M.options(rdma)
  return { rdma = rdma, hello_timeout = 90 }
end

function M.agent(rdma, name)
  return assert(cases.agent(name, { transport = "verbs",
                                    engine = M.options(rdma) }))
end

-- Starts a child with an agent "worker" on the far side. It calls f(child,
-- perigee, ffi, agent), which returns its services, prints "ready" and serves.
function M.worker(sides, f, ...)
  local child = process.start(function(child, perigee_, ffi_, rdma, code, ...)
    local agent = assert(child.cases.agent("worker",
      { transport = "verbs", engine = { rdma = rdma, hello_timeout = 90 } }))
    local unhex = code:gsub("%x%x", function(x)
      return string.char(tonumber(x, 16))
    end)
    agent:serve(assert(loadstring(unhex))(child, perigee_, ffi_, agent, ...))
    child.say("ready")
    perigee_.run()
    agent:close()
  end, sides.far, (string.dump(f):gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end)), ...)
  return child:expect("ready", M.LONG)
end

-- The services of a worker of these specs, and its region "m" of 16 MiB.
function M.services(_, perigee_, _, agent)
  local size, calls = 2 ^ 24, 0
  agent.engine:alloc(size, { name = "m", access = "rw" })
  local region = agent.engine:alloc(size)
  return {
    name = "x", version = 1,
    methods = {
      same = function(x) calls = calls + 1 return x end,
      calls = function() return calls end,
      sleep = function(seconds) perigee_.sleep(seconds) end,
      echo = { raw = true, function(request) return request end },
      get = function(length, byte)
        return region:slice(0, length):fill(byte)
      end,
      put = { landing = function(length) return region:slice(0, length) end,
              function(slice, byte)
                local whole = string.char(byte):rep(slice.length)
                return slice:string() == whole and slice.length
              end },
    },
  }
end

-- Begins everything that a device does, once: returns futures, and a function
-- that checks the result after all ended well. here: 12 MiB or more.
function M.mix(proxy, session, here, round)
  local size, byte = 2 ^ 20 + 4096, round % 200 + 20
  local function own(i) return here:slice(i * 2 * 2 ^ 20, size) end
  local text = cases.bytes(5000, round)
  local remote = assert(session:region("m"))
  own(0):fill(byte)
  own(2):fill(byte + 1)
  own(3):fill(0)
  local futures = {
    proxy.async:same(round), proxy.async:echo(text),
    proxy.async:put(own(2), byte + 1),
    session:write { from = own(0), to = remote:slice(8 * 2 ^ 20, size),
                    timeout = M.LONG },
  }
  local function check(got)
    assert(got[1] == round, "same() returned something else")
    assert(got[2] == text, "echo() returned something else")
    assert(got[3] == size, "put() was given something else")
    local back = session:read { from = remote:slice(8 * 2 ^ 20, size),
                                to = own(3), timeout = M.LONG }
    M.well(back)
    assert(own(3):string() == string.char(byte):rep(size), "wrong bytes")
    local into = own(4)
    local slice = assert(proxy:with({ into = into, timeout = M.LONG })
      :get(size, byte + 2))
    assert(slice:string() == string.char(byte + 2):rep(size), "wrong reply")
  end
  return futures, check
end

-- The value of a future, which must succeed.
function M.well(future)
  local got, err, took = M.ended(future, M.LONG)
  if got == nil then
    error(("it ended in %s after %.1f s"):format(tostring(err), took), 2)
  end
  return got
end

-- Runs such a mix, which must succeed within M.LONG.
function M.fair(proxy, session, here, round)
  local futures, check = M.mix(proxy, session, here, round)
  local got = {}
  for i, future in ipairs(futures) do got[i] = M.well(future) end
  check(got)
end

-- Waits until a session is lost; returns the reason as text.
function M.loss(session)
  cases.eventually(function() return session.lost end, 20)
  return tostring(session.lost)
end

-- Each of the futures must end by itself, well or in peer_lost; returns how
-- many ended in peer_lost.
function M.lost(futures, limit)
  local count = 0
  for _, future in ipairs(futures) do
    local got, err = M.ended(future, limit)
    if got == nil then
      assert(err.kind == "peer_lost", tostring(err))
      count = count + 1
    end
  end
  return count
end

-- ---- The link ---------------------------------------------------------------

local function run(command)
  assert(os.execute(command .. " >/dev/null 2>&1") == 0, command)
end
M.run = run

-- Restores the routes that a link loses when it goes down.
local ROUTES = [[printf '%s\n' \
  'route replace 10.77.1.2 dev veth1 src 10.77.1.1 table 101' \
  'route replace 10.77.1.1 dev veth2 src 10.77.1.2 table 102' \
  'neigh replace 10.77.1.2 lladdr 02:77:00:00:01:02 dev veth1 nud permanent' \
  'neigh replace 10.77.1.1 lladdr 02:77:00:00:01:01 dev veth2 nud permanent' |
  ip -batch -]]

-- Pulls the cable, or puts it back.
function M.link(up)
  run("ip link set veth1 " .. (up and "up" or "down"))
  if up then run(ROUTES) end
end

-- Sends every packet in both directions through a netem like "loss 2%" or
-- "delay 2ms". With "loss 100%" the path is gone while both ends look fine.
function M.netem(what)
  for _, link in ipairs { "veth1", "veth2" } do
    run(("tc qdisc replace dev %s root netem limit 100000 %s")
      :format(link, what))
  end
end

-- Restores the link; waits until both devices are active.
function M.calm()
  if os.execute("test -e /sys/class/net/veth1") ~= 0 then return end
  os.execute("tc qdisc del dev veth1 root 2>/dev/null")
  os.execute("tc qdisc del dev veth2 root 2>/dev/null")
  M.link(true)
  local limit = process.now() + 5
  while not (active "rxe1" and active "rxe2") do
    assert(process.now() < limit, "the pair stays down")
    process.usleep(0.01)
  end
end

-- ---- Ends -------------------------------------------------------------------

-- Waits for the future's end; returns its values and the seconds it took.
function M.ended(future, limit)
  local started = process.now()
  local got, err = future:wait(limit or 20)
  if got == nil then
    assert(perigee.is_error(err), "no error: " .. tostring(err))
  end
  assert(future:done(), "it hangs: " .. tostring(err))
  return got, err, process.now() - started
end

return M
