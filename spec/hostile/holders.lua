-- SPDX-License-Identifier: Apache-2.0
-- Processes that take, keep and give back a few names, while they, the store of
-- the names and the way to it are killed, stopped and cut. What they note is
-- judged by overlaps.lua.
local cases = require "spec.support.cases"
local overlaps = require "spec.hostile.overlaps"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local M = {}

local HOLDERS, TTL = 4, 2 * cases.slow

-- ---- Stores ----------------------------------------------------------------

-- Each is started by start(), which returns a server (or true) with `port`, if
-- there is a way to it that can be cut; and if it has them, processes(), which
-- are stopped, lose(), after which it may have forgotten names it gave, and
-- cut(), which breaks all connections. address(server, port) is the option
-- `registry`; without `ttl` names have none.
M.stores = {
  folder = { start = function() return true end,
             address = function() return "" end },
}

local function start_redis()
  local server = redis.serve()
  function server:processes() return { self.process } end
  function server:cut() self:ask "CLIENT KILL TYPE normal" end
  function server:lose()
    if math.random(2) == 1 then return self:ask "FLUSHALL" end
    self:kill()
    self:begin()
  end
  return server
end

if redis.is_there() then
  M.stores.Redis = { ttl = TTL, start = start_redis,
    address = function(_, port)
      return ("redis://127.0.0.1:%d?ttl=%g&timeout=1"):format(port, TTL)
    end }
end

-- ---- Children --------------------------------------------------------------

-- Takes and gives back names until it is killed.
local function holder(child, perigee, ffi, address, path, seed, ttl)
  local asks = require "perigee.registry.ask"
  local registries = require "perigee.registry"
  local signals = require "perigee.signal"
  local file = assert(io.open(path, "a"))
  local time, current = ffi.new "int64_t[2]", nil
  file:setvbuf "no"
  math.randomseed(tonumber(seed))
  ttl = tonumber(ttl)
  local function now()
    ffi.C.spec_clock(7, time)
    return tonumber(time[0]) + tonumber(time[1]) * 1e-9
  end
  local function note(...)
    local words = { ... }
    for i = 3, #words do words[i] = ("%.6f"):format(words[i]) end
    file:write(table.concat(words, " ") .. "\n")
  end
  local renew = registries.renew
  function registries.renew(...)
    local began, mine = now(), current
    local future = renew(...)
    local function heard()
      if not mine or mine ~= current then return end
      local fine, kind = asks.results(future)
      if fine then note("renewed", mine.name, began, now()) end
      if kind == "name_taken" then
        note("lost", mine.name, now())
        current = nil
      end
    end
    if future.ended then heard() else
      signals.attach(future, signals.new(1, heard))
    end
    return future
  end
  child.say "ready"
  while true do
    local name = "n" .. math.random(3)
    local at = now()
    local agent = child.cases.agent(name, {
      registry = address ~= "" and address or nil })
    if agent then
      current = { name = name }
      note("has", name, at, now())
      local long = ttl < 100 and math.random(10) == 1
      perigee.sleep(math.random() * (long and 3 * ttl or 0.1))
      if current then note("ends", name, now()) end
      current = nil
      agent:close()
    end
    perigee.sleep(math.random() * 0.02)
  end
end

-- Passes on what comes at a port to another one.
local function relay(child, _, _, to)
  local sockets_ = require "spec.net.sockets"
  local door, port = sockets_.listen "127.0.0.1"
  local other, all = {}, { door }
  local function close(fd)
    for i = #all, 2, -1 do
      if all[i] == fd or all[i] == other[fd] then table.remove(all, i) end
    end
    sockets_.close(fd)
    sockets_.close(other[fd])
    other[other[fd]], other[fd] = nil, nil
  end
  local function welcome()
    local one = sockets_.accept(door)
    local two = sockets_.dial("tcp://127.0.0.1:" .. to)
    if not two then return sockets_.close(one) end
    other[one], other[two] = two, one
    all[#all + 1], all[#all + 2] = one, two
  end
  child.say(port)
  while true do
    for _, fd in ipairs(sockets_.readable(all, 1)) do
      if fd == door then
        welcome()
      elseif other[fd] then
        local text = sockets_.receive(fd)
        if text == "" or text and not sockets_.send(other[fd], text) then
          close(fd)
        end
      end
    end
  end
end

-- ---- Trouble ---------------------------------------------------------------

local time = require "ffi".new "int64_t[2]"

local function now()
  require "ffi".C.spec_clock(7, time)
  return tonumber(time[0]) + tonumber(time[1]) * 1e-9
end

local Run = {}
Run.__index = Run

function Run:add(i)
  self.started = self.started + 1
  local path = ("%s/holder%d"):format(cases.folder, self.started)
  local port = i % 2 == 0 and self.port or self.server.port
  local one = process.start(holder, self.store.address(self.server, port),
    path, self.seed + self.started, self.store.ttl or 1e9)
  one.path = path
  self.holders[i] = one
end

-- Ends a holder: notes when, and reads what it noted. Raises if it failed.
function Run:finish(i)
  local one, killed = self.holders[i], now()
  one:kill()
  repeat until not one:read(0)
  local file = io.open(one.path)
  if file then
    overlaps.read(self.list, one.path, file:lines(), killed,
                  self.store.ttl or math.huge)
    file:close()
  end
  one:close()
end

function Run:begin_relay()
  self.relay = process.start(relay, self.server.port)
  self.relay.port = tonumber(self.relay:read(30 * cases.slow))
end

-- Stops a process for up to so many seconds, mostly for a short time.
function Run:pause(one, seconds)
  if self.paused[one] or not one.pid then return end
  one:signal "STOP"
  self.paused[one] = now() + math.random() ^ 4 * seconds
end

function Run:go_on(all)
  for one, at in pairs(self.paused) do
    if all or at < now() then
      if one.pid then one:signal "CONT" end
      self.paused[one] = nil
    end
  end
end

local TROUBLES = {
  function(run)
    local i = math.random(#run.holders)
    run:finish(i)
    run:add(i)
  end,
  function(run)
    run:pause(run.holders[math.random(#run.holders)], 2 * TTL)
  end,
  function(run)
    if run.relay then run:pause(run.relay, 2 * TTL) end
  end,
  function(run)
    -- All wait for a server that is stopped, so it is so more rarely.
    if not run.server.processes or math.random(4) > 1 then return end
    local list = run.server:processes()
    run:pause(list[math.random(#list)], TTL)
  end,
  function(run)
    if run.server.cut then run.server:cut() end
  end,
  function(run)
    if run.losing and run.server.lose then
      run:go_on(true)
      run.server:lose()
    end
  end,
}

--- Runs for so many seconds. options: `store` (a name of M.stores), `seconds`,
-- `seed`; `losing`: the store may lose what it was given. Returns how many
-- intervals there were, and the overlaps.
function M.run(options)
  math.randomseed(options.seed)
  local run = setmetatable({ store = M.stores[options.store], list = {},
    holders = {}, paused = {}, started = 0, seed = options.seed,
    losing = options.losing }, Run)
  local server = run.store.start()
  run.server = server ~= true and server or {}
  os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  if run.server.port then
    run:begin_relay()
    run.port = run.relay.port
  end
  for i = 1, HOLDERS do run:add(i) end
  local ends = now() + options.seconds
  while now() < ends do
    process.usleep(0.02 + math.random() * 0.2)
    run:go_on()
    TROUBLES[math.random(#TROUBLES)](run)
  end
  for i = 1, HOLDERS do run:finish(i) end
  cases.cleanup()
  return #run.list, overlaps.find(run.list)
end

return M
