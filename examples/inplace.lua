-- SPDX-License-Identifier: Apache-2.0
-- Inplace calls: the caller's writer fills the request in the memory where the
-- server reads it, and the server fills the reply in the memory where the
-- caller's reader looks at it. No byte is copied, so a large message costs
-- only filling and reading it.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local COUNT = 2 ^ 20
local LENGTH = COUNT * 4
local f32 = ffi.typeof("float *")

local function worker()
  local agent = assert(perigee.agent { name = "math", scope = common.scope })
  agent:serve {
    name = "math", version = 1,
    methods = {
      -- Computes y = 2 x + 1 from the request's memory to the reply's.
      affine = { raw = true, inplace = true, function(request, reply)
        if request.length > reply.length then error "the reply is short" end
        local x = ffi.cast(f32, request.pointer)
        local y = ffi.cast(f32, reply.pointer)
        for i = 0, request.length / 4 - 1 do y[i] = 2 * x[i] + 1 end
        return request.length
      end },
    },
  }
  common.ready()
end

local function driver()
  local agent = assert(perigee.agent { scope = common.scope })
  local math_service = assert(agent:proxy("math", "math", { timeout = 5 }))
  local round = 0

  local function writer(loan)
    local x = ffi.cast(f32, loan.pointer)
    for i = 0, COUNT - 1 do x[i] = i + round end
    return LENGTH
  end

  local function reader(reply)
    assert(reply.length == LENGTH)
    local y = ffi.cast(f32, reply.pointer)
    for i = 0, COUNT - 1 do
      if y[i] ~= 2 * (i + round) + 1 then return false, i end
    end
    return true
  end

  local affine = math_service:with { capacity = LENGTH, reader = reader }
  for n = 1, 20 do
    round = n
    local good, where = affine:affine(writer)
    assert(good, "element " .. tostring(where) .. " is wrong")
  end
  print(("20 calls with %d floats each way, every one checked, none copied")
    :format(COUNT))
  agent:close()
end

common.main(driver, { worker = worker }, { "worker" })
