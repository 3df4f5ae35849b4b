-- SPDX-License-Identifier: Apache-2.0
-- Perigee from Lua: one-sided writes and reads between a region of the server's
-- and private memory of the client's. Words: shm or tcp; prepared (one transfer
-- is posted again and again) or fresh (a table of slices for each). Pieces are
-- a layout of each memory.
--
-- Version: this tree's.
-- Mode: one session; session:write and session:read, or prepared transfers.
-- Copies: over shared memory the client, once; over TCP the kernel, in and
-- out.
-- Sleeping: as in perigee_echo.lua, which has the setting, too.
-- What was put is looked at in the server's memory by /proc, and what is to be
-- got is written there in the same way, as in onesided.py and onesided.h.

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
local peer = dofile(here .. "peer.lua")
local ffi = require "ffi"
local bit = require "bit"
local histogram = require "perigee.bench.histogram"
local moves = require "bench.lib.moves"
local payload = require "bench.lib.payload"
local perigee = require "perigee"
local process = require "bench.lib.process"

ffi.cdef [[
int perigee_peer_open(const char *path, int flags) __asm__("open");
ssize_t perigee_peer_pread(int fd, void *to, size_t length, int64_t at)
  __asm__("pread");
ssize_t perigee_peer_pwrite(int fd, const void *from, size_t length,
                            int64_t at) __asm__("pwrite");
int perigee_peer_prctl(int option, unsigned long value, unsigned long, \
                       unsigned long, unsigned long) __asm__("prctl");
]]

local C, now, spent = ffi.C, process.now, process.spent
local O_RDWR, O_CLOEXEC, PR_SET_PTRACER = 2, 0x80000, 0x59616d61
local FEWEST, ATTEMPTS = 3, 8
local way, kind, role, folder, size, under, address = unpack(arg)
size, under = tonumber(size), tonumber(under)
local roles = {}

-- ---- The server ------------------------------------------------------------

function roles.server()
  local options = peer.options(way, size * under)
  options.listen = peer.address(way, folder)
  local agent = assert(perigee.agent(options))
  local region = assert(agent.engine:alloc(size * under,
    { name = "far", access = "rw", populate = true }))
  C.perigee_peer_prctl(PR_SET_PTRACER, -1ULL, 0, 0, 0)
  peer.say("ready %d %.0f %s", process.pid(),
           tonumber(ffi.cast("uintptr_t", region:slice().pointer)),
           agent.addresses[1])
  peer.serve(agent)
end

-- ---- The client ------------------------------------------------------------

local session, remote, from, into, memory, far

-- Moves the first bytes between the server's memory and here, by /proc: how is
-- pread or pwrite.
local function by_proc(how, pointer, length)
  local at = 0
  while at < length do
    local n = tonumber(how(memory, pointer + at, length - at, far + at))
    if n <= 0 then error("the server's memory cannot be reached", 0) end
    at = at + n
  end
end

local POSTS = {}

POSTS["fresh put"] = function(mine, there)
  return function() return session:write { from = mine, to = there } end
end

POSTS["fresh get"] = function(mine, there)
  return function() return session:read { from = there, to = mine } end
end

POSTS["prepared put"] = function(mine, there)
  local transfer = session:prepare_write { from = mine, to = there }
  return function() return transfer:post() end
end

POSTS["prepared get"] = function(mine, there)
  local transfer = session:prepare_read { from = there, to = mine }
  return function() return transfer:post() end
end

local posts = {} -- by mode and size: a function that begins a transfer

local function post_of(mode, length)
  local key = mode .. length
  if posts[key] then return posts[key] end
  local there = remote:slice(0, length)
  local mine = (mode == "put" and from or into):slice(0, length)
  posts[key] = POSTS[kind .. " " .. mode](mine, there)
  return posts[key]
end

local function check(fine, err)
  if not fine then error(tostring(err), 0) end
end

local function timed(post, repeats)
  local begin = now()
  for _ = 1, repeats do check(post():wait()) end
  return (now() - begin) / repeats
end

local round = 0

-- A put, or get, of as many bytes until the time is over. So many are timed
-- together, and so hide the clock's own time; each has ended before the next
-- one begins.
local function move(mode, length, seconds)
  local post, repeats = post_of(mode, length), moves.repeats(length)
  local taken, samples, until_ns = histogram.new(), 0, now() + seconds * 1e9
  local pages = math.ceil(length / payload.PAGE)
  repeat
    round, samples = round + 1, samples + 1
    payload.stamp(from.pointer, length, round)
    if mode == "get" then
      by_proc(C.perigee_peer_pwrite, from.pointer, length)
    end
    taken:add(timed(post, repeats), repeats)
    if mode == "put" then
      by_proc(C.perigee_peer_pread, into.pointer, length)
    end
    if payload.check(into.pointer, length, round) ~= 0 then
      error(("wrong bytes: transfer %d"):format(round), 0)
    end
  until now() >= until_ns and taken.count >= FEWEST
  if not payload.same(from.pointer, into.pointer, length) then
    error("wrong bytes: the last transfer", 0)
  end
  return taken, taken.sum, samples * pages + length
end

-- ---- Pieces ----------------------------------------------------------------

-- Returns the pieces of a call, each { offset, length, count, stride }.
local function listed()
  local pieces = {}
  for line in io.lines(folder .. "/pieces") do
    local piece = {}
    for number in line:gmatch "%d+" do piece[#piece + 1] = tonumber(number) end
    pieces[#pieces + 1] = piece
  end
  return pieces
end

-- Returns the options of a layout of pieces that are alike and as far apart,
-- and where it begins.
local function laid_out(pieces)
  local first, second = pieces[1], pieces[2] or pieces[1]
  local step = second[1] - first[1]
  for i, piece in ipairs(pieces) do
    if piece[1] ~= first[1] + (i - 1) * step or piece[2] ~= first[2]
       or piece[3] ~= first[3] or piece[4] ~= first[4] then
      error("these pieces are no layout", 0)
    end
  end
  local dims = { { #pieces, step } }
  if first[3] > 1 then dims[2] = { first[3], first[4] } end
  return { block = first[2], dims = dims }, first[1]
end

-- Words that follow from the round and where they are, so that all are new.
local function fill(length)
  local words = ffi.cast("int32_t *", from.pointer)
  for i = 0, length / 4 - 1 do words[i] = bit.bxor(i, round * 0x1010101) end
end

local function same_pieces(pieces)
  local checked = 0
  for _, piece in ipairs(pieces) do
    for i = 0, piece[3] - 1 do
      local at = piece[1] + i * piece[4]
      if not payload.same(from.pointer + at, into.pointer + at, piece[2]) then
        error(("wrong bytes: %d of them at %d"):format(piece[2], at), 0)
      end
      checked = checked + piece[2]
    end
  end
  return checked
end

local function post_of_pieces(mode, pieces, length)
  local options, at = laid_out(pieces)
  local function layout(memory_of)
    options.base = memory_of:slice(at, length - at)
    return perigee.layout(options)
  end
  return POSTS[kind .. " " .. mode](layout(mode == "put" and from or into),
                                    layout(remote))
end

-- Calls until the time is over. Returns their times, and in words of the answer
-- the least processor time of this thread until a call was posted, and until it
-- had ended.
local function timed_pieces(post, until_ns)
  local taken, posted, whole = histogram.new(), math.huge, math.huge
  repeat
    local start, begin = now(), spent()
    local future = post()
    local after = spent()
    check(future:wait())
    taken:add(now() - start)
    posted = math.min(posted, after - begin)
    whole = math.min(whole, spent() - begin)
  until now() >= until_ns and taken.count >= FEWEST
  return taken, (" post=%.9f caller=%.9f"):format(posted / 1e9, whole / 1e9)
end

-- Calls that move all pieces; every byte is new, and is compared behind them.
local function move_pieces(mode, length, seconds)
  local pieces = listed()
  local post = post_of_pieces(mode, pieces, length)
  round = round + 1
  fill(length)
  if mode == "get" then by_proc(C.perigee_peer_pwrite, from.pointer, length) end
  local taken, more = timed_pieces(post, now() + seconds * 1e9)
  if mode == "put" then by_proc(C.perigee_peer_pread, into.pointer, length) end
  return taken, taken.sum, same_pieces(pieces), more
end

-- There and back, every byte new.
local function verify(length, calls)
  local taken, put, get = histogram.new(), post_of("put", length),
                          post_of("get", length)
  while taken.count < calls do
    round = round + 1
    for i = 0, length - 1 do
      from.pointer[i] = (i * 7 + round * 31 + math.floor(i / 251)) % 256
    end
    taken:add(timed(put, 1) + timed(get, 1))
    if not payload.same(from.pointer, into.pointer, length) then
      error(("wrong bytes: transfer %d"):format(round), 0)
    end
  end
  return taken, taken.sum, taken.count * length
end

local function burst(line)
  local mode, length, number, limit = line:match "^(%S+) (%d+) (%d+) (%S+)$"
  length, number, limit = tonumber(length), tonumber(number), tonumber(limit)
  if mode == "verify" then
    return verify(length, math.ceil(limit / number) * number)
  elseif mode == "put" or mode == "get" then
    return move(mode, length, limit)
  elseif mode == "put-pieces" or mode == "get-pieces" then
    return move_pieces(mode:sub(1, 3), length, limit)
  end
  error("no such burst: " .. line, 0)
end

local function private(engine)
  return assert(engine:alloc(size * under, { access = "",
                                             populate = true })):slice()
end

function roles.client()
  local agent = assert(perigee.agent(peer.options(way, size * under)))
  local pid, at, place = address:match "^(%d+) (%d+) (.*)$"
  local why
  for _ = 1, ATTEMPTS do -- a handshake has two seconds, also on a busy machine
    session, why = agent:session(place)
    if session then break end
  end
  remote = assert(assert(session, why):region "far")
  from, into = private(agent.engine), private(agent.engine)
  far = tonumber(at)
  memory = C.perigee_peer_open("/proc/" .. pid .. "/mem",
                               ffi.cast("int", O_RDWR + O_CLOEXEC))
  if memory < 0 then error("the server's memory cannot be opened", 0) end
  verify(math.min(size, 64), 1)
  peer.answer(burst)
  agent:close()
end

peer.main(way, role, roles)
