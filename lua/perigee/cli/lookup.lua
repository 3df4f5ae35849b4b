-- SPDX-License-Identifier: Apache-2.0
--- `perigee lookup NAME`: what the registry knows of an agent, whose process is
-- not asked. With --entry as a text for C programs (perigee_entry_parse):
--
--   perigee-entry-1:BASE64
--
-- BASE64 has 8 bytes of a checksum, the lowest first, and the entry as typed
-- data. The checksum is that of the lock file of a name (native/host/name.c),
-- and counts the data's length, so that a text which was cut off is found.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"

local ffi = require "ffi"

local M = {
  name = "lookup",
  summary = "Print what the registry knows of an agent.",
  description = "Prints what the registry knows of an agent, and where it "
    .. "listens. With --entry it prints that as one line without blanks, by "
    .. "which a C program on any host connects to the agent "
    .. "(perigee_entry_parse).",
}

function M.configure(parser)
  parser:argument("name", "The agent's name."):argname "NAME"
  parser:flag("--entry", "Print one line for a C program.")
  options.json(parser)
  options.place(parser)
  options.timeout(parser, 5)
end

-- ---- As a text for C programs ----------------------------------------------

local function sum_of(bytes)
  local data = ffi.cast("const uint8_t *", bytes)
  local sum = bit.bxor(0xcbf29ce484222325ULL, #bytes + 0ULL)
  for i = 0, #bytes - 1 do
    sum = bit.bxor(sum, data[i] + 0ULL) * 0x100000001b3ULL
  end
  return sum
end

local function lowest_first(number)
  local bytes = {}
  for i = 1, 8 do
    bytes[i] = string.char(tonumber(bit.band(bit.rshift(number, 8 * (i - 1)),
                                             0xffULL)))
  end
  return table.concat(bytes)
end

-- Times that count from now say nothing later.
local function lasting(entry)
  local copy = {}
  for field, value in pairs(entry) do copy[field] = value end
  copy.since, copy.stale = nil, nil
  return copy
end
jit.off(lasting)                -- its loop over pairs(), see check.lua

local function text_of(entry)
  local entries = require "perigee.registry.entry"
  local buffer = require "string.buffer".new()
  local why = entries.encode(buffer, lasting(entry))
  if why then failure.failed("its entry has %s", why) end
  local bytes = buffer:tostring()
  if #bytes > entries.MOST then
    failure.failed("its entry has %d bytes, and a text has %d at most", #bytes,
                   entries.MOST)
  end
  return "perigee-entry-1:" .. require "perigee.cli.base64".encode(
    lowest_first(sum_of(bytes)) .. bytes)
end

-- ---- Telling ---------------------------------------------------------------

local function tell(entry, given)
  local out = require "perigee.cli.out"
  if given.json then return out.json(entry) end
  if given.entry then return out.write(text_of(entry), "\n") end
  local written = require "perigee.cli.entry"
  written.head(entry, out)
  written.services(entry.services, out)
  written.tail(entry, out)
end

function M.run(given)
  local name = client.peer(given.name)
  if name:find "/" then
    failure.misuse("lookup asks the registry, which has no addresses: give "
      .. "the agent's name; perigee explain takes addresses")
  end
  if given.json and given.entry then
    failure.misuse("--json and --entry are two forms of the same: give one")
  end
  return client.run(given, function(agent)
    local entry = client.check(agent:lookup(name, { timeout = given.timeout }))
    entry.name, entry.scope = name, agent.scope
    tell(entry, given)
  end)
end

return M
