-- SPDX-License-Identifier: Apache-2.0
--- What is done when the Lua state ends. LuaJIT then finalizes what was made
-- last first, and a library that is loaded is such an object: after that its
-- functions are not found. So what is registered here is done by the finalizer
-- of an object that is newer than any library of Perigee's own.
local M = {}

local registered, proxies = {}, {}

local function finalize()
  for _ = 1, #registered do pcall(table.remove(registered)) end
end
jit.off(finalize)

--- A library was loaded, which what is registered may call to the end.
function M.outlive()
  local proxy = newproxy(true)
  getmetatable(proxy).__gc = finalize
  proxies[#proxies + 1] = proxy
end

--- Has f be called when the Lua state ends, before what was registered earlier.
-- What f raises is dropped.
function M.at_end(f)
  registered[#registered + 1] = f
  M.outlive()
end

return M
