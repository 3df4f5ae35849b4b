-- SPDX-License-Identifier: Apache-2.0
-- The other side of both benches. A bench starts it as the agent "worker",
-- which serves "bench". It keeps sessions to FOLDER/idle.sock open without
-- using them. It has a region "bench" of --bytes, if that is above 0, and
-- receives messages and immediates at FOLDER/transfer.sock. It ends with its
-- parent. Started separately,
--
--   luajit bench/worker.lua --listen ADDRESS [--bytes 64M] [--rdma TEXT]
--
-- it does all this at ADDRESS, for benches with --connect ADDRESS, until it is
-- stopped.

local tree = (arg[0]:match ".*/" or "./") .. "tree.lua"
dofile(tree)
local calls = require "bench.lib.calls"
local kinds = require "bench.lib.kinds"
local options = require "bench.lib.options"
local payload = require "bench.lib.payload"
local perftest = require "bench.lib.perftest"
local perigee = require "perigee"
local process = require "bench.lib.process"
local stamped = require "bench.lib.stamps".around

local given = options.worker()
if given.spin < 0 then given.spin = nil end
local bytes, engine_options = given.bytes, options.engine(given, given.rdma)

if given.parent then process.die_with_parent(given.parent) end
assert(process.pin(0, given.core))

local now = process.now
local NO_LIMIT = { timeout = math.huge }
local wrong = 0 -- messages and immediates with wrong contents
local missing = 0 -- immediates that others overtook

local function copy(request, reply)
  return reply:write(request)
end

-- Returns the posts, and the polls that found something, of all engines here.
local engines = {}
local function posts()
  local made, found = 0, 0
  for _, one in ipairs(engines) do
    local most = 0
    for _, session in pairs(one.sessions) do
      local told = session:explain().facts
      made = made + (told.posts or 0)
      most = math.max(most, told.polls_that_found or 0)
    end
    found = found + most
  end
  return { made, found }
end

-- Returns private memory of --kind as { slice, view }: the one in `old`, if it
-- is as long.
local function private(old, length)
  if old and old.slice.length == length then return old end
  local region = assert(engines[1]:alloc(length, { kind = given.kind,
                                                   share = true }))
  local slice = region:slice():fill(1)
  return { slice = slice, view = kinds.view(slice) }
end

-- Replies of mode landings, whose stamps are of a round; and the place of what
-- mode put brings.
local pages, landed

local function renew(length, round)
  pages = private(pages, length)
  payload.stamp(pages.view.pointer, length, round)
  pages.view.push()
  return true
end

local function landing(length)
  landed = private(landed, length)
  return landed.slice
end

-- Returns whether other stamps than those of the round have landed.
local function landed_wrong(round)
  landed.view.pull()
  return payload.check(landed.view.pointer, landed.slice.length, round) ~= 0
end

-- Makes a region that no peer has seen, in place of the one before (mode
-- first_write). Returns its name.
local newest
local function renew_region(length)
  if newest then newest:close(math.huge) end
  newest = assert(engines[#engines]:alloc(length, {
    name = "newest", access = "rw", kind = given.kind, populate = true }))
  return newest.name
end

-- Returns whether the last message of some session has these bytes.
local lasts = {} -- by session: view and length
local function is_last(request)
  for _, last in pairs(lasts) do
    if last.length == request.length then
      last.view.pull(last.length)
      if payload.same(last.view.pointer, request.pointer, last.length) then
        return "yes"
      end
    end
  end
  return "no"
end
jit.off(is_last) -- loops over pairs() are compiled wrongly at times

local service = {
  name = "bench", version = 1,
  methods = {
    add = stamped(function(a, b) return a + b end),
    echo = { raw = true, stamped(function(request) return request end) },
    copy = { raw = true, inplace = true, stamped(copy) },
    renew = renew,
    pages = { raw = true, function() return pages.slice end },
    put = { landing = landing, function(slice) return slice.length end },
    landed_wrong = landed_wrong,
    landed = { raw = true, function() return landed.slice end },
    is_last = { raw = true, is_last },
    renew_region = renew_region,
    timed = { raw = true, inplace = true, calls.timed },
    wrong = function() return wrong + missing end,
    posts = posts,
    sleeps = function() return engines[1]:stats().sleeps end,
    nap = function(seconds) perigee.sleep(seconds) end,
    resources = require "bench.lib.resources".used,
    perftest = function(...) return perftest.serve(given.rdma, ...) end,
    perftest_end = perftest.stop,
  },
}

-- Message k of a session carries the stamps of round k, unless only each
-- --every-th does. It posts as many receives as messages may be under way, each
-- with its part of the inbox.
local function receive(session, engine)
  local memory = assert(engine:alloc(bytes, { kind = given.kind,
                                              share = true }))
  local inbox = memory:slice():fill(1)
  local part = math.floor(bytes / given.window)
  local slices, views, futures = {}, {}, {}
  for i = 0, given.window - 1 do
    slices[i] = inbox:slice(i * part, part)
    views[i] = kinds.view(slices[i])
    futures[i] = session:recv(slices[i], NO_LIMIT)
  end
  local k, i, last = 0, 0, {}
  lasts[session] = last
  while true do
    local length = futures[i]:wait()
    if not length then
      lasts[session] = nil
      return memory:close()
    end
    k = k + 1
    last.view, last.length = views[i], length
    if (k - 1) % given.every == 0 then
      views[i].pull(length)
      if payload.check(views[i].pointer, length, k) ~= 0 then
        wrong = wrong + 1
      end
    end
    futures[i] = session:recv(slices[i], NO_LIMIT)
    i = (i + 1) % given.window
  end
end

-- Immediates count from 1; those under way together come in any order.
local function receive_immediates(session)
  local low, early = 1, {}
  while true do
    local immediate = session:recv_imm(NO_LIMIT):wait()
    if not immediate then return end
    if immediate < low or early[immediate] then
      wrong = wrong + 1
    elseif immediate > low then
      early[immediate], missing = true, missing + 1
    else
      low = low + 1
      while early[low] do
        early[low], low, missing = nil, low + 1, missing - 1
      end
    end
  end
end

local agent = assert(perigee.agent {
  name = given.parent and "worker", scope = given.scope,
  engine = engine_options,
})
agent:serve(service)
engines[1] = agent.engine

-- Serves sessions at that address; returns the address with the port that was
-- chosen.
local function serve_transfers(engine, address)
  if engine ~= agent.engine then engines[2] = engine end
  if bytes > 0 then
    local region = assert(engine:alloc(bytes, {
      name = "bench", access = "rw", kind = given.kind }))
    region:slice():fill(1)
  end
  local listener = assert(engine:listen(address))
  perigee.spawn(function()
    while true do
      local session = listener:accept()
      if not session then return end
      if bytes > 0 and not given.no_inbox then
        perigee.spawn(receive, session, engine)
        perigee.spawn(receive_immediates, session)
      end
    end
  end)
  return listener.address
end

local address = given.listen
if address then
  address = serve_transfers(agent.engine, address) or address
else
  local folder = "unix:" .. given.folder
  assert(agent.engine:listen(folder .. "/idle.sock"))
  -- Transfers have an engine of their own, so that their counters have no
  -- calls.
  if bytes > 0 then
    serve_transfers(assert(perigee.engine(engine_options)),
                    folder .. "/transfer.sock")
  end
end
-- Tells since when it listens, by the clock that all processes share, and
-- where.
io.write(("ready %.0f %s\n"):format(now(), address or ""))
io.flush()
perigee.run()
agent:close()
perftest.stop()
if not given.listen and given.folder then
  process.remove_folder(given.folder, { "transfer.sock", "idle.sock" })
end
