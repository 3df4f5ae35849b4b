-- SPDX-License-Identifier: Apache-2.0
-- A registry as a program gives one: a table, in this process. It counts what
-- it is asked. Specs may change how long calls of registries are waited for.
local assert = require "luassert"
local cases = require "spec.support.cases"
local futures = require "perigee.runtime.future"
local registries = require "perigee.registry"

local M = {}
local patience = registries.patience

--- Returns one, the entries that it has by name, and how often each of its
-- functions was called.
function M.new()
  local names, registry = {}, {}
  local asked = { hold = 0, release = 0, lookup = 0 }
  function registry:hold(entry)
    asked.hold = asked.hold + 1
    if names[entry.name] then return nil end
    names[entry.name] = entry
    return entry
  end
  function registry:release(entry)
    asked.release = asked.release + 1
    names[entry.name] = nil
  end
  function registry:lookup(scope, name)
    asked.lookup = asked.lookup + 1
    assert(self == registry and scope == cases.scope)
    return names[name]
  end
  return registry, names, asked
end

--- For after_each.
function M.finish()
  registries.patience = patience
  cases.cleanup()
end

--- Makes a function of a registry return a future; returns a function that
-- settles it with the real answer, and the future.
function M.later(registry, name)
  local given, now = futures.new(false, "a registry"), registry[name]
  registry[name] = function() return given end
  return function(...) futures.settle(given, now(registry, ...)) end, given
end

--- Expects nil and an error of this kind with this text (nil: any), before
-- anything was sent.
function M.wrong(kind, text, got, err)
  assert.is_nil(got)
  assert.equal(kind, err.kind, tostring(err))
  assert.is_false(err.sent)
  if text then assert.matches(text, tostring(err), 1, true) end
end

--- The sockets in the run's folder, as a text.
function M.sockets()
  local pipe = io.popen(("ls -R '%s' 2>&1 | grep 'sock$'"):format(
    cases.folder))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

return M
