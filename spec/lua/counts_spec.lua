-- SPDX-License-Identifier: Apache-2.0
-- bench/count.lua --check: its arithmetic, and a slow loop that is planted.
if (os.getenv "PERIGEE_PRELOAD" or "") ~= "" then
  return pending "counts: not under a sanitizer, which is for our own code"
end

local bench_process = require "bench.lib.process"
local callgrind = require "bench.lib.callgrind"
local counts = require "bench.lib.counts"
local folders = require "bench.lib.folders"

-- The output of callgrind, with uncompressed names and lines.
local FILE = [[
positions: line
events: Ir
summary: 1500

ob=/build/perigee/core.so
fl=engine/wait.c
fn=perigee_poll
12 100
fi=base/list.h
7 50
fe=engine/wait.c
cob=/lib/libc.so.6
cfn=0x000000000001ab70
calls=3 0
14 30
13 50

fn=perigee_poll.part.0
20 200

ob=/lib/libc.so.6
fn=0x000000000001ab70
0 30

ob=/build/bench/counted
fn=asks
91 300
cob=/build/perigee/core.so
cfn=perigee_poll
calls=1 46
93 230
fn=serves
5 400
]]

local function lines(text) return text:gmatch "[^\n]+" end

local function told_by(was, is)
  local told = {}
  local fine, failed = counts.compare(was, is, function(text)
    told[#told + 1] = text
  end)
  return fine, failed, table.concat(told, "\n")
end

describe("instructions that are counted", function()
  it("are those of each function and of each side", function()
    local one = callgrind.counts(lines(FILE), 10)
    assert.are.equal(53, one.caller)
    assert.are.equal(40, one.server)
    assert.are.same({ perigee_poll = 40, ["libc.so.6"] = 3, asks = 30,
                      serves = 40 }, one.functions)
  end)

  it("may grow by 3 %", function()
    local was = { a = { caller = 600, server = 400, functions = { f = 9 } } }
    local is = { a = { caller = 620, server = 410, functions = { f = 39 } } }
    local fine, failed = told_by(was, is)
    assert.are.same({ 1, 0 }, { fine, failed })
  end)

  it("are told by function where they grow by more", function()
    local was = { a = { caller = 600, server = 400,
                        functions = { f = 9, g = 500, h = 7 } } }
    local is = { a = { caller = 631, server = 400,
                       functions = { f = 10, g = 498, i = 32 } } }
    local fine, failed, text = told_by(was, is)
    assert.are.same({ 0, 1 }, { fine, failed })
    assert.truthy(text:find("failed: a: 1031 instructions", 1, true))
    assert.truthy(text:find("+32 i (32, was 0)\n    +1 f (10, was 9)", 1, true))
    assert.is_nil(text:find(" g (", 1, true))
  end)

  it("have to be recorded", function()
    local is = { a = { caller = 1, server = 1, functions = {} } }
    local fine, failed = told_by({}, is)
    assert.are.same({ 0, 1 }, { fine, failed })
  end)

  it("are comparable by the same compiler and libraries only", function()
    local was = { compiler = "12", libc = "2.36" }
    assert.is_nil(counts.differs(was, { compiler = "12", libc = "2.36" }))
    assert.are.equal("compiler is 13, was 12",
                     counts.differs(was, { compiler = "13", libc = "2.36" }))
  end)
end)

-- ---- A slow loop ------------------------------------------------------------

-- Stands in front of the core's function.
local SLOW = [[
#include <dlfcn.h>
struct perigee_engine;
struct perigee_event;
__attribute__((noinline)) static void slow_loop(void) {
  for (volatile int i = 0; i < 1000; i++) {}
}
int perigee_poll(struct perigee_engine *e, struct perigee_event *v, int n) {
  static int (*real)(struct perigee_engine *, struct perigee_event *, int);
  if (!real)
    *(void **)&real = dlsym(RTLD_NEXT, "perigee_poll");
  slow_loop();
  return real(e, v, n);
}
]]

describe("bench/count.lua", function()
  local folder

  before_each(function() folder = folders.new() end)
  after_each(function() folders.remove(folder) end)

  -- Runs it on one operation; returns what it prints, and its status.
  local function count(environment, ...)
    local command = { "env", "LD_PRELOAD=" .. environment }
    for _, word in ipairs { os.getenv "PERIGEE_LUAJIT", "bench/count.lua",
                            "--only", "inplace 64 shm", "--recorded",
                            folder .. "/counts.json", ... } do
      command[#command + 1] = word
    end
    local child = assert(bench_process.spawn(command))
    return child:rest(), child:wait()
  end

  local function plant()
    local source, library = folder .. "/slow.c", folder .. "/slow.so"
    local file = assert(io.open(source, "w"))
    file:write(SLOW)
    file:close()
    assert.are.equal(0, os.execute(
      ("gcc -D_GNU_SOURCE -O1 -g -shared -fPIC -o '%s' '%s'"):format(library,
                                                                     source)))
    return library
  end

  it("fails for a planted loop, and names its function", function()
    if not bench_process.installed "valgrind" then
      return pending "valgrind is not installed"
    end
    local _, recorded = count("", "--update")
    assert.are.equal(0, recorded)
    local same, fine = count("", "--check")
    assert.truthy(same:find("1 passed, 0 failed, 0 skipped", 1, true), same)
    assert.are.equal(0, fine)
    local text, status = count(plant(), "--check")
    assert.are_not.equal(0, status)
    assert.truthy(text:find("slow_loop (", 1, true), text)
    assert.truthy(text:find("0 passed, 1 failed, 0 skipped", 1, true), text)
  end)
end)
