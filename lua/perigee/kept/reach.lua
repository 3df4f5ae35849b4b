-- SPDX-License-Identifier: Apache-2.0
--- Gets the next session of a kept session (kept): the link opens it, and then
-- all regions that were looked up before are looked up again. This is done
-- once, however many operations wait for it.
--
--   the session   event                              becomes
--   lost          an operation needs one, the link   being joined
--                 has one
--   being joined  all regions were looked up         the present one
--   being joined  it ends, time is over, a stop      lost; regions stay as they
--                                                    were
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local links = require "perigee.link"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"

local left, now = loop.left, loop.now

local M = {}

local TIMEOUT = 30                      -- seconds of a join
local PAUSE = 0.025                     -- seconds before a join is tried again

-- ---- Joining the next session ----------------------------------------------

-- Looks a region of an earlier session up in this one, and moves it there if it
-- is the same memory. Returns false if the peer has not answered.
local function carry_over(session, region, deadline)
  local found, err = session:region_apart(region.name, left(deadline))
  if not session.handle then return false end
  if not found then
    return err.kind == "not_found" or not links.PASSING[err.kind]
  end
  if found.identity == region.identity and region.session ~= session
    and not region.closed then
    region:move_to(found)
  else
    found:close()
  end
  return true
end

-- Carries all regions over; those that no longer exist are stale from then on.
-- Returns false if the peer has not answered for one of them.
local function carry_all_over(kept, session, deadline)
  local names = {}
  for name in pairs(kept.regions) do names[#names + 1] = name end
  for _, name in ipairs(names) do
    local region = kept.regions[name]
    if not region.closed and not carry_over(session, region, deadline) then
      return false
    end
    if region.session ~= session then kept.regions[name] = nil end
  end
  return true
end
jit.off(carry_all_over)

-- Joins a session, in a task with a timeout of its own: a caller's short
-- timeout must not lose the regions of others. The next operation that needs a
-- session begins it again if it was not completed.
local function join(kept, session)
  if kept.epoch ~= session.epoch then
    kept.regions = {}
  elseif not carry_all_over(kept, session, loop.deadline(TIMEOUT)) then
    if session.handle then tasks.sleep(PAUSE) end
    return
  end
  kept.current, kept.epoch = session, session.epoch
end

-- Waits until session has been joined; one join serves all that wait. Returns
-- whether session is the present one and alive; or nil and an error.
local function joined(kept, session, deadline, call)
  if kept.current == session then return session.handle end
  local joining = kept.joining
  if not joining or joining.ended then
    joining = tasks.spawn(join, kept, session)
    kept.joining = joining
  end
  links.wait(joining, deadline, call)
  local err = joining.ended and futures.failure(joining)
  if err then return nil, err end
  return kept.current == session and session.handle
end

-- ---- Reaching it -----------------------------------------------------------

local function not_reached(kept, err, deadline)
  local kind = err and err.kind or "timeout"
  if links.PASSING[kind] and kind ~= "closed" then
    kind = now() < deadline and "peer_lost" or "timeout"
  end
  return errors.new(kind, err and err.message
    or ("connecting to %s: no answer in time"):format(kept:text()), false)
end

-- Returns the error of a kept session that was closed, or of a stopped loop,
-- else nil.
local function over(kept)
  local gone = kept:gone()
  if gone or not loop.state.stopping then return gone end
  return errors.new("closed", ("using the session with %s: the loop was "
    .. "stopped"):format(kept:text()), false)
end

--- Waits for the session until deadline, or until call, the caller's future,
-- has ended. Returns it, or nil and an error.
function M.reach(kept, deadline, call)
  local patience = math.min(deadline, loop.deadline(kept.reconnect))
  local why = over(kept)
  if why then return nil, why end
  repeat
    local session, err = kept.link:reach(patience, deadline, call)
    why = over(kept)
    if why then return nil, why end
    if not session then return nil, not_reached(kept, err, deadline) end
    local fine
    fine, err = joined(kept, session, deadline, call)
    if fine or err then return fine and session, err end
  until call.ended or now() >= deadline
  return nil, over(kept) or not_reached(kept, nil, deadline)
end

--- Returns a future of an operation that waits for a session; Kept:close ends
-- it.
function M.waiter(kept, doing)
  local future = futures.new(kept, doing)
  kept.waiting[future] = true
  return future
end

--- As reach, for callers that have no future.
function M.enter(kept, deadline)
  local call = M.waiter(kept, "using the session with " .. kept:text())
  local session, err = M.reach(kept, deadline, call)
  kept.waiting[call] = nil
  if call.ended then return futures.results(call) end
  return session, err
end

--- Tells whether err, of an operation in session, is `peer_lost` because the
-- session is over. Handles known events first, since Lua may not have been
-- told.
function M.is_over(kept, session, err)
  if err.kind ~= "peer_lost" then return false end
  if session.handle then loop.refresh(kept.engine) end
  return not session.handle
end

return M
