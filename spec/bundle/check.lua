-- SPDX-License-Identifier: Apache-2.0
-- check [shm|tcp|rdma|gpu ...]: tries a bundle on the machine where it is, and
-- ends with one JSON document on stdout. Without words: shm and tcp. Progress
-- goes to stderr. The exit status is 0 if nothing failed.
--
-- The document, below 64 KiB, failures first:
--
--   { "failures": [ { "transport", "file", "what" }, ... ],
--     "passed", "failed", "skipped": tests, "left_out": [ files for which there
--     was no time ], "seconds", "version", "checked": [ the words ],
--     "benches": [ rows of bench/rpc.lua and bench/transfer.lua ],
--     "files": [ { "transport", "file", "passed", ... }, ... ],
--     "doctor": what `perigee doctor --json` says }
local ffi = require "ffi"

ffi.cdef [[
  int check_setenv(const char *, const char *, int) __asm__("setenv");
  int check_chdir(const char *) __asm__("chdir");
  long check_sysconf(int) __asm__("sysconf");
  int check_getpid(void) __asm__("getpid");
]]

local root = arg[0]:match "^(.*)/spec/bundle/[^/]*$"
package.path = root .. "/?.lua;" .. package.path
local cjson = require "cjson"
local process = require "spec.support.process"
local C = ffi.C

-- All that is done within LIMIT seconds; a file of specs within FILE of them.
local LIMIT, FILE, LONGEST, MOST = 460, 180, 400, 80
local PROCESSORS_ONLINE = 84
local TRANSPORTS = { shm = "shm", tcp = "tcp", rdma = "verbs", gpu = "shm" }

-- The specs of names alone do not depend on the transport.
local NAMES = { etcd = true, finding = true, listing = true, redis = true,
                registries = true, rendezvous = true, tenure = true }

local began = process.now()
local failures, files, left_out = {}, {}, {}
local passed, failed, skipped = 0, 0, 0

local function say(...)
  io.stderr:write(("%4.0f s  "):format(process.now() - began),
                  string.format(...), "\n")
end

local function note_failure(transport, file, what)
  failures[#failures + 1] = { transport = transport, file = file,
                              what = what:sub(1, LONGEST) }
end

local function left() return LIMIT - (process.now() - began) end

-- ---- Programs --------------------------------------------------------------

-- Starts a program. step() reads what it says; over is true once it has ended.
local function start(words, seconds)
  local child = process.spawn(words)
  local job = { child = child, text = {}, limit = process.now() + seconds }
  function job:step()
    local line, why = child:read(0.01)
    while line do
      self.text[#self.text + 1] = line
      line, why = child:read(0)
    end
    if why == "end of the child's output" then
      self.over, self.how, self.code = true, child:wait(10)
    elseif process.now() > self.limit then
      self.over, self.how = true, "hung"
    end
    if self.over then
      self.text[#self.text + 1] = child.text
      child:close()
    end
  end
  return job
end

local function output(words, seconds)
  local job = start(words, math.min(seconds, left()))
  repeat job:step() until job.over
  return table.concat(job.text, "\n"), job
end

-- ---- Specs -----------------------------------------------------------------

local function listed(name)
  local list = {}
  for line in io.lines(root .. "/spec/bundle/" .. name) do
    list[#list + 1] = line
  end
  return list
end

local function name_of(file) return file:match "([^/]*)_spec%.lua$" end

-- The names and first lines of the failed tests in busted's report.
local function failed_tests(lines)
  local list = {}
  for i, line in ipairs(lines) do
    local at = line:match "^Failure %-> (.*)" or line:match "^Error %-> (.*)"
    if at then
      list[#list + 1] = table.concat({
        lines[i + 1] or "", at, table.concat(lines, " ", i + 2,
                                             math.min(i + 8, #lines)) }, ": ")
    end
  end
  return list
end

-- The same of a C test, which prints TAP: also how many passed, failed and were
-- skipped.
local function read_tap(lines)
  local ok, skip, list = 0, 0, {}
  for _, line in ipairs(lines) do
    local bad = line:match "^not ok %d+ %-? ?(.*)"
    if bad then
      list[#list + 1] = bad
    elseif line:find "^ok .*# *SKIP" then
      skip = skip + 1
    elseif line:find "^ok " then
      ok = ok + 1
    end
  end
  return list, ok, #list, skip
end

local function read_report(lines)
  for i = #lines, 1, -1 do
    local ok, bad, skip = lines[i]:match "^(%d+) passed, (%d+) failed, (%d+) sk"
    if ok then
      return failed_tests(lines), tonumber(ok), tonumber(bad), tonumber(skip)
    end
  end
  return failed_tests(lines)
end

-- What a job's output says: the failed tests, and how many passed, failed and
-- were skipped. A job that died or hung has one failure more.
local function results(job)
  local list, ok, bad, skip = job.read(job.text)
  if job.how ~= "exit" or not ok or job.code > 0 and bad == 0 then
    list[#list + 1] = ("%s %s; it said last: %s"):format(
      job.how or "ended", job.code or "",
      table.concat(job.text, " ", math.max(1, #job.text - 5)))
    ok, bad, skip = ok or 0, (bad or 0) + 1, skip or 0
  end
  return list, ok, bad, skip
end

local function finish_file(job)
  local list, ok, bad, skip = results(job)
  for _, what in ipairs(list) do
    note_failure(job.transport, job.file, what)
  end
  passed, failed, skipped = passed + ok, failed + bad, skipped + skip
  files[#files + 1] = { transport = job.transport, file = job.file, passed = ok,
                        failed = bad, skipped = skip,
                        seconds = math.floor(process.now() - job.began) }
  say("%s %s: %d passed, %d failed, %d skipped", job.transport, job.file, ok,
      bad, skip)
end

local function start_file(word, file)
  local name = TRANSPORTS[word]
  C.check_setenv("PERIGEE_TRANSPORT", name, 1)
  C.check_setenv("PERIGEE_TEST_TRANSPORTS", name, 1)
  local is_spec, words = name_of(file), { file }
  if is_spec then
    words = { "luajit", root .. "/lib/lua/busted_main.lua", "--ignore-lua",
              file }
  end
  local job = start(words, math.min(FILE, left()))
  job.transport, job.file, job.began = word, file, process.now()
  job.read = is_spec and read_report or read_tap
  return job
end

-- The files to be run over a transport, the first last.
local function files_of(word)
  local list = {}
  for _, kind in ipairs { "contract", word == "gpu" and "gpu" or "native" } do
    for _, file in ipairs(listed(kind)) do
      if word == "tcp" or not NAMES[name_of(file)] then
        table.insert(list, 1, file)
      end
    end
  end
  return list
end

local function start_next(jobs, word, list)
  local file = table.remove(list)
  if left() < 20 then
    left_out[#left_out + 1] = word .. " " .. file
  else
    jobs[#jobs + 1] = start_file(word, file)
  end
end

-- Runs the files, `most` at a time, and calls over(job) for each that ended.
local function run_all(word, list, most, over)
  local jobs = {}
  while list[1] or jobs[1] do
    while list[1] and #jobs < most do start_next(jobs, word, list) end
    for i = #jobs, 1, -1 do
      jobs[i]:step()
      if jobs[i].over then over(table.remove(jobs, i)) end
    end
  end
end

-- On a busy machine a test may run out of time: a file with failures is run
-- once more, alone, and its second run counts.
local function check_transport(word)
  local again = {}
  local most = math.min(8, tonumber(C.check_sysconf(PROCESSORS_ONLINE)) + 1)
  run_all(word, files_of(word), most, function(job)
    local _, _, bad = results(job)
    if bad == 0 then return finish_file(job) end
    say("%s %s: %d failed; once more", job.transport, job.file, bad)
    table.insert(again, 1, job.file)
  end)
  run_all(word, again, 1, finish_file)
end

-- ---- All -------------------------------------------------------------------

-- A document of JSON as it is; other text as a text.
local function document(text)
  if pcall(cjson.decode, text) then return text end
  return cjson.encode(text:sub(1, LONGEST))
end

-- Why a program of bench/ has no rows.
local function why_not(text, job)
  return text:match '"not_run":(%b"")' or ("%s%s; it said: %s"):format(job.how,
    job.code and " " .. job.code or "", text)
end

-- Rows of a program of bench/ with these words are added to `benches`.
local function bench(benches, word, words)
  local text, job = output({ "sh", "-c", 'exec "$@" 2>&1', "sh", "luajit",
                             "bench/" .. words[1], "--json", "--transport",
                             TRANSPORTS[word], "--seconds", "0.3",
                             unpack(words, 2) }, 60)
  if job.how == "exit" and job.code == 0 then
    benches[#benches + 1] = document(text:match "{.*}" or text)
  else
    failed = failed + 1
    note_failure(word, "bench/" .. table.concat(words, " "),
                 why_not(text, job))
  end
end

local BENCHES = {
  { "rpc.lua", "--mode", "typed,raw,inplace,loan", "--sizes", "64,1M" },
  { "transfer.lua", "--mode", "write,read", "--sizes", "64,1M" },
}

-- The rows of bench/README.md, "Memory of GPUs".
local GPU_BENCHES = {
  { "transfer.lua", "--mode", "write", "--sizes", "8,64K,64M",
    "--kind", "cuda:0" },
  { "transfer.lua", "--mode", "write,read", "--sizes", "64M",
    "--kind", "host,cuda:0" },
  { "transfer.lua", "--mode", "write,read", "--sizes", "64M",
    "--kind", "cuda:0,host" },
  { "transfer.lua", "--mode", "write,read", "--sizes", "64M",
    "--kind", "host,cuda:0", "--stranger" },
  { "transfer.lua", "--mode", "pages,pages_post", "--kind", "cuda:0" },
  { "transfer.lua", "--mode", "first_write", "--sizes", "64K,64M",
    "--kind", "cuda:0" },
  { "rpc.lua", "--mode", "put", "--sizes", "64M", "--kind", "cuda:0" },
  { "rpc.lua", "--mode", "loaded", "--load", "1G", "--kind", "cuda:0",
    "--at", ("unix:/tmp/perigee-check-%d.sock"):format(C.check_getpid()) },
}

-- What is loaded of the host, such as CUDA's driver, lies in folders that it
-- names, and wants these parts of glibc.
local LOAD = [[
  local ffi, RTLD_LAZY = require "ffi", 1
  ffi.cdef "void *dlopen(const char *, int);"
  local names = "libdl.so.2 libpthread.so.0 librt.so.1 core.so"
  for name in names:gmatch "%S+" do
    if ffi.C.dlopen(name, RTLD_LAZY) == nil then print(name) end
  end]]

local function check_libraries()
  local before = os.getenv "LD_LIBRARY_PATH"
  C.check_setenv("LD_LIBRARY_PATH", root .. "/lib/lua/system", 1)
  local text, job = output({ "luajit", "-e", LOAD }, 30)
  C.check_setenv("LD_LIBRARY_PATH", before or "", 1)
  if job.how == "exit" and text == "" then
    passed = passed + 1
  else
    failed = failed + 1
    note_failure("bundle", "spec/bundle/launch.c", "not found: " .. text)
  end
end

local function usage(why)
  io.stderr:write(why, "\ncheck [shm|tcp|rdma|gpu ...]\n")
  os.exit(2)
end

local function has_rdma()
  local text = output({ "perigee", "devices" }, 30)
  if text:find("active", 1, true) then return true end
  failed = failed + 1
  note_failure("rdma", "perigee devices", "no active RDMA port: " .. text)
end

-- Is there a GPU, or another library in place of CUDA's driver?
local function has_gpu()
  local file = io.open(os.getenv "PERIGEE_CUDA_LIBRARY" or "/dev/nvidiactl")
  if file then return file:close() end
  failed = failed + 1
  note_failure("gpu", "/dev/nvidiactl", "no GPU of NVIDIA's is here")
end

-- The specs run with memory of the first GPU, and so do examples and benches.
local function check_gpu(benches)
  if not has_gpu() then return end
  for _, each in ipairs(GPU_BENCHES) do bench(benches, "gpu", each) end
  C.check_setenv("PERIGEE_TEST_MEMORY", "cuda:0", 1)
  check_transport "gpu"
  C.check_setenv("PERIGEE_TEST_MEMORY", "host", 1)
end

local function check(word, benches)
  if word == "gpu" then return check_gpu(benches) end
  if word == "rdma" and not has_rdma() then return end
  for _, each in ipairs(BENCHES) do bench(benches, word, each) end
  check_transport(word)
end

local words = #arg > 0 and arg or { "shm", "tcp" }
for _, word in ipairs(words) do
  if not TRANSPORTS[word] then
    usage("there is no check of " .. word)
  end
end

assert(C.check_chdir(root) == 0)
C.check_setenv("CMOCKA_MESSAGE_OUTPUT", "TAP", 1)
C.check_setenv("PERIGEE_SPEC_SLOW", os.getenv "PERIGEE_SPEC_SLOW" or "3", 1)
local doctor, benches = output({ "perigee", "doctor", "--json" }, 30), {}
check_libraries()
for _, word in ipairs(words) do check(word, benches) end

local function list_of(list)
  local parts = {}
  for i = 1, math.min(#list, MOST) do parts[i] = cjson.encode(list[i]) end
  return "[" .. table.concat(parts, ",\n") .. "]"
end

io.write(('{"failures":%s,\n"passed":%d,"failed":%d,"skipped":%d,\n'):format(
  list_of(failures), passed, failed, skipped))
io.write(('"left_out":%s,"seconds":%d,"version":%s,"checked":%s,\n'):format(
  list_of(left_out), process.now() - began,
  cjson.encode(require "perigee.version"), list_of(words)))
io.write('"benches":[', table.concat(benches, ",\n"), '],\n"files":',
         list_of(files), ',\n"doctor":', document(doctor), "}\n")
os.exit(failed == 0 and 0 or 1)
