-- SPDX-License-Identifier: Apache-2.0
-- The manual's entries, from the comments that stand above what they document.
-- An entry is a comment that begins with three dashes and says what it is of:
--
--   --- The first sentence is the summary.
--   -- More on it.
--   -- @function Agent:proxy     (or @module perigee, @classmod Agent)
--   -- @tparam string peer ...
--   -- @errors, @waits, @usage: see config.ld
--
-- Other comments with three dashes are for readers of the code only. An entry
-- goes to the page of its name, whatever file it stands in: so constructors are
-- with the module perigee, and a file may have several classes.
local M = {}

local PAGES = { module = true, classmod = true }

-- Lua files of the library by path, without commands.
local function sources()
  local pipe = assert(io.popen("find lua/perigee -name '*.lua' "
    .. "! -path '*/cli/*' ! -name cdef.lua | sort"))
  local paths = {}
  for path in pipe:lines() do paths[#paths + 1] = path end
  pipe:close()
  return paths
end

-- The tags of a comment's lines: a list of { name, modifiers, text }.
local function tags(lines)
  local list, last = {}, nil
  for i, line in ipairs(lines) do
    local name, modifiers, rest = line:match "^%s*@(%w+)(%b[]) ?(.*)$"
    if not name then name, rest = line:match "^%s*@(%w+) ?(.*)$" end
    if name then
      last = { name = name, modifiers = modifiers or "", text = rest, at = i }
      list[#list + 1] = last
    elseif last then
      last.text = last.text .. "\n" .. line
    end
  end
  return list
end

-- The subject of a comment: the tag's kind and a name; nil if it is no entry.
local function subject(list)
  for _, tag in ipairs(list) do
    if tag.name == "function" or PAGES[tag.name] then
      return tag.name, tag.text:match "^%S+"
    end
  end
end

local function entry(path, line, lines)
  local list = tags(lines)
  local kind, name = subject(list)
  if not kind then return end
  return { path = path, line = line, kind = kind, name = name, tags = list,
           page = PAGES[kind] and name or name:match "^%w+", lines = lines }
end

-- Calls found(line, lines) for each comment with three dashes in a file.
local function comments(path, found)
  local number, first, lines = 0, nil, nil
  for text in io.lines(path) do
    number = number + 1
    local start = not lines and text:match "^%s*%-%-%- ?(.*)$"
    local more = lines and text:match "^%s*%-%- ?(.*)$"
    if start then
      first, lines = number, { start }
    elseif more then
      lines[#lines + 1] = more
    elseif lines then
      found(first, lines)
      lines = nil
    end
  end
end

--- All entries, in the order of files and lines.
function M.entries()
  local entries = {}
  for _, path in ipairs(sources()) do
    comments(path, function(line, lines)
      entries[#entries + 1] = entry(path, line, lines)
    end)
  end
  return entries
end

--- The texts of an entry's tags of this name.
function M.texts(one, name)
  local texts = {}
  for _, tag in ipairs(one.tags) do
    if tag.name == name then texts[#texts + 1] = tag.text end
  end
  return texts
end

--- The Lua code that a text fences: a list of { line, code }.
function M.fenced(path)
  local blocks, number, block = {}, 0, nil
  for text in io.lines(path) do
    number = number + 1
    if block and text == "```" then
      blocks[#blocks + 1], block = block, nil
    elseif block then
      block.code = block.code .. text .. "\n"
    elseif text == "```lua" then
      block = { line = number + 1, code = "" }
    end
  end
  return blocks
end

return M
