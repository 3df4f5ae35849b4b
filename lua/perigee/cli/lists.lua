-- SPDX-License-Identifier: Apache-2.0
--- `perigee agents`, `services` and `regions`: what a registry has in a scope.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local client = require "perigee.cli.client"
local options = require "perigee.cli.options"
local printable = require "perigee.runtime.printable"
local sorted = require "perigee.runtime.sorted"
local units = require "perigee.runtime.units"

local M = {}

local function configure(parser)
  options.filter(parser)
  parser:option("--limit", "At most so many agents.")
    :argname "NUMBER":convert(options.count)
  parser:option("--after", "Only agents whose names sort after this one.")
    :argname "NAME"
  options.json(parser)
  options.place(parser)
  options.timeout(parser, 5)
end

-- Has tell(list, out) write what of the agents' entries is asked for.
local function listing(tell)
  return function(given)
    return client.run(given, function(agent)
      tell(client.check(agent:list {
        kind = given.kind, prefix = given.prefix, service = given.service,
        after = given.after, limit = given.limit, timeout = given.timeout,
      }), require "perigee.cli.out", given)
    end)
  end
end

local function ago(seconds)
  if type(seconds) ~= "number" then return nil end
  if seconds < 120 then return ("%.0f s"):format(seconds) end
  if seconds < 7200 then return ("%.0f min"):format(seconds / 60) end
  return ("%.0f h"):format(seconds / 3600)
end

local function text(value) return value ~= nil and tostring(value) or nil end

-- The end of the word on what there is none of: the options that have chosen
-- among the agents, as they were given.
local function chosen_by(given, what)
  local words = {}
  for _, name in ipairs { "kind", "prefix", "service", "after" } do
    if given[name] then
      words[#words + 1] = ("--%s %s"):format(name, client.cut(given[name]))
    end
  end
  if not words[1] then return "" end
  return (what == "agent" and " that matches " or " of an agent that matches ")
    .. printable.line(table.concat(words, " "))
end

-- Writes rows, or without any a word on stderr, so that an empty output is no
-- riddle.
local function columns(out, headings, rows, what, given)
  if #rows > 0 then return out.columns(headings, rows) end
  io.stderr:write(("%s: there is no %s in scope %s%s\n"):format(given.path,
    what, given.scope or os.getenv "PERIGEE_SCOPE" or "default",
    chosen_by(given, what)))
end

-- ---- The three -------------------------------------------------------------

local function tell_agents(list, out, given)
  local json = require "perigee.cli.json"
  if given.json then return out.json(json.list(list)) end
  local rows = {}
  for i, entry in ipairs(list) do
    rows[i] = { entry.name, text(entry.kind), text(entry.state),
                text(entry.host), text(entry.pid), ago(entry.since),
                table.concat(sorted(entry.services), ","),
                table.concat(entry.addresses, " ") }
  end
  columns(out, { "NAME", "KIND", "STATE", "HOST", "PID", "SINCE", "SERVICES",
                 "ADDRESSES" }, rows, "agent", given)
end

-- A list of what each agent has by name in a field of its entry, as made by
-- f(agent's entry, name, value).
local function gathered(list, field, f)
  local json = require "perigee.cli.json"
  local all = {}
  for _, entry in ipairs(list) do
    for _, name in ipairs(sorted(entry[field])) do
      all[#all + 1] = f(entry, name, entry[field][name])
    end
  end
  return json.list(all)
end

local function tell_services(list, out, given)
  local all = gathered(list, "services", function(entry, name, version)
    return { service = name, version = version, agent = entry.name,
             state = entry.state }
  end)
  if given.json then return out.json(all) end
  local rows = {}
  for i, each in ipairs(all) do
    rows[i] = { each.service, text(each.version), each.agent,
                text(each.state) }
  end
  columns(out, { "SERVICE", "VERSION", "AGENT", "STATE" }, rows, "service",
          given)
end

local function tell_regions(list, out, given)
  local all = gathered(list, "regions", function(entry, name, region)
    local told = type(region) == "table" and region or {}
    return { region = name, length = told.length, access = told.access,
             agent = entry.name }
  end)
  if given.json then return out.json(all) end
  local rows = {}
  for i, each in ipairs(all) do
    local length = tonumber(each.length)
    rows[i] = { each.region, length and units.format_size(length),
                text(each.access), each.agent }
  end
  columns(out, { "REGION", "LENGTH", "ACCESS", "AGENT" }, rows,
          "region with a name", given)
end

M.agents = { name = "agents", summary = "List the agents of a scope.",
             configure = configure, run = listing(tell_agents) }
M.services = { name = "services", configure = configure,
               summary = "List the services of a scope, and who has each.",
               run = listing(tell_services) }
M.regions = { name = "regions", configure = configure,
              summary = "List the named memory of a scope's agents.",
              run = listing(tell_regions) }

return M
