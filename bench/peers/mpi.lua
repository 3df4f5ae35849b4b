-- SPDX-License-Identifier: Apache-2.0
-- Open MPI and MPICH between two ranks of one job. A message's length is an
-- int.
local function peer(name, packages, fetches)
  return { name = name, group = name, program = name, path = "shm",
           waits = "polls", modes = { "echo", "pipelined" }, debian = packages,
           fetches = fetches, largest = 2 ^ 30 }
end

return { peer("openmpi", { "libopenmpi-dev", "openmpi-bin" }, "12 MB"),
         peer("mpich", { "libmpich-dev", "mpich" }, "20 MB") }
