-- SPDX-License-Identifier: Apache-2.0
-- Suites that need servers which this machine may not have.
local busted = require "busted"

--- As describe(), where these servers can be started: modules that tell so by
-- is_there(), and in `needs` what it takes. Elsewhere the suite is one test,
-- which is pending.
return function(name, servers, suite)
  for _, server in ipairs(servers) do
    if not server.is_there() then
      suite = function() busted.pending(server.needs .. " is missing") end
      break
    end
  end
  busted.describe(name, suite)
end
