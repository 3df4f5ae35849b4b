-- SPDX-License-Identifier: Apache-2.0
-- Waiting for descriptors, with real pipes and sockets, by engines without a
-- thread and with one.
local descriptor = require "perigee.descriptor"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process" -- declares the calls below

local C = ffi.C
local O_NONBLOCK, O_CLOEXEC = 0x800, 0x80000
local AF_UNIX, SOCK_STREAM = 1, 1
local LONG = 20
local chunk = ffi.new "char[65536]"

-- A build with checks ends the process if a descriptor is closed while
-- something waits for it.
local checked = os.getenv "PERIGEE_BUILD":find "asan$"
  or os.getenv "PERIGEE_BUILD":find "debug$"

local function pipe()
  local ends = ffi.new "int[2]"
  assert(C.spec_pipe2(ends, O_NONBLOCK + O_CLOEXEC) == 0)
  return ends[0], ends[1]
end

local function sockets()
  local ends = ffi.new "int[2]"
  assert(C.spec_socketpair(AF_UNIX, SOCK_STREAM + O_NONBLOCK + O_CLOEXEC, 0,
                           ends) == 0)
  return ends[0], ends[1]
end

ffi.cdef [[
  long spec_descriptor_write(int, const void *, size_t) __asm__("write");
  int spec_descriptor_open(const char *, int, ...) __asm__("open");
  int spec_descriptor_dup2(int, int) __asm__("dup2");
]]

local function put(fd, text)
  return tonumber(C.spec_descriptor_write(fd, text, #text))
end

local function get(fd)
  local n = tonumber(C.spec_read(fd, chunk, 65536))
  return n > 0 and ffi.string(chunk, n) or n
end

local function close(...)
  for _, fd in ipairs { ... } do C.spec_close(fd) end
end

-- Writes until a write would block.
local function fill(fd)
  local text = ("x"):rep(4096)
  repeat until put(fd, text) < 0
end

local function line_of(f, ...)
  local fine, message = pcall(f, ...)
  assert.is_false(fine)
  return message
end

-- Does any epoll of this process have a descriptor?
local function is_watched(fd)
  for each = 0, 255 do
    local file = io.open("/proc/self/fdinfo/" .. each)
    local text = file and file:read "*a" or ""
    if file then file:close() end
    if text:find(("tfd: +%d "):format(fd)) then return true end
  end
  return false
end

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

for _, progress in ipairs { "poll", "thread" } do
  describe("a descriptor, with progress = " .. progress, function()
    local engine, r, w
    before_each(function()
      engine = assert(perigee.engine { progress = progress })
      r, w = pipe()
    end)
    after_each(function()
      descriptor.forget(r)
      engine:close()
      close(r, w)
    end)

    it("is waited for on the main thread", function()
      put(w, "a")
      assert.same({ true }, { descriptor.readable(r, LONG) })
      assert.equal("a", get(r))
      assert.is_true(descriptor.writable(w, LONG))
    end)

    it("is waited for in tasks, while others run", function()
      local order = {}
      local reader = perigee.spawn(function()
        assert(descriptor.readable(r))
        order[#order + 1] = get(r)
      end)
      local writer = perigee.spawn(function()
        perigee.sleep(0.01)
        order[#order + 1] = "first"
        put(w, "then")
      end)
      assert.is_true(perigee.wait_all({ reader, writer }, LONG))
      assert.same({ "first", "then" }, order)
    end)

    it("is waited for within perigee.run, and in a coroutine", function()
      put(w, "a")
      assert.is_true(perigee.run(function()
        return coroutine.wrap(function()
          return descriptor.readable(r, LONG)
        end)()
      end))
    end)

    it("that stays quiet ends the wait at its time", function()
      local before = process.now()
      local ready, err = descriptor.readable(r, 0.05)
      assert.is_nil(ready)
      assert.equal("timeout", err.kind)
      assert.matches("descriptor " .. r .. " to be readable", err.message)
      assert.is_true(process.now() - before >= 0.05)
      ready, err = perigee.spawn(descriptor.readable, r, 0.01):wait(LONG)
      assert.is_nil(ready)
      assert.equal("timeout", err.kind)
    end)

    it("is looked at without waiting", function()
      for _ = 1, 20 do
        assert.equal("timeout", select(2, descriptor.readable(r, 0)).kind)
        put(w, "a")
        assert.is_true(descriptor.readable(r, 0))
        assert.is_true(perigee.spawn(descriptor.readable, r, 0):wait(LONG))
        get(r)
      end
    end)

    it("is ready for as long as something is left unread", function()
      put(w, "abc")
      for _ = 1, 5 do assert.is_true(descriptor.readable(r, LONG)) end
      C.spec_read(r, chunk, 1)
      assert.is_true(descriptor.readable(r, LONG))
      get(r)
      assert.is_nil(descriptor.readable(r, 0))
    end)

    it("tells its end, which reading tells", function()
      close(w)
      assert.is_true(descriptor.readable(r, LONG))
      assert.equal(0, get(r))
      r, w = pipe()
    end)

    it("has waiters in both directions, each of which ends alone", function()
      local a, b = sockets()
      fill(a)
      local ended = {}
      local reader = perigee.spawn(function()
        assert(descriptor.readable(a, LONG))
        ended[#ended + 1] = "reader"
      end)
      local writer = perigee.spawn(function()
        assert(descriptor.writable(a, LONG))
        ended[#ended + 1] = "writer"
      end)
      perigee.sleep(0.01)
      assert.same({}, ended)
      repeat until type(get(b)) ~= "string"
      assert.is_true(perigee.wait_all({ writer }, LONG))
      assert.same({ "writer" }, ended)
      put(b, "x")
      assert.is_true(perigee.wait_all({ reader }, LONG))
      close(a, b)
    end)

    it("that one waiter gives up is still another's", function()
      local short = perigee.spawn(descriptor.readable, r, 0.01)
      local long = perigee.spawn(descriptor.readable, r, LONG)
      assert.equal("timeout", select(2, short:wait(LONG)).kind)
      assert.is_false(long:done())
      put(w, "a")
      assert.is_true(long:wait(LONG))
    end)

    it("wakes all that wait for the same", function()
      local waits = {}
      for i = 1, 10 do
        waits[i] = perigee.spawn(descriptor.readable, r, LONG)
      end
      perigee.sleep(0.01)
      put(w, "a")
      assert.is_true(perigee.wait_all(waits, LONG))
    end)

    it("is one of hundreds", function()
      local ends, waits, sum = {}, {}, 0
      for i = 1, 300 do
        local from, to = pipe()
        ends[i] = { from, to }
        waits[i] = perigee.spawn(function()
          assert(descriptor.readable(from, LONG))
          sum = sum + tonumber(get(from))
        end)
      end
      perigee.sleep(0.01)
      for i = 300, 1, -1 do put(ends[i][2], tostring(i)) end
      assert.is_true(perigee.wait_all(waits, LONG))
      assert.equal(300 * 301 / 2, sum)
      for _, both in ipairs(ends) do close(both[1], both[2]) end
    end)

    it("is asked for again and again, by who answers what comes", function()
      local a, b = sockets()
      local function echo(fd, count)
        for _ = 1, count do
          assert(descriptor.readable(fd, LONG))
          put(fd, get(fd) .. ".")
        end
      end
      local server = perigee.spawn(echo, a, 200)
      local client = perigee.spawn(function()
        local text = "."
        for _ = 1, 200 do
          put(b, text)
          assert(descriptor.readable(b, LONG))
          text = get(b)
        end
        return #text
      end)
      assert.is_true(server:wait(LONG) == nil)
      assert.equal(201, client:wait(LONG))
      close(a, b)
    end)

    it("that is forgotten ends all waits for it, once", function()
      local reader = perigee.spawn(descriptor.readable, r)
      local other = perigee.spawn(descriptor.writable, r)
      perigee.sleep(0.01)
      descriptor.forget(r)
      descriptor.forget(r)
      local ready, err = reader:wait(LONG)
      assert.is_nil(ready)
      assert.equal("cancelled", err.kind)
      assert.matches("descriptor " .. r, err.message)
      assert.equal("cancelled", select(2, other:wait(LONG)).kind)
    end)

    it("may be closed then, and its number be another's", function()
      for _ = 1, 20 do
        local from, to = pipe()
        local wait = perigee.spawn(descriptor.readable, from, LONG)
        perigee.sleep(0)
        put(to, "a")
        descriptor.forget(from)
        close(from, to)
        from, to = pipe()
        local again = perigee.spawn(descriptor.readable, from, 0.005)
        assert.equal("cancelled", select(2, wait:wait(LONG)).kind)
        assert.equal("timeout", select(2, again:wait(LONG)).kind)
        close(from, to)
      end
    end)

    it("may be closed once nobody waits for it any more", function()
      local from, to = pipe()
      assert.is_nil(descriptor.readable(from, 0.001))
      put(to, "a")
      assert.is_true(descriptor.readable(from, LONG))
      close(from, to)
      perigee.sleep(0.01)
    end)

    -- Beginning to watch an epoll takes as long as there is much in it.
    it("that is kept goes on being watched when nobody waits, until it is "
      .. "forgotten", function()
      put(w, "a")
      assert.is_true(descriptor.readable(r, LONG))
      assert.is_false(is_watched(r))
      assert.is_true(descriptor.readable(r, LONG, true))
      assert.is_true(is_watched(r))
      get(r)
      assert.equal("timeout", select(2, descriptor.readable(r, 0.01)).kind)
      assert.is_true(is_watched(r))
      descriptor.cancel(r)
      assert.is_true(is_watched(r))
      put(w, "a")
      assert.is_true(descriptor.readable(r, LONG))
      descriptor.forget(r)
      assert.is_false(is_watched(r))
    end)

    it("that is kept, is ready, and that nobody waits for keeps nobody awake",
       function()
      assert.is_nil(descriptor.readable(r, 0.001, true))
      put(w, "a")
      perigee.sleep(0.01)
      local before = os.clock()         -- of the processor
      perigee.sleep(0.5)
      assert.is_true(os.clock() - before < 0.25)
      assert.is_true(descriptor.readable(r, LONG))
      get(r)
      local wait = perigee.spawn(descriptor.readable, r, LONG)
      assert.is_true(descriptor.writable(w, LONG, true))
      put(w, "b")
      assert.is_true(wait:wait(LONG))
      descriptor.forget(w)
    end)

    it("that is kept is another engine's when its own is closed", function()
      local other = assert(perigee.engine { progress = progress })
      assert.is_nil(descriptor.readable(r, 0.001, true))
      engine:close()
      put(w, "a")
      assert.is_true(descriptor.readable(r, LONG))
      descriptor.forget(r)
      other:close()
    end)

    it("whose waits are cancelled may be waited for again", function()
      for _, kept in ipairs { false, true } do
        local wait = perigee.spawn(descriptor.readable, r, LONG, kept)
        perigee.sleep(0.001)
        descriptor.cancel(r)
        assert.equal("cancelled", select(2, wait:wait(LONG)).kind)
        put(w, "a")
        assert.is_true(descriptor.readable(r, LONG))
        get(r)
      end
    end)

    -- Misuse harms no one else: neither the next owner of the descriptor's
    -- number nor those who wait for it.
    it("that is closed under a waiter is not mistaken for the next one",
      function()
        if checked then return pending "this build ends the process then" end
        local from, to = pipe()
        local wait = perigee.spawn(descriptor.readable, from, 0.1)
        perigee.sleep(0.01)
        close(from)
        assert.equal(from, C.spec_descriptor_dup2(r, from))
        assert.equal("timeout", select(2, wait:wait(LONG)).kind)
        put(w, "a")
        assert.is_true(descriptor.readable(from, LONG))
        close(from, to)
      end)

    it("whose task is cancelled can be waited for by others", function()
      local went_on = false
      local wait = perigee.spawn(function()
        went_on = descriptor.readable(r, LONG)
      end)
      perigee.sleep(0.001)
      wait:cancel()
      assert.equal("cancelled", select(2, wait:wait(LONG)).kind)
      put(w, "a")
      assert.is_true(descriptor.readable(r, LONG))
      perigee.sleep(0.001)
      assert.is_true(went_on)           -- cancelling only ends the future
    end)

    it("is nobody's after a stop", function()
      local err
      local function wait() err = select(2, descriptor.readable(r)) end
      perigee.run(function()
        perigee.spawn(wait)
        perigee.sleep(0.001)
        perigee.stop()
        perigee.sleep(LONG)
      end)
      assert.is_nil(err)                -- its task was dropped
      close(r, w)
      r, w = pipe()
      put(w, "a")
      assert.is_true(descriptor.readable(r, LONG))
    end)

    it("whose engine is closed under a waiter is another engine's", function()
      local other = assert(perigee.engine { progress = progress })
      local wait = perigee.spawn(descriptor.readable, r, LONG)
      perigee.sleep(0.01)
      engine:close()
      put(w, "a")
      assert.is_true(wait:wait(LONG))
      other:close()
    end)

    it("ends in `closed` where there is no other", function()
      local wait = perigee.spawn(descriptor.readable, r, LONG)
      perigee.sleep(0.01)
      engine:close()
      assert.equal("closed", select(2, wait:wait(LONG)).kind)
      assert.equal("closed", select(2, descriptor.readable(r, LONG)).kind)
    end)

    it("beyond the engine's limit is refused", function()
      engine:close()
      engine = assert(perigee.engine { progress = progress, watched = 1 })
      local wait = perigee.spawn(descriptor.readable, r, LONG)
      perigee.sleep(0.01)
      local ready, err = descriptor.writable(w, LONG)
      assert.is_nil(ready)
      assert.equal("no_memory", err.kind)
      assert.matches("watched", err.message)
      put(w, "a")
      assert.is_true(wait:wait(LONG))
    end)

    it("of a file is unsupported", function()
      local fd = C.spec_descriptor_open("README.md", O_CLOEXEC)
      local ready, err = descriptor.readable(fd, LONG)
      assert.is_nil(ready)
      assert.equal("unsupported", err.kind)
      close(fd)
    end)

    it("that is none raises at the caller's line", function()
      local from, to = pipe()
      close(from, to)
      for _, name in ipairs { "readable", "writable", "cancel", "forget" } do
        local f = descriptor[name]
        for i, wrong in ipairs { "0", -1, 1.5, 2 ^ 31, from } do
          if name:find "able" or i < 5 then
            assert.matches("^" .. HERE .. ":%d+: .*descriptor",
              line_of(function() local ok = f(wrong) return ok end))
          end
        end
      end
      assert.matches("^" .. HERE .. ":%d+: .*seconds", line_of(function()
        local ok = descriptor.readable(r, "1")
        return ok
      end))
    end)

    it("cannot be waited for where nothing may wait", function()
      local said
      engine:close()
      local agent = assert(perigee.agent { scope = "d" .. process.pid(),
        name = "d", engine = { progress = progress } })
      agent:serve { name = "s", methods = { look = { raw = true, function()
        said = line_of(function()
          local ok = descriptor.readable(r, 1)
          return ok
        end)
      end } } }
      assert(agent:proxy("d", "s")):look()
      agent:close()
      assert.matches("^" .. HERE .. ":%d+: .*must not wait", said)
    end)

    it("is heard of beside calls that never stop", function()
      engine:close()
      local agent = assert(perigee.agent { scope = "d" .. process.pid(),
        name = "d", engine = { progress = progress } })
      agent:serve { name = "s", methods = {
        echo = { raw = true, function(request) return request end } } }
      local s = assert(agent:proxy("d", "s"))
      local wait = perigee.spawn(descriptor.readable, r, LONG)
      for i = 1, 10000 do
        if i == 100 then put(w, "a") end
        s:echo "x"
        if wait:done() then break end
      end
      assert.is_true(wait:done())
      agent:close()
    end)
  end)
end
