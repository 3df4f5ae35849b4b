-- SPDX-License-Identifier: Apache-2.0
-- Shared by the rdma_*.lua examples: two sides that meet without a socket. Each
-- side has one line of text for the other, and how it gets there is up to you.
-- Here one run starts both, with a second process, or you carry the lines by
-- hand between two terminals or hosts.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local perigee = require "perigee"

local NO_DEVICE = 77
local M = {}

local HELP = [[
luajit %s [OPTION...]

Runs both sides, the second one in a process of its own. With --side one of them
only: start the other elsewhere, and carry each one's line to the other.

  --nic TEXT              this side's NIC, as option rdma of an engine:
                          "nics=mlx5_0"
  --peer-nic TEXT         the NIC of the second process: "nics=rxe2 gid=1"
  --side driver|worker    prints its line, and wants the other's on the standard
                          input
  --out FILE, --in FILE   its line goes to FILE, the other's comes from there as
                          soon as it is there
  --help                  this

Exit status: 0; 1 if anything went wrong; 77 where there is no RDMA device.
]]
local KNOWN = { nic = true, ["peer-nic"] = true, side = true, out = true,
                ["in"] = true }

local function options()
  local all, i = {}, 1
  while arg[i] do
    local name = arg[i]:match("^%-%-(.+)$")
    if name == "help" then
      io.write(HELP:format(arg[0]))
      os.exit(0)
    end
    if not KNOWN[name] or not arg[i + 1] then
      error(("%s is no option, or wants a value; --help"):format(arg[i]), 0)
    end
    all[name], i = arg[i + 1], i + 2
  end
  return all
end

-- ---- Carrying a line --------------------------------------------------------

-- Writes the line under another name first, so that the file never has a part
-- of it.
local function write(file, line)
  local out = assert(io.open(file .. ".part", "w"))
  out:write(line, "\n")
  out:close()
  assert(os.rename(file .. ".part", file))
end

local function read(file)
  local limit = common.now() + 60
  while common.now() < limit do
    local from = io.open(file)
    local line = from and from:read("*l")
    if from then from:close() end
    if line then return line end
    perigee.sleep(0.02)
  end
  error("the other side's line did not come within 60 s", 0)
end

local function tell(given, line)
  if given.out then return write(given.out, line) end
  print(line)
  io.stdout:flush()
end

local function hear(given)
  if given["in"] then return read(given["in"]) end
  return assert(io.read("*l"), "the other side's line did not come")
end

-- ---- The sides --------------------------------------------------------------

local function engine_and_endpoint(nic)
  local engine = assert(perigee.engine { advanced = { rdma = nic } })
  local endpoint, err = engine:endpoint { transport = "verbs" }
  if not endpoint then
    print(tostring(err))
    os.exit(err.kind == "unsupported" and NO_DEVICE or 1)
  end
  return engine, endpoint
end

local function one_side(run, given)
  local engine, endpoint = engine_and_endpoint(given.nic)
  run(engine, function()
    tell(given, endpoint:info())
    return assert(endpoint:connect(hear(given), { timeout = 60 }))
  end)
  engine:close()
end

local function quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

-- Runs both sides. The worker's line comes through its pipe; the driver's goes
-- to the worker in a file that no other user may read.
local function both_sides(driver, given)
  local engine, endpoint = engine_and_endpoint(given.nic)
  local file = os.tmpname()
  write(file, endpoint:info())
  local words = { "exec luajit", quote(arg[0]), "--side worker --in",
                  quote(file) }
  if given["peer-nic"] then
    words[#words + 1] = "--nic " .. quote(given["peer-nic"])
  end
  local pipe = assert(io.popen(table.concat(words, " "), "r"))
  local fine, message = xpcall(driver, debug.traceback, engine, function()
    local line = assert(pipe:read("*l"), "the worker said nothing")
    assert(line:find("^perigee%-endpoint:"), line)
    return assert(endpoint:connect(line, { timeout = 60 }))
  end)
  os.remove(file)
  engine:close()
  io.write(pipe:read("*a"))
  pipe:close()
  if not fine then error(message, 0) end
end

-- Runs sides.driver and sides.worker, functions of (engine, connect). Each
-- calls connect() once to get its session, when its regions are in place.
function M.main(sides)
  local fine, message = xpcall(function()
    local given = options()
    local side = given.side and assert(sides[given.side], "no such side")
    if side then one_side(side, given) else both_sides(sides.driver, given) end
    if given.side ~= "worker" then print("ok") end
  end, debug.traceback)
  if not fine then
    io.stderr:write(message, "\n")
    os.exit(1)
  end
end

M.now = common.now

-- Fills a slice with bytes that depend on their place; the next function
-- checks them.
function M.fill(slice, seed)
  for i = 0, slice.length - 1 do slice.pointer[i] = (i * 7 + seed) % 251 end
end

function M.is_filled(slice, seed)
  for i = 0, slice.length - 1 do
    if slice.pointer[i] ~= (i * 7 + seed) % 251 then return false end
  end
  return true
end

-- The worker tells whether it saw the right bytes, and the driver waits for
-- that.
function M.say_verdict(session, engine, good)
  local word = engine:alloc(1)
  word:slice(0, 1).pointer[0] = good and 1 or 0
  assert(session:send(word:slice(0, 1)):wait(10))
end

function M.hear_verdict(session, engine)
  local word = engine:alloc(1)
  assert(session:recv(word:slice(0, 1)):wait(30))
  assert(word:slice(0, 1).pointer[0] == 1, "the worker saw wrong bytes")
end

return M
