-- SPDX-License-Identifier: Apache-2.0
-- Runs parts (plan.lua), one after the other, and keeps the document of each in
-- a file, so that what is measured outlives a part that fails, or the run.

local cjson = require "cjson"
local process = require "bench.lib.process"

local M = {}

local function file_of(folder, part)
  return ("%s/%s.json"):format(folder, part.name)
end

local function words_of(part) return table.concat(part.command, " ") end

-- Returns the document of a part that was measured by the same command, and
-- whether something of ours is missing in it or its bench failed; nil if there
-- is none.
function M.stored(folder, part)
  local file = io.open(file_of(folder, part))
  if not file then return nil end
  local fine, kept = pcall(cjson.decode, file:read "*a")
  file:close()
  if not fine or kept.command ~= words_of(part) then return nil end
  return kept.document, kept.failed
end

local function store(folder, part, document, failed)
  local file = assert(io.open(file_of(folder, part), "w"))
  file:write(cjson.encode { command = words_of(part), document = document,
                            failed = failed })
  assert(file:close())
end

-- Returns the words that start a part's bench, which dies with this process.
local function start_of(here, part)
  local words = { "setpriv", "--pdeathsig", "TERM" }
  for _, word in ipairs(process.interpreter()) do words[#words + 1] = word end
  for i, word in ipairs(part.command) do
    words[#words + 1] = i == 1 and here .. word or word
  end
  return words
end

-- Runs a part's bench, from the folder of benches. Returns its document, and
-- how it failed if it did after it had told some figures; or nil and why there
-- is none.
local function measure(here, part)
  local child = assert(process.spawn(start_of(here, part)))
  local told = child:rest()
  local status = child:wait()
  local fine, document = pcall(cjson.decode, told)
  local how = ("\n  %s ended with status %d"):format(part.command[1], status)
  if fine and document.rows and #document.rows > 0 then
    return document, status ~= 0 and how or nil
  end
  return nil, how .. " and told no figures"
end

-- Returns about how many seconds are left, from the parts that are done: by
-- how much they took longer than their weights say.
function M.left(parts, done, seconds)
  local before, behind = 0, 0
  for i, part in ipairs(parts) do
    if i <= done then before = before + part.weight
    else behind = behind + part.weight end
  end
  return behind * (before > 0 and seconds / before or 1)
end

local function shown(seconds)
  if seconds < 90 then return ("%.0f s"):format(seconds) end
  return ("%.0f min"):format(seconds / 60)
end

-- Runs the parts. here: the folder of benches; folder: where documents go;
-- say(line): takes a line of progress for each; told(part, document): returns
-- more words of it, and true if something of ours is missing. Returns the names
-- of the parts that failed.
function M.all(parts, here, folder, say, told)
  local failed, begin = {}, process.now()
  -- What a run that resumes this one finds is of this one.
  for _, part in ipairs(parts) do os.remove(file_of(folder, part)) end
  for i, part in ipairs(parts) do
    local at = process.now()
    local document, how = measure(here, part)
    local words, wrong = "", how ~= nil
    if document then
      local missing
      words, missing = told(part, document)
      wrong = wrong or missing
      store(folder, part, document, wrong)
    end
    if wrong then failed[#failed + 1] = part.name end
    local now = process.now()
    say(("[%d of %d] %s took %s, %s left%s%s"):format(i, #parts, part.name,
      shown((now - at) / 1e9), shown(M.left(parts, i, (now - begin) / 1e9)),
      words, how or ""))
  end
  return failed
end

return M
