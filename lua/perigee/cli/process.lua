-- SPDX-License-Identifier: Apache-2.0
--- Processes of `perigee run`: each is the leader of a process group of its
-- own, writes into two pipes, reads /dev/null, and is killed by the kernel when
-- its parent dies. Signals reach the parent by a descriptor, so they are
-- blocked here, and unblocked in each child.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local ffi = require "ffi"

if not pcall(ffi.typeof, "struct perigee_cli_poll") then ffi.cdef [[
  struct perigee_cli_poll { int fd; short events, revents; };
  int perigee_cli_poll(struct perigee_cli_poll *, unsigned long, int)
    __asm__("poll");
  int perigee_cli_fork(void) __asm__("fork");
  int perigee_cli_getpid(void) __asm__("getpid");
  int perigee_cli_getppid(void) __asm__("getppid");
  int perigee_cli_setpgid(int, int) __asm__("setpgid");
  int perigee_cli_setsid(void) __asm__("setsid");
  int perigee_cli_kill(int, int) __asm__("kill");
  int perigee_cli_waitpid(int, int *, int) __asm__("waitpid");
  int perigee_cli_waitid(int, unsigned, int *, int) __asm__("waitid");
  int perigee_cli_pipe2(int *, int) __asm__("pipe2");
  int perigee_cli_open(const char *, int, ...) __asm__("open");
  int perigee_cli_dup2(int, int) __asm__("dup2");
  int perigee_cli_close(int) __asm__("close");
  long perigee_cli_read(int, void *, size_t) __asm__("read");
  long perigee_cli_write(int, const void *, size_t) __asm__("write");
  int perigee_cli_execvp(const char *, const char **) __asm__("execvp");
  int perigee_cli_setenv(const char *, const char *, int) __asm__("setenv");
  void perigee_cli_exit(int) __asm__("_exit");
  int perigee_cli_prctl(int, unsigned long, unsigned long, unsigned long,
                        unsigned long) __asm__("prctl");
  int perigee_cli_sigemptyset(unsigned long *) __asm__("sigemptyset");
  int perigee_cli_sigaddset(unsigned long *, int) __asm__("sigaddset");
  int perigee_cli_sigprocmask(int, const unsigned long *, unsigned long *)
    __asm__("sigprocmask");
  int perigee_cli_signalfd(int, const unsigned long *, int)
    __asm__("signalfd");
  int perigee_cli_clock(int, int64_t *) __asm__("clock_gettime");
  const char *perigee_cli_strerror(int) __asm__("strerror");
]] end

local C = ffi.C
local O_CLOEXEC, O_RDWR, PR_SET_PDEATHSIG = 0x80000, 2, 1
local SIG_BLOCK, SIG_SETMASK, CLOCK_MONOTONIC = 0, 2, 1
local P_PID, WNOHANG, WEXITED, WNOWAIT = 1, 1, 4, 0x1000000
local KILL, CHLD, PIPE, POLLIN = 9, 17, 13, 1

local M = {
  HUP = 1, INT = 2, QUIT = 3, KILL = KILL, USR1 = 10, USR2 = 12, TERM = 15,
  CHLD = CHLD,
}

local NAMES = { "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT",
                "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2",
                "SIGPIPE", "SIGALRM", "SIGTERM" }

--- The name of a signal.
function M.signal_name(number)
  return NAMES[number] or "signal " .. number
end

local time = ffi.new "int64_t[2]"

--- Seconds of a monotonic clock.
function M.now()
  C.perigee_cli_clock(CLOCK_MONOTONIC, time)
  return tonumber(time[0]) + tonumber(time[1]) * 1e-9
end

M.pid = C.perigee_cli_getpid

local function why() return ffi.string(C.perigee_cli_strerror(ffi.errno())) end

-- ---- Signals ---------------------------------------------------------------

local SET = 16                          -- words of a sigset_t
local before = ffi.new("unsigned long[?]", SET)

--- Blocks the signals of a list, SIGCHLD and SIGPIPE; returns a descriptor that
-- reports all but the last.
function M.watch(list)
  local set = ffi.new("unsigned long[?]", SET)
  C.perigee_cli_sigemptyset(set)
  for _, number in ipairs(list) do C.perigee_cli_sigaddset(set, number) end
  C.perigee_cli_sigaddset(set, CHLD)
  local fd = C.perigee_cli_signalfd(-1, set, O_CLOEXEC)
  C.perigee_cli_sigaddset(set, PIPE)
  C.perigee_cli_sigprocmask(SIG_BLOCK, set, before)
  return fd
end

--- Has these signals do what they did before.
function M.unwatch() C.perigee_cli_sigprocmask(SIG_SETMASK, before, nil) end

--- Sends a signal to this process.
function M.raise(signal) C.perigee_cli_kill(C.perigee_cli_getpid(), signal) end

local info = ffi.new "uint32_t[32]"     -- struct signalfd_siginfo

--- The number of the next signal of such a descriptor, which has one.
function M.signal(fd)
  if C.perigee_cli_read(fd, info, 128) ~= 128 then return nil end
  return info[0]
end

--- Sends a signal to the process group of a leader.
function M.send(pid, signal) C.perigee_cli_kill(-pid, signal) end

-- ---- Starting --------------------------------------------------------------

local function pipe()
  local ends = ffi.new "int[2]"
  if C.perigee_cli_pipe2(ends, O_CLOEXEC) ~= 0 then return nil end
  return ends[0], ends[1]
end

local function fail_child(fd, text)
  C.perigee_cli_write(fd, text, #text)
  C.perigee_cli_exit(127)
end

-- In the child: becomes the program.
local function become(words, environment, parent, out, err)
  C.perigee_cli_setpgid(0, 0)
  C.perigee_cli_prctl(PR_SET_PDEATHSIG, KILL, 0, 0, 0)
  if C.perigee_cli_getppid() ~= parent then C.perigee_cli_exit(127) end
  C.perigee_cli_dup2(C.perigee_cli_open("/dev/null", O_RDWR), 0)
  C.perigee_cli_dup2(out, 1)
  C.perigee_cli_dup2(err, 2)
  for name, value in pairs(environment) do
    C.perigee_cli_setenv(name, value, 1)
  end
  C.perigee_cli_sigprocmask(SIG_SETMASK, before, nil)
  local argv = ffi.new("const char *[?]", #words + 1)
  for i, word in ipairs(words) do argv[i - 1] = word end
  C.perigee_cli_execvp(words[1], argv)
  fail_child(2, ("cannot run %s: %s\n"):format(words[1], why()))
end

--- Starts a program with more environment. Returns its pid and the descriptors
-- that have its output and its errors; or nil and why.
function M.start(words, environment)
  local out, to_out = pipe()
  local err, to_err = pipe()
  if not out or not err then return nil, why() end
  local parent = C.perigee_cli_getpid()
  local pid = C.perigee_cli_fork()
  if pid < 0 then return nil, why() end
  if pid == 0 then
    pcall(become, words, environment, parent, to_out, to_err)
    C.perigee_cli_exit(127)
  end
  C.perigee_cli_setpgid(pid, pid)       -- whoever comes first
  C.perigee_cli_close(to_out)
  C.perigee_cli_close(to_err)
  return pid, out, err
end

-- ---- Watching --------------------------------------------------------------

local chunk = ffi.new "char[65536]"

--- The bytes that a descriptor has now, "" at its end.
function M.read(fd)
  local length = C.perigee_cli_read(fd, chunk, 65536)
  return length > 0 and ffi.string(chunk, length) or ""
end

M.close = C.perigee_cli_close

--- The descriptors of a list that have something, after at most timeout
-- seconds (nil: none).
function M.poll(list, timeout)
  local polled = ffi.new("struct perigee_cli_poll[?]", #list + 1)
  for i, fd in ipairs(list) do
    polled[i - 1].fd, polled[i - 1].events = fd, POLLIN
  end
  local ready = {}
  local count = C.perigee_cli_poll(polled, #list,
    timeout and math.max(0, math.ceil(timeout * 1000)) or -1)
  for i = 1, count > 0 and #list or 0 do
    if polled[i - 1].revents ~= 0 then ready[#ready + 1] = list[i] end
  end
  return ready
end

local status, details = ffi.new "int[1]", ffi.new "int[32]"

-- Has it ended? It is not reaped yet, so its pid is still its own.
local function has_ended(pid)
  details[3], details[4] = 0, 0         -- where there is padding and where not
  local fine = C.perigee_cli_waitid(P_PID, pid, details,
                                    WEXITED + WNOHANG + WNOWAIT) == 0
  return fine and (details[3] ~= 0 or details[4] ~= 0)
end

--- Kills the rest of a process's group if the process has ended. Returns its
-- exit status, or nil and the signal that killed it; false while it lives.
function M.ended(pid)
  if not has_ended(pid) then return false end
  M.send(pid, KILL)
  C.perigee_cli_waitpid(pid, status, 0)
  local signal = bit.band(status[0], 127)
  if signal ~= 0 then return nil, signal end
  return bit.band(bit.rshift(status[0], 8), 255)
end

-- ---- The guard -------------------------------------------------------------

-- In the guard: kills the groups that it has been told of when the pipe ends.
local function guard(from)
  local text, groups = "", {}
  C.perigee_cli_setsid()
  local null = C.perigee_cli_open("/dev/null", O_RDWR)
  for fd = 0, 2 do C.perigee_cli_dup2(null, fd) end
  while true do
    local more = M.read(from)
    if more == "" then break end
    text = text .. more
  end
  for sign, pid in text:gmatch "([+-])(%d+)\n" do
    groups[tonumber(pid)] = sign == "+" or nil
  end
  for pid in pairs(groups) do M.send(pid, KILL) end
end

--- Starts the guard, which kills all groups that are alive when this process
-- dies, in whatever way. The kernel ends this process's children then, but not
-- their children. Returns f(sign, pid), which tells the guard of a group that
-- has begun ("+") or is over ("-").
function M.guarded()
  local from, to = pipe()
  if not from then return nil, why() end
  local pid = C.perigee_cli_fork()
  if pid < 0 then return nil, why() end
  if pid == 0 then
    C.perigee_cli_close(to)
    pcall(guard, from)
    C.perigee_cli_exit(0)
  end
  C.perigee_cli_close(from)
  return function(sign, group)
    local line = ("%s%d\n"):format(sign, group)
    C.perigee_cli_write(to, line, #line)
  end
end

return M
