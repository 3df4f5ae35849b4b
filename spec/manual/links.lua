-- SPDX-License-Identifier: Apache-2.0
-- Links of the manual: from those of texts in the checkout to those of pages,
-- and whether each leads somewhere.
local M = {}

local function is_outside(target) return target:find "^%a+:" ~= nil end

-- "a/b/../c" as "a/c".
local function normal(path)
  local parts = {}
  for part in path:gmatch "[^/]+" do
    if part == ".." then
      parts[#parts] = nil
    elseif part ~= "." then
      parts[#parts + 1] = part
    end
  end
  return table.concat(parts, "/")
end

-- The target of a link in a text at path: a file of the checkout, and a
-- heading.
local function meant(path, target)
  local file, heading = target:match "^([^#]*)#?(.*)$"
  if file == "" then return path, heading end
  return normal((path:match "^(.*/)" or "") .. file), heading
end

local function slug(heading)
  return (heading:lower():gsub("[^%w%- ]", ""):gsub(" ", "-"))
end

-- The headings of Markdown, without what is fenced.
local function headings(text)
  local list, fenced = {}, false
  for line in text:gmatch "[^\n]*" do
    if line:find "^```" then fenced = not fenced end
    local heading = not fenced and line:match "^#+ (.*)$"
    if heading then list[slug(heading)] = heading end
  end
  return list
end

local function read(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text or ""                     -- nil: a folder
end

local LINK = "%[([^%]\n]*)%]%(([^)%s]+)%)"

--- The text of path for LDoc: links between texts lead to their pages'
-- sections; of others, which are not in the manual, the words stay.
function M.moved(text, path, texts)
  local pages = {}
  for name, of in pairs(texts) do pages[of] = name .. ".md.html" end
  return (text:gsub(LINK, function(words, target)
    if is_outside(target) then return nil end
    local file, heading = meant(path, target)
    local page = pages[file]
    if not page then return words end
    if heading == "" then return ("[%s](%s)"):format(words, page) end
    heading = headings(read(file))[heading] or heading
    return ("[%s](%s#%s)"):format(words, page, heading:gsub("%W", "_"))
  end))
end

--- The faults of the links of the text at path: a list of sentences.
function M.wrong(path)
  local found = {}
  for _, target in read(path):gmatch(LINK) do
    if not is_outside(target) then
      local file, heading = meant(path, target)
      local text = read(file)
      if not text then
        found[#found + 1] = ("%s: no file %s"):format(path, target)
      elseif heading ~= "" and not headings(text)[heading] then
        found[#found + 1] = ("%s: no heading %s"):format(path, target)
      end
    end
  end
  return found
end

--- The same of all pages below a folder.
function M.wrong_pages(folder)
  local pages, found = {}, {}
  local pipe = assert(io.popen(("cd '%s' && find . -name '*.html'")
    :format(folder)))
  for path in pipe:lines() do
    pages[path:sub(3)] = read(folder .. "/" .. path)
  end
  pipe:close()
  for path, text in pairs(pages) do
    for target in text:gmatch 'href="([^"]*)"' do
      local file, name = meant(path, target)
      local there = is_outside(target) or pages[file] or read(folder .. "/"
        .. file)
      if not there then
        found[#found + 1] = ("%s: no page %s"):format(path, target)
      elseif not is_outside(target) and name ~= ""
        and not there:find(('name="%s"'):format(name), 1, true)
        and not there:find(('name = "%s"'):format(name), 1, true) then
        found[#found + 1] = ("%s: no place %s"):format(path, target)
      end
    end
  end
  return found
end

return M
