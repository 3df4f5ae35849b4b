-- SPDX-License-Identifier: Apache-2.0
--- The file that says that a server has had tokens. It lies beside the server's
-- store, not in it. A store that was emptied, or replaced by another, must not
-- open the server to clients that needed a token before.
local log = require "perigee.runtime.log"
local private = require "perigee.net.private"

local M = {}

local TEXT = "The control server here has had tokens, so it wants one of each "
  .. "who asks, also if its\nstore has none any more. Without this file it "
  .. "serves without tokens again, if there are none.\n"

--- Is there one? A mark that cannot be read is there.
function M.is_there(path)
  if not path then return false end
  local text, kind = private.read(path, true)
  return text ~= nil or kind ~= "not_found"
end

--- Makes it. nil: there is no place for one.
function M.make(path)
  if not path or M.is_there(path) then return end
  local fine, _, why = private.write(path, TEXT)
  if fine then return end
  log.write("warning", "if the store is emptied while no server runs, the next "
    .. "one serves without tokens: " .. why)
end

return M
