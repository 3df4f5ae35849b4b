-- SPDX-License-Identifier: Apache-2.0
--- Statuses of perigee/cache.so as errors. Those of its own have codes, by
-- which a program tells apart what has one kind:
--
-- * `exists`, which is no kind of other errors: the key is there, or (code
--   "busy") another writer has reserved it. It travels as a code, and is a kind
--   at the client
-- * `no_memory` of the service: code "clients": the cache has as many sessions
--   as it may have; "forgets": its file has too much to forget
-- * of the file below: `no_memory` (code "no_space": its file system is full),
--   `denied` ("read_only": nobody may write there, or this process may not;
--   "foreign": it is not a cache's file, or not this user's alone),
--   `name_taken` ("in_use": another cache has it), `unsupported` ("io": the
--   device failed, or the file was cut)
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local cache = require "perigee.cache.native"

local C, own = native.C, cache.C

local M = {}

-- Of each status: the sentence, and, if they are not the core's, kind and code.
local FAILURES = {
  [own.PERIGEE_CACHE_EXISTS] = { "the key is there already", "exists",
                                 "exists" },
  [own.PERIGEE_CACHE_BUSY] = { "another writer has reserved the key", "exists",
                               "busy" },
  [own.PERIGEE_CACHE_WANTS] = { "the cache got no memory of the system",
                                "no_memory" },
  [own.PERIGEE_CACHE_CLIENTS] = { "the cache has too many clients (its option "
                                  .. "clients)", "no_memory", "clients" },
  [own.PERIGEE_CACHE_FORGETS] = { "the cache's file has too much to forget "
                                  .. "now", "no_memory", "forgets" },
  [own.PERIGEE_CACHE_NO_SPACE] = { "the file system is full", "no_memory",
                                   "no_space" },
  [own.PERIGEE_CACHE_READ_ONLY] = { "the file cannot be written to", "denied",
                                    "read_only" },
  [own.PERIGEE_CACHE_FOREIGN] = { "the file is not a cache's of this user",
                                  "denied", "foreign" },
  [own.PERIGEE_CACHE_IN_USE] = { "another cache has the file", "name_taken",
                                 "in_use" },
  [own.PERIGEE_CACHE_IO] = { "the device failed, or the file was cut",
                             "unsupported", "io" },
  [C.PERIGEE_NOT_FOUND] = { "the key is not there" },
  [C.PERIGEE_NO_MEMORY] = { "the cache is full: nothing that is there may go" },
  [C.PERIGEE_AGAIN] = { "this client has too much open: leases, or "
                        .. "reservations" },
  [C.PERIGEE_STALE] = { "it is no reservation, or no more" },
  [C.PERIGEE_TOO_LARGE] = { "more than a value may have: 1 GiB, or what its "
                            .. "scope has of the cache's memory (its option "
                            .. "memory)" },
}
local NONE = {}

--- The error of a status. doing: what was being done, and to whom; why: a
-- sentence in place of the status's.
function M.of(status, doing, why)
  local told = FAILURES[status] or NONE
  local err = errors.new(told[2] or errors.kind(status), ("%s: %s"):format(
    doing, why or told[1] or errors.text(status)), true)
  err.code = told[3]
  return err
end

--- The same of a put, which misses no key but its parent's.
function M.of_put(status, doing)
  return M.of(status, doing, status == C.PERIGEE_NOT_FOUND
    and "the parent is not there" or nil)
end

--- An error that came from the service, by its code.
function M.came(err)
  if err and (err.code == "exists" or err.code == "busy") then
    err.kind = "exists"
  end
  return err
end

--- What a typed method of a cache has told: its result, if wrong(result) tells
-- nothing (check.lua); or nil and an error. A cache that lies tells anything.
function M.told(text, wrong, result, err)
  if not wrong(result) then return result end
  if not result and errors.is_error(err) then return nil, M.came(err) end
  return nil, M.of(C.PERIGEE_PROTOCOL, text)
end

--- Has a cache no room? Leases that wait to be given back may take it.
function M.is_full(result, err)
  return result == nil and err.kind == "no_memory"
end

return M
