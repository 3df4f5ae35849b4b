-- SPDX-License-Identifier: Apache-2.0
--- An engine is one reactor of the core. The loop of this Lua state polls it
-- until it is closed. It owns regions, listeners and sessions. Made by
-- `perigee.engine`; an agent has one in its field `engine`.
-- @classmod Engine
local check = require "perigee.runtime.check"
local contexts = require "perigee.serving.context"
local descriptors = require "perigee.descriptor"
local ending = require "perigee.runtime.ending"
local endpoints = require "perigee.engine.endpoint"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local listeners = require "perigee.engine.listener"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local refused = require "perigee.engine.refused"
local regions = require "perigee.memory.region"
local sampling = require "perigee.runtime.sampling"
local sessions = require "perigee.engine.session"
local settings = require "perigee.engine.options"
require "perigee.transfer"              -- what sessions can do
require "perigee.transfer.prepared"

local ffi = require "ffi"
local new_table = require "table.new"
local C = native.C

local M = {}

local Engine = {}
Engine.__index = Engine
M.Engine = Engine

-- Typed heads of more bytes are decoded in portions (portions.lua), because a
-- byte may take 20 ns.
local HOLD = 2 ^ 14
-- The least operations whose futures are found in an array. In a table that
-- starts empty the first are in its hash part, and LuaJIT compiles for that.
local FEW = 256

local warned, warned_of_files = false, false
local SHORT_FILE = 2 ^ 24 -- more than any file of default options has

-- Logs once that faults are injected, so that they are never on unnoticed.
local function warn_of_faults(text)
  if warned or not text or not text:find "%S" then return end
  warned = true
  log.write("warning", "faults on purpose: " .. text)
end

-- Memory that peers on this host share is in files, and the system may bound
-- their length. Says so once, before a large call meets it.
local function warn_of_short_files()
  if warned_of_files then return end
  warned_of_files = true
  local file = io.open "/proc/self/limits"
  if not file then return end
  local most = file:read("*a"):match "Max file size%s+(%d+)"
  file:close()
  if not most or tonumber(most) >= SHORT_FILE then return end
  log.write("warning", ("files of this process may have %s bytes at most, and "
    .. "so may memory that it shares with peers on this host: large calls, or "
    .. "all, will fail (ulimit -f)"):format(most))
end

--- Makes an engine. Programs that use agents need no engine but the agent's,
-- which takes the same options (`perigee.agent`'s option `engine`). All options
-- have good defaults. An operation beyond a limit fails with `no_memory` or
-- `too_large`.
--
-- Operations, sessions, `pool`, `mapped` and `descriptors` are shared among the
-- peers: each peer may make the engine hold a share, which grows with what the
-- other peers leave unused.
-- @function perigee.engine
-- @tparam[opt] table options
-- @tparam[opt=16384] number options.operations in flight at once, at most 65536
-- @tparam[opt=1024] number options.sessions at once
-- @tparam[opt=1024] number options.regions regions that peers may reach (with a
--   name, or an access other than ""), at most 4096; of others there may be as
--   many as there is memory
-- @tparam[opt=65536] number options.ring bytes of a session's receive ring, a
--   power of two; each session has two. Over shared memory a ring through which
--   many payloads of 2 KiB and more pass is replaced by 1 or 2 MiB of its
--   writer's memory until it is quiet
-- @tparam[opt=16384] number options.eager bytes of the largest payload that
--   travels in the ring; at most a quarter of it. Over other transports than
--   shared memory, at most an eighth of the shorter ring of both sides
-- @tparam[opt=1052672] number options.typed bytes of the largest typed payload
--   accepted (1 MiB and 4 KiB)
-- @tparam[opt=2^30] number options.pool bytes of pooled blocks; the blocks that
--   are kept until peers have looked at them have a limit of their own, as
--   large
-- @tparam[opt] number options.spin the longest time in seconds that a wait
--   polls before it sleeps. A wait polls for as long as polling has paid off
--   lately, and yields its core to others that want it; default: 50e-6, and
--   once the engine uses an RDMA device 200e-6
-- @tparam[opt="poll"] string options.progress "thread": a thread of the
--   engine's own serves reads, writes, messages and heartbeats while the
--   program computes; it never runs Lua
-- @tparam[opt=1] number options.streams connections for payloads of a session
--   that this engine dials, at most 16
-- @tparam[opt=3] number options.dead_after seconds of silence after which a
--   peer on another host is lost
-- @tparam[opt] string options.secret the secret that both sides of a session
--   over TCP prove to have: "file:PATH", or the secret itself, "" for none;
--   default PERIGEE_SECRET. A secret that is read from a file is kept in memory
--   that is in no core dump and is not swapped. A secret that is given as text
--   stays in the program's memory, as any string does, and is in its core dumps
-- @tparam[opt=""] string options.scope the scope for which the secret is
--   proved; both sides need the same
-- @tparam[opt=false] boolean options.insecure true: may listen without a secret
--   where other hosts can connect
-- @param[opt] options.encrypt true: only sessions that are encrypted; "auth":
--   only sessions whose bytes nobody can change unnoticed, though others can
--   read them; false: neither is required. If the two sides differ, the
--   stronger setting wins. Default: true beyond loopback, where the transport
--   can do it, else false
-- @tparam[opt] table options.advanced those that few programs have a reason to
--   set, named below with that reason. In this version each of them is also
--   taken beside `advanced`, as before there was that table; not in both places
-- @tparam[opt=256] number options.advanced.hellos unauthenticated peers at
--   once; more where thousands dial at the same time
-- @tparam[opt=2] number options.advanced.hello_timeout seconds for a peer's
--   handshake; more where peers are slow, as at their start
-- @tparam[opt=4096] number options.advanced.watched descriptors of the
--   program's own that are waited for at once (`descriptor.readable`), at most
--   2^20; more for a program with many sockets of its own
-- @tparam[opt=2^40] number options.advanced.message bytes of the largest
--   payload accepted; less where peers are not to make this side handle long
--   ones
-- @tparam[opt=1024] number options.advanced.serving calls of one session that
--   are served at once; less where each takes much memory or another service
-- @tparam[opt=2^46] number options.advanced.mapped bytes of address space for
--   memory of peers; less where address space is limited (`ulimit -v`)
-- @tparam[opt] number options.advanced.descriptors file descriptors of
--   sessions; less where the program needs more of its own; default: seven
--   eighths of those that the process may open
-- @tparam[opt=2^25] number options.advanced.untaken bytes of replies that a
--   session may leave unread before its requests have to wait; more for peers
--   that ask for much and read it late
-- @tparam[opt=false] boolean options.advanced.spin_always true: a wait polls
--   for all of `spin` and keeps its core, for a process that has a core of its
--   own
-- @tparam[opt=true] boolean options.advanced.pull false: never reads a peer's
--   memory by process_vm_readv, where that call is not to be made (a filter of
--   system calls that ends a process by it), or where peers of the same user
--   are not trusted: one whose memory this process may read can name memory
--   that is never filled (FUSE, userfaultfd), and the engine then waits for it
--   without end. Nor does anybody read the memory of a process whose main
--   thread has ended: large payloads of such a peer end calls in `no_memory`
-- @tparam[opt] table|string options.advanced.rdma which NICs to use, and how,
--   where those that are chosen are not the right ones: a table or a text like
--   "nics=mlx5_0,mlx5_1 qps=2" (keys: the page "Settings"); default
--   PERIGEE_RDMA
-- @tparam[opt] string options.advanced.faults injects faults, to test a
--   program: a text like "drop=0.01 delay=5ms" (words: the page "Settings");
--   default PERIGEE_FAULTS
-- @tparam[opt] string options.advanced.features turns features of sessions off,
--   to test a program with older peers: a text like "-trace" (`Session:explain`
--   lists them as `features`)
-- @tparam[opt] number options.advanced.epoch for simulations: identifies this
--   life of the engine; default: random
-- @tparam[opt] cdata options.advanced.clock for simulations, as described in
--   `perigee.h`; so are random and context, and, for transports and kinds of
--   memory of the program's own, transports and memories
-- @treturn Engine the engine; or nil and an error
-- @errors `no_memory`, also if there are 64 engines already; `not_found`: there
--   is no such file of a secret;
--   `denied`: others may read that file, it is another user's, no regular file,
--   too short or too long, or has CR LF or a byte order mark, as editors of
--   Windows write
-- @waits no, except about 0.1 s when a secret is stretched for the first time
-- @usage
-- local small = assert(perigee.engine { pool = 2 ^ 24, sessions = 16 })
-- small:close()
function M.new(options)
  options = settings.flat(settings.check(options, "perigee.engine", 2))
  local core, texts = settings.core(options)
  core.hold = HOLD
  if loop.is_full() then
    return nil, errors.new("no_memory", ("making an engine: a process has %d "
      .. "already, and a loop polls no more; close one"):format(loop.ENGINES),
      false)
  end
  local out = ffi.new("struct perigee_engine *[1]")
  local status = C.perigee_engine_open(core, out)
  if status < 0 then
    return nil, errors.from(status, "making an engine", nil)
  end
  warn_of_short_files()
  warn_of_faults(options.faults or os.getenv "PERIGEE_FAULTS")
  sampling.warn()
  local engine = setmetatable({
    handle = out[0], alive = C.perigee_alive(out[0]), -- 0 in a forked child
    events = native.events_t(loop.BATCH), i = 0, n = 0,
    inflight = new_table(FEW, 0), flying = 0, -- how many there are
    sessions = {}, listeners = {}, regions = {},
    memory = setmetatable({}, { __mode = "k" }), pooled = 0, endpoints = {},
    behind = false, pressure = regions.PRESSURE,
    pooled_limit = tonumber(core.pool) / 4, pool = tonumber(core.pool),
    unseen = 0, chores = false, keep = { options, texts },
    methods = {}, draining = false, landed = {}, replying = {}, contexts = {},
    once = false,
    spin = tonumber(core.spin), agent = false,
  }, Engine)
  engine.engine = engine                -- futures read it of their owner
  loop.add_engine(engine)
  refused.watch(engine.handle)
  return engine
end

--- The core's handle; raises at level once the engine is closed.
function Engine:use(level)
  if self.handle then return self.handle end
  error("the engine has been closed", level + 1)
end

--- Returns nil while the engine is open, then the error of doing something with
-- it, for functions that return nil and an error.
function Engine:gone(doing)
  if self.handle then return nil end
  return errors.new("closed", doing .. ": the engine was closed", false)
end

function Engine:text() return "the engine" end

function Engine:__tostring()
  return ("engine (%s)"):format(self.handle and "open" or "closed")
end

Engine.alloc = regions.alloc
Engine.register = regions.register
Engine.adopt = regions.adopt

--- Listens for sessions; `Listener:accept` returns them. Sessions that come to
-- an agent's own addresses belong to the agent.
-- @function Engine:listen
-- @tparam string address "unix:PATH", or "tcp://ADDRESS:PORT" with an address
--   of this host: a number ("10.0.0.1", "[::1]", "[fe80::1%eth0]"),
--   "localhost", "0.0.0.0" for all IPv4 addresses, or "[::]" for all IPv6
--   addresses; port 0: any free port
-- @treturn Listener the listener, whose `address` has the actual port; or nil
--   and an error
-- @errors `name_taken`: the path or port is in use; `denied`: other hosts could
--   connect and there is neither a secret nor option `insecure`, or the folder
--   or port is not for this process; `too_large`: a path of more than 107
--   bytes; `not_found`: no such folder or address;
--   `closed`
-- @waits no
-- @usage
-- local door = assert(engine:listen "tcp://127.0.0.1:0")
-- print(door.address:match "^tcp://127.0.0.1:%d+$" ~= nil)     --> true
-- print(select(2, engine:listen(door.address)).kind)           --> name_taken
-- door:close()
function Engine:listen(address)
  check.value(address, check.whole, "engine:listen's address")
  local listener, err = listeners.new(self, address)
  return listener, err
end

local CONNECT = { timeout = check.seconds, transport = check.string,
                  expect = check.name }
local ENDPOINT = { transport = check.string }

--- Dials a listener. A host's name is looked up without blocking, and its
-- addresses are tried in turn. If both sides are on one host, they detect it
-- and use shared memory, whatever the address.
-- @function Engine:connect
-- @tparam string address "unix:PATH" or "tcp://HOST:PORT"
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @tparam[opt] string options.transport "auto", or the transport that must
--   carry the session: "shm", "tcp", "verbs"; default PERIGEE_TRANSPORT, or
--   "auto"
-- @tparam[opt] string options.expect the name of the agent that has to answer;
--   else `denied`
-- @treturn Session the session; or nil and an error
-- @errors `not_found`: nobody listens there, there is no route, or no such
--   host; `timeout`; `denied`: the peer is another user's process, or has
--   another secret or another name, or this process may not use its socket;
--   `version`; `unsupported`: the transport that was asked for; `peer_lost`;
--   `no_memory`; `closed`
-- @waits yes
-- @usage
-- local other = assert(engine:connect(listener.address, { timeout = 5 }))
-- print(other:explain().transport)                             --> shm
-- other:close()
function Engine:connect(address, options)
  check.value(address, check.whole, "engine:connect's address")
  options = check.options(options, CONNECT, "engine:connect")
  loop.check_wait(2)
  local gone = self:gone("connecting to " .. address)
  if gone then return nil, gone end
  return sessions.connect(self, address, options):wait()
end

--- Makes an endpoint: one side of a session over RDMA that needs no socket. It
-- is for programs that can carry a text from each side to the other themselves.
-- @function Engine:endpoint
-- @tparam[opt] table options
-- @tparam[opt="verbs"] string options.transport a transport that needs no
--   socket
-- @treturn Endpoint the endpoint; or nil and an error
-- @errors `unsupported`: this host has no device for it; `no_memory`; `closed`
-- @waits no; the first endpoint of an engine opens the device, which may block
--   for some time
-- @usage
-- local endpoint, err = engine:endpoint()
-- print(endpoint ~= nil or err.kind == "unsupported")          --> true
function Engine:endpoint(options)
  options = check.options(options, ENDPOINT, "engine:endpoint")
  local gone = self:gone "making an endpoint"
  if gone then return nil, gone end
  return endpoints.new(self, options)
end

--- Returns counters since the engine's start: `calls`, `served`, `replies`,
-- `failures`, `timeouts`, `transfers`, `messages`, `bytes_sent`,
-- `bytes_received`, `wakes`, `sleeps`, `stalls`, `refused`, `polls`, `dropped`
-- (events that never came, because their session was freed: 0); and what
-- there is now: `sessions`, `regions`, `operations`, `pooled` (bytes of blocks
-- in use), `kept` (bytes of free blocks and of sealed sockets' buffers that are
-- kept for reuse; those unused for half a second go back to the system).
-- `held_operations`, `held_pooled`, `held_exposed`, `held_mapped` and
-- `held_descriptors` tell what peers make the engine hold now, and
-- `held_refused` how often it refused to hold more.
-- @function Engine:stats
-- @treturn table numbers by name
-- @waits no
-- @usage
-- print(engine:stats().sessions >= 1)                          --> true
function Engine:stats()
  local stats = sessions.counters(C.perigee_counters(self:use(2), nil))
  local shares = sessions.shares(self.handle, nil)
  stats.held_refused, shares.refused, shares.sessions = shares.refused, nil, nil
  for name, share in pairs(shares) do stats["held_" .. name] = share.used end
  return stats
end
jit.off(Engine.stats)                   -- its loop over pairs()

--- Has the loop call f about once a millisecond until it returns true, for work
-- that has to be tried again. f must not wait. (Inner use.)
function Engine:later(f)
  self.chores = self.chores or {}
  self.chores[#self.chores + 1] = f
end

--- Calls the functions that `later` was given. (The loop calls it.)
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

-- The finish of each future says in the error what was pending.
local function end_pending(inflight)
  local why = "the engine was closed"
  local event = native.event_t()
  event.status, event.pointer, event.length = C.PERIGEE_CLOSED, why, #why
  for _, future in pairs(inflight) do future.finish(future, event) end
end
jit.off(end_pending)

-- Ends what the core has of the engine, and then what waits for it.
local function end_core(engine, handle)
  C.perigee_engine_close(handle)
  if loop.state.count == 0 and not loop.state.leaving then
    for _, f in ipairs(loop.emptied) do f() end
  end
  local inflight, landed = engine.inflight, engine.landed
  engine.inflight, engine.landed, engine.replying = {}, {}, {}
  engine.methods = {}
  engine.flying = 0
  end_pending(inflight)
  while engine.once do
    engine.once(errors.new("closed", "serving one call: the engine was closed",
                           false))
  end
  for _, landing in pairs(landed) do landing:abandon() end
  contexts.closed(engine)
end
jit.off(end_core)

--- Closes the engine's listeners, sessions and regions and then the engine, at
-- once. Pending operations end with `closed`. A handler, landing, reader or
-- writer that runs on the loop may close the engine that it was called for:
-- what it was given stays valid until it returns, and the peers are told then.
-- Idempotent.
-- @function Engine:close
-- @waits no; over TCP up to 50 ms, until the peers' hosts have all that was
--   sent
-- @usage
-- local other = assert(perigee.engine())
-- other:close()
function Engine:close()
  local handle = self.handle
  if not handle then return end
  end_children(self)
  self.handle, self.i, self.n, self.chores = false, 0, 0, false
  loop.remove_engine(self)
  descriptors.leave(self)
  loop.unpinned(function() end_core(self, handle) end)
end
jit.off(Engine.close)

local SHOWN = 3                         -- forgotten operations that are named

-- Warns, once, of operations that nobody has waited for and that end with the
-- program. A stop drops whoever would have.
local function warn_of_forgotten()
  local all = {}
  for _, engine in ipairs(loop.state.engines) do
    for _, doing in ipairs(futures.forgotten(engine)) do
      all[#all + 1] = doing
    end
  end
  if #all == 0 or loop.state.generation > 0 then return end
  log.write("warning", ("the program ends while %d operation%s pending, for "
    .. "which nothing waits: %s%s"):format(#all, #all > 1 and "s are" or " is",
    table.concat(all, "; ", 1, math.min(#all, SHOWN)),
    #all > SHOWN and "; ..." or ""))
end
jit.off(warn_of_forgotten)

-- Closes the engines that are open when the Lua state ends.
ending.at_end(function()
  pcall(warn_of_forgotten)
  loop.state.leaving, loop.state.pinned = true, false
  loop.catch_up()
  for _, engine in ipairs(loop.state.engines) do
    pcall(engine.agent and engine.agent.close or engine.close,
          engine.agent or engine)
  end
end)

check.colons(Engine, "engine", "alloc close connect endpoint listen register "
  .. "stats")

return M
