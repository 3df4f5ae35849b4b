-- SPDX-License-Identifier: Apache-2.0
-- A relay between a dialer and a listener. It passes on what both send, until
-- connection `number` has passed `limit` bytes in one direction ("to" the
-- listener, or "back"). Then it acts, once: "KILL" and "STOP" are signals to
-- process pid, "cut" stops passing anything on, without closing. "swallow" goes
-- on reading what that one connection brings, and passes none of it on.
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

local function act(state, link)
  state.acted = true
  if state.what == "cut" then
    state.deaf = true
  elseif state.what == "swallow" then
    link.swallows = true
  else
    process.signal(state.pid, state.what)
  end
  state.say "now"
end

-- The number of bytes that may pass before it has to act.
local function room(state, link, way)
  local watched = link.number == state.number and way == state.way
  if state.acted or not watched then return 65536 end
  return state.limit - link.passed[way]
end

local function pass(state, link, way)
  local from, to = link.dialer, link.listener
  if way == "back" then from, to = to, from end
  local text = sockets.receive(from, room(state, link, way))
  if not text then return end
  if text ~= "" and link.swallows then return end
  if text == "" or not sockets.send(to, text) then
    link.over = true
    return
  end
  link.passed[way] = link.passed[way] + #text
  if room(state, link, way) == 0 then act(state, link) end
end

local function accept(state, links, at)
  local link = { number = #links + 1, dialer = sockets.accept(at),
                 listener = sockets.dial(state.target),
                 passed = { to = 0, back = 0 } }
  links[#links + 1] = link
  if not link.listener then
    sockets.close(link.dialer)
    link.over = true
  elseif room(state, link, state.way) == 0 then
    act(state, link)
  end
end

local function finish(link)
  sockets.close(link.dialer)
  sockets.close(link.listener)
  link.closed = true
end

-- state: say, host (to listen at), target, what, pid, number, way, limit.
return function(state)
  local links, at, port = {}, sockets.listen(state.host)
  state.say(("tcp://%s:%d"):format(state.host, port))
  while true do
    local fds, of = { at }, {}
    for _, link in ipairs(links) do
      if link.over and not link.closed and link.listener then finish(link) end
      if not link.over then
        fds[#fds + 1], of[link.dialer] = link.dialer, { link, "to" }
        fds[#fds + 1], of[link.listener] = link.listener, { link, "back" }
      end
    end
    for _, fd in ipairs(sockets.readable(state.deaf and {} or fds, 0.5)) do
      if fd == at then
        accept(state, links, at)
      elseif not (state.deaf or of[fd][1].over) then
        pass(state, unpack(of[fd]))
      end
    end
  end
end
