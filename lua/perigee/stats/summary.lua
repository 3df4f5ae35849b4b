-- SPDX-License-Identifier: Apache-2.0
--- What an agent counts in a few KiB of JSON, for who cannot read its stats
-- file: what perigee.stats.partial has read of the file, with METHODS of its
-- methods at most; the rest is summed.
--
--   {"host":H,"pid":N,"began":SECONDS,"state":"running","begun":N,
--    "oldest_call":NS,"oldest_served":NS,
--    "transports":{"shm":N,...},"counters":{"calls":N,...},
--    "methods":[{"side":"client","service":S,"method":M,"out":N,"into":N,
--                "longest":NS,"sum":NS,"ends":{STATUS:N,...},
--                "bins":{POWER:N,...}},...]}
--
-- `ends` counts calls by the status that they ended with, without its sign;
-- `bins` by the power of two of ns that they took less than, 64: any. What
-- counts nothing may be absent. Fields, statuses and bounds that a reader does
-- not know do no harm, so writers of other versions are understood. Texts that
-- are longer than those of stats files are cut.
local emit = require "perigee.stats.emit"
local json = require "cjson.safe"
local partial = require "perigee.stats.partial"
local printable = require "perigee.runtime.printable"

local M = {}

--- Bytes of a summary, and methods in it, at most; and the largest number.
M.LONGEST, M.METHODS, M.MOST = 32768, 32, 1e19

local AT, BINS, STATUSES = partial.at, partial.bins, partial.statuses
local NAME, HOST, TRANSPORT = 64, 64, 16        -- bytes
local TRANSPORTS = 8
local ANY = 64                          -- the power of any time

local SIDES = { client = true, server = true, other = true }
local STATES = {}
for _, state in ipairs(emit.STATES) do STATES[state] = true end
-- The keys of statuses and of bins, each in their order; and statuses by key.
local ENDS, POWERS, STATUS = {}, {}, {}
for i = 0, STATUSES - 1 do
  ENDS[i + 1] = tostring(i)
  STATUS[ENDS[i + 1]] = i
end
for i = 1, BINS do POWERS[i] = tostring(partial.powers[i] or ANY) end

-- ---- Writing ----------------------------------------------------------------

-- The numbers from a place on, by keys; those that are 0 are absent.
local function some(numbers, first, keys)
  local list = {}
  for i = 1, #keys do
    local value = numbers[first + i - 1]
    if value > 0 then list[keys[i]] = value end
  end
  return list
end

local function name_of(bytes)
  return printable.utf8(bytes:match "^%Z*")
end

local function method_of(method)
  local numbers, names = method.numbers, method.names
  return { side = method.side, service = name_of(names:sub(1, NAME)),
           method = name_of(names:sub(NAME + 1)),
           out = numbers[AT.out], into = numbers[AT.into],
           longest = numbers[AT.longest], sum = numbers[AT.sum],
           ends = some(numbers, AT.ends, ENDS),
           bins = some(numbers, AT.bins, POWERS) }
end

-- The first methods, and the sum of the others. Who was told once stays so: a
-- method that went would look like a counter that begins anew.
local function methods_of(told, kept, most)
  local list, rest = {}, { side = "other", names = "", numbers = false }
  for _, each in ipairs(told.methods) do
    local key = each.side .. each.names
    if not kept[key] and kept.n < most and each.side ~= "other" then
      kept[key], kept.n = true, kept.n + 1
    end
    if kept[key] and #list < most then
      list[#list + 1] = method_of(each)
    else
      rest.numbers = rest.numbers or partial.numbers()
      partial.add(rest.numbers, each.numbers)
    end
  end
  if rest.numbers then list[#list + 1] = method_of(rest) end
  return list
end

local function encoded(told, kept, most)
  local value = { host = printable.utf8(told.host), pid = told.pid,
                  began = told.began_at, state = told.state,
                  begun = told.begun, oldest_call = told.oldest_call,
                  oldest_served = told.oldest_served,
                  transports = told.transports, counters = {},
                  methods = methods_of(told, kept, most) }
  for _, name in ipairs(emit.COUNTED) do
    value.counters[name] = told.counters[name]
  end
  return json.encode(value)             -- with 14 digits of each number
end

--- Which methods are told, for M.text; made once for each agent.
function M.kept() return { n = 0 } end

--- The summary of what partial.read has read. longest: bytes that it may have.
-- Without room for its methods they are all summed; nil: there is none for that
-- either.
function M.text(told, kept, longest)
  local text = encoded(told, kept, M.METHODS)
  if text and #text > longest then text = encoded(told, kept, 0) end
  return text and #text <= longest and text or nil
end

-- ---- Reading ----------------------------------------------------------------

-- The field that is wrong is raised, and returned by M.read.
local function want(fine, field)
  if not fine then error({ field = field }, 0) end
end

local function count(value, field)
  if value == nil then return 0 end
  want(type(value) == "number" and value >= 0 and value <= M.MOST, field)
  return value
end

local function text(value, most, field)
  want(value == nil or type(value) == "string", field)
  return (value or ""):sub(1, most)
end

local function object(value, field)
  if value == nil then return {} end
  want(type(value) == "table", field)
  want(value[1] == nil, field)
  return value
end

-- Calls f(key, n) with what an object counts.
local function each_count(value, field, f)
  for key, n in pairs(object(value, field)) do f(key, count(n, field)) end
end
jit.off(each_count)                     -- its loop over pairs(), see check.lua

local function read_ends(value, numbers)
  each_count(value, "ends", function(key, n)
    local at = STATUS[key] and AT.ends + STATUS[key]
    numbers[AT.calls] = numbers[AT.calls] + n
    if at then numbers[at] = numbers[at] + n end
  end)
end

-- The bin whose bound is the first that is not below a power of two.
local function bin_of(power)
  for i, bound in ipairs(partial.powers) do
    if bound >= power then return i - 1 end
  end
  return BINS - 1
end

local function read_bins(value, numbers)
  each_count(value, "bins", function(key, n)
    local at = AT.bins + bin_of(tonumber(key) or ANY)
    numbers[at] = numbers[at] + n
  end)
end

-- Two names, of 64 bytes each, as a file has them.
local function names_of(value)
  local service = text(value.service, NAME, "service")
  return service .. ("\0"):rep(NAME - #service)
    .. text(value.method, NAME, "method")
end

local function read_method(value)
  want(type(value) == "table" and SIDES[value.side], "methods")
  local numbers = partial.numbers()
  numbers[AT.out] = count(value.out, "out")
  numbers[AT.into] = count(value.into, "into")
  numbers[AT.longest] = count(value.longest, "longest")
  numbers[AT.sum] = count(value.sum, "sum")
  read_ends(value.ends, numbers)
  read_bins(value.bins, numbers)
  return { side = value.side, names = names_of(value), numbers = numbers }
end

local function read_methods(value)
  local list = {}
  value = value or {}
  want(type(value) == "table" and #value <= M.METHODS + 1
       and (value[1] ~= nil or next(value) == nil), "methods")
  for i, each in ipairs(value) do list[i] = read_method(each) end
  return list
end

local function read_counters(value)
  local counters = {}
  value = object(value, "counters")
  for _, name in ipairs(emit.COUNTED) do
    counters[name] = count(value[name], name)
  end
  return counters
end

-- Those beyond so many count together.
local function read_transports(value)
  local transports, kinds = {}, 0
  each_count(value, "transports", function(key, n)
    local name = key:sub(1, TRANSPORT)
    if not transports[name] then kinds = kinds + 1 end
    if kinds > TRANSPORTS then name = "other" end
    transports[name] = (transports[name] or 0) + n
  end)
  return transports
end

local function read(value)
  want(STATES[value.state], "state")
  return { host = text(value.host, HOST, "host"), state = value.state,
           pid = count(value.pid, "pid"),
           began_at = count(value.began, "began"),
           begun = count(value.begun, "begun"),
           oldest_call = count(value.oldest_call, "oldest_call"),
           oldest_served = count(value.oldest_served, "oldest_served"),
           transports = read_transports(value.transports),
           counters = read_counters(value.counters),
           methods = read_methods(value.methods) }
end

--- Reads a summary that was JSON, of anybody: as partial.read tells it, without
-- the agent's name, scope and epoch; or nil and the field that is wrong.
function M.read(value)
  local fine, told = pcall(read, value)
  if fine then return told end
  if type(told) ~= "table" then error(told, 0) end
  return nil, told.field
end

return M
