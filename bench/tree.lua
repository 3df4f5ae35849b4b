-- SPDX-License-Identifier: Apache-2.0
-- Lets a bench find Perigee in the source tree around it if it is built there
-- (else the installed one is measured), the floors, and the worker.

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
-- The build with time stamps, where these are wanted (anatomy.lua).
local build = here .. (os.getenv "PERIGEE_ANATOMY" and "../build/anatomy"
                       or "../build")
local core = io.open(build .. "/perigee/core.so")
if core then
  core:close()
  package.path = here .. "../lua/?.lua;" .. here .. "../lua/?/init.lua;"
                 .. package.path
  package.cpath = build .. "/?.so;" .. package.cpath
end
package.path = here .. "../?.lua;" .. package.path
require "bench.lib.floor".folder = os.getenv "PERIGEE_FLOORS"
                                       or here .. "../build/bench"

return { worker = here .. "worker.lua" }
