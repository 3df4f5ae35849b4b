-- SPDX-License-Identifier: Apache-2.0
-- The manual says of every public function what it takes, gives and costs, and
-- what it shows is true: its examples are run, behind the script that its first
-- page begins with, beside the worker that is there, too.
local cases = require "spec.support.cases"
local comments = require "spec.manual.comments"
local perigee = require "perigee"
local process = require "spec.support.process"

local GUIDE = "lua/perigee/README.md"

local entries, by_name = comments.entries(), {}
for _, entry in ipairs(entries) do by_name[entry.name] = entry end

local function where(entry) return entry.path .. ":" .. entry.line end

-- ---- Running examples ------------------------------------------------------

local scripts = comments.texts(by_name.perigee, "usage")
local worker

-- What an example says that it prints, a line each; false: it says nothing.
local function promised(code)
  local lines = {}
  for text in code:gmatch "%-%->[ ]?([^\n]*)" do
    lines[#lines + 1] = text:gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

-- What is asked for last is closed first.
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

local function run(code, name)
  local log, close = perigee.log, "\nreturn agent"
  local chunk, said = load(scripts[1] .. "\ndo\n" .. code .. "\nend" .. close,
                           "=" .. name)
  local agent = chunk()
  agent:close()
  perigee.log = log
  if code:find "%-%->" then
    assert.equal(promised(code), table.concat(said, "\n"))
  end
end

describe("the manual's examples", function()
  setup(function()
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(scripts[2])
    file:close()
    worker = process.spawn { "luajit", path }
    local agent = assert(perigee.agent {})
    assert(cases.eventually(function()
      return agent:proxy("worker:0", "store")
    end))
    agent:close()
    os.remove(path)
  end)

  teardown(function() worker:close() end)

  for _, entry in ipairs(entries) do
    local usages = entry.name ~= "perigee" and comments.texts(entry, "usage")
      or {}
    for _, code in ipairs(usages) do
      it("are true of " .. entry.name, function() run(code, where(entry)) end)
    end
  end

  for _, block in ipairs(comments.fenced(GUIDE)) do
    it(("are true in the guide, line %d"):format(block.line), function()
      run(block.code, GUIDE .. ":" .. block.line)
    end)
  end
end)
