-- SPDX-License-Identifier: Apache-2.0
--- Converts the specs of callers, { from = slice, to = slice } or a list of
-- these, to the structs that the core takes. Raises misuse at the given level.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local slices = require "perigee.memory.slice"
local units = require "perigee.runtime.units"

local C = native.C
local store_local, store_remote = slices.store_local, slices.store_remote
local nanoseconds = check.nanoseconds
local next, type, rawget, rawset = next, type, rawget, rawset

local M = {}

local READ = C.PERIGEE_OP_READ
local DEFAULT = 30e9                    -- an operation's timeout
M.NAMES = { [READ] = "read", [C.PERIGEE_OP_WRITE] = "write",
            [C.PERIGEE_OP_WRITE_IMM] = "write_imm" }

local function misuse(kind, problem, level)
  error(("session:%s: %s"):format(M.NAMES[kind], problem), level + 1)
end
M.misuse = misuse

--- Says what is wrong with the names in a spec; or nil.
local function unknown(spec)
  for key in pairs(spec) do
    if key ~= "from" and key ~= "to" and key ~= "timeout" then
      return ("a transfer has from and to (and timeout), no %s"):format(
        tostring(key))
    end
  end
end
jit.off(unknown)                        -- see check.lua

--- Does spec, which has from and to, have an unknown name? Every transfer calls
-- this. A walk by next() looks up each name to find the one behind it, and took
-- a third of a short transfer. So the known names are taken out for one look,
-- and put back: nothing runs meanwhile but a debug hook, which must not raise
-- there. Their places in the table stay, so a caller may be going through it.
function M.has_unknown(spec)
  local from, to = rawget(spec, "from"), rawget(spec, "to")
  if from == nil or to == nil then return true end
  local timeout = rawget(spec, "timeout")
  rawset(spec, "from", nil)
  rawset(spec, "to", nil)
  if timeout ~= nil then rawset(spec, "timeout", nil) end
  local other = next(spec)
  rawset(spec, "from", from)
  rawset(spec, "to", to)
  if timeout ~= nil then rawset(spec, "timeout", timeout) end
  return other ~= nil
end

--- Says what is wrong with a spec that is not a valid transfer.
local function explain(spec)
  return unknown(spec) or "a transfer needs from and to, two slices"
end
M.explain = explain

-- Fills item, a struct perigee_transfer. Returns what is wrong, or nil. from
-- and to are slices or Lists.
local function fill(item, session, kind, from, to)
  local why
  if kind == READ then
    why = store_remote(item.remote, from, session)
      or store_local(item["local"], to, session.engine)
  else
    why = store_local(item["local"], from, session.engine)
      or store_remote(item.remote, to, session)
  end
  if why then return why end
  if from.length ~= to.length then
    return ("from has %d bytes and to has %d"):format(from.length, to.length)
  end
end
M.fill = fill

--- What stands for the sides of a transfer that fill() refused, if one of them
-- is a list of slices: slices or Lists, which the caller keeps until the core
-- has read them. Otherwise nil, and what is wrong if the list is.
function M.places(from, to)
  if not slices.stands(from) or not slices.stands(to)
    or slices.is_slice(from) and slices.is_slice(to) then
    return nil
  end
  local a, why = slices.place(from)
  if not a then return nil, "from: " .. why end
  local b
  b, why = slices.place(to)
  if not b then return nil, "to: " .. why end
  return a, b
end

-- ---- What has failed --------------------------------------------------------

local function total(kept)
  local bytes = 0
  for i = 1, #kept, 2 do bytes = bytes + kept[i].length end
  return bytes
end

--- "write of 4 KiB to region "kv" of worker:0 at 8192", of from and to; or of
-- a list of such pairs, of which the first is told.
function M.doing(kind, from, to)
  local kept = to and { from, to } or from
  local remote = slices.sample(kept[kind == READ and 1 or 2])
  local parts = #kept / 2
  return ("%s of %s%s %s %s at %.0f%s"):format(M.NAMES[kind],
    units.format_size(total(kept)),
    parts > 1 and (" in %d parts"):format(parts) or "",
    kind == READ and "from" or "to", remote.owner:text(), remote.offset,
    parts > 1 and " and on" or "")
end

--- The error of an operation that the core has ended, within so many
-- nanoseconds.
function M.ended(event, doing, timeout)
  local why = errors.why(event)
  if event.status == C.PERIGEE_TIMEOUT and not why then
    why = "it did not end within " .. units.format_time(timeout * 1e-9)
  end
  return errors.ended(event.status, doing, why)
end

-- The error of a remote slice, or nil.
local function stale_slice(session, kind, remote)
  local other = slices.is_slice(remote) and remote.owner.session
  if other and remote.owner.left then
    return errors.new("stale", ("%s with %s: the peer has closed %q")
      :format(M.NAMES[kind], session:text(), remote.owner.name), false)
  end
  if not other or other == session or other.handle then return nil end
  return errors.new("stale", ("%s with %s: region %q is of an earlier life of "
    .. "%s: look it up again"):format(M.NAMES[kind], session:text(),
    remote.owner.name, other:text()), false)
end

--- The error `stale` if a remote slice of the transfer belongs to another
-- session, which has ended (as after a restart of the peer), or to a region
-- that was left as the peer has closed it; else nil.
function M.stale(session, kind, from, to)
  local remote = kind == READ and from or to
  if slices.is_slice(remote) or not slices.stands(remote) then
    return stale_slice(session, kind, remote)
  end
  for i = 1, #remote do
    local err = stale_slice(session, kind, rawget(remote, i))
    if err then return err end
  end
end

-- Fills item by two sides, of which each may be a list of slices. Returns what
-- is wrong, or nil and both sides, which have to be kept.
local function sides(item, session, kind, from, to)
  local why = fill(item, session, kind, from, to)
  if not why then return nil, from, to end
  from, to = M.places(from, to)
  if not from then return to or why end
  return fill(item, session, kind, from, to), from, to
end
M.sides = sides

-- The same by a spec.
local function problem(item, session, kind, spec)
  if type(spec) ~= "table" then return "a transfer is a table" end
  if not (spec.from and spec.to) then return explain(spec) end
  if spec.timeout then return "timeout is of the list, not of one of it" end
  local why = unknown(spec)
  if why then return why end
  return sides(item, session, kind, spec.from, spec.to)
end

--- Converts a list of specs: returns the core's list, its length, and the
-- slices that must stay alive with it; or nil and an error of kind stale.
function M.list(session, kind, specs, level)
  local n = #specs
  if n == 0 then misuse(kind, explain(specs), level + 1) end
  for key in pairs(specs) do
    if type(key) ~= "number" and key ~= "timeout" then
      misuse(kind, explain { [key] = true }, level + 1)
    end
  end
  local list, kept = native.transfers_t(n), {}
  for i = 1, n do
    local why, from, to = problem(list[i - 1], session, kind, specs[i])
    if why then
      local spec = specs[i]
      local err = type(spec) == "table"
        and M.stale(session, kind, spec.from, spec.to)
      if err then return nil, err end
      misuse(kind, ("number %d: %s"):format(i, why), level + 1)
    end
    kept[2 * i - 1], kept[2 * i] = from, to
  end
  return list, n, kept
end
jit.off(M.list)

--- A copy of a spec, since the caller may change its tables later, and those of
-- its lists of slices.
function M.copy(spec)
  local own = {}
  for key, value in pairs(spec) do
    if type(key) == "number" then
      own[key] = M.copy(value)
    else
      own[key] = slices.stands(value) and slices.place(value) or value
    end
  end
  return own
end
jit.off(M.copy)

--- Nanoseconds of options.timeout (nil: the default).
function M.timeout(options, level)
  local timeout = options.timeout
  if timeout == nil then return DEFAULT end
  check.value(timeout, check.seconds, "a transfer's timeout", level + 1)
  return nanoseconds(timeout)
end

local TIMEOUT = { timeout = check.seconds }

--- The same for a function that has no other options.
function M.only_timeout(options, what)
  if options == nil then return DEFAULT end
  check.options(options, TIMEOUT, what, 3)
  return M.timeout(options, 3)
end

return M
