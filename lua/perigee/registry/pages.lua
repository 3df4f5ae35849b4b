-- SPDX-License-Identifier: Apache-2.0
--- The limits of lists that a server gives page by page. Each page says whether
-- there is another; a list ends at the limits, whatever the server says.
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"
local turns = require "perigee.runtime.turn"

local M = {}

local SECONDS = 60
local NAMES, BYTES = 2 ^ 18, 2 ^ 26

local Pages = {}
Pages.__index = Pages

--- The counts of one list so far. future: the list's, which may be cancelled;
-- nil: nobody can.
function M.new(future)
  return setmetatable({ future = future, names = 0, bytes = 0, pages = 0,
                        deadline = loop.deadline(SECONDS) }, Pages)
end

--- Runs f(pages, ...) in a task. Returns the future of its results; who cancels
-- that has the list end with its present page.
function M.spawn(f, ...)
  local future = futures.new(false, "listing names")
  tasks.drive(future, function(_, ...)
    futures.settle(future, f(M.new(future), ...))
  end, ...)
  return future
end

--- Counts a name of a page, by the bytes that tell of it. Waits now and then.
function Pages:name(bytes)
  self.names, self.bytes = self.names + 1, self.bytes + bytes
  turns.give()
end

--- Counts a page. True; or nil, a kind and why there may not be another.
function Pages:turn()
  self.pages = self.pages + 1
  if self.future and self.future.ended then
    return nil, "cancelled", "nobody waits for the list"
  elseif loop.now() >= self.deadline then
    return nil, "timeout", ("the list has not ended within %d s")
      :format(SECONDS)
  elseif self.names > NAMES or self.pages > NAMES then
    return nil, "too_large", ("the scope has more than %d names"):format(NAMES)
  elseif self.bytes > BYTES then
    return nil, "too_large", ("the scope has more than %d MiB of entries")
      :format(BYTES / 2 ^ 20)
  end
  return true
end

return M
