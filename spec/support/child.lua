-- SPDX-License-Identifier: Apache-2.0
-- The main program of a child started by spec/support/process.lua. The function
-- that the parent sent is called with `child`: say(...) prints a line for the
-- parent, hear() and attend() wait for a line from it, and the other functions
-- are below. The child reports an error that the function raises to the parent
-- and exits.
local ffi = require "ffi"
local perigee = require "perigee"

local child = { cases = require "spec.support.cases" }

function child.say(...)
  local words = {}
  for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
  io.stdout:write(table.concat(words, " "), "\n")
  io.stdout:flush()
end

-- Input is not read with io.read: poll(2) does not see its buffer.
local text, chunk = "", ffi.new("char[65536]")

local function more()
  local n = tonumber(ffi.C.spec_read(0, chunk, 65536))
  if n <= 0 then return false end
  text = text .. ffi.string(chunk, n)
  return true
end

local function take(length)
  while #text < length do assert(more()) end
  local bytes = text:sub(1, length)
  text = text:sub(length + 1)
  return bytes
end

-- Waits for a line from the parent. The loop does not run meanwhile.
function child.hear()
  while not text:find("\n", 1, true) do
    if not more() then return nil end
  end
  return take(text:find("\n", 1, true)):sub(1, -2)
end

-- Runs the loop until a line from the parent has arrived.
function child.attend()
  local entry = ffi.new("struct spec_poll", 0, 1, 0)
  while not text:find("\n", 1, true) do
    if ffi.C.spec_poll(entry, 1, 0) == 0 then
      perigee.sleep(0.001)
    elseif not more() then
      return nil
    end
  end
  return child.hear()
end

ffi.cdef [[
  struct spec_limit { unsigned long now, most; };
  int spec_getrlimit(int, struct spec_limit *) __asm__("getrlimit");
  int spec_setrlimit(int, const struct spec_limit *) __asm__("setrlimit");
]]

local LIMITS = { fsize = 1, nofile = 7, as = 9 }

-- Lowers a limit of this process, of those that setrlimit(2) has.
function child.limit(name, most)
  local limit = ffi.new "struct spec_limit"
  ffi.C.spec_getrlimit(LIMITS[name], limit)
  limit.now = most
  assert(ffi.C.spec_setrlimit(LIMITS[name], limit) == 0)
end

-- An agent called "worker" that serves the given services until it is stopped.
function child.serve(...)
  local agent = assert(child.cases.agent("worker"))
  for i = 1, select("#", ...) do agent:serve((select(i, ...))) end
  child.say("ready")
  perigee.run()
  agent:close()
end

local function report(message)
  return debug.traceback(tostring(message), 2)
end

local f = assert(loadstring(take(tonumber(child.hear()))))
local fine, message = xpcall(f, report, child, perigee, ffi, unpack(arg))
if not fine then
  child.say("error: " .. message:gsub("\n", "\\n"))
  os.exit(1)
end
