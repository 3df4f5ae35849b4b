-- SPDX-License-Identifier: Apache-2.0
-- Secrets between engines over TCP: who is let in, what refused peers are told,
-- and what is logged.
local cases = require "spec.support.cases"
local perigee = require "perigee"

local WORDS, OTHERS = "correct horse battery staple", "wrong horse battery"

describe("a secret", function()
  local engines, lines, before

  before_each(function()
    engines, lines, before = {}, {}, perigee.log
    perigee.log = function(level, text)
      lines[#lines + 1] = level .. ": " .. text
    end
  end)

  after_each(function()
    perigee.log = before
    for _, engine in ipairs(engines) do engine:close() end
  end)

  local function engine(options)
    local made = assert(perigee.engine(options))
    engines[#engines + 1] = made
    return made
  end

  local function port(options)
    return assert(engine(options):listen "tcp://127.0.0.1:0")
  end

  local function dial(listener, options)
    return engine(options):connect(listener.address,
                                   { timeout = 10, transport = "tcp" })
  end

  local function said(text)
    for _, line in ipairs(lines) do
      if line:find(text, 1, true) then return line end
    end
    error(("the log does not say %q but\n%s"):format(text,
      table.concat(lines, "\n")))
  end

  it("that both have lets a peer in", function()
    local listener = port { secret = WORDS }
    local session = assert(dial(listener, { secret = WORDS, encrypt = true }))
    assert(listener:accept(10))
    assert.same({}, lines)
    local told = session:explain()
    assert.matches("both sides proved the secret, sealed with", told.security,
                   1, true)
    assert.matches(told.security, tostring(told), 1, true)
  end)

  it("that is another does not, and both hear of it", function()
    local listener = port { secret = WORDS }
    local session, err = dial(listener, { secret = OTHERS })
    assert.is_nil(session)
    assert.equal("denied", err.kind)
    local why = "the secret, or the scope, is another"
    assert.matches(why, tostring(err), 1, true)
    for _ = 1, 500 do -- the dialer knows first
      if #lines > 0 then break end
      listener:accept(0.01)
    end
    local line = said(why)
    assert.matches("warning: refused tcp://127.0.0.1:", line, 1, true)
    assert.matches(listener.address, line, 1, true)
    assert.is_nil(line:find("horse", 1, true))
  end)

  it("is good for its scope only", function()
    local listener = port { secret = WORDS, scope = "one" }
    local session, err = dial(listener, { secret = WORDS, scope = "two" })
    assert.is_nil(session)
    assert.equal("denied", err.kind)
    assert(dial(listener, { secret = WORDS, scope = "one" }))
  end)

  it("that one side lacks is said to be missing there", function()
    local session, err = dial(port { secret = WORDS }, { secret = "" })
    assert.is_nil(session)
    assert.matches("who dials has none", tostring(err), 1, true)
    session, err = dial(port { secret = "" }, { secret = WORDS })
    assert.is_nil(session)
    assert.matches("who listens has none", tostring(err), 1, true)
  end)

  it("may come from a file that nobody else can read", function()
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(WORDS, "\n")
    file:close()
    os.execute("chmod 600 " .. path)
    assert(dial(port { secret = "file:" .. path }, { secret = WORDS }))
    os.execute("chmod 644 " .. path)
    local made, err = perigee.engine { secret = "file:" .. path }
    os.remove(path)
    assert.is_nil(made)
    assert.equal("denied", err.kind)
    assert.matches("chmod 600", tostring(err), 1, true)
  end)

  it("is used whole, or not at all", function()
    local zero = WORDS .. "\0more"
    for _, make in ipairs {
      function() return (perigee.engine { secret = zero }) end,
      function() return (perigee.agent { secret = zero }) end,
      function() return (perigee.agent { engine = { secret = zero } }) end,
      function()
        return (perigee.agent { scope = "s", secret = { s = zero } })
      end,
    } do
      local fine, err = pcall(make)
      assert.is_false(fine)
      assert.matches("^[^:]*secrets_spec.lua:%d+: ", err)
      assert.matches("without zero bytes", err, 1, true)
      assert.is_nil(err:find("horse", 1, true))
    end
  end)

  it("that is refused again and again is not logged each time", function()
    local listener = port { secret = WORDS }
    local stranger = engine { secret = OTHERS }
    for _ = 1, 30 do
      assert.is_nil((stranger:connect(listener.address, { timeout = 10 })))
    end
    assert.is_true(#lines < 15 * cases.slow)
  end)
end)
