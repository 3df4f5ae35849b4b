-- SPDX-License-Identifier: Apache-2.0
--- A description of a session, as `Session:explain` returns it: a table of
-- plain values that prints as text.
--
-- * `transport`: what carries the session; `carrier`: a line about it, or "".
--   `facts`: the same by name, as numbers and texts. Over TCP:
--   `payload_sockets`, `chunks`, and `payload_sockets_lost` once some were:
--   held back or cut on their way, and replaced. Over RDMA: `device`,
--   `queue_pairs`, `MTU`, `inline`, `keys`, `registered_bytes`,
--   `registrations`, `posts`, `polls_that_found`, `resets`. With injected
--   faults, first:
--   `faults_on_purpose`, `dropped`, `twice`, `cut_short`, `overtaken`
-- * `forced`: what asked for that transport ("option transport" of this side,
--   "PERIGEE_TRANSPORT"), or false
-- * `considered`: by name, why each other transport does not carry the session
-- * `lanes`: by name, what each additional lane carries beside that transport
--   and how much it has carried, and how devices copy for it, or why it carries
--   nothing: "cuda" where there is a driver of GPUs, and those that the engine
--   was given transports for
-- * `same_host`: true if the peer is known to be on this host
-- * `authenticated`: true if both sides have proved to have the same secret
-- * `encrypted`: the cipher that encrypts all that the session carries, or
--   false
-- * `intact`: the cipher that protects it from being changed, or false
-- * `security`: both in a sentence, "" once the session has ended
-- * `dead_after`: seconds of silence after which the peer is lost; false if
--   only the end of its socket tells. `liveness`: the same in a sentence
-- * `limits`: ring, eager, typed, message: bytes
-- * `shares`: what the session makes this engine hold now, of operations,
--   pooled, exposed and mapped bytes, descriptors, sessions: each has used (by
--   the session), peer (by all sessions of its peer) and most (what the peer
--   may hold now); and refused: how often any peer was refused more
-- * `counters`: since the session's start: the counters of `Engine:stats` that
--   sessions have. `stalls` (operations and replies that had to wait for room
--   in the peer's ring, or for a block; each once) and `sleeps` (waits that
--   polling did not end) show which side waits for the other
-- * `id`, `peer`, `pid`, `address`, `from`, `state`, `status`, `reason`,
--   `version`, `epoch`, `pull`: facts about the session and the other side
-- * `features`: a list of the names of the features that both sides have:
--   "trace" (calls may carry a trace context), "lanes" (additional lanes),
--   "staging" (payloads are staged in blocks of any size), "drain" (a side that
--   drains tells so), "streams" (sockets for payloads tell that they live),
--   "places" (lists of slices are read where they lie, over shared memory),
--   "moves" (rings through which many payloads of 2 KiB and more pass become
--   longer for a while, over shared memory), "windows" (of a long payload
--   between cores that share no cache, what its sender has not staged yet is
--   pulled), "pairs" (memory of a GPU that the program made by cuMemCreate is
--   opened by peers: its key has two descriptors)
-- @classmod Explanation
local native = require "perigee.native"
local sorted = require "perigee.runtime.sorted"
local units = require "perigee.runtime.units"

local ffi = require "ffi"
local C = native.C

local M = {}

local STATES = { [0] = "none", "hello", "open", "ended" }
local COUNTERS = { "calls", "served", "replies", "failures", "timeouts",
                   "transfers", "messages", "bytes_sent", "bytes_received",
                   "wakes", "sleeps", "stalls", "sessions", "regions",
                   "operations", "pooled", "refused", "polls", "kept",
                   "spins", "dropped" }
local OF_ENGINE = { sessions = true, regions = true, operations = true,
                    pooled = true, refused = true, polls = true,
                    spins = true, dropped = true }

local function text(pointer)
  return pointer ~= nil and ffi.string(pointer) or ""
end

--- The core's counters as numbers.
function M.counters(counters, of_session)
  local values = {}
  for _, name in ipairs(COUNTERS) do
    if not (of_session and OF_ENGINE[name]) then
      values[name] = tonumber(counters[name])
    end
  end
  return values
end

local KINDS = { "operations", "pooled", "exposed", "mapped", "descriptors",
                "sessions" }

--- Returns the shares of a session's handle, or without it those of the engine.
function M.shares(engine, handle)
  local shares = native.shares_t()
  C.perigee_shares_read(engine, handle, shares, ffi.sizeof(shares))
  local told = { refused = tonumber(shares.refused) }
  for _, name in ipairs(KINDS) do
    local share = shares[name]
    told[name] = { used = tonumber(share.used), peer = tonumber(share.peer),
                   most = tonumber(share.most) }
  end
  return told
end

local function by_name(lines)
  local list = {}
  for name, why in lines:gmatch("([^\n:]+): ([^\n]*)") do list[name] = why end
  return list
end

local function facts(info)
  local told = {}
  for i = 0, info.fact_count - 1 do
    local fact = info.facts[i]
    told[text(fact.name)] = fact.text ~= nil and text(fact.text)
      or tonumber(fact.number)
  end
  return told
end

local function cipher(info, has)
  if has == 0 then return false end
  return info.aes ~= 0 and "AES-256-GCM" or "ChaCha20-Poly1305"
end

local function features(info)
  local names = {}
  for i = 0, 63 do
    if bit.band(info.features, bit.lshift(1ULL, i)) ~= 0 then
      names[#names + 1] = text(C.perigee_feature_name(i))
    end
  end
  return names
end

local who = native.info_t()

local function epoch(info) return ("%016x"):format(info.epoch) end

--- Tells a few facts of a session's handle cheaply: its address, where it came
-- from over TCP, the peer's process and epoch, and the agreed eager limit.
function M.peer(handle)
  C.perigee_session_describe(handle, who, ffi.sizeof(who))
  return text(who.address), text(who.peer), who.pid ~= 0 and who.pid or nil,
    epoch(who), tonumber(who.eager)
end

--- Returns all that the core tells of a session's handle.
function M.info(handle)
  local info = native.info_t()
  C.perigee_session_describe(handle, info, ffi.sizeof(info))
  return { id = info.id, state = STATES[info.state] or "none",
           status = info.status, pid = info.pid ~= 0 and info.pid or nil,
           version = info.version, pull = info.pull ~= 0,
           transport = text(info.transport), carrier = text(info.carrier),
           facts = facts(info),
           security = text(info.security),
           address = text(info.address), from = text(info.peer),
           reason = text(info.reason),
           considered = by_name(text(info.considered)),
           lanes = by_name(text(info.lanes)),
           dialed = info.dialed ~= 0, tcp = info.tcp ~= 0,
           same_host = info.same_host ~= 0,
           authenticated = info.authenticated ~= 0,
           encrypted = cipher(info, info.encrypted),
           intact = cipher(info, info.intact),
           dead_after = info.dead_after ~= 0
             and tonumber(info.dead_after) * 1e-9,
           epoch = epoch(info),
           features = features(info),
           limits = { ring = tonumber(info.ring),
                      eager = tonumber(info.eager),
                      message = tonumber(info.message),
                      typed = tonumber(info.typed) } }
end

-- ---- Sentences -------------------------------------------------------------

local function liveness(told)
  if told.dead_after then
    return ("a peer that is silent for %g s is lost"):format(told.dead_after)
  elseif told.address == "endpoint" then
    return "a peer whose device stops answering is lost"
  end
  return "the end of the peer's socket tells, a stopped peer is alive"
end

-- Has the explanation say what asked for the transport that carries the
-- session.
local function by_whom(told, forced)
  if not forced then return end
  for name, why in pairs(told.considered) do
    if why:find("^%S+ was asked for$") then
      told.considered[name] = ("%s asks for %s"):format(forced, told.transport)
    end
  end
end
jit.off(by_whom)

local Explanation = {}

local function limits(values)
  local parts = {}
  for _, name in ipairs { "ring", "eager", "typed", "message" } do
    parts[#parts + 1] = name .. " " .. units.format_size(values[name])
  end
  return table.concat(parts, ", ")
end

local function held(shares)
  local parts = {}
  for _, name in ipairs(KINDS) do
    local share = shares[name]
    if share.used > 0 then
      local unit = (name == "pooled" or name == "exposed" or name == "mapped")
        and units.format_size or tostring
      parts[#parts + 1] = ("%s %s of %s"):format(name, unit(share.used),
                                                 unit(share.most))
    end
  end
  return #parts > 0 and table.concat(parts, ", ") or "nothing"
end

local function counts(values)
  local parts = {}
  for _, name in ipairs(COUNTERS) do
    if values[name] and values[name] > 0 then
      parts[#parts + 1] = ("%s %.0f"):format(name, values[name])
    end
  end
  return #parts > 0 and table.concat(parts, ", ") or "none yet"
end

local function carried(told)
  local line = ("  carried by %s, protocol version %d"):format(told.transport,
                                                              told.version)
  if told.forced then line = line .. ", as " .. told.forced .. " asks" end
  if told.transport ~= "shm" then return line end
  return line .. "; large payloads are " .. (told.pull
    and "read from the sender's memory or copied in chunks"
    or "copied in chunks")
end

local function others(list, how, lines)
  for _, name in ipairs(sorted(list)) do
    lines[#lines + 1] = ("  %s %s: %s"):format(how, name, list[name])
  end
end

function Explanation:__tostring()
  local lines = {
    ("session %d with %s (pid %s) at %s%s: %s"):format(self.id, self.peer,
      self.pid or "unknown", self.address,
      self.from ~= "" and self.from ~= self.address and ", from " .. self.from
        or "", self.state) }
  local function line(...) lines[#lines + 1] = ("  %s%s"):format(...) end
  if self.reason ~= "" then line("why: ", self.reason) end
  lines[#lines + 1] = carried(self)
  if self.carrier ~= "" then line("over ", self.carrier) end
  others(self.lanes, "beside it", lines)
  others(self.considered, "not by", lines)
  if self.security ~= "" then line("security: ", self.security) end
  line("liveness: ", self.liveness)
  line("limits: ", limits(self.limits))
  line("features: ", #self.features > 0 and table.concat(self.features, ", ")
    or "none that are not every peer's")
  line("holds here: ", held(self.shares))
  line("counters: ", counts(self.counters))
  return table.concat(lines, "\n")
end

--- The explanation of a session that has a handle.
function M.session(session)
  local told = M.info(session.handle)
  told.peer, told.forced = session:text(), session.forced
  by_whom(told, told.forced)
  told.liveness = liveness(told)
  told.shares = M.shares(session.engine.handle, session.handle)
  told.counters = M.counters(C.perigee_counters(session.engine.handle,
                                                session.handle), true)
  return setmetatable(told, Explanation)
end

return M
