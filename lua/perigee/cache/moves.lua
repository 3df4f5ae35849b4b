-- SPDX-License-Identifier: Apache-2.0
--- Copies between a cache's own regions, of which one may be memory of a GPU:
-- the engine moves the bytes on its own time, as it does for a peer. So the
-- cache has a session with itself, by which it reads its regions by their names
-- into slices of others. The loop waits for none of it.
--
--   a copy     event                                     becomes
--   begun      its region is known in this session       under way
--   begun      it is to be looked up                     looked up
--   looked up  it is found                               under way
--   looked up  it is not, or a stop of the loop          over: it has failed
--   under way  the engine has ended it, well or not      over
--
-- When a copy is over, the engine touches neither side any more, so its owner
-- may use both again. The session is made with the first copy, and again when
-- it was lost.
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local sessions = require "perigee.engine.session"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"

local M = {}

local Moves = {}
Moves.__index = Moves

-- Seconds for which a copy, and what it needs, is waited for.
local TIMEOUT = 30
local DOING = "copying within a cache"

--- Makes the copies of an agent's engine. failed(err) is told of each that
-- fails, but for those that a stop of the loop has ended. Nothing is opened.
function M.new(agent, failed)
  return setmetatable({ engine = agent.engine, address = agent.address,
                        failed = failed, dialled = false, session = false,
                        remotes = {}, closed = false }, Moves)
end

-- Calls done with a future's results when it has ended, at once if it has.
local function after(future, done)
  signals.attach(future, signals.new(1, function()
    done(futures.results(future))
  end))
end

-- ---- The session with itself -----------------------------------------------

-- Returns the error of who may not copy any more, or nil.
local function gone(self)
  return self.closed and errors.new("closed", DOING .. ": it is closed")
    or self.engine:gone(DOING)
end

-- Returns the session; or nil and an error. Waits; all that come meanwhile wait
-- for the same one.
local function connected(self)
  local over = gone(self)
  if over then return nil, over end
  if self.session and self.session.handle then return self.session end
  if not self.dialled or self.dialled.ended then
    self.dialled = sessions.connect(self.engine, self.address, {
      transport = "auto", timeout = TIMEOUT })
  end
  local session, err = self.dialled:wait()
  if not session then return nil, err end
  if self.session ~= session then self.session, self.remotes = session, {} end
  return session
end

-- Returns a region as the session knows it; or nil and an error. Waits.
local function find(self, name)
  local session, err = connected(self)
  if not session then return nil, err end
  local remote
  remote, err = session:region(name, { timeout = TIMEOUT })
  if not remote then return nil, err end
  if self.session == session then self.remotes[name] = remote end
  return remote
end

-- ---- Copies ----------------------------------------------------------------

local function start(remote, offset, to, done)
  if not remote.session.handle then
    return done(nil, remote.session:gone(DOING))
  end
  after(remote.session:read { from = remote:slice(offset, to.length), to = to,
                              timeout = TIMEOUT }, done)
end

--- Copies the bytes at an offset of an own region, by its name, to a slice of
-- another one. Does not wait: calls done(whether that is done) once when it is
-- over, which must not wait either.
function Moves:copy(name, offset, to, done)
  if to.length == 0 then return done(true) end
  local function over(fine, err)
    if not fine then
      self:forget(name)                 -- it may have closed while looked up
      self.failed(err)
    end
    done(fine == true)
  end
  local remote = self.remotes[name]
  if remote and remote.handle then return start(remote, offset, to, over) end
  local generation = loop.state.generation
  after(tasks.spawn(find, self, name), function(found, err)
    if found then return start(found, offset, to, over) end
    if loop.state.generation ~= generation then return done(false) end
    over(nil, err)
  end)
end
jit.off(Moves.copy)

--- A region is closed, or another is to have its name.
function Moves:forget(name)
  local remote = self.remotes[name]
  self.remotes[name] = nil
  if remote then remote:leave() end
end

--- Ends the session, also one that is still being dialled; copies that are
-- under way fail, and so do all that come.
function Moves:close()
  self.closed = true
  if self.dialled then
    self.dialled:cancel()
    after(self.dialled, function(session)
      if session then session:close() end
    end)
  end
  self.session, self.remotes = false, {}
end

return M
