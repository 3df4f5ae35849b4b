-- SPDX-License-Identifier: Apache-2.0
-- One message of several GiB from one process to another, whose every word is
-- looked at: lengths and offsets beyond 32 bits.

local ffi = require "ffi"
local perigee = require "perigee"

local M = {}

local PIECE = 2 ^ 28 -- words: indexes within one are 32-bit integers
local LONG = { timeout = math.huge }

-- Each piece of a GiB has words of its own; `f` is given its pointer, how many
-- words it has, and its first word.
local function pieces(slice, f)
  local words = slice.length / 4
  for k = 0, math.ceil(words / PIECE) - 1 do
    local count = math.min(PIECE, words - k * PIECE)
    local at = ffi.cast("int32_t *", slice.pointer + k * PIECE * 4)
    if not f(at, count, 0x2545f49 * (k + 1)) then return false end
  end
  return true
end

local function fill(at, count, first)
  for i = 0, count - 1 do at[i] = bit.bxor(first, i) end
  return true
end

local function is_right(at, count, first)
  local wrong = 0
  for i = 0, count - 1 do
    wrong = bit.bor(wrong, bit.bxor(at[i], bit.bxor(first, i)))
  end
  return wrong == 0
end

local function agent_of(given, name)
  return assert(perigee.agent { name = name, scope = given.scope,
                                transport = given.transport,
                                encrypt = given.encrypt })
end

--- Receives it; prints "ready", then what it found.
function M.receive(given)
  local agent = agent_of(given, "giant")
  local slice = assert(agent.engine:alloc(given.giant)):slice()
  local came
  agent:on_session(function(session) came = came or session end)
  io.write "ready\n"
  io.flush()
  while not came do perigee.sleep(0.001) end
  local length, err = came:recv(slice, LONG):wait()
  if not length then
    print("it did not come: " .. tostring(err))
  elseif length ~= given.giant then
    print(("%.0f of %.0f bytes came"):format(length, given.giant))
  else
    print(pieces(slice, is_right) and "fine" or "wrong bytes came")
  end
  io.flush()
  agent:close()
end

--- Sends it; prints how that ended.
function M.send(given)
  local agent = agent_of(given, "giver")
  local slice = assert(agent.engine:alloc(given.giant)):slice()
  pieces(slice, fill)
  local session = assert(agent:session "giant")
  local fine, err = session:send(slice, LONG):wait()
  print(fine and "fine" or "it was not sent: " .. tostring(err))
  io.flush()
  agent:close()
end

return M
