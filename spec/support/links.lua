-- SPDX-License-Identifier: Apache-2.0
-- Processes with the fake of CUDA's driver (spec/gpu/), which the specs of
-- links between GPUs tell what to do, statement by statement. Each is a child
-- (process.lua) with variables of its own:
--
-- * perigee, ffi, cases, child: as in any child
-- * engine, and session, if it has a peer (M.pair)
-- * count(name): calls of that function of the driver since the last one.
--   total(name): all calls
-- * set(word): sets the driver, as a word of FAKE_CUDA does
-- * lane(): what session:explain() tells of the lane "cuda"
-- * bytes(size, seed): as of cases.lua
-- * wait(future): what it gives, as words: "true", or "nil KIND"
local ffi = require "ffi"
local process = require "spec.support.process"

if not pcall(ffi.typeof, "struct spec_links") then ffi.cdef [[
  struct spec_links { int declared; };
  int spec_links_setenv(const char *, const char *, int) __asm__("setenv");
]] end

local M = { FAKE = os.getenv "PERIGEE_BUILD" .. "/spec/libcuda_fake.so" }

-- The whole program of a child.
local function run(child, perigee, ffi_)
  ffi_.cdef [[uint64_t fake_cuda_count(const char *);
              void fake_cuda_set(const char *);]]
  local at, driver = {}, os.getenv "PERIGEE_CUDA_LIBRARY"
  local fake = driver:find "fake" and ffi_.load(driver)
  local own = { child = child, perigee = perigee, ffi = ffi_,
                cases = child.cases, bytes = child.cases.bytes }
  setmetatable(own, { __index = _G })
  function own.total(name) return tonumber(fake.fake_cuda_count(name)) end
  function own.count(name)
    local now, before = own.total(name), at[name] or 0
    at[name] = now
    return now - before
  end
  function own.set(word) fake.fake_cuda_set(word) end
  function own.lane() return own.session:explain().lanes.cuda end
  function own.wait(future)
    local ok, err = future:wait(20)
    if ok then return "true" end
    return "nil " .. err.kind
  end
  while true do
    local text = child.attend()
    if not text then return end
    local f = assert(loadstring(text))
    child.say((table.concat({ tostring((setfenv(f, own)())) })
      :gsub("\n", "; ")))
  end
end

local Child = {}
Child.__index = Child

-- Starts a process with a driver that is set so (FAKE_CUDA). false: it finds
-- no driver. No trial of ways to copy asks the driver for anything beside what
-- it is told to do. start: as process.start, which it is if nil.
function M.start(settings, start)
  local library = os.getenv "PERIGEE_CUDA_LIBRARY"
  local set = ffi.C.spec_links_setenv
  set("PERIGEE_CUDA_LIBRARY", settings and M.FAKE or "/no/such/library.so", 1)
  set("FAKE_CUDA", settings or "", 1)
  set("PERIGEE_CUDA_COPIES", "batch", 1)
  local child = (start or process.start)(run)
  set("PERIGEE_CUDA_COPIES", "", 1)
  set("PERIGEE_CUDA_LIBRARY", library or "", 1)
  set("FAKE_CUDA", "", 1)
  return setmetatable({ process = child }, Child)
end

-- Has it run statements, which may end in a return. tell does not wait; said
-- waits for what they return.
function Child:tell(text)
  self.process:tell((text:gsub("%s*\n%s*", " ")))
end

function Child:said()
  return (assert(self.process:read()))
end

function Child:run(text)
  self:tell(text)
  return self:said()
end

function Child:kill() self.process:kill() end
function Child:signal(name) self.process:signal(name) end

-- Starts an owner and a peer with a session between them.
function M.pair(owner, peer, options)
  local a, b = M.start(owner), M.start(peer)
  local open = ("engine = perigee.engine { %s }"):format(options or "")
  a:run(open .. [[
    listener = assert(engine:listen(cases.address "links"))
  ]])
  b:run(open .. [[
    session = assert(engine:connect(cases.address "links", { timeout = 20 }))
  ]])
  a:run "session = assert(listener:accept(20))"
  return a, b
end

-- Opens a session over TCP between two of them; the first one listens there.
function M.connect(a, b, address, options)
  local open = ("engine = perigee.engine { %s }"):format(options or "")
  a:run(open .. ("listener = assert(engine:listen(%q))"):format(address))
  b:run(open .. ([[
    session = assert(engine:connect(%q, { timeout = 20, transport = "tcp" }))
  ]]):format(a:run "return listener.address"))
  a:run "session = assert(listener:accept(20))"
end

-- Starts such a pair.
function M.distant_pair(owner, peer, options)
  local a, b = M.start(owner), M.start(peer)
  M.connect(a, b, "tcp://127.0.0.1:0", options)
  return a, b
end

-- The owner has a region "kv" of that length and kind; the peer finds it as
-- `remote`, and has `here`, of the same length.
function M.regions(a, b, options)
  local o = options or {}
  local length = o.length or 2 ^ 20
  a:run(([[
    kv = assert(engine:alloc(%d, { name = "kv", kind = %q, access = %q }))
    kv:slice():fill(1)
  ]]):format(length, o.kind or "cuda:0", o.access or "rw"))
  b:run(([[
    here = assert(engine:alloc(%d, { kind = %q }))
    remote = assert(session:region "kv")
    function write() return wait(session:write { from = here:slice(),
                                                 to = remote:slice() }) end
    function read() return wait(session:read { from = remote:slice(),
                                               to = here:slice() }) end
  ]]):format(length, o.here or "cuda:0"))
end

-- Fails unless an expression in a child is that, as text.
function M.says(child, text, expected)
  require "luassert".equal(expected, child:run("return " .. text), nil, 2)
end

-- Waits for an expression in a child to be true, a minute of a fast machine.
function M.comes(child, text)
  M.says(child, ("cases.eventually(function() return %s end, 60)"):format(text),
         "true")
end

return M
