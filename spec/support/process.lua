-- SPDX-License-Identifier: Apache-2.0
-- Child processes for the specs. start(f, ...) runs a Lua function in a new
-- luajit; parent and child exchange lines; a child can be killed, stopped and
-- continued at any time. cleanup() ends all children, and no child outlives
-- this process.
--
-- The function is sent as bytecode, so it must have no upvalues. It is called
-- as f(child, perigee, ffi, ...); child.lua tells what `child` offers. Further
-- arguments arrive as strings.
--
-- `slow`: how many times slower than usual the machine is, as PERIGEE_SPEC_SLOW
-- says.
local ffi = require "ffi"

-- busted loads this again for each file, into the same Lua state.
if not pcall(ffi.typeof, "struct spec_poll") then ffi.cdef [[
  struct spec_poll { int fd; short events, revents; };
  int spec_poll(struct spec_poll *, unsigned long, int) __asm__("poll");
  int spec_fork(void) __asm__("fork");
  int spec_kill(int pid, int signal) __asm__("kill");
  int spec_getpid(void) __asm__("getpid");
  int spec_waitpid(int pid, int *status, int options) __asm__("waitpid");
  int spec_pipe2(int *, int flags) __asm__("pipe2");
  int spec_dup2(int, int) __asm__("dup2");
  int spec_close(int) __asm__("close");
  long spec_read(int, void *, size_t) __asm__("read");
  int spec_execvp(const char *, const char **) __asm__("execvp");
  void spec_exit(int) __asm__("_exit");
  int spec_prctl(int, unsigned long, unsigned long, unsigned long,
                 unsigned long) __asm__("prctl");
  int spec_clock(int, int64_t *) __asm__("clock_gettime");
  int spec_usleep(unsigned) __asm__("usleep");
  int spec_socketpair(int, int, int, int *) __asm__("socketpair");
  long spec_send(int, const void *, size_t, int) __asm__("send");
]] end

local C = ffi.C
local O_CLOEXEC, POLLIN, WNOHANG, PR_SET_PDEATHSIG = 0x80000, 1, 1, 1
local AF_UNIX, SOCK_STREAM, MSG_NOSIGNAL = 1, 1, 0x4000
local signals = { INT = 2, KILL = 9, USR1 = 10, TERM = 15, CONT = 18,
                  STOP = 19 }
local time = ffi.new("int64_t[2]")
local chunk = ffi.new("char[65536]")

local Process = {}
Process.__index = Process
local M = { all = {},
            slow = tonumber(os.getenv("PERIGEE_SPEC_SLOW")) or 1 }

function M.now()
  C.spec_clock(1, time)
  return tonumber(time[0]) + tonumber(time[1]) * 1e-9
end

function M.pid()
  return C.spec_getpid()
end

function M.usleep(seconds)
  C.spec_usleep(seconds * 1e6)
end

local function pipe()
  local ends = ffi.new("int[2]")
  assert(C.spec_pipe2(ends, O_CLOEXEC) == 0, "no pipe")
  return ends[0], ends[1]
end

-- Writing to a child that has ended must not raise SIGPIPE here, and the
-- process's handling of that signal must stay as it is.
local function sockets()
  local ends = ffi.new("int[2]")
  assert(C.spec_socketpair(AF_UNIX, SOCK_STREAM + O_CLOEXEC, 0, ends) == 0)
  return ends[0], ends[1]
end

-- Starts argv (a table of strings) with pipes for its input and output.
function M.spawn(words)
  local argv = ffi.new("const char *[?]", #words + 1)
  for i, word in ipairs(words) do argv[i - 1] = word end
  local input, to = sockets()
  local from, output = pipe()
  local pid = C.spec_fork()
  assert(pid >= 0, "no fork")
  if pid == 0 then
    C.spec_prctl(PR_SET_PDEATHSIG, signals.KILL, 0, 0, 0)
    C.spec_dup2(input, 0)
    C.spec_dup2(output, 1)
    C.spec_execvp(argv[0], argv)
    C.spec_exit(127)
  end
  C.spec_close(input)
  C.spec_close(output)
  local self = setmetatable({ pid = pid, to = to, from = from, text = "" },
                            Process)
  M.all[self] = true
  return self
end

-- Runs f(child, perigee, ffi, ...) in a new luajit.
function M.start(f, ...)
  assert(debug.getinfo(f, "u").nups == 0, "a child's function has upvalues")
  local words = { "luajit", "spec/support/child.lua" }
  for i = 1, select("#", ...) do
    words[#words + 1] = tostring((select(i, ...)))
  end
  local self = M.spawn(words)
  local code = string.dump(f)
  self:write(#code .. "\n" .. code)
  return self
end

function Process:write(text)
  local sent = 0
  while sent < #text do
    local n = C.spec_send(self.to, ffi.cast("const char *", text) + sent,
                          #text - sent, MSG_NOSIGNAL)
    if n <= 0 then return nil, "the child is gone" end
    sent = sent + tonumber(n)
  end
  return true
end

-- Sends the child a line, which its hear() returns.
function Process:tell(line)
  return self:write(line .. "\n")
end

local function readable(fd, seconds)
  local entry = ffi.new("struct spec_poll", fd, POLLIN, 0)
  return C.spec_poll(entry, 1, seconds * 1000) > 0
end

-- Returns the next line of the child's output, or nil and the reason after
-- timeout (30 s of a fast machine) or at the end of the output. pump(), if
-- given, is called repeatedly meanwhile.
function Process:read(timeout, pump)
  local limit = M.now() + (timeout or 30 * M.slow)
  while not self.text:find("\n", 1, true) do
    if readable(self.from, pump and 0 or 0.05) then
      local n = tonumber(C.spec_read(self.from, chunk, 65536))
      if n <= 0 then return nil, "end of the child's output" end
      self.text = self.text .. ffi.string(chunk, n)
    elseif M.now() > limit then
      return nil, "the child said nothing"
    end
    if pump then pump() end
  end
  local line, rest = self.text:match("^(.-)\n(.*)$")
  self.text = rest
  if line:find("^error: ") then
    error("in the child: " .. line:sub(8):gsub("\\n", "\n"), 2)
  end
  return line
end

-- Reads a line and fails unless it is this one.
function Process:expect(line, timeout, pump)
  local got, why = self:read(timeout, pump)
  if got ~= line then
    error(("the child should say %q: %s"):format(line, got or why), 2)
  end
  return self
end

-- The text behind the given first word in a line of a process's /proc file. The
-- file is closed at once: a spec that looks every millisecond would run out of
-- descriptors.
local function told(pid, file, word)
  local opened = assert(io.open(("/proc/%d/%s"):format(pid, file)))
  local text = opened:read "*a"
  opened:close()
  return ("\n" .. text):match("\n" .. word .. ":%s+([^\n]+)")
end

local function runs(pid)
  return not told(pid, "status", "State"):find "^[TZ]" -- stopped, or dead
end

-- Sends a signal by its name: "KILL", "STOP", "CONT", "TERM", "INT". It returns
-- only when the process has stopped, after "STOP".
function M.signal(pid, name)
  local number = assert(signals[name], name)
  C.spec_kill(pid, number)
  local limit = M.now() + 10 * M.slow
  while name == "STOP" and runs(pid) and M.now() < limit do
    C.spec_usleep(100)
  end
end

function Process:signal(name)
  M.signal(assert(self.pid, "this process was waited for"), name)
  return self
end

-- Sends SIGKILL and returns when the process is gone.
function Process:kill()
  if not self.pid then return self end
  self:signal("KILL")
  C.spec_waitpid(self.pid, nil, 0)
  self.pid = nil
  return self
end

-- Waits for its end (30 s of a fast machine) and returns "exit", code |
-- "signal", number | nil, "timeout".
function Process:wait(timeout)
  local status, limit = ffi.new("int[1]"), M.now() + (timeout or 30 * M.slow)
  while C.spec_waitpid(self.pid, status, WNOHANG) == 0 do
    if M.now() > limit then return nil, "timeout" end
    C.spec_usleep(1000)
  end
  self.pid = nil
  local signal = bit.band(status[0], 127)
  if signal ~= 0 then return "signal", signal end
  return "exit", bit.band(bit.rshift(status[0], 8), 255)
end

-- A number in the child's /proc file, from the line with this first word.
function Process:number(file, word)
  return tonumber((told(self.pid, file, word) or ""):match("^%d+"))
end

function Process:close()
  self:kill()
  if self.to then
    C.spec_close(self.to)
    C.spec_close(self.from)
    self.to = nil
  end
  M.all[self] = nil
end

-- For after_each: ends all children that are left.
function M.cleanup()
  for self in pairs(M.all) do self:close() end
end
jit.off(M.cleanup) -- pairs() is compiled wrongly at times

return M
