-- SPDX-License-Identifier: Apache-2.0
--- Endpoints: halves of sessions that need no socket, over RDMA. Each side
-- makes one by `Engine:endpoint`, carries its `info` to the other side by a
-- way of its own, and connects it to what came from there.
-- @classmod Endpoint
local check = require "perigee.check"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local native = require "perigee.native"
local sessions = require "perigee.session"

local ffi = require "ffi"
local C = native.C

local M = {}

local PEER = "the peer's endpoint"

local Endpoint = {}
Endpoint.__index = Endpoint

--- engine:endpoint.
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

local function use(endpoint)
  if endpoint.handle then return endpoint.handle end
  error("the endpoint has been closed", 3)
end

--- What the peer's `connect` wants: a text of letters, digits and signs without
-- blanks, below 4 KiB; blanks and line ends around it do no harm. It is a
-- secret, good for one session: whoever reads it can be the peer. Raises once
-- the endpoint is closed.
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

--- A session with the endpoint whose info that is, when it has been connected
-- to this one's: in any order, as far apart as the timeouts allow. The session
-- does not need the endpoint, which is to be closed. A peer that dies is
-- noticed by its device's silence, in about a second. Raises once the endpoint
-- is closed, or was connected before.
-- @function Endpoint:connect
-- @tparam string info the peer's
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn Session the session; or nil and an error
-- @errors `protocol`: no endpoint's info, changed, or this one's own;
--   `version`: one that cannot be read (these leave the endpoint as it was);
--   `timeout`; `unsupported`; `peer_lost`
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

--- Its info is void then; a connect under way ends in `cancelled`; a session
-- that it has become stays. Idempotent.
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

return M
