-- SPDX-License-Identifier: Apache-2.0
--- Endpoints make sessions over RDMA without a socket. Each side makes one by
-- `Engine:endpoint`, passes its `info` to the other side by a channel of its
-- own, and connects its endpoint with the info that came from there.
-- @classmod Endpoint
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local sessions = require "perigee.engine.session"

local ffi = require "ffi"
local C = native.C

local M = {}

local PEER = "the peer's endpoint"

local Endpoint = {}
Endpoint.__index = Endpoint

--- Does what engine:endpoint promises.
function M.new(engine, options)
  local out = ffi.new("struct perigee_endpoint *[1]")
  local status = C.perigee_endpoint_open(engine.handle, options.transport, out)
  if status < 0 then
    return nil, errors.from(status, "making an endpoint", engine.handle,
                            false)
  end
  local endpoint = setmetatable({ engine = engine, handle = out[0],
                                  connecting = false }, Endpoint)
  engine.endpoints[endpoint] = true
  return endpoint
end

function Endpoint:__tostring()
  return ("endpoint (%s)"):format(self.handle and "open" or "closed")
end

local function use(endpoint)
  if endpoint.handle then return endpoint.handle end
  error("the endpoint has been closed", 3)
end

--- Returns the text that the peer gives to its `connect`: letters, digits and
-- signs without blanks, less than 4 KiB; blanks and line ends around it are
-- ignored. The text is a secret for one session: whoever reads it can pose as
-- the peer. Raises once the endpoint is closed.
-- @function Endpoint:info
-- @treturn string the text
-- @waits no
-- @usage
-- local endpoint = engine:endpoint()                -- nil without a device
-- if endpoint then print(#endpoint:info() < 4096) end
function Endpoint:info()
  return ffi.string(C.perigee_endpoint_info(use(self)))
end

local CONNECT = { timeout = check.seconds }

--- Connects this endpoint with the peer's, and returns the session once the
-- peer has connected its endpoint with this one. The sides may call it in any
-- order, as far apart as their timeouts allow. The session does not need the
-- endpoint, so close it afterwards. A peer that dies is noticed in about a
-- second, by its device's silence. Raises if the endpoint is closed or was
-- connected before.
-- @function Endpoint:connect
-- @tparam string info the info of the peer's endpoint
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Session the session; or nil and an error
-- @errors `protocol`: the info is not that of an endpoint, was changed, or is
--   this endpoint's own; `version`: this side cannot read its version (both
--   leave the endpoint as it was); `timeout`; `unsupported`; `peer_lost`
-- @waits yes
-- @usage
-- local endpoint = engine:endpoint()                -- nil without a device
-- if endpoint then
--   print(select(2, endpoint:connect(endpoint:info())).kind)
-- end
function Endpoint:connect(info, options)
  check.value(info, check.string, "endpoint:connect's info")
  options = check.options(options, CONNECT, "endpoint:connect")
  local handle, engine = use(self), self.engine
  loop.check_wait(2)
  local operation = C.perigee_endpoint_connect(handle, info,
    check.nanoseconds(options.timeout or 30))
  if operation < 0 then
    return nil, errors.from(operation, "connecting to " .. PEER, engine.handle,
                            false)
  end
  self.connecting = futures.start(engine, operation, { to = PEER, peer = PEER },
                                  sessions.connected)
  return self.connecting:wait()
end

--- Closes the endpoint; its info is invalid from then on. A pending connect
-- ends with `cancelled`; a session that was made stays open. Idempotent.
-- @function Endpoint:close
-- @waits no
-- @usage
-- local endpoint = engine:endpoint()                -- nil without a device
-- if endpoint then endpoint:close() end
function Endpoint:close()
  local handle = self.handle
  if not handle then return end
  self.handle = false
  self.engine.endpoints[self] = nil
  C.perigee_endpoint_close(handle)
  if self.connecting then self.connecting:cancel() end
end

check.colons(Endpoint, "endpoint", "close connect info")

return M
