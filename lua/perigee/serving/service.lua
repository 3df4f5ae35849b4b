-- SPDX-License-Identifier: Apache-2.0
--- Definitions of services: the tables that `perigee.serve`, `perigee.agent`
-- and `Agent:serve` take. They are checked once. Callers get a description of
-- the methods, never the functions.
--
-- * `name`: the service's name, 1 to 255 bytes in UTF-8; `version`: an integer,
--   default 1
-- * `methods`: handlers by name, 1,024 at most. A handler is a function, or a
--   table with the function as its first element and any of these fields:
--
-- * `raw = true`: the payload is bytes: the handler gets a `View` and returns a
--   string, its own view, a slice or nothing
-- * `inplace = true`: it also gets the reply's loan (a `View`), and returns how
--   many bytes it filled
-- * `capacity = n`, for inplace methods: a caller that offers less than n bytes
--   for the reply gets `too_large`, and the handler does not run
-- * `idempotent = true`: the method may be called again if the peer was lost,
--   within the call's timeout
-- * `landing = function(length, ...)`, for typed methods: chooses where the
--   slice among the arguments is stored. It gets the slice's length and the
--   other arguments, and returns a slice, or nil and a reason (`denied` to the
--   caller; an `Error` that has a `code` keeps its kind and code). If it
--   returns a list of slices, the handler gets the list of their filled parts.
--   Without a landing the slice is stored in a pooled block
-- * `abandoned = function(slice, ...)`: called once if the landing returned a
--   slice and the handler will never run. `perigee.context` is misuse in it
--
-- Methods called `with`, `async` or `close` are refused. Typed handlers run in
-- tasks of their own: they may call, sleep and wait, and a slow one blocks no
-- other call. Raw and inplace handlers, landings and `abandoned` run on the
-- loop and must not wait. If a handler raises, the caller gets `remote` with
-- the message as text (and `err.code`, if it raised a table with a code).
-- @classmod Service
-- @usage
-- local stored
-- agent:serve { name = "blocks", version = 3, methods = {
--   add = function(a, b) return a + b end,
--   echo = { raw = true, function(request) return request end },
--   copy = { raw = true, inplace = true, capacity = 5, function(request, reply)
--     return reply:write(request)
--   end },
--   put = { idempotent = true,
--           landing = function(length, key)
--             if length > 4096 then return nil, "at most 4096 bytes" end
--             return region:slice(0, length)
--           end,
--           abandoned = function(slice, key) stored = nil end,
--           function(slice, key) stored = key return slice.length end },
-- } }
-- local blocks = assert(agent:proxy(agent.name, "blocks"))
-- print(blocks:put(engine:alloc(100):slice(), "k"), stored)    --> 100 k
-- print(select(2, blocks:put(engine:alloc(5000):slice())).kind)   --> denied
-- print(blocks:copy "inplace")                                 --> inplace
local check = require "perigee.runtime.check"
local sorted = require "perigee.runtime.sorted"

-- METHODS: the most of a service, so that its description is read at once.
local M = { METHODS = 1024 }

local REFUSED = { with = true, async = true, close = true }

local SERVICE = {
  name = check.string, methods = check.table,
  version = function(value)
    if not check.is_count(value) then return "an integer of at least 0" end
  end,
}

-- capacity, of inplace methods: the least that a caller has to offer for the
-- reply; with less the call is refused before the handler runs.
local METHOD = {
  raw = check.boolean, inplace = check.boolean, idempotent = check.boolean,
  landing = check.callable, capacity = check.count,
  abandoned = check.callable, [1] = check.callable,
}

local function kind_of(definition)
  if definition.inplace then return "inplace" end
  return definition.raw and "raw" or "typed"
end

local function check_method(what, definition, level)
  check.options(definition, METHOD, what, level + 1)
  if not definition[1] then
    error(what .. " has no handler; it is the table's first element", level + 1)
  end
  if kind_of(definition) ~= "typed"
    and (definition.landing or definition.abandoned) then
    error(what .. " is raw, and only typed methods have landings", level + 1)
  end
  if definition.abandoned and not definition.landing then
    error(what .. " has abandoned but no landing", level + 1)
  end
  if definition.capacity and not definition.inplace then
    error(what .. " has a capacity, and only inplace methods have", level + 1)
  end
end

--- Says what is wrong with a method's name; or nil.
function M.wrong_name(name)
  if type(name) ~= "string" or name == "" or #name > 255 then
    return "a method's name must be a string of 1 to 255 bytes"
  elseif REFUSED[name] then
    return ("a method cannot be called %q, which every proxy has"):format(name)
  end
end

local function method_of(service, name, definition, level)
  local wrong = M.wrong_name(name)
  if wrong then
    error(("service %s: %s"):format(service.name, wrong), level + 1)
  end
  local what = ("method %s.%s"):format(service.name, name)
  if type(definition) == "function" then definition = { definition } end
  check_method(what, definition, level + 1)
  return { service = service.name, name = name, kind = kind_of(definition),
           text = service.name .. "." .. name, handler = definition[1],
           landing = definition.landing or false,
           capacity = definition.capacity or 0,
           abandoned = definition.abandoned or false,
           idempotent = definition.idempotent or false }
end

--- Checks definition and makes a service of it: name, version and methods by
-- name. Raises at level.
function M.new(definition, level)
  check.value(definition, check.table, "a service", level + 1)
  check.options(definition, SERVICE, "a service", level + 1)
  local name = definition.name
  if not name or name == "" or #name > 255 or check.text(name) then
    error("a service needs a name of 1 to 255 bytes in UTF-8", level + 1)
  end
  check.value(definition.methods, check.table,
              ("service %s: its methods"):format(name), level + 1)
  local service = { name = name, version = definition.version or 1,
                    methods = {} }
  local count = 0
  for key, value in pairs(definition.methods) do
    count = count + 1
    if count > M.METHODS then
      error(("service %s has more than %d methods: make several services of it")
        :format(name, M.METHODS), level + 1)
    end
    service.methods[key] = method_of(service, key, value, level + 1)
  end
  return service
end
jit.off(M.new)

--- The description that callers get: the service's version, and each method's
-- kind, id, landing, idempotent and capacity.
function M.describe(service)
  local methods = {}
  for name, each in pairs(service.methods) do
    methods[name] = { id = each.id, kind = each.kind,
                      landing = each.landing and true or nil,
                      capacity = each.capacity > 0 and each.capacity or nil,
                      idempotent = each.idempotent or nil }
  end
  return { version = service.version, methods = methods }
end
jit.off(M.describe)

--- "a, b and c" of a table's keys, sorted; "none" without any.
function M.names(map)
  local names = sorted(map)
  if #names == 0 then return "none" end
  if #names == 1 then return names[1] end
  return table.concat(names, ", ", 1, #names - 1) .. " and " .. names[#names]
end

return M
