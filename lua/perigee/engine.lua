-- SPDX-License-Identifier: Apache-2.0
--- Engines: one reactor of the core each, polled by the loop of this Lua state
-- from its making to its close(). It owns regions, listeners and sessions.
local check = require "perigee.check"
local endpoints = require "perigee.endpoint"
local errors = require "perigee.errors"
local listeners = require "perigee.listener"
local log = require "perigee.log"
local loop = require "perigee.loop"
local native = require "perigee.native"
local rdma = require "perigee.rdma"
local refused = require "perigee.refused"
local regions = require "perigee.region"
local sessions = require "perigee.session"

local ffi = require "ffi"
local C = native.C

local M = {}

local function cdata(value)
  if type(value) ~= "cdata" then return "a cdata" end
end

local function progress(value)
  if value ~= "thread" and value ~= "poll" then
    return '"thread" or "poll"'
  end
end

local COUNTS = { "operations", "sessions", "regions", "hellos", "ring", "eager",
                 "message", "typed", "pool", "serving", "epoch", "streams",
                 "mapped", "descriptors", "untaken" }
local TIMES = { "hello_timeout", "spin", "dead_after" }
local TEXTS = { "secret", "scope" }
local FLAGS = { "pull", "insecure", "spin_always" }
local GIVEN = { "clock", "random", "context", "transports", "memories" }

-- As enum perigee_encrypt has them.
local ENCRYPT = { [true] = 1, auth = 2, [false] = 3 }

local function encrypt(value)
  if ENCRYPT[value] == nil then return 'true, "auth" or false' end
end

local OPTIONS = { pull = check.boolean, rdma = rdma.check,
                  faults = check.string, progress = progress,
                  encrypt = encrypt }
for _, name in ipairs(COUNTS) do OPTIONS[name] = check.count end
for _, name in ipairs(TIMES) do OPTIONS[name] = check.seconds end
for _, name in ipairs(TEXTS) do OPTIONS[name] = check.string end
for _, name in ipairs(FLAGS) do OPTIONS[name] = check.boolean end
for _, name in ipairs(GIVEN) do OPTIONS[name] = cdata end
M.OPTIONS = OPTIONS

local Engine = {}
Engine.__index = Engine
M.Engine = Engine

-- Longer typed heads are decoded in portions (portions.lua): each byte may take
-- 20 ns.
local HOLD = 2 ^ 14

local function core_options(options)
  local core = native.options_t()
  C.perigee_options(core)
  core.hold = HOLD
  for _, name in ipairs(COUNTS) do
    if options[name] then core[name] = options[name] end
  end
  for _, name in ipairs(TIMES) do
    if options[name] then core[name] = check.nanoseconds(options[name]) end
  end
  for _, name in ipairs(GIVEN) do
    if options[name] then core[name] = options[name] end
  end
  for _, name in ipairs(TEXTS) do
    if options[name] then core[name] = options[name] end
  end
  for _, name in ipairs(FLAGS) do
    if options[name] ~= nil then core[name] = options[name] and 1 or 0 end
  end
  local text = options.rdma and rdma.text(options.rdma)
  if text then core.rdma = text end
  if options.faults then core.faults = options.faults end
  if options.progress == "thread" then core.progress = 1 end
  if options.encrypt ~= nil then core.encrypt = ENCRYPT[options.encrypt] end
  return core, text
end

local warned = false

-- Faults are never on unseen.
local function warn_of_faults(text)
  if warned or not text or not text:find "%S" then return end
  warned = true
  log.write("warning", "faults on purpose: " .. text)
end

--- perigee.engine: a new engine, or nil and an error (no_memory; of the
-- secret's file not_found, or denied where other users may read it, where it is
-- theirs, no regular file, or too short or long). options are limits with good
-- defaults: operations and serving (in flight at once), sessions, regions,
-- hellos; ring, eager, message, typed, pool in bytes;
-- hello_timeout in seconds; spin (the longest time in seconds that a wait polls
-- before it sleeps, default 50e-6: it polls as long as that has paid lately,
-- and gives its core up to whoever wants it); spin_always (true: always that
-- long, and keeps the core, for a process that has one of its own); pull
-- (false: never read a peer's memory by process_vm_readv); rdma (which NICs and
-- how: perigee.rdma; a table or a text like "nics=mlx5_0,mlx5_1 qps=2"); faults
-- (to try a program in bad weather, as PERIGEE_FAULTS: a text like "drop=0.01
-- delay=5ms", of seed, drop, delay, duplicate, truncate, reorder and cut);
-- progress ("thread": for programs that compute for long, a thread of the
-- engine's own serves reads, writes, messages and heartbeats meanwhile, and
-- never runs Lua; default "poll", the loop does).
--
-- Of what peers make it hold (operations, sessions and pool, and these) each
-- has a share (native/shares.h): mapped (bytes of address space for
-- peers' memory, default 64 TiB); descriptors (of sessions, default 7/8 of what
-- the process may open); untaken (bytes of replies that a session may leave
-- lie before its requests wait, default 32 MiB).
--
-- Of sessions over TCP: secret (what both sides prove to have: "file:PATH", or
-- the secret itself; default PERIGEE_SECRET, "" for none); scope (proofs are
-- good for the same one only; default ""); insecure (true: may listen without a
-- secret where other hosts can connect); encrypt (true: no session that is not
-- sealed; "auth": none whose bytes could be changed unseen, though others can
-- read them; false: neither. Of two sides that differ the stronger wins. By
-- default true beyond loopback, where the transport can do it, else false);
-- dead_after (seconds, default 3: a peer on another host that is so
-- long silent is lost); streams (connections for the payloads of a session that
-- is dialled here, 1 to 16, default 1).
--
-- For simulations and specs: epoch (a number, default random), and as cdata
-- clock, random, context (used by that thread, too: then they are no callbacks
-- into Lua), transports, memories.
function M.new(options)
  options = check.options(options, OPTIONS, "perigee.engine", 2)
  if options.secret and options.secret:find("\0", 1, true) then
    -- the core would read it up to there only; and messages tell no secrets
    error("option secret of perigee.engine has zero bytes in it: write it in "
      .. "hexadecimal, or to a file", 2)
  end
  local core, text = core_options(options)
  local out = ffi.new("struct perigee_engine *[1]")
  local status = C.perigee_engine_open(core, out)
  if status < 0 then
    return nil, errors.from(status, "making an engine", nil)
  end
  warn_of_faults(options.faults or os.getenv "PERIGEE_FAULTS")
  local engine = setmetatable({
    handle = out[0], events = native.events_t(loop.BATCH), i = 0, n = 0,
    inflight = {}, sessions = {}, listeners = {}, regions = {},
    memory = setmetatable({}, { __mode = "k" }), pooled = 0, endpoints = {},
    behind = false, pressure = regions.PRESSURE,
    pooled_limit = tonumber(core.pool) / 4, pool = tonumber(core.pool),
    unseen = 0, chores = false, keep = { options, text },
    methods = {}, landed = {}, replying = {}, once = false,
    spin = tonumber(core.spin), eager = tonumber(core.eager), agent = false,
  }, Engine)
  engine.engine = engine                -- an owner of futures has one
  loop.add_engine(engine)
  refused.watch(engine.handle)
  return engine
end

--- The core's handle; raises at level once the engine is closed.
function Engine:use(level)
  if self.handle then return self.handle end
  error("the engine has been closed", level + 1)
end

function Engine:text() return "the engine" end

Engine.alloc = regions.alloc
Engine.register = regions.register

--- Listens at "unix:PATH", or at "tcp://ADDRESS:PORT": an address of this host
-- by its number ("10.0.0.1", "[::1]"), "localhost", or all ("0.0.0.0", and
-- "[::]" for those of IPv6); with port 0 at any that is free, which
-- listener.address tells. A listener, or nil and an error (kind name_taken;
-- too_large for a path over 107 bytes; denied where other hosts could connect
-- and there is neither a secret nor insecure = true; not_found for an address
-- that this host has not). Sessions that peers open are taken by
-- listener:accept. An engine may have several listeners.
function Engine:listen(address)
  check.value(address, check.string, "engine:listen's address")
  local listener, err = listeners.new(self, address)
  return listener, err
end

local CONNECT = { timeout = check.seconds, transport = check.string,
                  expect = check.name }
local ENDPOINT = { transport = check.string }

--- Dials "unix:PATH" or "tcp://HOST:PORT", where HOST is a name or a number: a
-- session, or nil and an error (kind not_found, timeout, denied, ...). Looking
-- up the name blocks nobody, and all its addresses are tried. A peer on the
-- same host is then talked to through shared memory, unless transport says
-- something else. options: timeout (seconds, default 30), transport (a name
-- that must be used, default PERIGEE_TRANSPORT or "auto"), expect (the name of
-- the agent that has to answer, as "worker:0"; else kind denied. By name it is
-- always so). Blocks the task, or runs the loop.
function Engine:connect(address, options)
  check.value(address, check.string, "engine:connect's address")
  options = check.options(options, CONNECT, "engine:connect")
  self:use(2)
  loop.check_wait(2)
  return sessions.connect(self, address, options):wait()
end

--- Half of a session that needs no socket, for programs that have a way of
-- their own to carry a text from each side to the other: an endpoint, or nil
-- and an error (kind unsupported where no device for it is, no_memory).
-- options: transport (default: one that can do without a socket, verbs). The
-- first one of an engine opens the device, which may block for some time.
-- endpoint:info() and endpoint:connect(info) are what is done with it.
function Engine:endpoint(options)
  options = check.options(options, ENDPOINT, "engine:endpoint")
  self:use(2)
  return endpoints.new(self, options)
end

--- The counters of the engine since its start, as a table of numbers. kept is
-- how many bytes it keeps for what comes next, of blocks that nobody has now;
-- what was not used for half a second goes back to the system. Those
-- that begin with held_ tell what its peers make it hold now (operations,
-- pooled, exposed and mapped bytes, descriptors), and held_refused how often
-- one was refused for what it held: session:explain().shares is a session's.
function Engine:stats()
  local stats = sessions.counters(C.perigee_counters(self:use(2), nil))
  local shares = sessions.shares(self.handle, nil)
  stats.held_refused, shares.refused, shares.sessions = shares.refused, nil, nil
  for name, share in pairs(shares) do stats["held_" .. name] = share.used end
  return stats
end

--- Has the loop call f, which must not wait, about once a millisecond until it
-- returns true. For what has to be tried again. (Inner use.)
function Engine:later(f)
  self.chores = self.chores or {}
  self.chores[#self.chores + 1] = f
end

--- Does what is to be tried again. (The loop's.)
function Engine:tidy()
  local chores, left = self.chores, false
  self.chores = false
  for _, f in ipairs(chores) do
    if not f() then
      left = left or {}
      left[#left + 1] = f
    end
    if not self.handle then return end
  end
  if left and self.chores then
    for _, f in ipairs(self.chores) do left[#left + 1] = f end
  end
  self.chores = left or self.chores
end

local function end_children(engine)
  for listener in pairs(engine.listeners) do listener:close() end
  for endpoint in pairs(engine.endpoints) do endpoint:close() end
  for _, session in pairs(engine.sessions) do session:forget() end
  for memory in pairs(engine.memory) do memory:ended() end
end
jit.off(end_children)

-- Each says by itself what it was.
local function end_pending(inflight)
  local why = "the engine was closed"
  local event = native.event_t()
  event.status, event.pointer, event.length = C.PERIGEE_CLOSED, why, #why
  for _, future in pairs(inflight) do future.finish(future, event) end
end
jit.off(end_pending)

--- Closes its listeners, sessions and regions and then itself, at once: over
-- TCP within 50 ms, until the peers' hosts have the last word. What is pending
-- ends in kind closed. Idempotent.
function Engine:close()
  local handle = self.handle
  if not handle then return end
  end_children(self)
  self.handle, self.i, self.n, self.chores = false, 0, 0, false
  loop.remove_engine(self)
  C.perigee_engine_close(handle)
  local inflight = self.inflight
  self.inflight = {}
  end_pending(inflight)
  for _, landing in pairs(self.landed) do landing:abandon() end
  self.landed, self.replying, self.methods = {}, {}, {}
end
jit.off(Engine.close)

-- Engines that are open when the Lua state ends are closed by this net.
M.net = newproxy(true)
getmetatable(M.net).__gc = function()
  for _, engine in ipairs(loop.state.engines) do
    pcall(engine.agent and engine.agent.close or engine.close,
          engine.agent or engine)
  end
end

return M
