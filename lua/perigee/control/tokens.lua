-- SPDX-License-Identifier: Apache-2.0
--- Bearer tokens: who may do what. A token is for a scope ("*": all) and has a
-- role; each role may do what those before it may:
--
--   read      look up, list, watch
--   register  hold names, entities; report
--   admin     remove what others hold; the topology
--
-- The storage keeps hashes of tokens alone. Besides, a server may have a token
-- of its own, for the user whose process it is (registry/http/own). Clients
-- without a token are strangers. A server whose storage has no token, and never
-- had one, lets strangers do what its options say, unless it is told to want
-- tokens.
local control = require "perigee.net.native"
local errors = require "perigee.runtime.errors"
local log = require "perigee.runtime.log"
local marks = require "perigee.control.mark"
local problem = require "perigee.control.problem"

local ffi = require "ffi"
local C = control.C

local M = {}

M.ROLES = { read = 1, register = 2, admin = 3 }

local LOST = "the store had tokens, and has none: it was emptied, or is "
  .. "another one. All who ask are refused until it has tokens again (perigee "
  .. "ctrl token new), or until the server is started again without %s"

local text_t, hash_t = ffi.typeof "char[44]", ffi.typeof "char[65]"
local hash = hash_t()

--- The hash (BLAKE2b) of a text, in hexadecimal.
local function hash_of(text)
  if C.perigee_token_hash(hash, text, #text) < 0 then return nil end
  return ffi.string(hash, 64)
end

M.hash = hash_of

-- A new token's text; or nil, a kind and why.
local function new_text()
  local made = text_t()
  local status = C.perigee_token_make(made)
  if status < 0 then return nil, errors.kind(status), errors.text(status) end
  return "perigee_" .. ffi.string(made)
end

M.new_text = new_text

--- Makes a token, and keeps its hash. Returns its text, which nobody can tell
-- again, and its id; or nil, a kind and why.
function M.make(storage, scope, role, note)
  local text, failure, reason = new_text()
  if not text then return nil, failure, reason end
  local digest = hash_of(text)
  local token = { id = digest:sub(1, 8), hash = digest, scope = scope,
                  role = role, note = note or "" }
  local fine, kind, why = storage:add_token(token)
  if not fine then return nil, kind, why end
  return text, token.id
end

-- ---- Who asks --------------------------------------------------------------

local Tokens = {}
Tokens.__index = Tokens

--- The tokens of a storage. options: `wanted`: a request needs one even if
-- there are none; `mark`: the file that says that there were some
-- (control/mark); `rate`: requests in a second for each (0: no limit); `own`:
-- the text of the server's own; `strangers`: the role of those who have none
-- where none are wanted (default: admin).
function M.new(storage, options)
  local own = options.own and { hash = hash_of(options.own), scope = "*",
                                role = "admin", revoked = false }
  local tokens = setmetatable({ storage = storage, by_hash = {}, n = 0,
                                own = own or false, mark = options.mark,
                                wanted = options.wanted
                                  or marks.is_there(options.mark),
                                strangers = options.strangers or "admin",
                                version = false, rate = options.rate or 0 },
                              Tokens)
  return tokens:refresh() and tokens
end

--- Reads them again if another process has written. True, unless that fails.
function Tokens:refresh()
  local version = self.storage:written()
  if version == self.version then return true end
  local list = self.storage:all_tokens()
  if not list then return nil end
  local before, had = self.by_hash, self.n
  self.by_hash, self.n, self.version = {}, #list, version
  if #list > 0 and had == 0 then
    marks.make(self.mark)
  elseif #list == 0 and (had > 0 or marks.is_there(self.mark)) then
    log.write("error", LOST:format(self.mark or "the mark"))
  end
  self.wanted = self.wanted or #list > 0
  for _, token in ipairs(list) do
    local known = before[token.hash]
    token.left, token.at = known and known.left, known and known.at
    self.by_hash[token.hash] = token
  end
  return true
end

-- A bucket that holds the requests of a second.
local function is_too_fast(tokens, token, now)
  if tokens.rate == 0 then return false end
  local left = math.min(tokens.rate, (token.left or tokens.rate)
                        + (now - (token.at or now)) * tokens.rate)
  token.at, token.left = now, left
  if left < 1 then return true end
  token.left = left - 1
  return false
end

--- Has who has the token of that hash (false: none) so many requests left that
-- one more is not missed?
function Tokens:has_many(digest)
  local own = self.own
  local token = own and own.hash == digest and own or self.by_hash[digest]
  return self.rate == 0 or not token or (token.left or 0) >= self.rate / 2
end

local function unauthorized(detail)
  return problem(401, "denied", detail, nil, { "WWW-Authenticate", "Bearer" })
end

-- One that is new may have been made just now.
local function known(tokens, text)
  local digest = hash_of(text)
  if tokens.own and tokens.own.hash == digest then return tokens.own end
  local token = tokens.by_hash[digest]
  if not token and tokens:refresh() then token = tokens.by_hash[digest] end
  return token
end

--- Does it take who has none?
function Tokens:is_open() return self.n == 0 and not self.wanted end

--- Is what a token of that hash (false: none) was admitted to still allowed?
function Tokens:admits_still(digest)
  if not digest then return self:is_open() end
  if self.own and self.own.hash == digest then return true end
  local token = self.by_hash[digest]
  return token ~= nil and not token.revoked
end

-- The role of who has no token, and false; or nil, and the answer that refuses.
local function admit_stranger(tokens, role)
  if not tokens:is_open() then
    return nil, unauthorized "a bearer token is needed"
  elseif M.ROLES[tokens.strangers] < M.ROLES[role] then
    return nil, unauthorized("who has no token may only read here; programs of "
      .. "the user who runs this server find theirs by themselves, and perigee "
      .. "ctrl token makes others")
  end
  return tokens.strangers, false
end

-- Most say it so; the others are looked at by a pattern.
local BEARER = "Bearer "

local function text_of(header)
  if header:sub(1, #BEARER) == BEARER
    and not header:find(" ", #BEARER + 1, true)
    and not header:find("\t", 1, true) then
    local text = header:sub(#BEARER + 1)
    return text ~= "" and text or nil
  end
  return header:match "^[Bb][Ee][Aa][Rr][Ee][Rr] +(%S+) *$"
end

--- Does a request come from somebody whom strangers do not hold up? Only tokens
-- that are known now count; one that was just made may not be known.
function Tokens:knows(request)
  if self:is_open() and self.strangers == "admin" then return true end
  local given = request:header "Authorization"
  local text = given and text_of(given)
  return text and self:admits_still(hash_of(text)) or false
end

--- Checks that a request may do something that needs a role in a scope. Returns
-- the request's role and its token's hash (false: none was needed); or nil, and
-- the answer that refuses it.
function Tokens:admits(request, scope, role, now)
  local given = request:header "Authorization"
  if not given or self:is_open() and self.strangers == "admin" then
    return admit_stranger(self, role)
  end
  local text = text_of(given)
  if not text then return nil, unauthorized "a bearer token is needed" end
  local token = known(self, text)
  if not token or token.revoked then
    return nil, unauthorized "the token is not known here, or was revoked"
  end
  if is_too_fast(self, token, now) then
    return nil, problem(429, "no_memory",
                        "the token has had its requests of this second",
                        nil, { "Retry-After", "1" })
  end
  if scope and token.scope ~= "*" and token.scope ~= scope then
    return nil, problem(403, "denied", "the token is for another scope")
  end
  if M.ROLES[token.role] < M.ROLES[role] then
    return nil, problem(403, "denied", ("this takes the role %s, and the token "
      .. "has %s"):format(role, token.role))
  end
  return token.role, token.hash
end

return M
