-- SPDX-License-Identifier: Apache-2.0
-- A registry that an agent of its own serves: what it takes to have another one
-- than the folder. The board is a child process; who has a session with it may
-- hold names, and loses them with the session.
local M = {}

-- What that child runs (process.start).
function M.serve(child, perigee)
  local held, agent = {}, assert(child.cases.agent("board"))

  agent:on_session(function(session)
    perigee.spawn(function()
      session:ended():wait()
      for key, one in pairs(held) do
        if one.holder == session.peer then held[key] = nil end
      end
    end)
  end)

  local methods = {}

  function methods.hold(entry)
    local key = entry.scope .. "/" .. entry.name
    local one = held[key]
    if one then
      return nil, "name_taken", ("process %d of %s has it"):format(
        one.entry.pid, one.entry.host)
    end
    held[key] = { entry = entry, holder = perigee.context().peer }
    return key
  end

  function methods.release(key)
    local one = held[key]
    if one and one.holder == perigee.context().peer then held[key] = nil end
  end

  function methods.lookup(scope, name)
    local one = held[scope .. "/" .. name]
    return one and one.entry
  end

  agent:serve { name = "names", methods = methods }
  child.say("ready")
  perigee.run()
  agent:close()
end

--- The registry, once the board is ready: asked by an agent that is made here.
function M.registry(cases)
  local client = assert(cases.agent())
  return assert(client:proxy("board", "names",
                             { timeout = 20 * cases.slow })).async
end

return M
