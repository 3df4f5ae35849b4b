-- SPDX-License-Identifier: Apache-2.0
-- The other side of both benches, started by them:
--   luajit bench/worker.lua SCOPE FOLDER BYTES CORE PARENT SPIN
-- It serves "bench" as the agent "worker"; sessions to FOLDER/idle.sock are
-- only kept. If BYTES is above 0 it has a region "bench" of that size at
-- FOLDER/transfer.sock and receives messages and immediates there. SPIN above 0
-- is its engines' option. It ends with its parent.

local tree = (arg[0]:match ".*/" or "./") .. "tree.lua"
dofile(tree)
local ffi = require "ffi"
local payload = require "perigee.bench.payload"
local perigee = require "perigee"
local process = require "perigee.bench.process"

local scope, folder, bytes = arg[1], arg[2], tonumber(arg[3])
local core, parent = tonumber(arg[4]), tonumber(arg[5])
local engine_options = { spin = tonumber(arg[6]) }
if engine_options.spin == 0 then engine_options.spin = nil end

process.die_with_parent(parent)
assert(process.pin(0, core))

local now = process.now
local doubles = ffi.typeof "double *"
local const_doubles = ffi.typeof "const double *"
local HEAD = 16 -- bytes in front of a timed call's stamps
local NO_LIMIT = { timeout = math.huge }
local wrong = 0 -- messages and immediates that were not what they should be

local function copy(request, reply)
  ffi.copy(reply.pointer, request.pointer, request.length)
  return request.length
end

-- Reads one byte of each page of the request, which begins with the round's
-- number, writes one of each page of the reply, and says in the reply's first
-- bytes how long it took itself.
local function timed(request, reply)
  local begin = now()
  local length, from, to = request.length, request.pointer, reply.pointer
  local round = ffi.cast(const_doubles, from)[0]
  if payload.check(from + HEAD, length - HEAD, round) ~= 0 then wrong = 1 end
  payload.stamp(to + HEAD, length - HEAD, round + 1)
  local spent = ffi.cast(doubles, to)
  spent[0] = wrong
  spent[1] = now() - begin
  return length
end

local service = {
  name = "bench", version = 1,
  methods = {
    add = function(a, b) return a + b end,
    echo = { raw = true, function(request) return request end },
    copy = { raw = true, inplace = true, copy },
    timed = { raw = true, inplace = true, timed },
    wrong = function() return wrong end,
    resources = require "perigee.bench.resources".used,
  },
}

-- Message k of a session carries the stamps of round k.
local function receive(session, slice)
  local k = 0
  local pointer = slice.pointer
  while true do
    local length = session:recv(slice, NO_LIMIT):wait()
    if not length then return end
    k = k + 1
    if payload.check(pointer, length, k) ~= 0 then wrong = wrong + 1 end
  end
end

-- Immediates count from 1.
local function receive_immediates(session)
  local k = 0
  while true do
    local immediate = session:recv_imm(NO_LIMIT):wait()
    if not immediate then return end
    k = k + 1
    if immediate ~= k then wrong = wrong + 1 end
  end
end

-- An engine of its own for the layer below: what the agent's engine accepts is
-- the agent's.
local function serve_transfers()
  local engine = assert(perigee.engine(engine_options))
  local region = assert(engine:alloc(bytes, { name = "bench", access = "rw" }))
  local inbox = assert(engine:alloc(bytes)):slice():fill(1)
  region:slice():fill(1)
  local listener = assert(engine:listen("unix:" .. folder .. "/transfer.sock"))
  perigee.spawn(function()
    while true do
      local session = listener:accept()
      if not session then return end
      perigee.spawn(receive, session, inbox)
      perigee.spawn(receive_immediates, session)
    end
  end)
end

local agent = assert(perigee.agent {
  name = "worker", scope = scope, engine = engine_options,
})
agent:serve(service)
assert(agent.engine:listen("unix:" .. folder .. "/idle.sock"))
if bytes > 0 then serve_transfers() end
io.write "ready\n"
io.flush()
perigee.run()
agent:close()
process.remove_folder(folder, { "transfer.sock", "idle.sock" })
