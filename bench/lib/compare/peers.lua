-- SPDX-License-Identifier: Apache-2.0
-- The peers of a comparison: their descriptions (bench/peers/NAME.lua, in the
-- order of bench/peers/list.lua), how they are started, and whether they are
-- there.

local perftest = require "bench.lib.perftest"
local process = require "bench.lib.process"

local M = {}

-- Has glibc keep what a program frees (mallopt(3)). Otherwise messages of a MiB
-- are mapped and faulted in again for each call.
local KEEP = { MALLOC_MMAP_THRESHOLD_ = "1073741824",
               MALLOC_TRIM_THRESHOLD_ = "4294967296",
               MALLOC_TOP_PAD_ = "67108864" }

local REQUIRED = { "name", "group", "program", "path", "modes" }

-- Returns the words in front of the role: a program without a dot is C's, .py
-- is Python's and .lua runs in this interpreter.
local function command_of(program, root)
  local folder = program:match "^/" and "" or root .. "bench/peers/"
  if program:match "%.py$" then
    return { root .. "build/compare/venv/bin/python", folder .. program }
  elseif program:match "%.lua$" then
    local words = process.interpreter()
    words[#words + 1] = folder .. program
    return words
  end
  if program:match "^/" then return { program } end
  return { root .. "build/bench/peers/" .. program }
end

local function environment_of(peer)
  local all = {}
  for name, value in pairs(peer.keeps and KEEP or {}) do all[name] = value end
  for name, value in pairs(peer.env or {}) do all[name] = value end
  return all
end

-- Adds what a description's file returns to the list.
local function add(list, path, root)
  for _, peer in ipairs(assert(loadfile(path))()) do
    for _, name in ipairs(REQUIRED) do
      if not peer[name] then
        error(("%s: a peer has no %s"):format(path, name), 0)
      end
    end
    peer.command = command_of(peer.program, root)
    peer.env = environment_of(peer)
    for _, mode in ipairs(peer.modes) do peer.modes[mode] = true end
    list[#list + 1] = peer
  end
end

-- Returns all peers. root: the source tree, with a slash at its end; also: the
-- file of further descriptions, or nil.
function M.all(root, also)
  local list, folder = {}, root .. "bench/peers/"
  for _, name in ipairs(dofile(folder .. "list.lua")) do
    add(list, folder .. name .. ".lua", root)
  end
  if also then add(list, also, root) end
  return list
end

-- Marks those that a word means: the peer of that name, else all of that group,
-- else all that this path carries; with a star at its end all whose names begin
-- so. Returns true if any is.
local function mark(list, word, meant)
  local start, any = word:match "^(.*)%*$"
  for _, is in ipairs { function(peer) return peer.name == word end,
                        function(peer) return peer.group == word end,
                        function(peer) return peer.path == word end,
                        function(peer)
                          return start and peer.name:sub(1, #start) == start
                        end } do
    for _, peer in ipairs(list) do
      if is(peer) then meant[peer], any = true, true end
    end
    if any then return true end
  end
end

-- Returns those that the words mean; nil and which word means none.
function M.chosen(list, words)
  local chosen, meant = {}, {}
  for _, word in ipairs(words) do
    if not mark(list, word, meant) then return nil, word end
  end
  for _, peer in ipairs(list) do
    if meant[peer] then chosen[#chosen + 1] = peer end
  end
  return chosen
end

-- Returns those that have the mode.
function M.with_mode(list, mode)
  local able = {}
  for _, peer in ipairs(list) do
    if peer.modes[mode] then able[#able + 1] = peer end
  end
  return able
end

-- Returns the path of the program where it is a path to nothing.
local function missing(peer)
  local path = peer.command[1]
  local file = path:find("/", 1, true) and io.open(path)
  if file then file:close() end
  return not file and path:find("/", 1, true) and path
end

-- Returns the version of the peer, or nil, why it is not there, and the one
-- command that installs it.
function M.version(peer)
  local install, path = "make compare-deps " .. peer.group, missing(peer)
  if path then return nil, "there is no " .. path, install end
  local words = { "timeout", "60" } -- its adapter may hang
  for _, list in ipairs { peer.command, peer.words or {}, { "version" } } do
    for _, word in ipairs(list) do words[#words + 1] = word end
  end
  table.insert(words, 1, 'exec "$@" 2>&1 </dev/null')
  table.insert(words, 2, "sh")
  table.insert(words, 1, "-c")
  table.insert(words, 1, "sh")
  local child = assert(process.spawn(words))
  local text = child:rest()
  if child:wait() == 0 then return text:match "^[^\n]*" end
  return nil, text:match "([^\n]+)%s*$" or "its adapter said nothing",
         install
end

-- The same for this machine: a peer over RDMA is not there without a device.
function M.there(peer)
  if peer.path == "verbs" then
    local device, why = perftest.device()
    if not device then return nil, why, "make compare-rdma" end
  end
  return M.version(peer)
end

return M
