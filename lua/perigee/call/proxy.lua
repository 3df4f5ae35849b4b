-- SPDX-License-Identifier: Apache-2.0
--- A peer's service as an object with its methods. Made by `Agent:proxy`,
-- `Session:proxy` and `Context:proxy`.
--
-- Results of a call: a typed method gives what its handler returned. A raw or
-- inplace method gives the reply as a Lua string; with option `into` or
-- `landing`, the filled part of that slice; with option `reader`, what the
-- reader returned. A slice among the results of a typed method is the filled
-- part of `into` or of what `landing` gave, or, without these options, a pooled
-- slice, which `Slice:close` or the collector frees.
--
-- Arguments of a call: a typed method takes Lua values: nil, booleans, numbers,
-- strings, int64, uint64, tables of these, and at most one slice; 250 in all.
-- A raw or inplace method takes a string, a slice, or a writer: a function that
-- gets a loan (`View`), fills it, and returns how many bytes it filled. It is
-- called again when the request is sent again, because the peer drains and has
-- not taken the call, or is lost and the method is idempotent. So it writes the
-- same again, and takes nothing away that it needs for that.
--
-- Errors of every call: `timeout`, `cancelled`, `peer_lost`; `remote` (the
-- handler raised; `err.traceback` is its traceback), `denied` (a landing
-- refused: the method's, or the caller's own), `too_large`, `no_method`,
-- `no_memory`, `protocol`. `err.sent == false` guarantees that the handler did
-- not run.
-- @classmod Proxy

-- A service's description, which gives the methods' ids, is fetched once for
-- each session. A proxy has no field but its binding (call/binding.lua), at
-- [1], so no method's name can clash with a field. The methods are kept in a
-- class, which all proxies of a service over the same link (or session) share.
-- When a lost peer is back (call/again.lua), the class is updated to its new
-- description, so that functions which programs hold use the new ids at once.
local again = require "perigee.call.again"
local bindings = require "perigee.call.binding"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local raw = require "perigee.call.raw"
local services = require "perigee.serving.service"
local slices = require "perigee.memory.slice"
local traces = require "perigee.serving.trace"
local typed = require "perigee.call.typed"

local M = {}

local KINDS = { typed = typed, raw = raw, inplace = raw }

local function version(value)
  if check.is_count(value) then return end
  if type(value) ~= "table" or not check.is_count(value[1])
    or not check.is_count(value[2]) or value[1] > value[2] then
    return "a version, an integer, or { lowest, highest }"
  end
end

local WITH = { timeout = check.seconds, into = slices.check,
               landing = check.callable, reader = check.callable,
               capacity = check.count,
               request_capacity = check.count, reconnect = check.seconds,
               epoch = check.string, term = check.count,
               trace = traces.check }
local OPEN = { version = version }
for name, each in pairs(WITH) do OPEN[name] = each end

-- ---- Bindings --------------------------------------------------------------

local RECONNECT = 3                     -- seconds that a call waits by default
M.RECONNECT = RECONNECT
local ASKING = 5                        -- for descriptions no caller waits for
local NOWHERE = 65535                   -- an id that no method has

-- Stands for the session of a proxy that must not reach the peer any more: it
-- has ended, with an error of kind, and otherwise describes the real session.
-- closed: for good; else the proxy may find another session.
local function nowhere(session, kind, why, closed)
  local real = session.real or session
  local text = real:text()
  return setmetatable({
    handle = false, closed = closed, real = real,
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

-- `into` as the object that stands for a slice or a list of slices.
local function placed(into, level)
  local place, why = slices.place(into)
  if not place then error("into: " .. why, level + 1) end
  return place
end

-- Where replies go, by the one of these options that was given, else as before.
-- Returns into, landing and reader: one of them, or none.
local function ways(options, before, level)
  local into, landing, reader = options.into, options.landing, options.reader
  if (into and landing) or (into and reader) or (landing and reader) then
    error("a reply goes into a slice, to a landing or to a reader, not to "
      .. "several of them", level + 1)
  end
  if into then return placed(into, level + 1), false, false end
  if landing or reader then return false, landing, reader end
  return before.into, before.landing, before.reader
end

local function bind(session, options, before, level)
  local timeout = options.timeout or before.timeout or 30
  local into, landing, reader = ways(options, before, level + 1)
  local binding = bindings.new(session, {
    class = before.class, link = before.link, version = before.version,
    reconnect = options.reconnect or before.reconnect or RECONNECT,
    timeout = timeout, into = into, landing = landing, reader = reader,
    capacity = options.capacity or before.capacity,
    request = options.request_capacity or before.request,
    epoch = options.epoch or before.epoch, term = options.term or before.term,
    trace = options.trace and traces.parse(options.trace) or before.trace,
  })
  if binding.epoch and binding.epoch ~= session.epoch then
    binding.link = false
    binding.session = nowhere(session, "stale", again.RESTARTED, true)
  elseif again.is_older(binding, session) then
    binding.session = nowhere(session, "stale", again.OLDER, false)
  end
  binding.bytes = binding.reader and "reader" or binding.capacity and "capacity"
    or binding.request and "request_capacity" or false
  binding.message.timeout = check.nanoseconds(timeout)
  return binding
end

local NOTHING = {}

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

local function binding_of(self, name, level)
  local binding = type(self) == "table" and rawget(self, 1)
  if type(binding) ~= "table" then check.dotted("proxy", name, level + 1) end
  return binding
end

-- Calls on the proxy give nil and an error of kind `closed` from now on.
local function close(self)
  local binding = binding_of(self, "close", 2)
  binding.link = false
  binding.session = nowhere(binding.session, "closed",
                            "the proxy of %s was closed", true)
end

local function unknown(class, name)
  local text = ("calling %s.%s of %s: %s has no such method; it has %s"):format(
    class.name, tostring(name), class.session:text(), class.name,
    services.names(class.methods))
  return function()
    return nil, errors.new("no_method", text, false)
  end
end

-- For a method that the service does not have: a function that returns the
-- error `no_method`.
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

--- Calls a method by its name, and waits until it has ended.
-- @function Proxy:method
-- @param ... the handler's arguments; for a raw method one string, slice or
--   writer
-- @return what the handler returned (above); or nil and an error
-- @errors `timeout`, `cancelled`, `peer_lost`, `remote`, `denied`, `too_large`,
--   `no_method`, `no_memory`, `protocol`
-- @waits yes
-- @usage
-- print(calc:add(1, 2))                                        --> 3
-- print(calc:echo "bytes")                                     --> bytes
-- print(store:put(region:slice(0, 100), "layer.3"))            --> 100 layer.3

--- Calls a method without waiting for its end. The peer's engine limits how
-- many calls are under way at once; further calls wait for their turn.
-- @function Proxy.async:method
-- @param ... as for `Proxy:method`
-- @treturn Future of what `Proxy:method` gives
-- @errors those of `Proxy:method`, by the future
-- @waits no
-- @usage
-- local one, two = calc.async:add(1, 2), calc.async:add(3, 4)
-- print(one:wait(), two:wait())                             --> 3 7

--- Makes a proxy of the same service with other options for calls. Options that
-- are not named stay as they were. It is cheap: it allocates a few small
-- tables.
-- @function Proxy:with
-- @tparam table options
-- @tparam[opt=30] number options.timeout seconds that a call may take;
--   math.huge for no limit
-- @tparam[opt] Slice options.into where the reply is stored: the bytes of a raw
--   or inplace method, the slice among the results of a typed one. A slice, or
--   a list of slices, of which the call then gives the filled parts as a list.
--   Without it, and without a landing or a reader, a raw reply is a Lua string:
--   one copy, for which the loop stands still (a few ms for each 10 MiB)
-- @tparam[opt] function options.landing says where the reply is stored when its
--   length is known. It gets the results of a typed method, with the length in
--   place of the slice, or the length of a raw or inplace method's reply, and
--   returns a slice or a list of slices; or nil and a reason, which end the
--   call in `denied`. A reply without a slice asks nothing. It runs on the loop
--   and must not wait. What it raises is raised to whoever waits for the call;
--   a place that is too short is `too_large`. It is asked again when an
--   idempotent call is made again. One of into, landing and reader is in force,
--   the one that was given last
-- @tparam[opt] function options.reader for raw and inplace methods: gets the
--   reply as a `View`, without a copy, and its results are the call's results
-- @tparam[opt] number options.capacity bytes that an inplace method's reply
--   may have; default: the length of `into`, else the request's, at least 8192
-- @tparam[opt] number options.request_capacity bytes of a writer's loan, at
--   least; default: capacity. With one of these three, calls of typed methods
--   are misuse
-- @tparam[opt=3] number options.reconnect seconds that a call waits for a peer
--   that is away; 0: one attempt
-- @tparam[opt] string options.epoch a session's epoch: after a restart of the
--   peer, calls end in `stale` and do not reach it
-- @tparam[opt] number options.term the `term` of a registry's entry: calls
--   reach nobody who took the name before its holder. They look for a later one
--   for `reconnect` seconds, and then end in `stale`
-- @tparam[opt] string|boolean options.trace the trace that the calls belong to:
--   a W3C traceparent, "00-<32 hex>-<16 hex>-<2 hex>", which `Context:trace`
--   gives on the other side; or the 32 digits alone, for a sampled trace and a
--   new span for each call; or true, for a new sampled trace for each call, and
--   for each time that it is made again. Both sides of a sampled call keep its
--   times in their stats files (`perigee trace`). Calls end in `unsupported` if
--   the peer does not have the feature "trace" (`Session:explain`). Default: a
--   call that a handler makes continues the trace of the call it serves with a
--   new span, if the peer has the feature; other calls begin a sampled trace
--   with the probability that PERIGEE_TRACE says, a number from 0 to 1
-- @treturn Proxy
-- @waits no
-- @usage
-- store:put(region:slice(0, 100), "key")
-- local landed = store:with { into = region:slice(4096, 4096) }:get "key"
-- print(landed.offset, landed.length)                       --> 4096 100
-- local own = store:with { landing = function(length)
--   return engine:alloc(length):slice(0, length)
-- end }:get "key"
-- print(own.length)                                            --> 100
-- local first = calc:with { timeout = 5, capacity = 2 ^ 20,
--                           reader = function(reply) return reply.length end }
-- print(first:copy(function(loan) return loan:write "12345" end))   --> 5
local function with_of(class)
  return function(self, options)
    local before = binding_of(self, "with", 2)
    check.options(options, WITH, "with", 2)
    if options == nil then error("with needs a table of options", 2) end
    return open(class, bind(before.session, options, before, 2))
  end
end

-- methods: the kinds of the current methods, by name. known: by name, all
-- methods of any description so far whose functions a program may still hold.
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

-- Updates the class to a description. Functions of known methods are kept.
local function fit(class, description)
  class.version = description.version
  forget_methods(class, class.sync.__index, class.async.__index)
  for key, told in pairs(description.methods) do
    fit_method(class, key, told)
  end
end
jit.off(forget_methods)
jit.off(fit)

-- Has the calls of each method be counted by themselves (perigee.stats).
local function count_apart(class, session)
  if not session.handle then return end
  for key in pairs(class.methods) do
    local id = class.known[key].id
    if id < NOWHERE then
      native.C.perigee_stats_method(session.engine.handle, session.handle, id,
                                    class.name, key)
    end
  end
end
jit.off(count_apart)

-- ---- Opening ---------------------------------------------------------------

local describe = typed.call { id = 0, name = "describe", service = "",
                              text = "the description" }

-- Checks a peer's description, which may be any value. services.new says what
-- a service may have. Returns nil, or what is wrong with it.
local function wrong_description(told)
  if type(told) ~= "table" or type(told.methods) ~= "table"
    or not check.is_count(told.version) then
    return "is none"
  end
  local count = 0
  for name, each in pairs(told.methods) do
    count = count + 1
    if count > services.METHODS then
      return ("has more than %d methods"):format(services.METHODS)
    end
    if services.wrong_name(name) or type(each) ~= "table"
      or not check.is_count(each.id) or each.id > NOWHERE then
      return "is none"
    end
  end
end
jit.off(wrong_description)

-- The kind of an error that a description's call ended with. Those who wait for
-- a lost peer go by it, so what the peer made up is none of this side's kinds.
local function kind_of(session, err)
  if err.remote then return "protocol" end
  if err.kind ~= "peer_lost" then return err.kind end
  if session.handle then loop.refresh(session.engine) end
  return session.handle and "protocol" or "peer_lost"
end

--- The description (service.lua) of the peer's service of that name, or nil and
-- an error. Waits.
local function ask(session, name, timeout)
  local asking = { bind(session, { timeout = timeout }, NOTHING, 2) }
  local agent = session.engine.agent
  local told, err = describe(asking, name, agent and agent.name)
  local doing = (name == "" and "asking " or "opening service " .. name
    .. " of ") .. session:text()        -- without a name: `perigee ping`
  if told == nil and errors.is_error(err) then
    return nil, errors.new(kind_of(session, err), doing .. ": " .. err.message,
                           false)
  elseif told == nil and type(err) == "string" then
    return nil, errors.new("no_service", doing .. ": " .. err, false)
  end
  local wrong = wrong_description(told)
  if not wrong then return told end
  return nil, errors.new("protocol", doing
    .. ": the peer's description of it " .. wrong, false)
end

M.describe = ask

-- Updates class to what session's peer serves. True, or nil and an error.
local function fit_to(class, session, timeout)
  if class.session == session then return true end
  local told, err = ask(session, class.name, timeout)
  if not told then return nil, err end
  fit(class, told)
  class.session = session
  count_apart(class, session)
  return true
end

-- The class of a service, kept by owner (a link or a session). The description
-- is fetched once for each session.
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

--- Updates all classes of link to what session's peer serves. Called when a
-- link has a new session. Calls fetch a description again if this fails for it.
function M.joined(link, session)
  local classes = {}                    -- a copy: fit_to waits
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

--- A proxy of a service of session's peer; see agent:proxy. link: used to find
-- the peer again, or nil; deadline: of this function, nil for the timeout from
-- now on. Raises misuse at level.
function M.open(session, name, options, level, link, deadline)
  check.value(name, check.string, "a service's name", level + 1)
  options = check.options(options, OPEN, "proxy", level + 1)
  local class, err = class_of(link or session, session, name,
    loop.left(deadline or loop.deadline(options.timeout or 30)))
  if not class then return nil, err end
  err = check_version(class, options.version, session)
  if err then return nil, err end
  local before = { class = class, link = link, version = options.version }
  return open(class, bind(session, options, before, level + 1))
end

-- The binding of what a program gave as a proxy.
local function bound(proxy, what, level)
  local binding = type(proxy) == "table" and rawget(proxy, 1)
  if type(binding) ~= "table" or not binding.class then
    error(("%s takes a proxy, not a %s"):format(what, type(proxy)), level + 1)
  end
  return binding
end

--- The session that a proxy's calls use now. It may have ended, and has ended
-- if the proxy was closed or was made for an earlier life of the peer.
-- @function perigee.session
-- @tparam Proxy proxy
-- @treturn Session the session
-- @waits no
-- @usage
-- print(perigee.session(calc) == session)                      --> true
function M.session(proxy)
  return bound(proxy, "perigee.session", 2).session
end

--- The method of that name of a proxy's service; or nil and an error. what: the
-- function that asks, for messages.
function M.method(proxy, name, what, level)
  local class = bound(proxy, what, level + 1).class
  if getmetatable(proxy) ~= class.sync then
    error(what .. " takes a proxy, not its async", level + 1)
  end
  check.value(name, check.string, "a method's name", level + 1)
  if class.methods[name] then return class.known[name] end
  return unknown(class, name)()
end

--- The checks of proxy options alone, before anything is dialled.
function M.check(name, options, level)
  check.value(name, check.string, "a service's name", level + 1)
  options = check.options(options, OPEN, "proxy", level + 1)
  return options
end

return M
