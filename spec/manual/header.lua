-- SPDX-License-Identifier: Apache-2.0
-- Turns a C header whose comments are its manual into Markdown. "---- Name
-- ----" becomes a section, a comment at a line's beginning one or more
-- paragraphs. Declarations after it stay as they are, with the comments beside
-- them.
local M = {}

-- Puts C names in code marks, and escapes characters that Markdown would use.
local function prose(line)
  line = line:gsub("[\\*<]", { ["\\"] = "\\\\", ["*"] = "\\*",
                               ["<"] = "&lt;" })
  return (line:gsub("%f[%w_]([%a_][%w_]*_[%w_]+)", "`%1`"))
end

-- A comment's lines without the comment marks.
local function content(lines)
  local list = {}
  for i, line in ipairs(lines) do
    line = line:gsub("%s*%*/$", "")
    list[#list + 1] = line:gsub(i == 1 and "^/%*%s?" or "^ %* ?", "")
  end
  return list
end

-- Indented text is a table or picture, unless it continues a list.
local function text(lines, out)
  local listed, fenced = false, false
  for _, line in ipairs(content(lines)) do
    if line:find "^ %- " then listed = true end
    if not line:find "^%s" then listed = false end
    local verbatim = line:find "^ " ~= nil and not listed
    if verbatim ~= fenced and (verbatim or line ~= "") then
      out[#out + 1] = ""
      fenced = verbatim
    end
    if line:find "^SPDX%-" then line = "" end
    out[#out + 1] = fenced and "    " .. line or prose(line)
  end
  out[#out + 1] = ""
end

local function code(lines, out)
  while lines[#lines] == "" do lines[#lines] = nil end
  if #lines == 0 then return end
  for _, line in ipairs(lines) do
    for name in line:gmatch "%f[%w_](perigee_[%w_]+)%(" do
      out[#out + 1] = ('<a name="%s"></a>'):format(name)
    end
  end
  out[#out + 1] = ""
  out[#out + 1] = "```c"
  for _, line in ipairs(lines) do
    out[#out + 1] = (line:gsub("^PERIGEE_API ", ""))
  end
  out[#out + 1] = "```"
  out[#out + 1] = ""
end

-- Collects lines of declarations; preprocessor directives do not count.
local function declared(line, lines)
  if line:find "^#" or line:find "^extern " or line == "}" then return end
  if line ~= "" or #lines > 0 then lines[#lines + 1] = line end
end

local function begins(line, with)
  return with and line:sub(1, #with) == with
end

-- The lines of a file after the one that begins with `behind`, and before the
-- one that begins with `before`.
local function part(path, before, behind)
  local lines, there, ended = {}, not behind, not before
  for line in io.lines(path) do
    ended = ended or there and begins(line, before)
    if ended and before then break end
    if there then lines[#lines + 1] = line end
    there = there or begins(line, behind)
  end
  if not there or not ended then
    error(("%s: no line begins %q"):format(path, there and before or behind), 0)
  end
  return lines
end

--- Links to the functions that lines of Markdown declare.
function M.index(lines)
  local links = {}
  for _, line in ipairs(lines) do
    local name = line:match '^<a name="([%w_]+)"></a>$'
    if name then links[#links + 1] = ("[%s](#%s)"):format(name, name) end
  end
  return table.concat(links, ", ")
end

--- The path of the one header of the core that has this name.
function M.find(name)
  local pipe = assert(io.popen(("find native -name '%s'"):format(name)))
  local path, another = pipe:read "*l", pipe:read "*l"
  pipe:close()
  if not path or another then error("not one header is called " .. name, 0) end
  return path
end

--- The header at path as a list of lines, all of it or the part before and
-- behind lines that begin with these texts.
function M.markdown(path, before, behind)
  local out, comment, lines = {}, nil, {}
  for _, line in ipairs(part(path, before, behind)) do
    local section = line:match "^/%* %-%-%-%- (.-) %-*%s*%*/$"
    if section or not comment and line:find "^/%*" then
      code(lines, out)
      lines = {}
    end
    if section then
      out[#out + 1] = "\n## " .. section .. "\n"
    elseif comment or line:find "^/%*" then
      comment = comment or {}
      comment[#comment + 1] = line
      if line:find "%*/$" then
        text(comment, out)
        comment = nil
      end
    else
      declared(line, lines)
    end
  end
  code(lines, out)
  return out
end

return M
