-- SPDX-License-Identifier: Apache-2.0
--- For tasks that have much to do at a time: they give the others their turn
-- after each portion, so that the loop goes on meanwhile.
local collector = require "perigee.runtime.collector"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"

local M = {}

local PORTION = 5e5                     -- nanoseconds

local over = 0                          -- when the present portion is

--- To be called often, in a task: waits until the loop has turned once if the
-- portion is over. Shared state may have changed after it.
function M.give()
  if loop.now() < over then return end
  collector.owe()
  collector.pay()
  loop.wait(futures.new(), 0)
  over = loop.now() + PORTION
end

return M
