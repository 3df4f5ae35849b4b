-- SPDX-License-Identifier: Apache-2.0
-- The lying peer of the C tests (spec/native/liar.c), against a whole agent.
-- attack.lie names the kind of lie.
local process = require "spec.support.process"

local LIES = { scribble = 0, records = 1, replies = 2, words = 3 }

return function(attack)
  local program = assert(os.getenv "PERIGEE_BUILD") .. "/spec/hostile/liar"
  while not attack:over() do
    local liar = process.spawn {
      program, attack.address, tostring(LIES[attack.lie]),
      tostring(attack:random(2 ^ 30)), tostring(2e8) }
    attack:done()
    local how, number = liar:wait(10)
    if not how then attack:found "the liar hangs" end
    if how == "exit" and number == 127 then error("no " .. program, 0) end
    liar:close()
  end
end
