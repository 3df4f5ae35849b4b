-- SPDX-License-Identifier: Apache-2.0
--- The options of engines: their names, checks and defaults, and which of them
-- are in the table `advanced`, since few programs have a reason to set them.
-- The manual (`perigee.engine`) says what each is for. Each option of
-- `advanced` is also taken beside it, as it was before there was that table,
-- for one version.
local check = require "perigee.runtime.check"
local native = require "perigee.native"
local rdma = require "perigee.engine.rdma"

local ffi = require "ffi"
local C = native.C

local M = {}

local function cdata(value)
  if type(value) ~= "cdata" then return "a cdata" end
end

local function progress(value)
  if value ~= "thread" and value ~= "poll" then
    return '"thread" or "poll"'
  end
end

-- The values of enum perigee_encrypt.
local ENCRYPT = { [true] = 1, auth = 2, [false] = 3 }

local function encrypt(value)
  if ENCRYPT[value] == nil then return 'true, "auth" or false' end
end

-- Seconds that stand for no limit, because the core's options take no negative
-- time.
local LONGEST = 1e6

-- ---- Kinds of options -------------------------------------------------------

-- Each has a check, and what the core takes for a value.
local function same(value) return value end
local COUNT = { check = check.count, core = same }
local SECONDS = { check = check.seconds, core = function(value)
  return check.nanoseconds(math.min(value, LONGEST))
end }
local SECRET = { check = check.secret, core = same }
local TEXT = { check = check.string, core = same }
local FLAG = { check = check.boolean, core = function(value)
  return value and 1 or 0
end }
local CDATA = { check = cdata, core = same }
local RDMA = { check = rdma.check, core = rdma.text }
local PROGRESS = { check = progress, core = function(value)
  return value == "thread" and 1 or 0
end }
local SEALING = { check = encrypt, core = function(value)
  return ENCRYPT[value]
end }

-- ---- The options ------------------------------------------------------------

-- { name, kind, default }; no default: the core decides, or there is none. A
-- spec compares the defaults with the core's.
local PLAIN = {
  { "operations", COUNT, 16384 },
  { "sessions", COUNT, 1024 },
  { "regions", COUNT, 1024 },
  { "ring", COUNT, 65536 },
  { "eager", COUNT, 16384 },
  { "typed", COUNT, 1052672 },
  { "pool", COUNT, 2 ^ 30 },
  { "spin", SECONDS },
  { "progress", PROGRESS, "poll" },
  { "streams", COUNT, 1 },
  { "dead_after", SECONDS, 3 },
  { "secret", SECRET },
  { "scope", TEXT, "" },
  { "insecure", FLAG, false },
  { "encrypt", SEALING },
}
local ADVANCED = {
  { "hellos", COUNT, 256 },
  { "hello_timeout", SECONDS, 2 },
  { "watched", COUNT, 4096 },
  { "message", COUNT, 2 ^ 40 },
  { "serving", COUNT, 1024 },
  { "mapped", COUNT, 2 ^ 46 },
  { "descriptors", COUNT },
  { "untaken", COUNT, 2 ^ 25 },
  { "spin_always", FLAG, false },
  { "pull", FLAG, true },
  { "rdma", RDMA },
  { "faults", TEXT },
  { "features", TEXT },
  { "epoch", COUNT },
  { "clock", CDATA },
  { "random", CDATA },
  { "context", CDATA },
  { "transports", CDATA },
  { "memories", CDATA },
}

-- ---- Checks -----------------------------------------------------------------

local function schema(rows)
  local checks = {}
  for _, row in ipairs(rows) do checks[row[1]] = row[2].check end
  return checks
end

local advanced = schema(ADVANCED)
local checks = schema(PLAIN)
checks.advanced = check.table

--- The check of each option by its name. Options of `advanced` are found here,
-- too, but not listed where an unknown option is refused.
M.CHECKS = setmetatable(checks, { __index = advanced })

local function twice(options, what, level)
  for name in next, options.advanced do
    if options[name] ~= nil then
      error(("option %s of %s is given both in advanced and beside it")
        :format(name, what), level + 1)
    end
  end
end
jit.off(twice)

--- Raises at level for wrong options. what: whose they are, for the message.
function M.check(options, what, level)
  level = (level or 2) + 1
  options = check.options(options, M.CHECKS, what, level)
  if options.advanced then
    check.options(options.advanced, advanced, "option advanced of " .. what,
                  level)
    twice(options, what, level)
  end
  return options
end

--- Returns checked options in one table without `advanced`.
function M.flat(options)
  local all = {}
  for name, value in next, options do
    if name ~= "advanced" then all[name] = value end
  end
  for name, value in next, options.advanced or {} do all[name] = value end
  return all
end
jit.off(M.flat)

-- ---- For the core -----------------------------------------------------------

local function fill(core, rows, options, texts)
  for _, row in ipairs(rows) do
    local name, kind = row[1], row[2]
    if options[name] ~= nil then
      local value = kind.core(options[name])
      if type(value) == "string" then texts[#texts + 1] = value end
      core[name] = value
    end
  end
end

--- Returns options in one table as the core's, and what has to live as long as
-- these.
function M.core(options)
  local core, texts = native.options_t(), {}
  C.perigee_options_init(core, ffi.sizeof(core))
  fill(core, PLAIN, options, texts)
  fill(core, ADVANCED, options, texts)
  return core, texts
end

--- Calls found(name, default, advanced) for each option.
function M.each(found)
  for _, row in ipairs(PLAIN) do found(row[1], row[3], false) end
  for _, row in ipairs(ADVANCED) do found(row[1], row[3], true) end
end

return M
