-- SPDX-License-Identifier: Apache-2.0
-- Child processes with pipes, cores and the clock: what a bench needs from the
-- operating system. A child is started by posix_spawnp without a shell. Its
-- standard input is a pipe of ours, so that it can notice when we end.

local ffi = require "ffi"

ffi.cdef [[
typedef struct { char opaque[256]; } perigee_bench_actions;
typedef struct { long sec, nsec; } perigee_bench_time;
typedef struct { int fd; short events, revents; } perigee_bench_poll;
int perigee_bench_poll_of(perigee_bench_poll *, unsigned long, int)
  __asm__("poll");
void *perigee_bench_signal(int, void *) __asm__("signal");
int posix_spawn_file_actions_init(perigee_bench_actions *);
int posix_spawn_file_actions_destroy(perigee_bench_actions *);
int posix_spawn_file_actions_adddup2(perigee_bench_actions *, int, int);
int posix_spawnp(int *pid, const char *file, const perigee_bench_actions *,
                 const void *attributes, char *const argv[],
                 char *const envp[]);
extern char **environ;
int pipe2(int fds[2], int flags);
int close(int fd);
ssize_t read(int fd, void *bytes, size_t length);
ssize_t write(int fd, const void *bytes, size_t length);
int kill(int pid, int signal);
int waitpid(int pid, int *status, int options);
int getpid(void);
int getppid(void);
int isatty(int fd);
int prctl(int option, unsigned long, unsigned long, unsigned long,
          unsigned long);
int sched_setaffinity(int pid, size_t size, const uint64_t *mask);
int sched_getaffinity(int pid, size_t size, uint64_t *mask);
int sched_getscheduler(int pid);
int sched_getparam(int pid, int *priority);
int clock_gettime(int clock, perigee_bench_time *);
int nanosleep(const perigee_bench_time *, perigee_bench_time *);
long sysconf(int name);
int setenv(const char *name, const char *value, int overwrite);
]]

local C = ffi.C
local O_CLOEXEC, SIGTERM, PR_SET_PDEATHSIG = 0x80000, 15, 1
local CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID = 1, 3
local SC_NPROCESSORS_ONLN = 84
local POLLIN, WNOHANG, SIGPIPE, SIG_IGN = 1, 1, 13, 1

local M = {}

local time = ffi.new "perigee_bench_time"

-- Returns nanoseconds as a number, exact below 2^53, which is 104 days.
function M.now()
  C.clock_gettime(CLOCK_MONOTONIC, time)
  return tonumber(time.sec) * 1e9 + tonumber(time.nsec)
end

-- Returns the nanoseconds of processor time that the calling thread has used.
function M.spent()
  C.clock_gettime(CLOCK_THREAD_CPUTIME_ID, time)
  return tonumber(time.sec) * 1e9 + tonumber(time.nsec)
end

function M.sleep(seconds)
  local whole = math.floor(seconds)
  C.nanosleep(ffi.new("perigee_bench_time", whole, (seconds - whole) * 1e9),
              nil)
end

local CORES = 1024 -- that a mask has bits for

-- Returns a mask of cores; nil if one of them has no bit there.
local function mask_of(cores)
  local mask = ffi.new("uint64_t[?]", CORES / 64)
  for _, core in ipairs(cores) do
    core = tonumber(core)
    if core % 1 ~= 0 or core < 0 or core >= CORES then return nil end
    local word = math.floor(core / 64)
    mask[word] = bit.bor(mask[word], bit.lshift(1ULL, core % 64))
  end
  return mask
end

-- Pins the process pid (0: this one) to one or several cores; nil and a
-- message if that fails.
function M.pin(pid, ...)
  local mask = mask_of { ... }
  if not mask or C.sched_setaffinity(pid, CORES / 8, mask) ~= 0 then
    return nil, ("core %s is not there for us")
                :format(table.concat({ ... }, " or "))
  end
  return true
end

-- Sets it for this process and the children that it starts from now on.
function M.setenv(name, value) C.setenv(name, value, 1) end

function M.cores() return tonumber(C.sysconf(SC_NPROCESSORS_ONLN)) end

-- Returns the numbers of the cores that this process may use, which can be
-- fewer than there are (taskset(1), a container's).
function M.allowed()
  local mask, list = ffi.new "uint64_t[16]", {}
  if C.sched_getaffinity(0, 128, mask) ~= 0 then return list end
  for core = 0, 1023 do
    local word = bit.rshift(mask[math.floor(core / 64)], core % 64)
    if bit.band(word, 1) ~= 0 then list[#list + 1] = core end
  end
  return list
end

-- Returns this process's policy, "fifo" or "rr", and its priority; nil if it is
-- no real-time process.
function M.real_time()
  local policy = ({ "fifo", "rr" })[C.sched_getscheduler(0) % 16]
  local priority = ffi.new "int[1]"
  if not policy or C.sched_getparam(0, priority) ~= 0 then return nil end
  return policy, priority[0]
end

function M.pid() return C.getpid() end

function M.is_terminal(fd) return C.isatty(fd) == 1 end

-- Returns whether there is a program of that name in PATH.
function M.installed(program)
  for folder in (os.getenv "PATH" or ""):gmatch "[^:]+" do
    local file = io.open(folder .. "/" .. program)
    if file then
      file:close()
      return true
    end
  end
end

-- Driver and worker both call it, so the one that ends last leaves nothing
-- behind.
function M.remove_folder(path, names)
  for _, name in ipairs(names) do os.remove(path .. "/" .. name) end
  os.remove(path)
end

-- A child calls this first: from then on it dies with its parent, in whatever
-- way that ends. signal: by which (SIGTERM, which waits while it is stopped).
function M.die_with_parent(parent, signal)
  C.prctl(PR_SET_PDEATHSIG, signal or SIGTERM, 0, 0, 0)
  if C.getppid() ~= parent then os.exit(1) end
end

local Child = {}
Child.__index = Child

-- Returns whether there is something to read, or the end, until then (in ns).
local function readable(fd, until_ns)
  local entry = ffi.new("perigee_bench_poll", fd, POLLIN, 0)
  repeat
    local ms = math.max(0, math.min(1e9, (until_ns - M.now()) / 1e6))
    if C.perigee_bench_poll_of(entry, 1, math.ceil(ms)) > 0 then
      return true
    end
  until M.now() >= until_ns
end

-- Writing to a child that has ended must not end us. Children whose command has
-- `env --default-signal=PIPE` in it have the signal as usual.
function M.ignore_broken_pipes()
  C.perigee_bench_signal(SIGPIPE, ffi.cast("void *", SIG_IGN))
end

-- Returns a line that the child printed, or nil at its end; with `seconds`
-- also nil, and true, if it printed none for so long.
function Child:line(seconds)
  local limit = seconds and M.now() + seconds * 1e9
  while true do
    local line, rest = self.text:match "^([^\n]*)\n(.*)$"
    if line then
      self.text = rest
      return line
    end
    if limit and not readable(self.output, limit) then return nil, true end
    local got = tonumber(C.read(self.output, self.chunk, 65536))
    if got <= 0 then return nil end
    self.text = self.text .. ffi.string(self.chunk, got)
  end
end

-- Iterates over the lines that it prints until its end.
function Child:lines()
  return function() return self:line() end
end

-- Returns everything that it prints until its end.
function Child:rest()
  local parts = { self.text }
  self.text = ""
  while true do
    local got = tonumber(C.read(self.output, self.chunk, 65536))
    if got <= 0 then return table.concat(parts) end
    parts[#parts + 1] = ffi.string(self.chunk, got)
  end
end

-- Waits so many seconds at most; returns those of the children that have
-- printed something, or have ended.
function M.readable(children, seconds)
  local polls = ffi.new("perigee_bench_poll[?]", #children)
  for i, child in ipairs(children) do
    polls[i - 1].fd, polls[i - 1].events = child.output, POLLIN
    if child.text:find("\n", 1, true) then seconds = 0 end
  end
  C.perigee_bench_poll_of(polls, #children, math.ceil(seconds * 1e3))
  local list = {}
  for i, child in ipairs(children) do
    if polls[i - 1].revents ~= 0 or child.text:find("\n", 1, true) then
      list[#list + 1] = child
    end
  end
  return list
end

-- Writes a short text to its input, unless it has ended.
function Child:tell(text)
  if self.input then C.write(self.input, text, #text) end
end

function Child:signal(number) return C.kill(self.pid, number) end

-- Closes its input: it reads the end of a file.
function Child:close_input()
  if self.input then C.close(self.input) end
  self.input = nil
end

-- Waits for its end, closes its pipes, and returns its exit status, or 128 plus
-- the signal that ended it. at_once: returns nil if it has not ended.
function Child:wait(at_once)
  if self.status then return self.status end
  local status = ffi.new "int[1]"
  if C.waitpid(self.pid, status, at_once and WNOHANG or 0) ~= self.pid then
    return nil
  end
  local signal = bit.band(status[0], 0x7f)
  self.status = signal > 0 and 128 + signal
                or bit.band(bit.rshift(status[0], 8), 0xff)
  C.close(self.output)
  self:close_input()
  return self.status
end

-- Closes its input, asks it to stop, and waits for its end.
function Child:stop()
  if self.status then return self.status end
  self:close_input()
  self:signal(SIGTERM)
  return self:wait()
end

-- Returns the words that started this script: the interpreter and its options,
-- to start other scripts in the same way.
function M.interpreter()
  local words, first = {}, -1
  while arg[first - 1] do first = first - 1 end
  for i = first, -1 do words[#words + 1] = arg[i] end
  return words
end

local function argv_of(command)
  local argv = ffi.new("const char *[?]", #command + 1)
  for i, word in ipairs(command) do argv[i - 1] = word end
  return argv
end

-- Returns the two ends of a pipe, or nil.
local function pipe()
  local ends = ffi.new "int[2]"
  return C.pipe2(ends, O_CLOEXEC) == 0 and ends or nil
end

-- Starts a command given as a list of words; nil and a message if that fails.
function M.spawn(command)
  local words = {}
  for i, word in ipairs(command) do words[i] = tostring(word) end
  local into, out = pipe(), pipe()
  if not (into and out) then
    if into then
      C.close(into[0])
      C.close(into[1])
    end
    return nil, words[1] .. " cannot be started: no more files (ulimit -n)"
  end
  local actions = ffi.new "perigee_bench_actions"
  C.posix_spawn_file_actions_init(actions)
  C.posix_spawn_file_actions_adddup2(actions, into[0], 0)
  C.posix_spawn_file_actions_adddup2(actions, out[1], 1)
  local pid = ffi.new "int[1]"
  local argv = argv_of(words)
  local code = C.posix_spawnp(pid, words[1], actions, nil,
                              ffi.cast("char *const *", argv), C.environ)
  C.posix_spawn_file_actions_destroy(actions)
  C.close(into[0])
  C.close(out[1])
  if code ~= 0 then
    C.close(into[1])
    C.close(out[0])
    return nil, ("%s cannot be started (errno %d)"):format(words[1], code)
  end
  return setmetatable({ pid = pid[0], input = into[1], output = out[0],
                        text = "", chunk = ffi.new "char[65536]" }, Child)
end

return M
