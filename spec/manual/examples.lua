-- SPDX-License-Identifier: Apache-2.0
-- Runs the manual's examples, each after the first script of its first page.
-- The second script there is the worker, which runs in a process of its own.
local cases = require "spec.support.cases"
local comments = require "spec.manual.comments"
local perigee = require "perigee"
local process = require "spec.support.process"

local M = { entries = comments.entries(), by_name = {} }
for _, entry in ipairs(M.entries) do M.by_name[entry.name] = entry end

M.scripts = comments.texts(M.by_name.perigee, "usage")
local worker

--- The file and line of an entry.
function M.where(entry) return entry.path .. ":" .. entry.line end

-- The lines that an example says it prints.
local function promised(code)
  local lines = {}
  for text in code:gmatch "%-%->[ ]?([^\n]*)" do
    lines[#lines + 1] = text:gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

-- A chunk, and the list of lines that it will have printed.
local function load(code, name)
  local said = {}
  local env = setmetatable({ print = function(...)
    local words = {}
    for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
    said[#said + 1] = table.concat(words, " ")
  end }, { __index = _G })
  local chunk = assert(loadstring(code, name))
  setfenv(chunk, env)
  return chunk, said
end

-- A Ctrl-C for examples that serve until then; others are not affected.
local function interrupt()
  while true do
    perigee.sleep(0.02)
    perigee.stop()
  end
end

--- Runs an example; returns what it said it prints, and what it printed.
function M.run(code, name)
  local log = perigee.log
  local chunk, said = load(("%s\ndo\n%s\nend\nreturn agent"):format(
    M.scripts[1], code), "=" .. name)
  if code:find "perigee%.serve" and not code:find "perigee%.stop" then
    perigee.spawn(interrupt)
  end
  chunk():close()
  perigee.log = log
  if not code:find "%-%->" then return "", "" end
  return promised(code), table.concat(said, "\n")
end

--- For setup: starts the worker, and returns when it can be found.
function M.start()
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(M.scripts[2])
  file:close()
  worker = process.spawn { "luajit", path }
  local agent = assert(perigee.agent {})
  assert(cases.eventually(function()
    return agent:proxy("worker:0", "store")
  end))
  agent:close()
  os.remove(path)
end

--- For teardown.
function M.stop() worker:close() end

return M
