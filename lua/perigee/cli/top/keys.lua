-- SPDX-License-Identifier: Apache-2.0
--- What keys do to the model of `perigee top` (view.lua).
local view = require "perigee.cli.top.view"

local M = {}

-- ---- Moving -----------------------------------------------------------------

local function index_of(list, path)
  for i, agent in ipairs(list) do
    if agent.path == path then return i end
  end
end

-- Selects the agent so many lines further, within the list. The first key
-- selects one that is seen.
local function move(model, by)
  if model.detail or model.help then
    model.top = math.max(0, model.top + by)
    return
  end
  local list = view.shown(model)
  local at = index_of(list, model.selected)
  at = at and at + by or model.top + 1
  local agent = list[math.max(1, math.min(at, #list))]
  model.selected = agent and agent.path
end

local MOVES = {
  up = -1, k = -1, down = 1, j = 1, home = -1e9, g = -1e9, ["end"] = 1e9,
  G = 1e9,
}

-- ---- One agent --------------------------------------------------------------

local function open(model)
  local list = view.shown(model)
  local agent = list[index_of(list, model.selected) or model.top + 1]
  if not agent then return end
  agent:look_closely(true)
  model.selected, model.detail, model.came_from = agent.path, agent, model.top
  model.top = 0
end

local function close(model)
  model.detail:look_closely(false)
  model.detail, model.top = nil, model.came_from
end

-- ---- The filter -------------------------------------------------------------

local MOST = 64                         -- characters of it

local function edit(model, key)
  if key == "enter" then
    model.editing = false
  elseif key == "escape" then
    model.editing, model.filter = false, ""
  elseif key == "backspace" then
    model.filter = model.filter:sub(1, -2)
  elseif #key == 1 and key:find "^[ -~]" and #model.filter < MOST then
    model.filter = model.filter .. key
  end
  model.top = 0
end

-- ---- Keys -------------------------------------------------------------------

local function sort(model, key)
  model.reverse = model.sort == key and not model.reverse
  model.sort, model.top, model.selected = key, 0, nil
end

local function back(model)
  if model.detail then return close(model) end
  model.filter, model.top, model.selected = "", 0, nil
end

local KEYS = {
  h = function(model) model.help, model.top = true, 0 end,
  ["/"] = function(model)
    if not model.detail then model.editing = true end
  end,
  enter = function(model) return (model.detail and close or open)(model) end,
  escape = back, backspace = back,
  ["page up"] = function(model) move(model, -model.page) end,
  ["page down"] = function(model) move(model, model.page) end,
}
KEYS["?"] = KEYS.h

--- Has a key change the model. Returns true if the command ends.
function M.press(model, key)
  if model.editing then return edit(model, key) end
  if key == "q" or key == "\4" then return true end
  if MOVES[key] then
    move(model, MOVES[key])
  elseif model.help and not key:find "^page" and key ~= "redraw" then
    model.help, model.top = false, 0
  elseif KEYS[key] then
    KEYS[key](model)
  elseif view.sorts[key] and not model.detail then
    sort(model, key)
  end
end

return M
