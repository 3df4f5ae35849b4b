-- SPDX-License-Identifier: Apache-2.0
--- The functions that an agent calls for each session that peers open to it.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local log = require "perigee.runtime.log"
local signals = require "perigee.runtime.signal"

local state = signals.state

local M = {}

local Arrivals = {}
Arrivals.__index = Arrivals

--- Returns the functions of one agent. Their list is replaced and never
-- changed, because a function that is called may add and remove some.
function M.new(agent)
  return setmetatable({ agent = agent, list = {} }, Arrivals)
end

local Told = {}
Told.__index = Told

function Told:close()
  self.f = false
  self.arrivals:replace()
end

--- Removes the functions that were closed, and adds one, if given.
function Arrivals:replace(added)
  local list = {}
  for _, each in ipairs(self.list) do
    if each.f then list[#list + 1] = each end
  end
  list[#list + 1] = added
  self.list = list
end

--- Has f called from now on. Returns the object whose close() ends that.
function Arrivals:add(f)
  local told = setmetatable({ arrivals = self, f = f }, Told)
  self:replace(told)
  return told
end

local function tell(agent, f, session)
  state.pinned = "a function that on_session was given"
  local fine, failure = xpcall(f, errors.traced, session)
  state.pinned = false
  if fine then return end
  errors.pass(failure)
  log.write("error", ("telling of a session that came to %s failed: %s")
    :format(tostring(agent), tostring(failure)))
end

--- Calls all functions with a session that came. An error in one does not keep
-- the others from being called.
function Arrivals:tell(session)
  local list = self.list
  for i = 1, #list do
    local f = list[i].f                 -- one before it may have closed it
    if f and session.handle then
      session.known = true
      tell(self.agent, f, session)
    end
  end
end

check.colons(Told, "the object of on_session", "close")

return M
