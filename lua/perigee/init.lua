-- SPDX-License-Identifier: Apache-2.0
--- Remote memory and calls between processes. This module is all that a script
-- requires; everything else is reached from it. `perigee.version` is its
-- version, a text like "0.1.0".
--
-- Times are seconds, sizes are bytes, both plain numbers; pointers are `uint8_t
-- *`. Options are tables, and an option that does not exist is misuse.
--
-- *Results.* When an operation fails, its function returns `nil, err`, where
--   `err.kind` is one of a fixed set (`Error`). A mistake of the caller (a
--   wrong type, an unknown option, a slice outside of its region) raises at the
--   caller's line. "Errors" in this manual lists the kinds of a function;
--   `closed` is left out there, because everything that belongs to a closed
--   object returns it.
--
-- *Waiting.* "Waits: yes" means that a function returns when its operation has
--   ended. In a task (a typed handler, or what `perigee.spawn` and
--   `perigee.run` run) it parks the task; anywhere else it runs the loop until
--   then, and calls are served meanwhile. Raw and inplace handlers, landings,
--   writers and readers must not wait: such a function raises there.
--
-- *The compiler.* This module sets one limit of LuaJIT's: a trace may have 4000
--   constants (`maxirconst`) in place of 500. A call with a short writer and a
--   short reader takes nearly 500, and the loop around it is in the same trace.
--   A limit that was set before is replaced; `jit.opt.start` sets another one
--   after `require`.
--
-- *Examples* of this manual are run by its specs. Each example runs after the
--   first of the two scripts below, while the second script, a worker, runs at
--   the same time.
-- @module perigee
-- @usage
-- local perigee = require "perigee"
-- local agent = assert(perigee.agent {})
-- local engine = agent.engine
-- local calc = assert(agent:proxy("worker:0", "calc", { timeout = 5 }))
-- local store = assert(agent:proxy("worker:0", "store", { timeout = 5 }))
-- local session = assert(agent:session "worker:0")
-- local remote = assert(session:region "kv")        -- the worker's memory
-- local region = engine:alloc(2 ^ 16, { access = "rw" })
-- local blocks = assert(agent:cache "cache:0")      -- the worker's, too
-- -- Both ends of a session, in one process:
-- local path = os.tmpname()
-- os.remove(path)
-- local listener = assert(engine:listen("unix:" .. path))
-- local near = assert(engine:connect(listener.address))
-- local far = assert(listener:accept(5))
-- @usage
-- -- The worker.
-- local perigee = require "perigee"
-- local agent = assert(perigee.agent { name = "worker:0" })
-- agent.engine:alloc(2 ^ 20, { name = "kv", access = "rw" })
-- agent:serve {
--   name = "calc", version = 1,
--   methods = {
--     add = function(a, b) return a + b end,
--     fail = function(text) error(text, 0) end,
--     slow = function(seconds) perigee.sleep(seconds) return "done" end,
--     echo = { raw = true, function(request) return request end },
--     copy = { raw = true, inplace = true, function(request, reply)
--       return reply:write(request)
--     end },
--   },
-- }
-- -- A block is freed once it is neither the key's nor in a reply under way.
-- local memory = agent.engine:alloc(2 ^ 24):allocator()
-- local blocks = {}
-- local function release(block)
--   block.users = block.users - 1
--   if block.users == 0 then memory:free(block.slice) end
-- end
-- agent:serve {
--   name = "store",
--   methods = {
--     put = {
--       landing = function(length, key) return memory:alloc(length) end,
--       abandoned = function(slice, key) memory:free(slice) end,
--       function(slice, key)
--         local before = blocks[key]
--         blocks[key] = { slice = slice, users = 1 }
--         if before then release(before) end
--         return slice.length, key
--       end,
--     },
--     get = function(key)
--       local block, context = blocks[key], perigee.context()
--       if not block then return nil end
--       block.users = block.users + 1
--       perigee.spawn(function()
--         context:sent()
--         release(block)
--       end)
--       return block.slice
--     end,
--   },
-- }
-- assert(perigee.cache { name = "cache:0", memory = 2 ^ 26 })
-- perigee.run()
if not jit then
  error(("Perigee is for LuaJIT 2.1, and this is %s: run the script with "
    .. "luajit"):format(_VERSION), 0)
end

if jit.opt then jit.opt.start "maxirconst=4000" end

local log = require "perigee.runtime.log"
require "perigee.native"                -- what is missing is told here

-- A function that loads a module, and returns what it has under a key; without
-- a key, the module.
local function of(module, key)
  return function()
    local loaded = require(module)
    if not key then return loaded end
    return loaded[key]
  end
end

local function agent_maker()
  local agents = require "perigee.agent"
  return function(options)
    local agent, err = agents.new(options, 3)
    return agent, err
  end
end

local function cache_maker()
  local caches = require "perigee.cache"
  return function(options)
    local cache, err = caches.new(options, 3)
    return cache, err
  end
end

-- An engine serves calls, and its sessions make them, by the modules of agents.
local function engine_maker()
  require "perigee.agent"
  return require "perigee.engine".new
end

-- The modules that are loaded when a program first asks for them: to load all
-- takes some milliseconds, and few programs use all.
local LATER = {
  agent = agent_maker,
  serve = of "perigee.agent.serve",
  cache = cache_maker,
  engine = engine_maker,
  run = of("perigee.runtime.task", "run"),
  stop = of("perigee.runtime.task", "stop"),
  spawn = of("perigee.runtime.task", "spawn"),
  sleep = of("perigee.runtime.task", "sleep"),
  wait_all = of("perigee.runtime.task", "wait_all"),
  wait_any = of("perigee.runtime.task", "wait_any"),
  as_completed = of("perigee.runtime.task", "as_completed"),
  context = of("perigee.serving.context", "current"),
  is_error = of("perigee.runtime.errors", "is_error"),
  session = of("perigee.call.proxy", "session"),
  prepare = of("perigee.call.prepared", "new"),
  batch = of("perigee.call.batch", "new"),
  units = of "perigee.runtime.units",
  devices = of("perigee.engine.devices", "list"),
  layout = of("perigee.memory.layout", "new"),
  launch = of("perigee.agent.launch", "launch"),
  RnrMonitor = of("perigee.engine.rnr_monitor", "new"),
}

local function load_later(perigee, name)
  local load = LATER[name]
  local value = load and load()
  rawset(perigee, name, value)
  return value
end

local M = setmetatable({
  version = require "perigee.version",
  log = log.default,
}, { __index = load_later, later = LATER })

log.target = M

return M
