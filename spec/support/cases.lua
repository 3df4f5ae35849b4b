-- SPDX-License-Identifier: Apache-2.0
-- The settings of a run of the contract's specs, and helpers. PERIGEE_TRANSPORT
-- names the transport, PERIGEE_TEST_MEMORY a kind of memory that the CPU must
-- not touch. PERIGEE_SPEC_ENCRYPT=1 encrypts sockets,
-- PERIGEE_SPEC_PROGRESS=thread gives each engine its own thread.
-- PERIGEE_SPEC_SCALE is the share of each long run that is run (1: all of it),
-- PERIGEE_SPEC_SLOW says how many times slower than usual the machine is.
-- Parent and children share a registry scope.
local ffi = require "ffi"
local loop = require "perigee.runtime.loop"
local perigee = require "perigee"
local process = require "spec.support.process"

if not os.getenv("PERIGEE_SPEC_LOG") then perigee.log = function() end end

local M = {
  memory = os.getenv("PERIGEE_TEST_MEMORY") or "host",
  scale = tonumber(os.getenv("PERIGEE_SPEC_SCALE")) or 0.02,
  slow = process.slow,
  sealed = os.getenv("PERIGEE_SPEC_ENCRYPT") == "1",
  -- A sanitizer keeps freed memory, so memory use means nothing then.
  sanitized = (os.getenv("PERIGEE_PRELOAD") or "") ~= "",
  opened = {},
}

-- Sizes on both sides of every limit.
M.EAGER, M.RING = 8192, 65536
M.sizes = { 0, 1, 63, 64, 65, 4095, 4096, M.EAGER - 1, M.EAGER, M.EAGER + 1,
            M.RING - 1, M.RING, M.RING + 1, 2 ^ 20 + 3 }
M.LARGE = 2 ^ 26

-- The scope is short: a socket's path has 107 bytes at most, of which a name
-- takes up to 64. Children inherit scope and folder from the process that
-- started them.
ffi.cdef [[
  int spec_setenv(const char *, const char *, int) __asm__("setenv");
  int spec_mkdir(const char *, unsigned) __asm__("mkdir");
]]
local scope = os.getenv("PERIGEE_SPEC_SCOPE")
if not scope then
  scope = "p" .. process.pid()
  os.execute("rm -rf /tmp/" .. scope)   -- of one with this number, killed
  ffi.C.spec_setenv("PERIGEE_SPEC_SCOPE", scope, 1)
  ffi.C.spec_setenv("XDG_RUNTIME_DIR", "/tmp/" .. scope, 1)
  ffi.C.spec_setenv("XDG_STATE_HOME", "/tmp/" .. scope, 1)
end
M.scope, M.folder = scope, "/tmp/" .. scope

-- A socket address that this run and its children share.
function M.address(name)
  ffi.C.spec_mkdir(M.folder, 448)
  return ("unix:%s/%s.sock"):format(M.folder, name or "0")
end

local function opened(object)
  if object then M.opened[#M.opened + 1] = object end
  return object
end

-- A proxy of a child that takes a moment to register.
function M.found(service, options)
  local agent, proxy = assert(M.agent()), nil
  assert(M.eventually(function()
    proxy = agent:proxy("worker", service, options)
    return proxy
  end))
  return proxy, agent
end

-- The kind of memory of this run, if it is none of the core's: a list for
-- engines.
local function memories()
  if M.memory == "host" or M.memory:find "^cuda" then return nil end
  local symbol = "perigee_memory_" .. M.memory
  ffi.cdef(("extern const char %s[1];"):format(symbol))
  local plugin = ffi.load(assert(package.searchpath("spec.plugin_" .. M.memory,
                                                    package.cpath)))
  local list = ffi.new("const struct perigee_memory *[2]")
  list[0] = ffi.cast("const struct perigee_memory *", plugin[symbol])
  M.keep = { plugin, list }
  return list
end
local given = memories()

-- A secret of this form is not stretched; stretching costs each child 0.1 s.
local SECRET = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="

--- Options for engines. On a slow machine setting up a session takes longer.
function M.engine_options(options)
  local all = { memories = given,
                hello_timeout = M.slow > 1 and 3 * M.slow or nil,
                progress = os.getenv("PERIGEE_SPEC_PROGRESS") }
  if M.sealed then all.encrypt, all.secret = true, SECRET end
  for key, value in pairs(options or {}) do all[key] = value end
  return all
end

-- An agent in this run's scope, closed by cleanup().
function M.agent(name, options)
  local all = { name = name, scope = scope }
  for key, value in pairs(options or {}) do all[key] = value end
  all.engine = M.engine_options(all.engine)
  local agent, err = perigee.agent(all)
  return opened(agent), err
end

-- A proxy of a service of the child "worker", and the new agent that made it.
function M.proxy(service, options)
  local agent = assert(M.agent())
  return assert(agent:proxy("worker", service, options)), agent
end

function M.engine(options)
  return opened(assert(perigee.engine(M.engine_options(options))))
end

-- An engine and its session to a child that accepts.
function M.connect(options)
  local engine = M.engine()
  options = options or { timeout = 5 }
  return engine, assert(engine:connect(M.address(), options))
end

-- Allocates memory of this run's kind.
function M.alloc(engine, length, options)
  local all = { kind = M.memory ~= "host" and M.memory or nil }
  for key, value in pairs(options or {}) do all[key] = value end
  return assert(engine:alloc(length, all))
end

-- How many pieces of memory that others may map this process has mapped. A
-- GPU's memory is none, but the fake driver's is.
function M.mapped()
  local count = 0
  for line in io.lines "/proc/self/maps" do
    if line:find("memfd:", 1, true) then count = count + 1 end
  end
  return count
end

-- One byte of a slice or region, whatever its kind of memory.
function M.byte(slice, at)
  return slice:slice(at or 0, 1):string():byte()
end

-- size bytes that differ by place and by seed.
function M.bytes(size, seed)
  local line, first = {}, (seed or 0) * 31
  for i = 0, 250 do line[i + 1] = string.char((i * 7 + first) % 251) end
  local text = table.concat(line)
  return text:rep(math.ceil(size / 251)):sub(1, size)
end

-- Counts the ends that the engines that are still open have kept from the
-- program.
local function dropped()
  local n = 0
  for _, engine in ipairs(loop.state.engines) do
    n = n + engine:stats().dropped
  end
  return n
end

-- For after_each: closes all objects opened here and ends all children. Raises
-- if a session was freed before all its events had come.
function M.cleanup()
  local lost = dropped()
  for i = #M.opened, 1, -1 do
    M.opened[i]:close()
    M.opened[i] = nil
  end
  process.cleanup()
  os.execute("rm -rf '" .. M.folder .. "'")
  assert(lost == 0, "events were dropped with their session")
end

-- Runs the loop until f() is true; returns false after timeout (20 s of a fast
-- machine).
function M.eventually(f, timeout)
  local limit = process.now() + (timeout or 20 * M.slow)
  repeat
    if f() then return true end
    perigee.sleep(0.002)
  until process.now() > limit
  return false
end

--- As eventually(), but raises at its caller if f() has not become true after
-- as many seconds, a minute by default (of a fast machine).
function M.await(f, timeout)
  if M.eventually(f, timeout or 60 * M.slow) then return end
  error("that did not become true in time", 2)
end

--- Runs the loop for a moment: for waits that call it again and again.
function M.pump() perigee.sleep(0.001) end

-- Loops over pairs() are compiled wrongly at times: some never end.
jit.off(M.engine_options)
jit.off(M.agent)
jit.off(M.alloc)

return M
