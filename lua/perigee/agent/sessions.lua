-- SPDX-License-Identifier: Apache-2.0
-- Sessions of an agent with others, and proxies of their services.
local check = require "perigee.runtime.check"
local contexts = require "perigee.serving.context"
local errors = require "perigee.runtime.errors"
local kept = require "perigee.kept"
local loop = require "perigee.runtime.loop"
local peers = require "perigee.agent.peers"
local proxies = require "perigee.call.proxy"
local sessions = require "perigee.engine.session"

local M = {}

-- Returns the session with peer and its link, and connects if there is none; or
-- nil and an error.
local function session_with(self, peer, timeout, level)
  local link, err = peers.link(self, peer, level + 1)
  if not link then return nil, err end
  if link:live() then loop.refresh(self.engine) end -- may have ended unseen
  local session = link:live()
  if session then return session, link end
  session, err = link:open(timeout)
  if not session then return nil, err end
  return session, link
end

-- Opens a proxy of a service whose peer was lost, with err, before it had told
-- of it. Waits for the peer as calls do. Returns the proxy; or nil and an
-- error.
local function open_again(link, service, options, deadline, err)
  local patience = loop.deadline(options.reconnect or proxies.RECONNECT)
  patience = math.min(patience, deadline)
  local session, proxy
  repeat
    loop.refresh(link.engine)           -- the end may not have been seen
    session = link:reach(patience, deadline)
    if not session then return nil, err end
    proxy, err = proxies.open(session, service, options, 3, link, deadline)
  until proxy or err.kind ~= "peer_lost" or loop.now() >= patience
  return proxy, err
end

local function is_older(one, other) return one.id < other.id end

local SESSION = { timeout = check.seconds, keep = check.boolean,
                  reconnect = check.seconds }

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Returns the session with a peer: the existing one, or a new one. It finds,
-- reads and writes the peer's memory; `Session:explain` tells which transport
-- carries it.
-- @function Agent:session
-- @tparam string peer the name of an agent in this agent's scope, or an address
--   ("tcp://HOST:PORT", "unix:/PATH")
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @tparam[opt=false] boolean options.keep true: returns a `Kept` session, which
--   connects again after the peer was lost
-- @tparam[opt=3] number options.reconnect seconds that transfers of a kept
--   session wait for a peer that is away
-- @treturn Session|Kept the session; or nil and an error
-- @errors `not_found`: nobody has that name, or listens there; `timeout`;
--   `denied`: the peer is another user's, or has another secret; `version`;
--   `unsupported`: the transport that was asked for; `peer_lost`; `no_memory`;
--   with a registry other than the folder those of `Registry:lookup`, and
--   `protocol`
-- @waits yes
-- @usage
-- local same = assert(agent:session "worker:0")
-- print(same == session)                                       --> true
-- print(select(2, agent:session "nobody").kind)             --> not_found
function Agent:session(peer, options)
  options = check.options(options, SESSION, "session")
  local session, link = session_with(self, peer, options.timeout, 2)
  if not session then return nil, link end
  if not options.keep then return session end
  return kept.new(link, session, options.reconnect)
end

--- Lists the sessions that there are, those that this agent has opened and
-- those that peers have opened to it.
-- @function Agent:sessions
-- @treturn {Session,...} a list, in the order in which they began; empty once
--   the agent is closed
-- @waits no
-- @usage
-- for _, each in ipairs(agent:sessions()) do each:explain() end
-- print(#agent:sessions() > 0)                                 --> true
function Agent:sessions()
  local list = {}
  for _, session in pairs(self.engine.sessions) do
    if session.handle then
      session.known = true
      list[#list + 1] = session
    end
  end
  table.sort(list, is_older)
  return list
end
jit.off(Agent.sessions)

--- Returns a proxy of a peer's service. A second proxy to the same peer uses
-- the same session.
--
-- The proxy outlives the session. When the peer is lost, each pending call ends
-- once, with `peer_lost`; only calls of methods marked `idempotent` are made
-- again, within their timeout. The next call connects again, asks for the
-- service's description, and is then made. A call that is made while the peer
-- is away waits for it for `reconnect` seconds of its timeout, or, if its
-- method is idempotent, for the whole timeout. Then it ends with `peer_lost`,
-- or with `timeout` if its timeout is over, and `err.sent == false`. The proxy
-- does not connect again once this side has closed the session, the proxy or
-- the agent. So it is with a peer that is lost before it has told of the
-- service.
-- @function Agent:proxy
-- @tparam string peer as for `Agent:session`
-- @tparam string service the service's name
-- @tparam[opt] table options those of `Proxy:with`, and
-- @tparam[opt=30] number options.timeout seconds, for this function and as the
--   default of calls
-- @tparam[opt] number|table options.version the version wanted, or `{ lowest,
--   highest }`; default: any
-- @treturn Proxy the proxy; or nil and an error
-- @errors `no_service`, `version`: of the service; those of `Agent:session`
-- @waits yes
-- @usage
-- local sums = assert(agent:proxy("worker:0", "calc", { version = { 1, 2 } }))
-- print(sums:add(1, 2))                                        --> 3
-- print(select(2, agent:proxy("worker:0", "abacus")).kind)     --> no_service
function Agent:proxy(peer, service, options)
  options = proxies.check(service, options, 2)
  local deadline = loop.deadline(options.timeout or 30)
  local session, link = session_with(self, peer, options.timeout, 2)
  if not session then return nil, link end
  local proxy, err = proxies.open(session, service, options, 2, link, deadline)
  if not proxy and err.kind == "peer_lost" and not session.closed then
    return open_again(link, service, options, deadline, err)
  end
  return proxy, err
end

end

--- Returns a proxy of a service of this session's peer. It is for sessions that
-- no agent has made, as those of endpoints. The proxy ends with the session.
-- @function Session:proxy
-- @tparam string service the service's name
-- @tparam[opt] table options as for `Agent:proxy`
-- @treturn Proxy the proxy; or nil and an error
-- @errors `no_service`, `version`, `peer_lost`, `timeout`
-- @waits yes
-- @usage
-- local sums = assert(session:proxy "calc")
-- print(sums:add(20, 3))                                       --> 23
function sessions.Session:proxy(service, options)
  options = proxies.check(service, options, 2)
  loop.check_wait(2)
  if not self.handle then
    return nil, self:gone(("opening service %s of %s"):format(service,
      self:text()))
  end
  local proxy, err = proxies.open(self, service, options, 2)
  return proxy, err
end

function contexts.open_proxy(session, service, options, level)
  proxies.check(service, options, level)
  loop.check_wait(level)
  if not session or not session.handle then
    return nil, errors.new("peer_lost", ("opening service %s of the caller: it "
      .. "is gone"):format(service), false)
  end
  local proxy, err = proxies.open(session, service, options, level)
  return proxy, err
end

check.colons(sessions.Session, "session", "proxy")

return M
