-- SPDX-License-Identifier: Apache-2.0
-- Stats files that no engine wrote, in a registry's folder of their own.
local ffi = require "ffi"
local process = require "spec.support.process"
require "perigee.stats"                 -- declares them

local M = {}

ffi.cdef [[
  struct spec_stats {
    union { struct perigee_stats_head head; char page[4096]; };
    char names[32][24];
    union { struct perigee_counters counters; uint64_t words[32]; };
    union { struct perigee_counters sums; uint64_t others[32]; };
    struct perigee_stats_operation operations[64];
    struct perigee_stats_session sessions[4];
    struct perigee_stats_method methods[64];
    struct perigee_stats_histogram histograms[64];
  };
]]
local stats_t = ffi.typeof "struct spec_stats"

local NAMES = { "size", "calls", "served", "replies", "failures", "timeouts",
                "transfers", "messages", "bytes_sent", "bytes_received" }

-- The tables, with the type of their rows.
local TABLES = {
  names = { "char[24]", 32 }, counters = { "uint64_t[32]", 1 },
  others = { "uint64_t[32]", 1 },
  sessions = { "struct perigee_stats_session", 4 },
  operations = { "struct perigee_stats_operation", 64 },
  methods = { "struct perigee_stats_method", 64 },
  histograms = { "struct perigee_stats_histogram", 64 },
}

-- When this process started, as the kernel counts: field 22.
local function started()
  local file = assert(io.open "/proc/self/stat")
  local line = file:read "*a"
  file:close()
  return tonumber(line:match("^.*%) %S" .. (" %S+"):rep(18) .. " (%d+)"))
end

--- A file of an agent whose process is this one: fields as in stats.h.
function M.new(name, scope)
  local file = stats_t()
  local head = file.head
  head.magic, head.version, head.head = "perigee\1", 1, 4096
  head.length, head.epoch = ffi.sizeof(stats_t), 7
  head.pid, head.pid_started = process.pid(), started()
  head.name, head.scope, head.host = name, scope, "host"
  for field, of in pairs(TABLES) do
    head[field].offset = ffi.offsetof(stats_t, field)
    head[field].row, head[field].rows = ffi.sizeof(of[1]), of[2]
  end
  for i, each in ipairs(NAMES) do file.names[i - 1] = each end
  file.counters.size, file.sums.size = 8 * #NAMES, 8 * #NAMES
  file.methods[0].used = 3
  return file
end

--- Names of methods that break what takes them for more than text.
M.NAMES = { '<script>alert("x")</script>', "a\nb", "back\\slash", 'quote"s',
            "\27[2J", "\226\128\174turned", "\255\254no utf-8", "grüße",
            "{}=,", "# EOF" }

--- A file of an agent with these methods, the first of which was called once.
function M.hostile(name, scope)
  local file = M.new(name, scope)
  for i, each in ipairs(M.NAMES) do M.method(file, i, 1, "svc", each, i) end
  return file
end

--- Its bytes.
function M.bytes(file) return ffi.string(file, ffi.sizeof(stats_t)) end

--- The bytes of one that has so many rows of methods, row 0 among them, without
-- those of other histograms.
function M.short(file, rows)
  file.head.histograms.rows = rows
  file.head.length = file.head.histograms.offset
    + rows * file.head.histograms.row
  return ffi.string(file, file.head.length)
end

--- An iterator over 60 copies of a file's bytes, each with some of them
-- changed, most in the head, but its first `kept` ones.
function M.spoiled(bytes, kept)
  local whole, round = ffi.new("uint8_t[?]", #bytes), 0
  math.randomseed(7)
  return function()
    round = round + 1
    ffi.copy(whole, bytes, #bytes)
    for _ = 1, round do
      local at = math.random(0, round % 3 == 0 and #bytes - 1 or 1100)
      whole[math.max(at, kept)] = math.random(0, 3) == 0 and 255
        or math.random(0, 255)
    end
    return round <= 60 and ffi.string(whole, #bytes) or nil
  end
end

--- Adds a method to row i: of a peer (used 1) or own (2), which ended so often.
function M.method(file, i, used, service, method, calls)
  local row = file.methods[i]
  row.used, row.service, row.method = used, service, method
  row.ends[0] = calls
  return row
end

--- Writes bytes as the file of a name; registry: "folder:/...".
function M.write(registry, scope, name, bytes)
  local folder = registry:match "^folder:(.*)" .. "/" .. scope
  os.execute(("mkdir -p -m 700 '%s'"):format(folder))
  io.open(("%s/%s.lock"):format(folder, name), "wb"):close()
  local path = ("%s/%s.stats"):format(folder, name)
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
  return path
end

return M
