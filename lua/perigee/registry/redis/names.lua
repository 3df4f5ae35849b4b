-- SPDX-License-Identifier: Apache-2.0
--- Reads the names of a scope in Redis, page by page, from its index
-- (redis/keys). Others may have written there, too:
--
-- * What is no name is passed over.
-- * A member of another score than 0 puts the index out of order, and ranges of
--   it are wrong or empty then. It gets the score 0, or is removed if it is no
--   name.
-- * Where the index is no sorted set, the names are those of the entries' keys,
--   which SCAN finds.
--
-- The log is told of each once.
local keys = require "perigee.registry.redis.keys"
local log = require "perigee.runtime.log"

local M = {}

local PAGE = 200                        -- names that are read at once
local ODD, ROUNDS = 32, 1000            -- members at each end; looks at them
local KEYS = 1000                       -- that a SCAN looks at
local LONGEST = 64                      -- bytes of a name (runtime/check)

local told = {}                         -- what the log was told, by itself

local function tell(connection, scope, what)
  local text = ("%s: the index %s %s"):format(connection.target.text,
                                              keys.names(scope), what)
  if told[text] then return end
  told[text] = true
  log.write("warning", text)
end

-- Spaces of a control server have names of more characters than an agent's.
local function is_name(value)
  return type(value) == "string" and #value <= LONGEST
    and value:find "^[%w._:-]+$" ~= nil
end

-- ---- Order -----------------------------------------------------------------

-- Adds the members of a range with scores whose score is not 0 to a list.
local function add_odd(list, range)
  for i = 1, type(range) == "table" and #range - 1 or 0, 2 do
    if tonumber(range[i + 1]) ~= 0 then list[#list + 1] = range[i] end
  end
end

-- Puts members in order, or removes them. Nil if it may not.
local function mend(connection, scope, odd)
  local commands, index = {}, keys.names(scope)
  for i, member in ipairs(odd) do
    commands[i] = is_name(member) and { "ZADD", index, "XX", 0, member }
      or { "ZREM", index, member }
  end
  tell(connection, scope, "had members of another score than 0")
  return connection:ask(commands)
end

-- The reply to the question for a page; or nil, a kind and why.
local function ask_page(connection, question)
  local replies, kind, why = connection:ask { question }
  if replies then return replies[1] end
  return nil, kind, why
end

-- The same of an index that is in order, seen to by the same question. A user
-- who may not see to that has it as it is.
local function ask_in_order(connection, scope, question)
  local index = keys.names(scope)
  for _ = 1, ROUNDS do
    local replies, kind, why = connection:ask { question,
      { "ZRANGE", index, 0, ODD - 1, "WITHSCORES" },
      { "ZRANGE", index, -ODD, -1, "WITHSCORES" } }
    if kind == "denied" then return ask_page(connection, question) end
    if not replies then return nil, kind, why end
    local odd = {}
    for i = 2, 3 do add_odd(odd, replies[i]) end
    if not odd[1] or not mend(connection, scope, odd) then return replies[1] end
  end
  return nil, "protocol", "it puts no members in order"
end

-- ---- Pages of the index ----------------------------------------------------

-- Those of a page that are names.
local function names_in(connection, scope, page)
  local names = {}
  for _, member in ipairs(page) do
    if is_name(member) then
      names[#names + 1] = member
    else
      tell(connection, scope, "has what is no name, and is passed over")
    end
  end
  return names
end

-- Is it a list of texts in ascending order, all greater than before?
local function ascends(page, before)
  for _, member in ipairs(page) do
    if type(member) ~= "string" or before and member <= before then
      return false
    end
    before = member
  end
  return true
end

-- A function that gives the next page of names, and whether it is the last; or
-- nil, a kind and why.
local function from_index(connection, scope, from, to)
  local before
  return function()
    local question = { "ZRANGEBYLEX", keys.names(scope), from, to, "LIMIT", 0,
                       PAGE }
    local page, kind, why
    if before then
      page, kind, why = ask_page(connection, question)
    else
      page, kind, why = ask_in_order(connection, scope, question)
    end
    if not page then return nil, kind, why end
    if type(page) ~= "table" or #page > PAGE or not ascends(page, before) then
      return nil, "protocol", "what it has are no names in order"
    end
    before = page[#page]
    from = before and "(" .. before
    return names_in(connection, scope, page), #page < PAGE
  end
end

-- ---- Without an index ------------------------------------------------------

-- Is a name in a range, as ZRANGEBYLEX takes its bounds?
local function is_within(name, from, to)
  local bound = from:sub(2)
  if name < bound or name == bound and from:sub(1, 1) == "(" then
    return false
  end
  return to == "+" or name < to:sub(2)
end

-- Adds the names in a range whose keys a SCAN has found to a set, and counts
-- them.
local function add_found(pages, set, found, scope, from, to)
  for _, key in ipairs(found) do
    local name = keys.name_of(key, scope)
    if is_name(name) and is_within(name, from, to) then
      pages:name(#name)
      set[name] = true
    end
  end
end

local function sorted(set)
  local list = {}
  for name in pairs(set) do list[#list + 1] = name end
  table.sort(list)
  return list
end
jit.off(sorted)

-- The names in a range that have an entry, in order; or nil, a kind and why.
-- They are counted again with their entries.
local function scan(pages, connection, scope, from, to)
  local set, cursor = {}, "0"
  repeat
    local replies, kind, why = connection:ask {
      { "SCAN", cursor, "MATCH", keys.pattern(scope), "COUNT", KEYS } }
    if not replies then return nil, kind, why end
    add_found(pages, set, replies[1][2], scope, from, to)
    cursor = replies[1][1]
    local fine
    fine, kind, why = pages:turn()
    if not fine then return nil, kind, why end
  until cursor == "0"
  pages.names, pages.bytes = 0, 0
  return sorted(set)
end

local function from_keys(pages, connection, scope, from, to)
  local list, kind, why = scan(pages, connection, scope, from, to)
  local at = 0
  return function()
    if not list then return nil, kind, why end
    local names = {}
    for i = 1, math.min(PAGE, #list - at) do names[i] = list[at + i] end
    at = at + #names
    return names, at >= #list
  end
end

-- ---- Both ------------------------------------------------------------------

--- A function that gives the names of a scope in a range (bounds as of
-- ZRANGEBYLEX) page by page: a list, and whether it is the last; or nil, a kind
-- and why. Waits.
function M.pages(pages, connection, scope, from, to)
  local next_page = from_index(connection, scope, from, to)
  local names, last, why = next_page()
  if not names and why:find("WRONGTYPE", 1, true) then
    tell(connection, scope, "is no sorted set: remove it")
    return from_keys(pages, connection, scope,
                     from == "-" and "[" or from, to)
  end
  local first = true
  return function()
    if not first then return next_page() end
    first = false
    return names, last, why
  end
end

return M
