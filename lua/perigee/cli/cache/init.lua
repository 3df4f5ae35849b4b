-- SPDX-License-Identifier: Apache-2.0
--- `perigee cache`: a cache as a server, and what can be asked of caches.
local background = require "perigee.cli.cache.background"
local keys = require "perigee.cli.cache.keys"
local values = require "perigee.cli.cache.values"

return {
  name = "cache",
  summary = "Serve a cache; put, get and look at what caches keep.",
  description = "A cache keeps blocks of bytes by keys, in memory that its "
    .. "clients read by themselves. serve and start make one. The other "
    .. "commands ask one by its name, or several that share the keys (--name "
    .. "a --name b). Their exit status is 1 where a key is not there.",
  commands = {
    require "perigee.cli.cache.serve",
    background.start, background.status, background.stop,
    values.get, values.put,
    keys.has, keys.match, keys.list, keys.delete, keys.stat,
    require "perigee.cli.cache.events",
    require "perigee.cli.cache.bench",
  },
}
