-- SPDX-License-Identifier: Apache-2.0
-- A server that lies to its callers: invalid descriptions, replies of another
-- kind than was asked for, too many values, slices without a destination, loans
-- of a huge claimed length, failures with an invalid text.
local native = require "perigee.native"
local values = require "spec.hostile.values"

local C = native.C
local HUGE = 4 * 2 ^ 30
-- An RDMA device needs memory for all of it.
local PINNED = 64 * 2 ^ 20

local function methods()
  return { add = { id = 1, kind = "typed" }, echo = { id = 2, kind = "raw" },
           copy = { id = 3, kind = "inplace" } }
end

local encode = values.encode

-- Descriptions; the first are right, so that calls follow.
local descriptions = {
  encode { version = 1, methods = methods() },
  encode { version = 1, methods = methods() },
  encode { version = 1, methods = methods() },
  encode { version = 0 / 0, methods = {} },
  encode { version = 1, methods = { add = { id = 0.5, kind = "typed" } } },
  encode { version = 1, methods = { add = { id = 1, kind = {} } } },
  encode { version = 1, methods = { add = { id = 1, kind = "typed" },
                                    with = { id = 2, kind = "raw" },
                                    async = { id = 3, kind = "raw" },
                                    close = { id = 4, kind = "raw" },
                                    __index = { id = 5, kind = "raw" },
                                    [""] = { id = 6, kind = "typed" } } },
  encode { version = 1, methods = { add = { id = -1, kind = "typed" } } },
  encode { version = 1, methods = { [1] = true } },
  encode { version = {}, methods = 1 },
  encode(true), "", values.NIL:rep(10000),
  values.NIL .. encode {},
  values.NIL .. encode(("x"):rep(100000)),
}

local function typed(bytes, status, slice)
  return { typed = true, bytes = bytes, status = status or 0, slice = slice }
end

local function all_lies(slice)
  local many, text = values.NIL:rep(10000), encode "text"
  local list = {
    typed(encode {}, C.PERIGEE_REMOTE), typed(encode(7), C.PERIGEE_REMOTE),
    typed("why\0" .. encode {} .. encode {}, C.PERIGEE_REMOTE),
    typed("why\0" .. encode(7) .. text, C.PERIGEE_REMOTE),
    typed("why\0" .. text .. text .. encode(true), C.PERIGEE_REMOTE),
    typed("why\0" .. many, C.PERIGEE_REMOTE), typed("why\0", -4),
    typed(encode { { {} } } .. many, C.PERIGEE_REMOTE),
    typed(many, C.PERIGEE_REMOTE), typed(many), typed(many, C.PERIGEE_TIMEOUT),
    typed(many .. encode(1), 0, slice), typed(encode(1), 0, slice),
    typed(values.NIL .. encode(1e308), 0, slice),
    typed(values.NIL .. encode(-1), 0, slice),
    typed(values.NIL .. encode(0 / 0), 0, slice),
    typed(values.NIL .. encode {}, 0, slice),
    typed("", C.PERIGEE_REMOTE), typed("", 0, slice),
    typed(values.nested(60, 10)), typed(values.nested(60, 10), -5),
    { bytes = "raw", status = 0 }, { bytes = "raw", status = -4 },
    { bytes = ("r"):rep(200000), status = -4 }, { bytes = "", slice = slice },
    { bytes = ("r"):rep(60000) }, { status = -777, bytes = "?" },
    { status = 777, bytes = "?" },
  }
  return list
end

return function(attack)
  local peer = attack:peer { pool = 2 ^ 34, sessions = 4096 }
  local huge = attack.transport == "verbs" and PINNED or HUGE
  local slice = peer:memory(3000)
  local large = peer:memory(huge)
  local lies = all_lies(slice)
  attack:listen(peer)
  local said, described = 0, {}
  local function lie(event)
    said = said + 1
    if attack:random(30) == 0 then
      return peer:reply(event.operation, { bytes = "", slice = large })
    elseif attack:random(15) == 0 then
      local status = peer:reply_loan(event.operation, huge)
      if status >= 0 then return status end
    end
    return peer:reply(event.operation, lies[said % #lies + 1])
  end
  local function describe(event)
    described[event.session] = (described[event.session] or said) + 1
    local one = descriptions[described[event.session] % #descriptions + 1]
    if attack:random(3) > 0 then one = descriptions[1] end
    return peer:reply(event.operation, typed(one))
  end
  -- The attack's time begins with the first call.
  while attack.count == 0 or not attack:over() do
    peer:attend(0.05, function(event)
      if event.kind == C.PERIGEE_EVENT_LANDING then
        C.perigee_land(peer.handle, event.operation, native.slice_t())
      elseif event.kind == C.PERIGEE_EVENT_REQUEST then
        if event.method == 0 then describe(event) else lie(event) end
        attack:done()
      end
    end)
  end
  peer:close()
end
