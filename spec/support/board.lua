-- SPDX-License-Identifier: Apache-2.0
-- A registry that an agent serves: an example of a registry other than the
-- folder. The board is a child process. Its clients hold names, and lose them
-- when their session with the board ends.
local M = {}

-- The program of the child (process.start).
function M.serve(child, perigee)
  local entries = require "perigee.registry.entry"
  local held, agent = {}, assert(child.cases.agent("board"))
  local changes, waiting = {}, {}       -- the revision is #changes
  local id = child.cases.scope .. os.time()

  -- Wakes the watchers, so that they look for changes.
  local function changed(key)
    changes[#changes + 1] = key
    for future in pairs(waiting) do future:cancel() end
    waiting = {}
  end

  local function free(key)
    held[key] = nil
    changed(key)
  end

  agent:on_session(function(session)
    perigee.spawn(function()
      session:ended():wait()
      for key, one in pairs(held) do
        if one.holder == session.peer then free(key) end
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
    changed(key)
    return key
  end

  function methods.renew(key, entry)
    local one = held[key]
    if not one or one.holder ~= perigee.context().peer then
      return nil, "name_taken", "another has it"
    end
    one.entry = entry or one.entry
    changed(key)
    return true
  end

  function methods.release(key)
    local one = held[key]
    if one and one.holder == perigee.context().peer then free(key) end
  end

  function methods.lookup(scope, name)
    local one = held[scope .. "/" .. name]
    return one and one.entry
  end

  local function of_scope(scope)
    local list = {}
    for _, one in pairs(held) do
      if one.entry.scope == scope then list[#list + 1] = one.entry end
    end
    return list
  end

  function methods.list(scope, filter)
    return entries.select(of_scope(scope), filter)
  end

  function methods.watch(scope, filter)
    local from = tonumber((filter.from or ""):match("^" .. id .. ":(%d+)$"))
    if not from then
      return { revision = id .. ":" .. #changes,
               entries = entries.select(of_scope(scope), filter) }
    end
    local context = perigee.context()
    while from == #changes and not context:cancelled() do
      local future = perigee.spawn(perigee.sleep, 1)
      waiting[future] = true
      future:wait()
      waiting[future] = nil
    end
    local list = {}
    for at = from + 1, #changes do
      local in_scope, name = changes[at]:match "^(.*)/(.*)$"
      if in_scope == scope then
        local one = held[changes[at]]
        list[#list + 1] = { name = name, entry = one and one.entry }
      end
    end
    return { revision = id .. ":" .. #changes, changes = list }
  end

  agent:serve { name = "names", methods = methods }
  child.say("ready")
  perigee.run()
  agent:close()
end

--- The registry, once the board is ready: a proxy of an agent made here.
function M.registry(cases)
  local client = assert(cases.agent())
  return assert(client:proxy("board", "names",
                             { timeout = 20 * cases.slow })).async
end

return M
