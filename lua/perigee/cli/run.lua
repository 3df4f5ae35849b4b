-- SPDX-License-Identifier: Apache-2.0
--- `perigee run -n 4 FILE`: processes on this host that know their ranks
-- (`perigee.launch`), and end together.
--
--   state    event                                       becomes
--   running  a rank has failed                           ending   TERM to all
--   running  SIGINT, SIGTERM, SIGHUP, SIGQUIT            ending   handed on
--   running  nobody reads the output any more            ending   TERM to all
--   ending   such a signal, or the grace is over         killing  KILL to all
--   any      SIGUSR1, SIGUSR2                            -        handed on
--   any      the last rank has ended                     over
jit.off(true, true)             -- its loops over pairs(), see check.lua

local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"

local M = {
  name = "run",
  summary = "Run a program several times on this host, with ranks.",
  description = "Runs a Lua file, or another program, several times on this "
    .. "host. Each process has its rank in PERIGEE_RANK (perigee.launch reads "
    .. "it) and reads nothing; its output is printed line by line behind its "
    .. "rank. A process that fails ends the others, and the exit status is "
    .. "that of the first that failed (128 and the signal, if one killed it). "
    .. "Signals are handed on. No process outlives this one.",
  passes_on = true,
}

function M.configure(parser)
  parser:argument("file", "A Lua file (*.lua), or a program."):argname "FILE"
  parser:argument("rest", "Its arguments."):argname "ARGUMENT":args "*"
  parser:option("-n --number", "How many processes; default: 1.")
    :argname "NUMBER":convert(options.count):default(1)
  parser:option("--grace", "How long they may take to end before they are "
    .. "killed; default: 5 s."):argname "TIME":convert(options.seconds)
    :default(5)
  options.place(parser)
end

local LONGEST = 2 ^ 20                  -- bytes of a line that are kept
local EPIPE = 32                        -- nobody reads it

-- Has LuaJIT write each line at once, as on a terminal.
local LINES = [[io.stdout:setvbuf "line"]]

-- ---- Output ----------------------------------------------------------------

-- Takes what a rank wrote, "" at the end, and writes the whole lines of it
-- behind the rank; true if it could be written, or nil, why not, and errno.
local function take(stream, text)
  local all = stream.rest .. text
  local whole, rest = all:match "^(.*\n)(.*)$"
  if not whole then whole, rest = "", all end
  if #rest > LONGEST or text == "" and rest ~= "" then
    whole, rest = all .. "\n", ""
  end
  stream.rest = rest
  if whole == "" then return true end
  local fine, why, code = stream.to:write(
    (whole:gsub("[^\n]*\n", stream.prefix .. "%0")))
  if not fine then return nil, why, code end
  return stream.to:flush()
end

-- ---- Starting --------------------------------------------------------------

local function words_of(given)
  if not given.file:find "%.lua$" then return { given.file,
                                                unpack(given.rest) } end
  local file, why = io.open(given.file)
  if not file then failure.misuse("cannot open %s", why) end
  file:close()
  return { "luajit", "-e", LINES, given.file, unpack(given.rest) }
end

-- The variables that all ranks have in their environment. They find the Perigee
-- that this command belongs to.
local function environment(given, process)
  return {
    PERIGEE_SIZE = tostring(given.number),
    PERIGEE_LOCAL_SIZE = tostring(given.number),
    PERIGEE_JOB = ("run-%d-%.0f"):format(process.pid(), process.now() * 1e6),
    PERIGEE_SCOPE = given.scope, PERIGEE_REGISTRY = given.registry,
    LUA_PATH = package.path, LUA_CPATH = package.cpath,
  }
end

local function stream(to, rank)
  return { to = to, rest = "", prefix = ("[%d] "):format(rank) }
end

local function start(job, rank)
  job.environment.PERIGEE_RANK = tostring(rank)
  job.environment.PERIGEE_LOCAL_RANK = tostring(rank)
  local pid, out, err = job.process.start(job.words, job.environment)
  if not pid then return nil, out end
  job.tell("+", pid)
  job.ranks[pid] = rank
  job.streams[out], job.streams[err] = stream(io.stdout, rank),
    stream(io.stderr, rank)
  return true
end

-- ---- Ending ----------------------------------------------------------------

local function send(job, signal)
  for pid in pairs(job.ranks) do job.process.send(pid, signal) end
end

local function finish(job, signal)
  if job.deadline then signal = job.process.KILL end
  send(job, signal)
  job.deadline = job.process.now() + job.grace
end

-- Notes how a rank has ended; the first failure ends all.
local function note(job, pid, code, signal)
  local rank = job.ranks[pid]
  job.ranks[pid] = nil
  job.tell("-", pid)
  if code == 0 or job.status then return end
  job.status = code or 128 + signal
  if job.deadline then return end
  io.stderr:write(("perigee run: rank %d (process %d) %s; the others are "
    .. "ended\n"):format(rank, pid, code and "ended with " .. code
    or "was killed by " .. job.process.signal_name(signal)))
  finish(job, job.process.TERM)
end

local function reap(job)
  local pids = {}
  for pid in pairs(job.ranks) do pids[#pids + 1] = pid end
  for _, pid in ipairs(pids) do
    local code, signal = job.process.ended(pid)
    if code ~= false then note(job, pid, code, signal) end
  end
end

local function signalled(job)
  local process = job.process
  local signal = process.signal(job.signals)
  if signal == process.USR1 or signal == process.USR2 then
    send(job, signal)
  elseif signal and signal ~= process.CHLD then
    finish(job, signal)
  end
end

-- ---- The loop --------------------------------------------------------------

local function hear(job, fd)
  local text = job.process.read(fd)
  local written, why, code = take(job.streams[fd], text)
  if text == "" then
    job.process.close(fd)
    job.streams[fd] = nil
  end
  if not written and not job.deadline then
    local status = code == EPIPE and failure.UNREAD or failure.FAILED
    if status == failure.FAILED then
      io.stderr:write("perigee run: writing the output: ", why, "\n")
    end
    job.status = job.status or status
    finish(job, job.process.TERM)
  end
end

-- Waits for what happens next, or not at all; true if something did.
local function round(job, timeout)
  local list = { job.signals }
  for fd in pairs(job.streams) do list[#list + 1] = fd end
  local ready = job.process.poll(list, timeout)
  for _, fd in ipairs(ready) do
    if fd == job.signals then signalled(job) else hear(job, fd) end
  end
  return ready[1] ~= nil
end

local function over(job)
  reap(job)
  return next(job.ranks) == nil
end

local function watch(job)
  while not over(job) do
    local left = job.deadline and job.deadline - job.process.now()
    if left and left <= 0 then
      send(job, job.process.KILL)
      left = nil
    end
    round(job, left)
  end
  while next(job.streams) and round(job, 0) do end   -- what is left in pipes
  for _, each in pairs(job.streams) do take(each, "") end
end

function M.run(given)
  local process = require "perigee.cli.process"
  local job = { process = process, ranks = {}, streams = {}, status = nil,
                grace = given.grace, words = words_of(given),
                environment = environment(given, process) }
  job.signals = process.watch { process.HUP, process.INT, process.QUIT,
                                process.TERM, process.USR1, process.USR2 }
  local why
  job.tell, why = process.guarded()
  if not job.tell then failure.failed("starting: %s", why) end
  for rank = 0, given.number - 1 do
    local fine
    fine, why = start(job, rank)
    if not fine then
      send(job, process.KILL)
      failure.failed("starting rank %d: %s", rank, why)
    end
  end
  watch(job)
  return job.status or 0
end

return M
