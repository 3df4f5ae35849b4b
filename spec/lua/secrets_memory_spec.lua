-- SPDX-License-Identifier: Apache-2.0
-- Where in a process's memory its secret is: what a core dump would have of it.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local process = require "spec.support.process"

local LONG = 30 * cases.slow

-- Opens an engine by the option "file" or "text", which it reads a line of, or
-- by what is in its environment.
local function holder(child, perigee)
  local kind, value = child.attend(), child.attend()
  local engine = assert(perigee.engine {
    secret = kind == "text" and value or kind == "file" and "file:" .. value
      or nil })
  assert(engine:listen "tcp://127.0.0.1:0")
  child.say "ready"
  child.attend()
end

local MOST = 2 ^ 26                     -- bytes of a mapping that is looked at

-- The mappings of a process that a core dump may have: { first, last, name }.
-- Larger ones are the pools of engines.
local function dumped(pid)
  local list, one = {}, nil
  for line in io.lines(("/proc/%d/smaps"):format(pid)) do
    local first, last, rights, name = line:match
      "^(%x+)-(%x+) (%S+) %x+ %S+ %d+%s*(.*)$"
    if first then
      one = rights:find "^r" and { tonumber(first, 16), tonumber(last, 16),
                                   name }
    elseif one and line:find "^VmFlags:" and not line:find " dd"
      and one[2] - one[1] <= MOST then
      list[#list + 1] = one
    end
  end
  return list
end

-- The mapping that a text is in; nil if in none, and false if that cannot be
-- told.
local function found(pid, text)
  local memory = io.open(("/proc/%d/mem"):format(pid), "rb")
  if not memory then return false end
  local looked, place = 0, nil
  for _, one in ipairs(dumped(pid)) do
    memory:seek("set", one[1])
    local bytes = memory:read(one[2] - one[1]) or ""
    looked = looked + #bytes
    if bytes:find(text, 1, true) then place = "mapping " .. one[3] end
  end
  memory:close()
  assert(looked > 2 ^ 20)
  return place
end

describe("a secret", function()
  after_each(cases.cleanup)

  -- The mapping with the secret of an engine that has it by that option.
  local function where(kind)
    -- The text itself is used of random bytes, and not its stretched form.
    local words = io.open("/dev/urandom"):read(32):gsub(".", function(byte)
      return ("%02x"):format(byte:byte())
    end)
    local path = cases.folder .. "/secret"
    cases.address()
    local file = assert(io.open(path, "w"))
    file:write(words, "\n")
    file:close()
    assert(os.execute("chmod 600 '" .. path .. "'"))
    if kind == "environment" then
      ffi.C.spec_setenv("PERIGEE_SECRET", words, 1)
    end
    local child = process.start(holder)
    ffi.C.spec_setenv("PERIGEE_SECRET", "", 1)
    child:tell(kind)
    child:tell(kind == "text" and words or path)
    child:expect("ready", LONG)
    local place = found(child.pid, words)
    if place == false then pending "others' memory cannot be read here" end
    return place
  end

  for _, kind in ipairs { "file", "environment" } do
    it("that is read from the " .. kind .. " is in nothing that a core dump "
      .. "has", function()
      if cases.sanitized and kind == "environment" then
        return pending "a sanitizer keeps a copy of the environment"
      end
      assert.is_nil(where(kind))
    end)
  end

  it("that a program gives as a text is, as the manual says", function()
    assert.is_string(where "text")
  end)
end)
