-- SPDX-License-Identifier: Apache-2.0
--- The tokens that are taken by what a command serves: of the file of --tokens.
local tokens = require "perigee.control.tokens"

local M = {}

--- The storage of who has no tokens.
M.none = { written = function() return 0 end,
           all_tokens = function() return {} end,
           close = function() end }

--- Opens them. server: its field `storage`, which is M.none, gets the file's,
-- which it closes. to: `tokens`, the file, and `wanted`, as of control. Returns
-- the tokens; or nil and a message.
function M.open(server, to)
  if to.tokens then
    local storage, _, why = require "perigee.control.file".open(to.tokens)
    if not storage then return nil, "opening --tokens: " .. why end
    server.storage = storage
  end
  return tokens.new(server.storage, {
    wanted = to.wanted or to.tokens ~= nil, strangers = "admin" }),
    "the tokens of --tokens cannot be read"
end

return M
