-- SPDX-License-Identifier: Apache-2.0
-- The manual documents each public function's parameters, results and costs,
-- and each environment variable and exit status. Its links are valid.
local comments = require "spec.manual.comments"
local examples = require "spec.manual.examples"
local links = require "spec.manual.links"
local perigee = require "perigee"
local settings = require "perigee.engine.options"

local COMMAND = "lua/perigee/cli/perigee.1"
local GUIDE = "lua/perigee/README.md"

local entries, by_name = examples.entries, examples.by_name

local function read(path)
  local file = assert(io.open(path))
  local text = file:read "*a"
  file:close()
  return text
end

-- ---- Public names and the manual's entries ---------------------------------

-- The names that programs may rely on, by class. Names that do not exist yet
-- are not checked.
local CONTRACT = {
  Agent = "close drain list lookup mesh on_session proxy read regions "
    .. "rendezvous serve serve_once session sessions watch write",
  Engine = "alloc close connect endpoint listen register stats",
  Listener = "accept close", Region = "allocator close slice",
  Allocator = "alloc close free stats",
  Remote = "close slice", Slice = "close fill slice string write",
  Session = "close ended explain prepare_read prepare_write prepare_write_imm "
    .. "proxy read recv recv_imm region send write write_imm",
  Kept = "close explain prepare_read prepare_write prepare_write_imm read recv "
    .. "recv_imm region send session write write_imm",
  Prepared = "close post", Future = "cancel done wait",
  PreparedCall = "post", CallBatch = "post result",
  Context = "cancelled proxy remaining sent trace", Proxy = "close with",
}

-- An object of each class, and a function that closes all of them.
local function objects()
  local chunk = loadstring(examples.scripts[1] .. [[
    local slice, far_slice = region:slice(0, 8), remote:slice(0, 8)
    local seen
    agent:serve { name = "context", methods = {
      get = function() seen = perigee.context() end } }
    assert(agent:proxy(agent.name, "context")):get()
    return { Agent = agent, Engine = engine, Session = session, Slice = slice,
      Listener = listener, Region = region, Remote = remote, Context = seen,
      Proxy = calc, Future = perigee.spawn(print),
      Allocator = engine:alloc(64):allocator(),
      Kept = assert(agent:session("worker:0", { keep = true })),
      Prepared = assert(session:prepare_write { from = slice, to = far_slice }),
      PreparedCall = assert(perigee.prepare(calc, "add", 1, 2)),
      CallBatch = assert(perigee.batch(calc, "echo", { slice }, { slice })),
    }
  ]])
  return chunk()
end

-- The function that check.colons guards, if it does.
local function behind(f)
  local name, inner
  for i = 1, debug.getinfo(f, "u").nups do
    name, inner = debug.getupvalue(f, i)
    if name == "f" and type(inner) == "function" then return inner end
  end
  return f
end

-- All functions, by the name that the manual gives them.
local function functions(of)
  local list = {}
  for class, names in pairs(CONTRACT) do
    for name in names:gmatch "%S+" do
      local f = of[class][name]
      if type(f) == "function" then list[class .. ":" .. name] = behind(f) end
    end
  end
  for name in pairs(getmetatable(perigee).later) do
    local value = perigee[name]
    if type(value) == "function" then list["perigee." .. name] = value end
  end
  -- Specs replace it.
  list["perigee.log"] = require "perigee.runtime.log".default
  local descriptor = require "perigee.descriptor"
  for name in ("readable writable forget"):gmatch "%S+" do
    list["descriptor." .. name] = descriptor[name]
  end
  for name, value in pairs(perigee.units) do
    list["perigee.units." .. name] = value
  end
  return list
end

-- The number of parameters that an entry documents, without table fields.
local function parameters(entry)
  local count = 0
  for _, tag in ipairs(entry.tags) do
    local name = tag.name == "tparam" and tag.text:match "^%S+%s+(%S+)"
      or tag.name == "param" and tag.text:match "^%S+"
    if name and (name == "..." or not name:find(".", 1, true)) then
      count = count + 1
    end
  end
  return count
end

-- The options that an entry documents.
local function options(name)
  local told = {}
  for _, tag in ipairs(by_name[name].tags) do
    for option in (tag.text:match "^[^\n]*"):gmatch "options%.([%w_.]+)" do
      told[option] = true
    end
  end
  return told
end

-- The options of a function: it names them when it gets an unknown one.
local function taken(f)
  local fine, message = pcall(f, { nonsense = true })
  assert.is_false(fine)
  local list = {}
  for name in message:match "it has (.*)$":gmatch "[%w_]+" do
    list[#list + 1] = name
  end
  return list
end

describe("the manual", function()
  setup(examples.start)
  teardown(examples.stop)

  it("is about methods that raise where they are called with a dot", function()
    local of = objects()
    for class, names in pairs(CONTRACT) do
      for name in names:gmatch "%S+" do
        local f, what = of[class][name], class .. "." .. name
        for _, self in ipairs { {}, { from = 1 }, "text", 7 } do
          local fine, why = pcall(function()
            local result = f and f(self, self)
            return result
          end)
          assert.is_true(not f or not fine, what)
          assert.matches("^spec/lua/manual_spec.lua:%d+: .* is called with a "
            .. "colon, not with a dot$", f and why or "spec/lua/manual_spec.lua"
            .. ":1: it is called with a colon, not with a dot", what)
        end
      end
    end
    of.Agent:close()
  end)

  it("has an entry of each public function", function()
    local of = objects()
    for name, f in pairs(functions(of)) do
      local entry = assert(by_name[name], name .. " is not in the manual")
      local info = debug.getinfo(f, "u")
      local wanted = info.nparams - (name:find ":" and 1 or 0)
      if info.isvararg then
        assert.is_true(parameters(entry) > wanted, name)
      elseif name ~= "Proxy:with" then
        assert.equal(wanted, parameters(entry), name)
      end
    end
    of.Agent:close()
  end)

  it("tells of nothing that is not there", function()
    local of = objects()
    for _, entry in ipairs(entries) do
      local class, name = entry.name:match "^(%w+):([%w_]+)$"
      if of[class] and entry.name ~= "Proxy:method" then
        assert.equal("function", type(of[class][name]), entry.name)
      end
    end
    of.Agent:close()
  end)

  it("says of each function whether it waits, and shows it", function()
    for _, entry in ipairs(entries) do
      if entry.kind == "function" then
        assert.equal(1, #comments.texts(entry, "waits"), examples.where(entry))
        assert.equal(1, #comments.texts(entry, "usage"), examples.where(entry))
      end
    end
  end)

  it("tells of every option", function()
    local of = objects()
    local takers = {
      ["perigee.agent"] = perigee.agent, ["perigee.engine"] = perigee.engine,
      ["perigee.devices"] = perigee.devices,
      ["perigee.layout"] = perigee.layout,
      ["perigee.RnrMonitor"] = perigee.RnrMonitor,
      ["Proxy:with"] = function(o) of.Proxy:with(o) end,
      ["Agent:session"] = function(o) of.Agent:session("a", o) end,
      ["Engine:alloc"] = function(o) of.Engine:alloc(1, o) end,
      ["Engine:connect"] = function(o) of.Engine:connect("unix:/a", o) end,
      ["Engine:endpoint"] = function(o) of.Engine:endpoint(o) end,
      ["Session:region"] = function(o) of.Session:region("a", o) end,
      ["Session:recv_imm"] = function(o) of.Session:recv_imm(o) end,
      ["Region:allocator"] = function(o) of.Region:allocator(o) end,
      ["Kept:region"] = function(o) of.Kept:region("a", o) end,
    }
    for name, f in pairs(takers) do
      local told = options(name)
      for _, option in ipairs(taken(f)) do
        assert.is_true(told[option], ("%s has option %s"):format(name, option))
      end
    end
    of.Agent:close()
  end)

  -- The other ones for simulations are documented together, with clock.
  local WITH_CLOCK = { random = true, context = true, transports = true,
                       memories = true }

  it("tells of each option of engines where it is, with its default", function()
    local defaults = {}
    for _, tag in ipairs(by_name["perigee.engine"].tags) do
      local name = tag.text:match "options%.([%w_.]+)"
      if name then
        defaults[name] = loadstring("return "
          .. (tag.modifiers:match "^%[opt=(.*)%]$" or "nil"))() or "none"
      end
    end
    settings.each(function(name, default, advanced)
      local place = advanced and "advanced." .. name or name
      if default == nil then default = "none" end
      if default == false then default = "none" end
      assert.equal(WITH_CLOCK[name] and "none" or default,
                   defaults[place] or WITH_CLOCK[name] and "none", place)
    end)
  end)

  it("tells the defaults of engines as they are", function()
    local native = require "perigee.native"
    local core, count = native.options_t(), 0
    native.C.perigee_options_init(core, require("ffi").sizeof(core))
    settings.each(function(name, default)
      if type(default) == "number" then
        local real = tonumber(core[name])
        if name == "hello_timeout" or name == "dead_after" then
          real = real * 1e-9
        end
        assert.is_true(math.abs(default - real) <= 1e-9 * real, name)
        count = count + 1
      elseif type(default) == "boolean" then
        assert.equal(default and 1 or 0, tonumber(core[name]), name)
        count = count + 1
      end
    end)
    assert.is_true(count >= 15)
  end)

  it("names the errors of each function that may give one", function()
    for _, entry in ipairs(entries) do
      local gives = table.concat(comments.texts(entry, "treturn"))
        .. table.concat(comments.texts(entry, "return"))
      if gives:find "nil and an error" or gives:find "^Future" then
        assert.equal(entry.name == "perigee.spawn" and 0 or 1,
                     #comments.texts(entry, "errors"), examples.where(entry))
      end
    end
  end)

  it("explains each kind of error, twice", function()
    local reference = table.concat(by_name.Error.lines, "\n")
    local guide = read(GUIDE)
    for _, kind in ipairs(require "perigee.runtime.errors".kinds) do
      assert.is_truthy(reference:find("`" .. kind .. "`", 1, true), kind)
      assert.is_truthy(guide:find("| `" .. kind .. "`", 1, true)
        or guide:find(", `" .. kind .. "`", 1, true), kind)
    end
  end)
end)

-- ---- perigee(1), and links -------------------------------------------------

-- All matches of the patterns in the core and the library, without benches.
local function found(patterns, folders)
  local list = {}
  local pipe = io.popen("find " .. (folders or "native lua/perigee")
    .. " -name '*.[ch]' -o -name '*.lua' -o -name perigee"
    -- Fields that benches alone read, also in a build made for one.
    .. " | grep -vE '/bench/|/base/stamp[.]c'")
  for path in pipe:lines() do
    local file = io.open(path)
    local text = file and file:read "*a" or "" -- nil for a folder
    for _, pattern in ipairs(patterns) do
      for name in (text or ""):gmatch(pattern) do list[name] = path end
    end
    if file then file:close() end
  end
  pipe:close()
  return list
end

describe("perigee(1)", function()
  local text = read(COMMAND)

  it("has each variable of the environment that is read, and no other",
    function()
      local there = found { 'getenv%s*%(?"([%u_]+)"', '"(PERIGEE_%u[%u_]+)"',
                            'absolute%(world, "([%u_]+)"%)' }
      assert.is_truthy(there.PERIGEE_SECRET and there.TMPDIR)
      local told = {}
      for names in text:gmatch "\n%.It Ev ([^\n]+)" do
        for name in names:gmatch "[%u_]+" do told[name] = true end
      end
      for name, path in pairs(there) do
        assert.is_true(told[name] or text:find("\n.Ev " .. name .. "\n", 1,
          true) ~= nil, name .. ", which " .. path .. " reads")
      end
      for name in pairs(told) do assert.is_truthy(there[name], name) end
    end)

  it("has each exit status", function()
    local status = text:match "\n%.Sh EXIT STATUS\n(.-)\n%.Sh"
    local there = found({ "os%.exit%((%d+)%)", "MISUSE = (%d+)",
                          "NO_DEVICE = (%d+)" }, "lua/perigee examples")
    assert.is_truthy(there["2"] and there["77"])
    for code, path in pairs(there) do
      assert.is_truthy(status:find("\n.It " .. code .. "\n", 1, true)
        or status:find("^%.Bl[^\n]*\n%.It " .. code .. "\n")
        or status:find("with " .. code, 1, true), code .. " of " .. path)
    end
  end)
end)

describe("the texts", function()
  it("link to what is there", function()
    local pipe = io.popen "find . -name '*.md' -not -path './build/*'"
    local count = 0
    for path in pipe:lines() do
      assert.same({}, links.wrong((path:gsub("^%./", ""))))
      count = count + 1
    end
    pipe:close()
    assert.is_true(count >= 7)
  end)
end)
