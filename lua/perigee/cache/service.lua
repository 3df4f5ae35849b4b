-- SPDX-License-Identifier: Apache-2.0
--- The service "cache" of an agent that has a store. Its methods are for
-- clients of any language:
--
-- * `about()`: a table that tells of the cache: `version` (of this list),
--   `small` (bytes of values that come along with `ask`), `largest` (of a
--   value), `kind` (of its memory), `file` (whether there is one below: what is
--   not in memory may be there), `spill` (whether there is memory of the host
--   below, which `ask` tells of, too, but the mapped directory does not)
-- * `ask`: raw and inplace; requests that native/cache/cache.h lays out
-- * `release`: the same for RELEASE alone, which is answered while the cache
--   drains (`Cache:drain`), as are `write`, `seal` and `abort`
-- * `put(slice, key, options)`: pulls the slice to a place of its own, and
--   seals it. Returns the entry's version. options: `ttl` (ns), `group`,
--   `parent`, `if_absent`, `pin` ("soft", "hard", "copy": cache.h)
-- * `reserve(key, length, options)`: returns a token of a place that nobody
--   sees; `write(slice, token, offset)` pulls bytes into it; `seal(token)`
--   returns the entry's version; `abort(token)`
-- * `fetch(key)`: returns whether the key is in memory, or was in the file
--   below and has been brought to memory now
-- * `wait(key, seconds)`: returns whether the key is there, or has come
--   meanwhile
--
-- Errors have the codes "exists" and "busy" (another writer has reserved the
-- key), "clients" (it has too many) and "forgets" (its file has too much to
-- forget), or a kind: `no_memory` (it is full), `not_found` (the parent),
-- `stale` (no reservation), `too_large`. What a client sends is checked here or
-- in the core; a lie is its own error. No method is idempotent: a client of
-- several caches asks another one, rather than wait for one that is lost.
local bytes = require "perigee.cache.bytes"
local check = require "perigee.runtime.check"
local contexts = require "perigee.serving.context"
local failure = require "perigee.cache.failure"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local slices = require "perigee.memory.slice"
local wire = require "perigee.cache.wire"

local cache = require "perigee.cache.native".C
local C = native.C

local M = {}

local LONGEST_WAIT = 3600               -- seconds

-- The session of the call that a typed handler serves.
local function session() return contexts.current().session end

-- The core checks those of places; these are looked up, and waited for, here.
local function is_key(value)
  return type(value) == "string" and #value >= 1
    and #value <= cache.PERIGEE_CACHE_KEY
end

local function id_of(of) return of and of.id or 0 end

-- An error of a put. It has a code, so that it keeps its kind where a landing
-- gives it, too.
local function refusal(status, key)
  local err = failure.of_put(status, ("putting %s"):format(type(key) == "string"
    and ("%q"):format(key:sub(1, 64)) or "a value"))
  err.code = err.code or err.kind
  return err
end

-- ---- put -------------------------------------------------------------------

-- A slice comes as the first argument: the handler finds the reservation by it.
local function comes_first() return contexts.raw.place == 1 end

-- Reservations to which bytes come are found by the slices that landings gave:
-- a place may be another put's when the session has ended, and a call without a
-- slice has had no landing, which is what checks whose reservation it is.
local function put_landing(store)
  return function(length, key, asked)
    if not comes_first() then return nil, refusal(C.PERIGEE_PROTOCOL) end
    local one, status = store:reserve(contexts.raw.session, key, length, asked)
    if not one then return nil, refusal(status, key) end
    one.put = true
    local slice = one.slice
    store.landed[slice] = one
    return slice
  end
end

-- The reservation for which a landing gave a slice, once; nil: none did.
local function taken(store, slice)
  if not slices.is_slice(slice) then return nil end
  local one = store.landed[slice]
  store.landed[slice] = nil
  return one
end

-- Makes the checksum of a value that has come, if the store makes some; others
-- run meanwhile, and its slab may go if the session ends.
local function sum_of(store, slice)
  return store.sums and bytes.sum(slice) or 0
end

local function put(store)
  return function(slice, key)
    local one = taken(store, slice)
    if not one then return nil, refusal(C.PERIGEE_PROTOCOL, key) end
    local version, status = store:seal(one, sum_of(store, slice))
    if not version then return nil, refusal(status, key) end
    return version
  end
end

-- ---- Reservations ----------------------------------------------------------

local function token_of(store, token)
  local one = store:reservation(id_of(session()), token)
  if one then return one end
  return nil, refusal(C.PERIGEE_STALE)
end

local function write_landing(store)
  return function(length, token, offset)
    if not comes_first() then return nil, refusal(C.PERIGEE_PROTOCOL) end
    local one = store:reservation(contexts.raw.session, token)
    if not one then return nil, refusal(C.PERIGEE_STALE) end
    if not check.is_count(offset) or offset + length > one.length then
      return nil, refusal(C.PERIGEE_RANGE)
    end
    one.filling = one.filling + 1
    local slice = one.slice:slice(offset, length)
    store.landed[slice] = one
    return slice
  end
end

local function filled(store)
  return function(slice)
    local one = taken(store, slice)
    if not one then return nil, refusal(C.PERIGEE_PROTOCOL) end
    one.filling, one.at = one.filling - 1, loop.now()
    return true
  end
end

--- Returns the definition of the service of a store.
function M.of(store)
  local about = { version = 1, small = wire.SMALL, kind = store.kind or "host",
                  largest = cache.PERIGEE_CACHE_LARGEST }
  return { name = "cache", version = 1, methods = {
    about = function()
      local tier = store.tier
      about.file = tier and tier.file ~= nil and tier.file ~= false
      about.spill = tier and tier.below ~= nil
      return about
    end,
    ask = { raw = true, inplace = true, capacity = 8,
            function(request, reply)
              return store:answer(contexts.raw.session, request, reply)
            end },
    release = { raw = true, inplace = true, capacity = 8,
                function(request, reply)
                  return store:release(contexts.raw.session, request, reply)
                end },
    put = { landing = put_landing(store), abandoned = function(slice)
              store:abort(taken(store, slice))
            end, put(store) },
    reserve = function(key, length, asked)
      local one, status = store:reserve(id_of(session()), key, length, asked)
      if not one then return nil, refusal(status, key) end
      return one.token
    end,
    write = { landing = write_landing(store), abandoned = filled(store),
              filled(store) },
    seal = function(token)
      local one, err = token_of(store, token)
      if not one then return nil, err end
      one.filling = one.filling + 1     -- nobody aborts it meanwhile
      local sum = sum_of(store, one.slice)
      one.filling = one.filling - 1
      local version, status = store:seal(one, sum)
      if not version then return nil, refusal(status) end
      return version
    end,
    abort = function(token)
      local one, err = token_of(store, token)
      if not one then return nil, err end
      local status = store:abort(one)
      if status < 0 then return nil, refusal(status) end
      return true
    end,
    fetch = function(key)
      if not is_key(key) then return nil, refusal(C.PERIGEE_PROTOCOL) end
      if not store.tier then return store:has(key) end
      local there, status = store.tier:fetch(key)
      if there == nil then return nil, refusal(status, key) end
      return there
    end,
    wait = function(key, seconds)
      if not is_key(key) or check.seconds(seconds) then
        return nil, refusal(C.PERIGEE_PROTOCOL)
      end
      local there, status = store:wait(id_of(session()), key,
                                       math.min(seconds, LONGEST_WAIT))
      if there == nil then return nil, refusal(status, key) end
      return there
    end,
  } }
end

return M
