-- SPDX-License-Identifier: Apache-2.0
-- The server that is attacked. It has the README's services, copied from there,
-- and landings, and listens under its name and over TCP.
local ffi = require "ffi"

-- A secret of 32 bytes, which is not stretched: honest clients make an agent
-- for each connect.
local M = { SECRET = "c3BlYy9ob3N0aWxlJ3Mgc2VjcmV0LCAzMiBieXRlcyE=" }

-- The service that the README's first script defines.
function M.calc()
  local file = assert(io.open "README.md")
  local text = file:read "*a"
  file:close()
  local script = text:match "```lua\n(.-)```"
  local before = assert(script:match "^(.*)assert%(perigee%.serve",
                        "the README's first script serves no more")
  return assert(loadstring(before .. "return calc"))()
end

-- Slices by name, of 64 KiB each, in memory allocated before.
local function store(agent)
  local region = agent.engine:alloc(2 ^ 20)
  local function place(key)
    return region:slice((tonumber(key) or 0) % 16 * 2 ^ 16, 2 ^ 16)
  end
  return {
    name = "store", version = 1,
    methods = {
      put = { landing = function(length, key)
                if length > 2 ^ 16 then return nil, "no room" end
                return place(key):slice(0, length)
              end,
              function(slice) return slice.length end },
      get = function(key) return place(key) end,
      render = { raw = true, inplace = true, function(_, reply)
        ffi.fill(reply.pointer, reply.length, 7) -- all that was asked for
        return reply.length
      end },
      weigh = { raw = true, function(request)
        return tostring(#request:string()) -- a copy: all of it is read
      end },
      stats = function()
        local stats = agent.engine:stats()
        return stats.operations, stats.pooled, stats.sessions, stats.refused,
          stats.dropped
      end,
    },
  }
end

local MODES = { ["true"] = true, ["nil"] = false }

-- Runs as a child of spec/support/process.lua. encrypt: "true", "nil" or a
-- mode; scale: from "1" on it accepts more sessions than by default.
function M.serve(child, perigee, encrypt, scale)
  local mode = MODES[encrypt]
  if mode == nil then mode = encrypt end
  local agent = assert(child.cases.agent("worker", {
    listen = "tcp://127.0.0.1:0", secret = M.SECRET, encrypt = mode or nil,
    engine = tonumber(scale) >= 1 and { sessions = 16384 } or nil }))
  agent:serve(M.calc())
  agent:serve(store(agent))
  child.say(agent.address, agent.addresses[1])
  perigee.run()
  agent:close()
end

return M
