-- SPDX-License-Identifier: Apache-2.0
--- Files that hold what only their user may know: keys and tokens.
local control = require "perigee.net.native"
local errors = require "perigee.runtime.errors"

local ffi = require "ffi"
local C = control.C

local M = {}

local MOST = 65536                      -- bytes of a file

--- The text of a file that others can neither read nor write; or nil, a kind
-- and why. group: its group may read it.
function M.read(path, group)
  local into = ffi.new("char[?]", MOST)
  local length = tonumber(C.perigee_private_read(path, group and 1 or 0,
                                                 into, MOST))
  if length >= 0 then return ffi.string(into, length) end
  local why = length == C.PERIGEE_DENIED
    and "it must be this user's, with no access for others (chmod 600)"
    or errors.text(length)
  return nil, errors.kind(length), ("%s: %s"):format(path, why)
end

--- Writes a file of mode 600, in place of what is there, at once. True; or nil,
-- a kind and why.
function M.write(path, text)
  local status = C.perigee_private_write(path, text, #text)
  if status >= 0 then return true end
  return nil, errors.kind(status), ("%s: %s"):format(path, errors.text(status))
end

return M
