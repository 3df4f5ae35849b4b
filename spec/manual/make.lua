-- SPDX-License-Identifier: Apache-2.0
-- Builds the manual: luajit spec/manual/make.lua WORK OUT. LDoc's input is
-- written to the folder WORK, and its output to OUT. Ends with 1 where a tool
-- has a warning, or a link leads nowhere.
package.path = "./?.lua;" .. package.path
local comments = require "spec.manual.comments"
local header = require "spec.manual.header"
local links = require "spec.manual.links"

local work, out = arg[1], arg[2]

-- Texts by the name of their page.
local TEXTS = { guide = "lua/perigee/README.md", core = "native/README.md",
                security = "SECURITY.md", changes = "CHANGELOG.md",
                examples = "examples/README.md",
                inside = "lua/perigee/INSIDE.md" }
-- Of headers, which are found by their names: all of it, or what stands before
-- a line that begins so, from behind one that begins so.
local HEADERS = {
  c = { "The C interface", { "perigee.h" } },
  settings = {
    "Settings of RDMA and of faults",
    { "devices.h", "/* text NULL", "/* ---- Options" },
    { "fault.h", "#ifndef" },
  },
  wire = {
    "The wire format",
    { "wire.h", "/* A decoded frame" },
    { "record.h", "/* A decoded record" },
    { "operations.h", "/* The most bytes", "/* ---- The text of a failed" },
    { "handshake.h", "#ifndef" }, { "seal.h", "#ifndef" },
    { "ring.h", "#ifndef" }, { "shm.h", "enum { SHM_SIZE_SEALS" },
    { "tcp.h", "/* The content of an offer" }, { "verbs.h", "#ifndef" },
    { "wire.h", "#define INFO_PREFIX", "/* ---- The text of an endpoint" },
  },
}
local COMMAND = "lua/perigee/cli/perigee.1"

local function sh(format, ...)
  local command = format:format(...)
  if os.execute(command) ~= 0 then error(command .. " failed", 0) end
end

local function write(name, text)
  local file = assert(io.open(work .. "/" .. name, "w"))
  assert(file:write(text))
  file:close()
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read "*a"
  file:close()
  return text
end

-- ---- What LDoc reads -------------------------------------------------------

-- LDoc wants something behind a comment that it is of.
local SUBJECT = "function _() end\n\n"

-- One file for each page of the reference: the page's own entry first.
local function reference()
  local pages = {}
  for _, entry in ipairs(comments.entries()) do
    local page = pages[entry.page] or { items = {} }
    pages[entry.page] = page
    local text = "--- " .. table.concat(entry.lines, "\n-- ") .. "\n"
    if entry.kind == "function" then
      page.items[#page.items + 1] = text
    else
      page.head = text
    end
  end
  for name, page in pairs(pages) do
    write("lua/" .. name .. ".lua", assert(page.head, "no entry of page "
      .. name) .. SUBJECT .. table.concat(page.items, SUBJECT) .. SUBJECT)
  end
end

-- Each function with the first sentence of what is said of it.
local function functions()
  local lines = {}
  for _, entry in ipairs(comments.entries()) do
    if entry.kind == "function" then
      local text = table.concat(entry.lines, " ", 1, entry.tags[1].at - 1)
      lines[#lines + 1] = ("| `%s` | %s |"):format(entry.name,
        text:match "^.-[.?]%f[%s%z]" or text)
    end
  end
  table.sort(lines)
  write("functions.md", "# All functions\n\n| function | |\n|---|---|\n"
    .. table.concat(lines, "\n") .. "\n")
end

local function texts()
  for name, path in pairs(TEXTS) do
    write(name .. ".md", links.moved(read(path), path, TEXTS))
  end
  for name, list in pairs(HEADERS) do
    local lines = { "# " .. list[1], "" }
    for i = 2, #list do
      local file, before, behind = unpack(list[i])
      local path = header.find(file)
      if before then lines[#lines + 1] = "\n## " .. path .. "\n" end
      for _, line in ipairs(header.markdown(path, before, behind)) do
        lines[#lines + 1] = line
      end
    end
    if name == "c" then table.insert(lines, 3, header.index(lines)) end
    write(name .. ".md", table.concat(lines, "\n") .. "\n")
  end
end

-- ---- Running ---------------------------------------------------------------

-- Adds to a list the functions that LDoc has left out.
local function missing(list)
  local modules = {}
  for _, entry in ipairs(comments.entries()) do
    if entry.kind == "module" then modules[entry.page] = true end
  end
  for _, entry in ipairs(comments.entries()) do
    local page = ("%s/%s/%s.html"):format(out, modules[entry.page]
      and "modules" or "classes", entry.page)
    local place = '<a name = "%s">' -- of a module's by its name in that
    local text = entry.kind == "function" and read(page)
    if text and not text:find(place:format(entry.name), 1, true)
      and not text:find(place:format(entry.name:match "%.(.*)"), 1, true) then
      list[#list + 1] = ("%s: %s is not there"):format(page, entry.name)
    end
  end
end

local function main()
  sh("rm -rf %s %s && mkdir -p %s/lua %s/examples %s", work, out, work, work,
     out)
  sh("cp spec/manual/config.ld %s && cp examples/*.lua %s/examples", work, work)
  reference()
  functions()
  texts()
  sh("mandoc -T lint -W warning %s", COMMAND)
  sh("{ echo '# The command perigee'; mandoc -T markdown %s | "
    .. "sed -e 's/^#/##/' -e 1d; } > %s/command.md", COMMAND, work)
  sh("cp %s %s", COMMAND, out)
  -- Not all that LDoc warns of makes it end with 1.
  sh("cd %s && ldoc --fatalwarnings --dir '%s' . > said 2> warned; "
    .. "cat warned >&2; test ! -s warned", work, out)
  local wrong = links.wrong_pages(out)
  missing(wrong)
  if #wrong > 0 then error(table.concat(wrong, "\n"), 0) end
end

local fine, why = pcall(main)
if not fine then
  io.stderr:write("make doc: ", why, "\n")
  os.exit(1)
end
