-- SPDX-License-Identifier: Apache-2.0
--- A peer's service as an object with its methods. Made by `Agent:proxy`,
-- `Session:proxy` and `Context:proxy`.
--
-- What a call gives: of a typed method, its results. Of a raw or inplace one,
-- the reply as a Lua string; with option `into`, the filled part of that slice;
-- with option `reader`, what the reader returned. A slice among the results of
-- a typed method is the filled part of `into`, or, without that, a pooled
-- slice, which goes back by `Slice:close` or with collection.
--
-- What a call takes: of a typed method, Lua values: nil, booleans, numbers,
-- strings, int64, uint64, tables of these, and at most one slice; 250 in all.
-- Of a raw or inplace one, a string, a slice, or a writer: a function that is
-- given a loan (`View`), fills it, and returns how many bytes it filled.
--
-- Errors of every call: `timeout`, `cancelled`, `peer_lost`; `remote` (the
-- handler raised; `err.traceback` is its traceback), `denied` (a landing
-- refused), `too_large`, `no_method`, `no_memory`, `protocol`. `err.sent ==
-- false` promises that the handler did not run.
-- @classmod Proxy

-- A service's description is asked for once in a session; methods go by the ids
-- it gives. A proxy holds nothing but its binding (call/outcome.lua) at [1], so
-- that no method's name can be in the way. What it knows of the service is its
-- class, one for all proxies of a service that have the same link (or session):
-- when the peer is there again after its session was lost (call/again.lua), the
-- class is made to fit its new description, and so the functions that programs
-- hold go by the new ids at once.
local again = require "perigee.call.again"
local check = require "perigee.check"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local native = require "perigee.native"
local raw = require "perigee.call.raw"
local services = require "perigee.service"
local slices = require "perigee.slice"
local traces = require "perigee.trace"
local typed = require "perigee.call.typed"

local M = {}

local KINDS = { typed = typed, raw = raw, inplace = raw }

local function slice(value)
  if not slices.is_slice(value) then return "a slice" end
end

local function version(value)
  if check.is_count(value) then return end
  if type(value) ~= "table" or not check.is_count(value[1])
    or not check.is_count(value[2]) or value[1] > value[2] then
    return "a version, an integer, or { lowest, highest }"
  end
end

local WITH = { timeout = check.seconds, into = slice, reader = check.callable,
               capacity = check.count, request_capacity = check.count,
               reconnect = check.seconds, epoch = check.string,
               trace = traces.check }
local OPEN = { version = version }
for name, each in pairs(WITH) do OPEN[name] = each end

-- ---- Bindings --------------------------------------------------------------

local RECONNECT = 3                     -- seconds that a call waits by default
local ASKING = 5                        -- for descriptions nobody yet waits for
local NOWHERE = 65535                   -- an id that no method has

-- In place of a session, for a proxy that is to reach none any more: one that
-- is over, and tells of the real one.
local function nowhere(session, kind, why)
  local real = session.real or session
  local text = real:text()
  return setmetatable({
    handle = false, closed = true, real = real,
    text = function() return text end,
    explain = function() return real:explain() end,
    gone = function(_, doing)
      return errors.new(kind, ("%s: %s"):format(doing, why:format(text)), false)
    end,
  }, {
    __index = real,
    __tostring = function() return ("session with %s (%s)"):format(text, kind)
    end,
  })
end

local function bind(session, options, before, level)
  local timeout = options.timeout or before.timeout or 30
  local binding = {
    session = session, engine = session.engine, message = native.message_t(),
    class = before.class, link = before.link, version = before.version,
    reconnect = options.reconnect or before.reconnect or RECONNECT,
    timeout = timeout, into = options.into or before.into,
    reader = options.reader or before.reader,
    capacity = options.capacity or before.capacity,
    request = options.request_capacity or before.request, sliced = false,
    epoch = options.epoch or before.epoch or false,
    trace = options.trace and traces.parse(options.trace) or before.trace
      or false,
  }
  if options.into then binding.reader = options.reader or false end
  if options.reader then binding.into = options.into or false end
  if binding.into and binding.reader then
    error("a reply goes into a slice or to a reader, not to both", level + 1)
  end
  if binding.epoch and binding.epoch ~= session.epoch then
    binding.link = false
    binding.session = nowhere(session, "stale", again.RESTARTED)
  end
  binding.sliced = binding.into
  binding.message.timeout = check.nanoseconds(timeout)
  return binding
end

local NOTHING = { into = false, reader = false, capacity = false,
                  request = false }

local function open(class, binding)
  return setmetatable({ binding,
                        async = setmetatable({ binding }, class.async) },
                      class.sync)
end

-- ---- Classes ---------------------------------------------------------------

--- Ends this object: calls on it give `closed`. The session stays. Idempotent.
-- @function Proxy:close
-- @waits no
-- @usage
-- local sums = calc:with {}
-- sums:close()
-- print(select(2, sums:add(1, 2)).kind)                        --> closed

-- Every way to end is the same: calls on it give nil, closed.
local function close(self)
  local binding = self[1]
  binding.link = false
  binding.session = nowhere(binding.session, "closed",
                            "the proxy of %s was closed")
end

local function unknown(class, name)
  local text = ("calling %s.%s: %s has no such method; it has %s"):format(
    class.name, tostring(name), class.name, services.names(class.methods))
  return function()
    return nil, errors.new("no_method", text, false)
  end
end

-- What is asked for and is not there: a function that says so.
local function fallback(class, wrap)
  return { __index = function(methods, name)
    if type(name) ~= "string" then return nil end
    local f = wrap(unknown(class, name))
    rawset(methods, name, f)
    return f
  end }
end

local function same(f) return f end

local function in_future(f)
  return function() return futures.done(f()) end
end

--- Calls a method, by its name, and waits for its end.
-- @function Proxy:method
-- @param ... what the handler is given; of a raw method one string, slice or
--   writer
-- @return what the handler returned (above); or nil and an error
-- @errors `timeout`, `cancelled`, `peer_lost`, `remote`, `denied`, `too_large`,
--   `no_method`, `no_memory`, `protocol`
-- @waits yes
-- @usage
-- print(calc:add(1, 2))                                        --> 3
-- print(calc:echo "bytes")                                     --> bytes
-- print(store:put(region:slice(0, 100), "layer.3"))            --> 100 layer.3

--- Calls a method without waiting for its end. As many calls may be under way
-- as the peer's engine serves; more of them wait.
-- @function Proxy.async:method
-- @param ... as for `Proxy:method`
-- @treturn Future of what `Proxy:method` gives
-- @errors those of `Proxy:method`, by the future
-- @waits no
-- @usage
-- local one, two = calc.async:add(1, 2), calc.async:add(3, 4)
-- print(one:wait(), two:wait())                             --> 3 7

--- The same service with other options of calls. It is cheap: two small tables.
-- A proxy of it keeps what is not named.
-- @function Proxy:with
-- @tparam table options
-- @tparam[opt=30] number options.timeout seconds that a call may take;
--   math.huge for no limit
-- @tparam[opt] Slice options.into where the reply lands: the bytes of a raw or
--   inplace method, the slice among the results of a typed one
-- @tparam[opt] function options.reader of raw and inplace methods: is given the
--   reply as a `View`, where it lies, and its results are the call's
-- @tparam[opt] number options.capacity bytes that an inplace method's reply
--   may have; default: the length of `into`, else the request's, at least 8192
-- @tparam[opt] number options.request_capacity bytes of a writer's loan, at
--   least; default: capacity
-- @tparam[opt=3] number options.reconnect seconds that a call waits for a peer
--   that is away; 0: one attempt
-- @tparam[opt] string options.epoch of a session: calls end in `stale` rather
--   than reach the peer in another life
-- @tparam[opt] string options.trace which trace the calls belong to: a W3C
--   traceparent, "00-<32 hex>-<16 hex>-<2 hex>", which `Context:trace` gives on
--   the other side; or the 32 digits alone, for a sampled trace and a new span
--   for each call. Calls end in `unsupported` where the peer has no feature
--   "trace" (`Session:explain`). Default: that of the call that is being served
--   where a call is made, with a new span, if the peer has the feature
-- @treturn Proxy
-- @waits no
-- @usage
-- store:put(region:slice(0, 100), "key")
-- local landed = store:with { into = region:slice(4096, 4096) }:get "key"
-- print(landed.offset, landed.length)                       --> 4096 100
-- local first = calc:with { timeout = 5, capacity = 2 ^ 20,
--                           reader = function(reply) return reply.length end }
-- print(first:copy(function(loan) return loan:write "12345" end))   --> 5
local function with_of(class)
  return function(self, options)
    check.options(options, WITH, "with", 2)
    if options == nil then error("with needs a table of options", 2) end
    local before = self[1]
    return open(class, bind(before.session, options, before, 2))
  end
end

-- methods: kinds by name; known: all methods there ever were whose functions
-- somebody may still hold, by name.
local function make_class(name)
  local class = { name = name, version = 0, methods = {}, session = false,
                  known = setmetatable({}, { __mode = "v" }) }
  local function text(self)
    return ("proxy of %s of %s"):format(name, self[1].session:text())
  end
  class.sync = { __index = setmetatable({}, fallback(class, same)),
                 __tostring = text }
  class.async = { __index = setmetatable({}, fallback(class, in_future)),
                  __tostring = text }
  return class
end

local function forget_methods(class, sync, async)
  for key in pairs(sync) do sync[key] = nil end
  for key in pairs(async) do async[key] = nil end
  for _, method in pairs(class.known) do method.id = NOWHERE end
  class.methods = {}
  sync.with, sync.close, async.close = with_of(class), close, close
end

local function fit_method(class, key, told)
  local kind, method = KINDS[told.kind], class.known[key]
  if not kind then return end
  if not method or method.kind ~= kind then
    method = { name = key, service = class.name, kind = kind,
               text = class.name .. "." .. key }
    method.call, method.start = kind.call(method), kind.start(method)
    class.known[key] = method
  end
  method.id, method.inplace = told.id, told.kind == "inplace"
  method.idempotent = told.idempotent == true
  class.methods[key] = told.kind
  class.sync.__index[key] = method.call
  class.async.__index[key] = method.start
end

-- Makes the class fit a description. Its functions are made once.
local function fit(class, description)
  class.version = description.version
  forget_methods(class, class.sync.__index, class.async.__index)
  for key, told in pairs(description.methods) do
    fit_method(class, key, told)
  end
end
jit.off(forget_methods)
jit.off(fit)

-- ---- Opening ---------------------------------------------------------------

local describe = typed.call { id = 0, name = "describe", service = "",
                              text = "the description" }

-- A peer may say anything; what services are, services.new says.
local function is_description(told)
  if type(told) ~= "table" or type(told.methods) ~= "table"
    or not check.is_count(told.version) then
    return false
  end
  local count = 0
  for name, each in pairs(told.methods) do
    count = count + 1
    if services.wrong_name(name) or type(each) ~= "table" or count > NOWHERE
      or not check.is_count(each.id) or each.id > NOWHERE then
      return false
    end
  end
  return true
end
jit.off(is_description)

-- What session's peer says of a service, or nil and an error.
local function ask(session, name, timeout)
  local asking = { bind(session, { timeout = timeout }, NOTHING, 2) }
  local agent = session.engine.agent
  local told, err = describe(asking, name, agent and agent.name)
  local doing = ("opening service %s of %s"):format(name, session:text())
  if told == nil and errors.is_error(err) then
    return nil, errors.new(err.kind, doing .. ": " .. err.message, false)
  elseif told == nil and type(err) == "string" then
    return nil, errors.new("no_service", doing .. ": " .. err, false)
  elseif not is_description(told) then
    return nil, errors.new("protocol", doing
      .. ": the peer's description of it is none", false)
  end
  return told
end

-- Has class fit what session's peer serves: true, or nil and an error.
local function fit_to(class, session, timeout)
  if class.session == session then return true end
  local told, err = ask(session, class.name, timeout)
  if not told then return nil, err end
  fit(class, told)
  class.session = session
  return true
end

-- The class of a service, asked for once in a session; owner keeps it.
local function class_of(owner, session, name, timeout)
  local classes = owner.proxies or {}
  owner.proxies = classes
  local class = classes[name] or make_class(name)
  local fine, err = fit_to(class, session, timeout)
  if not fine then return nil, err end
  classes[name] = class
  return class
end

local function check_version(class, wanted, session)
  if not wanted then return nil end
  local low, high = wanted, wanted
  if type(wanted) == "table" then low, high = wanted[1], wanted[2] end
  local has = class.version
  if has >= low and has <= high then return nil end
  local range = low == high and tostring(low) or ("%d to %d"):format(low, high)
  return errors.new("version", ("opening service %s of %s: it has version %d, "
    .. "and %s is asked for"):format(class.name, session:text(), has, range),
    false)
end

--- Has all that is known of services by link fit what session's peer serves.
-- (For links. Whom this fails ask for themselves.)
function M.joined(link, session)
  local classes = {}                    -- more may come while it waits
  for _, class in pairs(link.proxies) do classes[#classes + 1] = class end
  for _, class in ipairs(classes) do fit_to(class, session, ASKING) end
end
jit.off(M.joined)

again.fit = fit_to
again.unfit = check_version

function again.no_method(class, name)
  local _, err = unknown(class, name)()
  return err
end

--- A proxy of a service of session's peer; see agent:proxy. link: by which the
-- peer is found again, nil if it is not to be; deadline: when the time for this
-- is over, nil for the timeout from now on. Raises misuse at level.
function M.open(session, name, options, level, link, deadline)
  check.value(name, check.string, "a service's name", level + 1)
  options = check.options(options, OPEN, "proxy", level + 1)
  local class, err = class_of(link or session, session, name,
    loop.left(deadline or loop.deadline(options.timeout or 30)))
  if not class then return nil, err end
  err = check_version(class, options.version, session)
  if err then return nil, err end
  local before = { into = false, reader = false, capacity = false,
                   request = false, class = class, link = link or false,
                   version = options.version or false }
  return open(class, bind(session, options, before, level + 1))
end

--- The session that a proxy's calls go by now, which may be over, and is for a
-- proxy that was closed, or is of another life of the peer.
-- @function perigee.session
-- @tparam Proxy proxy
-- @treturn Session the session
-- @waits no
-- @usage
-- print(perigee.session(calc) == session)                      --> true
function M.session(proxy)
  local binding = type(proxy) == "table" and rawget(proxy, 1)
  if type(binding) ~= "table" or not binding.class then
    error("perigee.session takes a proxy, not a " .. type(proxy), 2)
  end
  return binding.session
end

--- The checks of proxy options alone, before anything is dialled.
function M.check(name, options, level)
  check.value(name, check.string, "a service's name", level + 1)
  options = check.options(options, OPEN, "proxy", level + 1)
  return options
end

return M
