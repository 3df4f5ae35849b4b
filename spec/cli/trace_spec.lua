-- SPDX-License-Identifier: Apache-2.0
-- `perigee trace`: one call across three agents on two transports, of which one
-- is killed in the middle, as somebody sees it who asks none of these.
local cjson = require "cjson"
local command = require "spec.support.command"
local process = require "spec.support.process"

local ID = "4bf92f3577b34da6a3ce929d0e0e4736"

-- The last of the three: it answers, or never does.
local LAST = [[
local perigee = require "perigee"
perigee.run(function()
  local agent = assert(perigee.agent { name = "c" })
  agent:serve { name = "deep", methods = {
    twice = function(x) return x .. x end,
    never = function() print "begun" io.stdout:flush() perigee.sleep(3600) end,
  } }
  print "ready"
  io.stdout:flush()
  perigee.sleep(math.huge)
end)
]]

-- The one between: it is called over shared memory, and calls over TCP.
local BETWEEN = [[
local perigee = require "perigee"
perigee.run(function()
  local agent = assert(perigee.agent { name = "b", transport = "tcp" })
  local deep = assert(agent:proxy("c", "deep", { reconnect = 0 }))
  agent:serve { name = "work", methods = {
    on = function(x) return deep:twice(x) end,
    stuck = function() return deep:never() end,
  } }
  print "ready"
  io.stdout:flush()
  perigee.sleep(math.huge)
end)
]]

-- The first: it calls what it is told, and stays.
local FIRST = [[
local perigee = require "perigee"
local method, trace = ...
perigee.run(function()
  local agent = assert(perigee.agent { name = "a", transport = "shm" })
  local work = assert(agent:proxy("b", "work")):with { trace = trace }
  local value, err = work[method](work, "x")
  print(value or err.kind)
  io.stdout:flush()
  perigee.sleep(math.huge)
end)
]]

local function start(name, text, ...)
  return command.start("run", command.file(name .. ".lua", text), ...)
end

local function wait_for(child, word)
  repeat
    local line = assert(child:read(30 * process.slow))
  until line:find(word .. "$")
end

local function servers()
  local last = start("c", LAST)
  wait_for(last, "ready")
  local between = start("b", BETWEEN)
  wait_for(between, "ready")
  return last, between
end

local function told(...)
  local status, text, errors = command.run("trace", ...)
  assert.equal(0, status, errors)
  return text
end

local function document(...) return cjson.decode(told(..., "--json")) end

-- The tree as a text: who, which side, what, and how it ended.
local function shape(tree)
  local lines = {}
  for i, span in ipairs(tree.spans) do
    lines[i] = ("%s%s %s %s %s"):format(("."):rep(span.depth), span.agent,
      span.side, span.method, tostring(span.status))
  end
  return table.concat(lines, "\n")
end

-- The tree, when it has that shape: a callee's end is noted when its answer is
-- on its way.
local function shaped(expected)
  local tree
  command.eventually(function()
    tree = document(ID)
    return shape(tree) == expected
  end)
  assert.equal(expected, shape(tree))
  return tree
end

after_each(command.clean)

describe("a trace across three agents on two transports", function()
  it("is one tree, with times of each phase", function()
    servers()
    wait_for(start("a", FIRST, "on", ID), "xx")
    local tree = shaped("a caller on ok\n.b callee on ok\n"
      .. "..b caller twice ok\n...c callee twice ok")
    local last
    for i, span in ipairs(tree.spans) do
      assert.is_true(span.took > 0)
      if i > 1 then
        assert.equal(tree.spans[i - 1].span, span.above)
        assert.is_true(span.at >= last.at)
      end
      if span.side == "caller" then
        assert.is_true(span.queues >= 0 and span.wires >= 0)
        assert.is_nil(span.serves)
      else
        assert.is_true(span.lands >= 0 and span.serves > 0)
      end
      last = span
    end
    assert.is_nil(tree.spans[1].parent)
    local text = told(ID:sub(1, 6))
    assert.matches("^trace " .. ID, text)
    assert.matches("\na %-> b work%.on +%+0 s ", text)
    assert.matches("\n      c deep%.twice +%+.- ok\n$", text)
  end)

  it("is one tree also if one was killed in the middle", function()
    local last = servers()
    local first = start("a", FIRST, "stuck", ID)
    wait_for(last, "begun")
    shaped("a caller stuck nil\n.b callee stuck nil\n..b caller never nil\n"
      .. "...c callee never nil")
    last:kill()
    wait_for(first, "peer_lost")
    -- b answered: its handler returned nil and the error.
    local tree = shaped("a caller stuck ok\n.b callee stuck ok\n"
      .. "..b caller never peer_lost\n...c callee never nil")
    assert.equal("dead", tree.spans[4].process)
    assert.matches("c deep%.never .* never ended: c is dead\n$", told(ID))
  end)

  it("is listed with others, by their times", function()
    servers()
    wait_for(start("a", FIRST, "on", ID), "xx")
    assert.matches("^TRACE .*\n" .. ID .. "  a +work%.on .* 4 +ok\n$", told())
    assert.matches(ID, told("--slow", "1ns", "--since", "1h"))
    assert.equal("[]\n", told("--slow", "1h", "--json"))
    assert.equal("[]\n", told("--since", "1ns", "--json"))
  end)
end)

describe("a trace that is not there", function()
  it("is said by a sentence", function()
    local status, _, errors = command.run("trace", ID)
    assert.equal(1, status)
    assert.matches("^perigee trace: no agent of this host has spans of trace "
                   .. ID .. " [^\n]+\n$", errors)
    status, _, errors = command.run("trace", "xyz")
    assert.equal(2, status)
    assert.matches("is no trace's id", errors)
  end)
end)

-- Makes calls outside of any trace; says how many came with one, and whether a
-- call that a handler makes belongs to the same one.
local CALLER = [[
local perigee = require "perigee"
perigee.run(function()
  local agent = assert(perigee.agent { name = "a" })
  local sums
  agent:serve { name = "sums", methods = {
    id = function() return perigee.context():trace() end,
    raw = { raw = true, function()
      return perigee.context():trace() or ""
    end },
    on = function() return perigee.context():trace(), sums:id() end,
  } }
  sums = assert(agent:proxy("a", "sums"))
  local typed, raw = 0, 0
  for _ = 1, 2000 do
    if sums:id() then typed = typed + 1 end
    if sums:raw "" ~= "" then raw = raw + 1 end
  end
  local came, went = sums:on()
  print(("%d %d %s"):format(typed, raw, tostring(came and went
    and came:sub(1, 35) == went:sub(1, 35) and came:sub(-2) == "01")))
end)
]]

describe("PERIGEE_TRACE", function()
  local function called(value)
    local line = ("PERIGEE_TRACE=%s perigee run %s"):format(value,
      command.file("caller.lua", CALLER))
    local status, text, errors = command.shell(line)
    assert.equal(0, status, errors)
    local typed, raw, carried = text:match "(%d+) (%d+) (%a+)\n$"
    return tonumber(typed), tonumber(raw), carried, text .. errors
  end

  it("has that part of the calls begin a trace", function()
    local typed, raw, carried = called "1"
    assert.same({ 2000, 2000, "true" }, { typed, raw, carried })
    typed, raw = called "0.1"           -- 200 each, and 13 of deviation
    assert.is_true(typed > 100 and typed < 300, typed)
    assert.is_true(raw > 100 and raw < 300, raw)
    for _, none in ipairs { "0", "''", "1e-300" } do
      local text
      typed, raw, carried, text = called(none)
      assert.same({ 0, 0, "nil" }, { typed, raw, carried })
      assert.is_nil(text:find "PERIGEE_TRACE:")
    end
  end)

  it("is refused once, by a sentence, if it is no such part", function()
    for _, wrong in ipairs { "yes", "-0.1", "1.5", "nan", "1%" } do
      local typed, raw, _, text = called(wrong)
      assert.same({ 0, 0 }, { typed, raw })
      local _, times = text:gsub("PERIGEE_TRACE: [^\n]+ from 0 to 1;", "")
      assert.equal(1, times, text)
    end
  end)
end)
