-- SPDX-License-Identifier: Apache-2.0
-- A worker: three kinds of method and a region that peers read and write by
-- themselves. It serves until it is stopped by Ctrl-C or SIGTERM:
--   luajit examples/serve.lua [name]        then, beside it:
--   luajit examples/call.lua [name]
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local MEMORY = 2 ^ 26
local u32 = ffi.typeof("const uint32_t *")
local name = arg[1] or "worker:0"

local calc = {
  name = "calc", version = 1,
  methods = {
    -- Typed: Lua values in, Lua values out.
    add = function(a, b) return a + b end,

    -- Raw: bytes in, bytes out.
    echo = { raw = true, function(request) return request end },

    -- Inplace: from the request's memory to the reply's.
    copy = { raw = true, inplace = true, function(request, reply)
      return reply:write(request)
    end },
  },
}

local scope = arg[3] or os.getenv("PERIGEE_SCOPE") or "demo"
local agent, err = perigee.agent { name = name, scope = scope }
if not agent then
  io.stderr:write(tostring(err), "\n")
  os.exit(1)
end
local memory = agent.engine:alloc(MEMORY, { name = "memory", access = "rw" })

agent:serve(calc)
agent:serve {
  name = "memory", version = 1,
  methods = {
    -- Returns the sum of one 32-bit word of each page, as the memory's owner
    -- sees it.
    sum = function()
      local words = ffi.cast(u32, memory:slice(0, MEMORY).pointer)
      local sum = 0
      for i = 0, MEMORY / 4 - 1, 1024 do sum = sum + words[i] end
      return sum
    end,
  },
}

if arg[2] then
  common.follow()
  common.ready()
end
print(("serving calc and memory as %s; stop with Ctrl-C"):format(name))
io.stdout:flush()
perigee.run()
agent:close()
print("stopped")
