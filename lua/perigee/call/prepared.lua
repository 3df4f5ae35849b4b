-- SPDX-License-Identifier: Apache-2.0
--- Prepared calls: named once, and made any number of times. A prepared call
-- is itself the future of its last post, so a post makes no future: with many
-- short calls under way each takes less time than by `Proxy.async:method`. A
-- post of a slice to a raw method, whose reply fills `into`, makes no Lua
-- object at all. One task at a time posts it and waits for it. It needs no
-- `close`. Before its first post it has ended, with true. Made by
-- `perigee.prepare`.
-- @classmod PreparedCall

-- Beside a future's slots it has PROXY, ARGUMENTS and POST: the function of its
-- method that makes the call (raw.lua, typed.lua).
local check = require "perigee.runtime.check"
local futures = require "perigee.runtime.future"
local proxies = require "perigee.call.proxy"

local Future = futures.Future
local ENDED, POST = futures.ENDED, futures.POST

local M = {}

local PreparedCall = {}
local META = futures.metatable(PreparedCall, "prepared call")
PreparedCall.wait, PreparedCall.done = Future.wait, Future.done
PreparedCall.cancel = Future.cancel

--- Makes the call once more. Its `wait`, `done` and `cancel` (as a `Future`'s)
-- are of this post until the next one. To post it while it is still under way
-- is misuse. A slice is sent with the bytes that it has then. A writer is
-- called, a list of slices is read, and the arguments of a typed method are
-- encoded, at each post.
-- @function PreparedCall:post
-- @treturn PreparedCall itself, as the future of what `Proxy:method` gives
-- @errors those of `Proxy:method`, by the future
-- @waits no
-- @usage
-- local calls = {}
-- for i = 1, 8 do
--   local into = region:slice(128 * i, 64)
--   calls[i] = perigee.prepare(calc:with { into = into }, "echo",
--                              region:slice(128 * i + 64, 64))
-- end
-- for _ = 1, 3 do
--   for _, call in ipairs(calls) do call:post() end
--   assert(perigee.wait_all(calls, 5))
-- end
-- print(calls[1]:wait().length)                                --> 64
function PreparedCall:post()
  if type(self) ~= "table" or not self[POST] then
    check.dotted("call", "post", 2)
  end
  if not self[ENDED] then
    error("call:post: it is still posted; wait for it first", 2)
  end
  return self[POST](self)
end

--- Prepares a call, which `PreparedCall:post` makes any number of times. It
-- keeps its arguments and the options that the proxy has now.
-- @function perigee.prepare
-- @tparam Proxy proxy with its options, such as `into` or `reader`
-- @tparam string method the method's name
-- @param ... the arguments, as of `Proxy:method`
-- @treturn PreparedCall the call, which was not made yet; or nil and an error
-- @errors `no_method`
-- @waits no
-- @usage
-- local call = assert(perigee.prepare(calc, "add", 1, 2))
-- print(call:post():wait(), call:post():wait())                --> 3 3
function M.new(proxy, name, ...)
  local method, err = proxies.method(proxy, name, "perigee.prepare", 2)
  if not method then return nil, err end
  method.post = method.post or method.kind.post(method)
  local own = proxy:with {}             -- nobody else fills its message
  return setmetatable({ 1, true, false, false, own[1], false, own,
                        method.kind.arguments(method, ...), method.post }, META)
end
jit.off(M.new)

return M
