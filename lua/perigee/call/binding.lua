-- SPDX-License-Identifier: Apache-2.0
--- The binding of a proxy, on which its methods work. It is an array, as a
-- future is: a field of a table with twenty of them lies in a line of memory of
-- its own, and with many calls under way each line is fetched from beyond the
-- nearest cache. Code that runs in each call uses these slots, other code the
-- names (binding.session). What is not given is false.
--
--   engine, session, message   message: a struct that is filled for every call
--   into, landing, reader      where replies go: one of these, or none
--   placed                     into or landing
--   home, room                 the owner of an `into` that is one slice, and
--                              its length; false of others
--   trace                      of its calls (trace.lua)
--   capacity, request          bytes of a reply; of a writer's loan, at least
--   timeout                    seconds
--   bytes                      the option that typed methods do not take, by
--                              name
--   class, version             what is known of the service (proxy.lua); the
--                              version that is wanted
--   link, reconnect            of calls that may go on in another session
--                              (again.lua): link is false for others; seconds
--   epoch, term                of the peer's life that is wanted
--   root, deadline, patience, sent   of a call that goes on (again.lua)
local native = require "perigee.native"

local new_table = require "table.new"

-- The first of these are in the same line.
local NAMES = { "session", "placed", "landing", "into", "trace", "message",
                "engine", "home", "room", "reader", "capacity", "bytes",
                "request", "timeout", "class", "version", "link", "reconnect",
                "epoch", "term", "root", "deadline", "patience", "sent" }
local SLOTS = {}
local M = {} -- SESSION, PLACED and so on: the slots of these names
for slot, name in ipairs(NAMES) do SLOTS[name], M[name:upper()] = slot, slot end

local META = {
  __index = function(binding, name) return rawget(binding, SLOTS[name]) end,
  __newindex = function(binding, name, value)
    rawset(binding, SLOTS[name], value)
  end,
}

--- Makes a binding of the fields that are given, for calls of session.
function M.new(session, fields)
  local binding = new_table(#NAMES, 0)
  for slot = 1, #NAMES do binding[slot] = fields[NAMES[slot]] or false end
  setmetatable(binding, META)
  local into = binding.into
  binding.session, binding.engine = session, session.engine
  binding.message = native.message_t()
  binding.placed = into or binding.landing
  binding.home = into and into.owner
  binding.room = binding.home and into.length
  return binding
end
jit.off(M.new)                          -- a proxy is made seldom

return M
