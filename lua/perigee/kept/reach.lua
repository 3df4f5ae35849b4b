-- SPDX-License-Identifier: Apache-2.0
--- How kept sessions (kept.lua) come by their next one: by their link, and then
-- the regions that were looked up before are looked up again. However many wait
-- for that, it is done once.
--
--   the session   event                              becomes
--   lost          somebody wants one, the link has   being joined
--                 one
--   being joined  all regions are told of            the present one
--   being joined  it ends, time is over, a stop      lost; regions stay as good
--                                                    as they were
local errors = require "perigee.errors"
local futures = require "perigee.future"
local links = require "perigee.link"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local left, now = loop.left, loop.now

local M = {}

local TIMEOUT = 30                      -- of a join
local PAUSE = 0.025                     -- before a region is asked for again

-- ---- Joining the next session ----------------------------------------------

-- Has a region of an earlier session be one of this, if it is the same. False
-- if the peer has not told.
local function carry_over(session, region, deadline)
  local found, err = session:region(region.name, { timeout = left(deadline) })
  if not session.handle then return false end
  if not found then
    return err.kind == "not_found" or not links.PASSING[err.kind]
  end
  if found.identity == region.identity then
    region:move_to(found)
    session.remotes[region] = region    -- ends with it, beside the one found
  end
  return true
end

-- Those that are no more are stale from then on.
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

-- In a task, in a time of its own: whose time is short must not be why regions
-- of others are lost. What does not come to its end is begun anew by the next
-- who wants a session.
local function join(kept, session)
  if kept.epoch ~= session.epoch then
    kept.regions = {}
  elseif not carry_all_over(kept, session, loop.deadline(TIMEOUT)) then
    if session.handle then tasks.sleep(PAUSE) end
    return
  end
  kept.current, kept.epoch = session, session.epoch
end

-- Waits until it has been joined, however many wait for that: is it the present
-- one, and alive? Or nil and an error.
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

-- Why nothing more is to be waited for, or nil.
local function over(kept)
  local gone = kept:gone()
  if gone or not loop.state.stopping then return gone end
  return errors.new("closed", ("using the session with %s: the loop was "
    .. "stopped"):format(kept:text()), false)
end

--- The session until deadline, or nil and an error. Waits; not longer than
-- until call, its caller's future, has ended.
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

--- A future of what waits for a session: close() ends it.
function M.waiter(kept, doing)
  local future = futures.new(kept, doing)
  kept.waiting[future] = true
  return future
end

--- As reach, for who has no future.
function M.enter(kept, deadline)
  local call = M.waiter(kept, "using the session with " .. kept:text())
  local session, err = M.reach(kept, deadline, call)
  kept.waiting[call] = nil
  if call.ended then return futures.results(call) end
  return session, err
end

--- Was err, of what was begun in session, that this is over, which nobody had
-- been told? Runs the loop.
function M.is_over(kept, session, err)
  if err.kind ~= "peer_lost" then return false end
  if session.handle then loop.refresh(kept.engine) end
  return not session.handle
end

return M
