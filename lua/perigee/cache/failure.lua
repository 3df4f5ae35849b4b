-- SPDX-License-Identifier: Apache-2.0
--- Statuses of perigee/cache.so as errors. Two of them have no kind among those
-- of all errors: they travel as a code, and are a kind of their own at the
-- client.
--
-- * `exists`: the key is there, or another writer has reserved it (code "busy")
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local cache = require "perigee.cache.native"

local C, own = native.C, cache.C

local M = {}

local TEXTS = {
  [own.PERIGEE_CACHE_EXISTS] = "the key is there already",
  [own.PERIGEE_CACHE_BUSY] = "another writer has reserved the key",
  [own.PERIGEE_CACHE_WANTS] = "the cache got no memory of the system",
  [C.PERIGEE_NOT_FOUND] = "the key is not there",
  [C.PERIGEE_NO_MEMORY] = "the cache is full: nothing that is there may go",
  [C.PERIGEE_AGAIN] = "this client has too much open: leases, or reservations",
  [C.PERIGEE_STALE] = "it is no reservation, or no more",
  [C.PERIGEE_TOO_LARGE] = "more than a value may have",
}
local CODES = { [own.PERIGEE_CACHE_EXISTS] = "exists",
                [own.PERIGEE_CACHE_BUSY] = "busy" }

--- The error of a status. doing: what was being done, and to whom.
function M.of(status, doing)
  local code = CODES[status]
  local kind = code and "exists" or status == own.PERIGEE_CACHE_WANTS
    and "no_memory" or errors.kind(status)
  local err = errors.new(kind, ("%s: %s"):format(doing, TEXTS[status]
    or errors.text(status)), true)
  err.code = code
  return err
end

--- An error that came from the service, by its code.
function M.came(err)
  if err and (err.code == "exists" or err.code == "busy") then
    err.kind = "exists"
  end
  return err
end

return M
