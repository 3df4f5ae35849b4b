-- SPDX-License-Identifier: Apache-2.0
--- `perigee cache has`, `match`, `list`, `delete` and `stat`: which keys there
-- are, and how full a cache is.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local caches = require "perigee.cli.cache.client"
local options = require "perigee.cli.options"
local sorted = require "perigee.runtime.sorted"

local FAILED = require "perigee.cli.failure".FAILED

-- Adds the keys of a command, and what else it takes.
local function of_keys(what, has_json)
  return function(parser)
    parser:argument("key", what):argname "KEY":args "+"
    if has_json then options.json(parser) end
    caches.hex(parser)
    caches.configure(parser)
  end
end

-- Prints a value as JSON, in which keys are any bytes.
local function exact(value)
  local out = require "perigee.cli.out"
  out.write(require "perigee.cli.json".exact(value), "\n")
end

local function list_of(values)
  return require "perigee.cli.json".list(values)
end

-- ---- has -------------------------------------------------------------------

local has = {
  name = "has",
  summary = "Tell which keys are there. The exit status is 1 if one is not.",
  configure = of_keys("Keys.", true),
}

function has.run(given)
  local keys = caches.keys(given, given.key)
  return caches.run(given, function(cache)
    local there, all, told = caches.check(cache:has(keys)), true, {}
    for i, key in ipairs(keys) do
      all = all and there[i]
      told[i] = { key = caches.shown(given, key), there = there[i] }
    end
    if given.json then
      exact(list_of(told))
    else
      local out = require "perigee.cli.out"
      for _, each in ipairs(told) do
        out.line("%s %s", each.there and "yes" or "no ", each.key)
      end
    end
    return all and 0 or FAILED
  end)
end

-- ---- match -----------------------------------------------------------------

local match = {
  name = "match",
  summary = "Tell how many keys of a chain are there, from the first on.",
  configure = of_keys("The keys of a chain, in its order.", true),
}

function match.run(given)
  local keys = caches.keys(given, given.key)
  return caches.run(given, function(cache)
    local out = require "perigee.cli.out"
    local found = caches.check(cache:match(keys))
    if given.json then return out.json { found = found, of = #keys } end
    out.line("%d", found)
  end)
end

-- ---- list ------------------------------------------------------------------

local list = {
  name = "list",
  summary = "List keys, in no order.",
}

function list.configure(parser)
  parser:argument("prefix", "Only keys that begin with it.")
    :argname "PREFIX":args "?"
  parser:option("--limit", "At most so many.")
    :argname "NUMBER":convert(options.count)
  parser:flag("--where", "Tell where each lies, too: gpu, memory or file.")
  options.json(parser)
  caches.hex(parser)
  caches.configure(parser)
end

function list.run(given)
  local prefix = given.prefix and caches.key(given, given.prefix)
  return caches.run(given, function(cache)
    local found, where = cache:list { prefix = prefix, limit = given.limit }
    caches.check(found, where)
    for i, key in ipairs(found) do
      local shown = caches.shown(given, key)
      found[i] = given.where and { key = shown, where = where[key] } or shown
    end
    if given.json then return exact(list_of(found)) end
    local out = require "perigee.cli.out"
    for _, each in ipairs(found) do
      if given.where then
        out.line("%-6s %s", each.where, each.key)
      else
        out.line("%s", each)
      end
    end
  end)
end

-- ---- delete ----------------------------------------------------------------

local delete = {
  name = "delete",
  summary = "Delete entries. The exit status is 1 if one was not there.",
  configure = of_keys("Keys."),
}

function delete.run(given)
  local keys = caches.keys(given, given.key)
  return caches.run(given, function(cache)
    local missed
    for _, key in ipairs(keys) do
      local fine, err = cache:delete(key)
      if not fine and err.kind ~= "not_found" then caches.fail(err) end
      missed = missed or err
    end
    if missed then caches.fail(missed) end
  end)
end

-- ---- stat ------------------------------------------------------------------

local stat = {
  name = "stat",
  summary = "Tell of an entry; without a key, how full a cache is.",
}

function stat.configure(parser)
  parser:argument("key", "A key."):argname "KEY":args "?"
  options.json(parser)
  caches.hex(parser)
  caches.configure(parser)
end

-- Counters that are bytes.
local BYTES = { quota = true, slabs = true, used = true, values = true,
                hard = true, directory = true, spill_quota = true,
                spill_slabs = true, spill_used = true, spill_values = true }

local function tell_counters(given, all)
  local out, units = require "perigee.cli.out", require "perigee.runtime.units"
  if given.json then return out.json(all) end
  for _, name in ipairs(sorted(all)) do
    local counters = all[name]
    out.line("%s", name)
    for _, each in ipairs(sorted(counters)) do
      local value = counters[each]
      out.line("  %-13s %s", each, BYTES[each] and units.format_size(value)
        or ("%.0f"):format(value))
    end
  end
end

function stat.run(given)
  local key = given.key and caches.key(given, given.key)
  return caches.run(given, function(cache)
    if not key then
      return tell_counters(given, caches.check(cache:stats()))
    end
    local out = require "perigee.cli.out"
    local entry = caches.check(cache:stat(key))
    if given.json then
      return out.json { length = entry.length, version = entry.version,
                        cache = entry.cache, where = entry.where }
    end
    out.line("%.0f bytes, version %.0f, in %s (%s)", entry.length,
             entry.version, entry.cache, entry.where)
  end)
end

return { has = has, match = match, list = list, delete = delete, stat = stat }
