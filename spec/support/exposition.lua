-- SPDX-License-Identifier: Apache-2.0
-- Reads metrics as text, as strictly as Prometheus and OpenMetrics want them:
-- raises at whatever is not as these say.
local M = {}

local KINDS = { counter = true, gauge = true, histogram = true, info = true }
local UNESCAPED = { ["\\\\"] = "\\", ['\\"'] = '"', ["\\n"] = "\n" }

local function check(fine, line, why)
  if not fine then error(("%s in %q"):format(why, line), 0) end
end

-- The labels in braces; each at most once.
local function labels_of(text, line)
  local labels, at = {}, 1
  while at <= #text do
    local name, from = text:match('^([%a_][%w_]*)="()', at)
    check(name and not labels[name], line, "a label is wrong, or twice")
    local i = from
    while text:sub(i, i) ~= '"' do
      check(i <= #text, line, "a label has no end")
      i = i + (text:sub(i, i) == "\\" and 2 or 1)
    end
    labels[name] = text:sub(from, i - 1):gsub("\\.", function(pair)
      check(UNESCAPED[pair], line, "an escape is unknown")
      return UNESCAPED[pair]
    end)
    check(text:sub(i + 1, i + 1):find "^,?$", line, "labels have no comma")
    at = i + 2
  end
  return labels
end

local function sample_of(line)
  local name, rest = line:match "^([%a_:][%w_:]*)(.*)$"
  check(name, line, "there is no name")
  local labels, value = rest:match "^{(.*)} (%S+)$"
  if not labels then labels, value = "", rest:match "^ (%S+)$" end
  check(tonumber(value), line, "there is no number")
  return { name = name, labels = labels_of(labels, line),
           value = tonumber(value), key = line:match "^(.*) %S+$" }
end

-- Suffixes of series by the kind of their family.
local function belongs(family, name, open)
  local rest = name:sub(#family.name + 1)
  if name:sub(1, #family.name) ~= family.name then return false end
  if family.kind == "histogram" then
    return rest == "_bucket" or rest == "_sum" or rest == "_count"
  elseif open and family.kind == "counter" then
    return rest == "_total"
  elseif open and family.kind == "info" then
    return rest == "_info"
  end
  return rest == ""
end

--- The families of a text: a list of { name, kind, help, samples }, and all
-- samples: { name, labels, value }. open: it is OpenMetrics.
function M.parse(text, open)
  assert(text:sub(-1) == "\n", "the last line has no end")
  if open then
    text = assert(text:match "^(.*)# EOF\n$", "it does not end in # EOF")
  end
  local families, all, named, seen, help, family = {}, {}, {}, {}, nil, nil
  for line in text:gmatch "([^\n]*)\n" do
    local what, name, rest = line:match "^# (%u+) ([%w_:]+) (.*)$"
    if what == "HELP" then
      help = { name = name, text = rest }
    elseif what == "TYPE" then
      check(not named[name] and help.name == name, line, "a family is twice")
      check(KINDS[rest] and (open or rest ~= "info"), line, "no such kind")
      if not open and rest == "counter" then
        check(name:find "_total$", line, "a counter has another end")
      end
      family = { name = name, kind = rest, help = help.text, samples = {} }
      families[#families + 1], named[name] = family, true
    else
      local sample = sample_of(line)
      check(family and belongs(family, sample.name, open), line,
            "it is of no family, or of another")
      check(not seen[sample.key], line, "it is twice")
      seen[sample.key] = true
      table.insert(family.samples, sample)
      all[#all + 1] = sample
    end
  end
  return families, all
end

--- The value of a series: a name and some of its labels; nil if there is none.
-- Raises if there are several.
function M.value(samples, name, labels)
  local found
  for _, each in ipairs(samples) do
    local fits = each.name == name
    for key, value in pairs(labels or {}) do
      fits = fits and each.labels[key] == value
    end
    assert(not (fits and found), name .. ": there are several")
    if fits then found = each.value end
  end
  return found
end

--- The sum of all series of a name with these labels, and how many they are.
function M.sum(samples, name, labels)
  local sum, n = 0, 0
  for _, each in ipairs(samples) do
    local fits = each.name == name
    for key, value in pairs(labels or {}) do
      fits = fits and each.labels[key] == value
    end
    if fits then sum, n = sum + each.value, n + 1 end
  end
  return sum, n
end

--- What Prometheus' own checker (promtool) says of a text, and its exit status
-- ("0\n": the text is right). path: of a file that it may write.
function M.promtool(text, path)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  local pipe = io.popen(("promtool check metrics < %s 2>&1; echo $?")
    :format(path))
  local said = pipe:read "*a"
  pipe:close()
  return said
end

return M
