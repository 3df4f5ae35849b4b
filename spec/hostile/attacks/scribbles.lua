-- SPDX-License-Identifier: Apache-2.0
-- A peer that writes random bytes over all its shared memory: its own half, and
-- what it may write of the victim's. It may kill itself first.
local ffi = require "ffi"
local native = require "perigee.native"

local FEW = 2 ^ 20 -- bytes written to a mapping, at most

-- The shared mappings that this process may write to: start and length.
local function shared()
  local list = {}
  for line in io.lines "/proc/self/maps" do
    local from, to = line:match "^(%x+)%-(%x+) rw%-s .*memfd:"
    if from then
      local start = tonumber(from, 16)
      list[#list + 1] = { ffi.cast("volatile uint8_t *", start),
                          math.min(tonumber(to, 16) - start, FEW) }
    end
  end
  return list
end

local function some_call(attack, peer, session)
  local names = { "echo", "copy", "add" }
  local name = names[attack:random(3) + 1]
  peer:call(session, { method = attack.methods[name], timeout = 1,
                       bytes = ("s"):rep(attack:random(60000)),
                       capacity = name == "copy" and 60000 or nil })
end

local function scribble(attack, list)
  local one = list[attack:random(#list) + 1]
  local at = attack:random(one[2])
  -- The words at the head of a mapping, and those of rings, matter most.
  if attack:random(2) == 0 then at = attack:random(math.min(one[2], 16384)) end
  local n = attack:random(2) == 0 and 8 or attack:random(300)
  for i = at, math.min(at + n, one[2]) - 1 do one[1][i] = attack:random(256) end
end

return function(attack)
  while not attack:over() do
    local peer = attack:peer { pool = 2 ^ 24, hello_timeout = 1e9 }
    local session = attack:dial(peer, 1)
    local list = shared()
    for _ = 1, session and 60 or 0 do
      some_call(attack, peer, session)
      for _ = 1, attack:random(20) do scribble(attack, list) end
      peer:poll()
    end
    attack:done()
    if native.C.perigee_now(peer.handle) > 0 then peer:close() end
  end
end
