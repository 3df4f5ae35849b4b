-- SPDX-License-Identifier: Apache-2.0
--- The errors of Redis servers: the kind of each, and what to do about those
-- whose text does not say so.
local M = {}

local CLUSTER = "it is a node of a Redis Cluster, whose redirections are not "
  .. "followed: name the node that it tells (all keys of a scope are in one), "
  .. "or a server outside of a cluster"
local OLD = "Redis 6.2 or later is needed"

-- By the first word.
local KINDS = {
  NOAUTH = "denied", WRONGPASS = "denied", NOPERM = "denied",
  DENIED = "denied", OOM = "no_memory", MISCONF = "no_memory",
  LOADING = "peer_lost", READONLY = "peer_lost", MASTERDOWN = "peer_lost",
  BUSY = "peer_lost", NOREPLICAS = "peer_lost", CLUSTERDOWN = "peer_lost",
  TRYAGAIN = "peer_lost", ASK = "peer_lost", MOVED = "unsupported",
}
local ADVICE = { MOVED = CLUSTER, ASK = CLUSTER }

-- Errors that begin with ERR, by their text: a kind, and advice if there is.
local OTHERS = {
  { "^ERR unknown command", "unsupported", OLD },
  { "^ERR max number of clients", "no_memory" },
  { "^ERR AUTH ", "denied" },
}

--- The kind of error for a server's failure text, and the text, with advice.
function M.read(text)
  local word = text:match "^%u+" or ""
  local kind, advice = KINDS[word], ADVICE[word]
  for _, other in ipairs(OTHERS) do
    if text:find(other[1]) then kind, advice = other[2], other[3] end
  end
  return kind or "protocol", advice and text .. ": " .. advice or text
end

--- Is it the answer of a replica to a write?
function M.is_demoted(text) return text:find "^READONLY" ~= nil end

return M
