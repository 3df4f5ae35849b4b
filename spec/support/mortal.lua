-- SPDX-License-Identifier: Apache-2.0
-- A worker that is killed and started again, for specs about its callers. Its
-- state: `child`, its process; `life`, the number of its present life; `file`,
-- where its methods leave marks.
local cases = require "spec.support.cases"
local luassert = require "luassert"
local perigee = require "perigee"
local process = require "spec.support.process"

local M = {}

-- Serves x as "worker", in one of its lives. Methods have other ids in each
-- life. Marks are lines in a file that outlives it.
local function server(child, perigee_, _, life, file)
  local agent = assert(child.cases.agent("worker"))
  local function mark(text)
    local f = assert(io.open(file, "a"))
    f:write(text, "\n")
    f:close()
  end
  local first, calls = life == "1", 0
  local methods = {
    life = function() return tonumber(life) end,
    same = function(x) return x end,
    nth = function()
      calls = calls + 1
      return calls
    end,
    echo = { raw = true, function(request) return request end },
    once = function(seconds)
      mark("once")
      perigee_.sleep(first and seconds or 0)
      return life
    end,
    often = { idempotent = true, function(seconds, ...)
      mark("often")
      perigee_.sleep(first and seconds or 0)
      return life, ...
    end },
    bytes = { idempotent = true, raw = true, inplace = true,
              function(request, reply)
      if first then
        mark("bytes")
        local limit = os.clock() + 10
        repeat until os.clock() > limit
      end
      reply.pointer[0] = request.pointer[0] + 1
      return 1
    end },
    fails = { idempotent = true, function() error("on purpose") end },
  }
  if first then
    methods.gone = function() return "here" end
  else
    for i = 1, tonumber(life) do
      methods["a" .. i] = function() return "none that was asked for" end
    end
    methods.same, methods.new = function(x) return x end, function() end
  end
  agent.engine:alloc(4096, { name = "kv", access = "rw" }):slice(0, 4096)
    :fill(tonumber(life))
  agent:serve { name = "x", version = tonumber(life), methods = methods }
  child.say("ready")
  perigee_.run()
  agent:close()
end

--- Starts the worker in its next life.
function M.start()
  M.life = M.life + 1
  M.child = process.start(server, M.life, M.file)
end

--- The same, and waits until it serves.
function M.restart()
  M.start()
  M.child:expect("ready")
end

--- For before_each: its first life.
function M.begin()
  M.life, M.file = 0, os.tmpname()
  M.restart()
end

--- For after_each.
function M.finish()
  cases.cleanup()
  os.remove(M.file)
end

--- Counts how often a method has left a mark, in all lives.
function M.marks(word)
  local n, f = 0, io.open(M.file)
  if not f then return 0 end
  for line in f:lines() do
    if line == word then n = n + 1 end
  end
  f:close()
  return n
end

--- Waits until it has left so many.
function M.marked(word, n)
  cases.await(function() return M.marks(word) >= n end)
end

--- Kills it, and waits until this process has noticed.
function M.kill(session)
  M.child:kill()
  cases.await(function() return not session.handle end)
end

--- Expects nil and an error of this kind, with this `sent`; returns the error.
function M.wrong(kind, sent, got, err)
  luassert.is_nil(got)
  luassert.is_true(perigee.is_error(err))
  luassert.equal(kind, err.kind, tostring(err))
  luassert.equal(sent, err.sent, tostring(err))
  luassert.matches("worker", tostring(err))
  return err
end

return M
