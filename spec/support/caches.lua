-- SPDX-License-Identifier: Apache-2.0
-- Caches for specs: in this process, or in a child that can be killed and
-- stopped; and a service "cache" that is made by hand, so that it can lie.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

-- mapped: does a client map the memory of a cache of this run?
local M = {
  name = "cache:0",
  mapped = (os.getenv "PERIGEE_TRANSPORT" or "shm") == "shm"
    and cases.memory == "host",
}

--- Options of a cache of this run: its scope, transport and kind of memory.
function M.options(options)
  local all = { name = M.name, scope = cases.scope, memory = 2 ^ 24,
                kind = cases.memory ~= "host" and cases.memory or nil }
  for key, value in pairs(options or {}) do all[key] = value end
  if all.scopes then all.scope = nil end
  all.engine = cases.engine_options(all.engine)
  return all
end

--- A cache of this process, which cases.cleanup() closes.
function M.open(options)
  local cache = assert(perigee.cache(M.options(options)))
  cases.opened[#cases.opened + 1] = cache
  return cache
end

--- A client of it, of an agent of its own, and that agent.
function M.client(options, which)
  local agent = assert(cases.agent())
  return assert(agent:cache(which or M.name, options)), agent
end

--- The store of a cache that has one agent.
function M.store(cache)
  return cache.stores[cache.agents[1]]
end

local function serve(child, perigee_, _, text)
  local options = loadstring("return " .. text)()
  local cache = require "spec.support.caches".open(options)
  child.say("ready")
  perigee_.run()
  cache:close()
end

--- A cache in a child, which serves. options: Lua text of a table.
function M.start(options)
  return process.start(serve, options or "{}"):expect("ready", 30 * cases.slow)
end

-- ---- A liar ----------------------------------------------------------------

local METHODS = { "about", "put", "reserve", "write", "seal", "abort", "wait",
                  "fetch" }

--- An agent that serves "cache" as `lies` tells: a function for each method,
-- which may be set later (ask: of the request's bytes; it returns the
-- answer's). Its engine's regions are the liar's to make.
function M.liar(lies, options)
  local methods = {}
  for _, name in ipairs(METHODS) do
    methods[name] = function(...)
      if lies[name] then return lies[name](...) end
      return true
    end
  end
  methods.ask = { raw = true, function(request)
    return lies.ask(request:string())
  end }
  methods.release = { raw = true, function(request)
    return (lies.release or lies.ask)(request:string())
  end }
  local agent = assert(cases.agent(M.name, options))
  agent:serve { name = "cache", version = 1, methods = methods }
  return agent
end

--- A number of n bytes, as requests and answers have it.
function M.number(value, n)
  local bytes = {}
  for i = 1, n do
    bytes[i] = string.char(value % 256)
    value = math.floor(value / 256)
  end
  return table.concat(bytes)
end

--- An answer: what it answers, how many items, and their bytes.
function M.answer(what, count, items)
  return string.char(1, what, 0, 0) .. M.number(count, 4) .. (items or "")
end

--- A place, as answers have it; fields as in struct perigee_cache_place, and
-- `ns` of its lease.
function M.place(at)
  return M.number(at.slab or 0, 4) .. M.number(0, 4)
    .. M.number(at.offset or 0, 8) .. M.number(at.length or 0, 8)
    .. M.number(at.version or 1, 8) .. M.number(at.checksum or 0, 8)
    .. M.number(at.lease or 0, 8) .. M.number(at.ns or 0, 8)
end

return M
