-- SPDX-License-Identifier: Apache-2.0
-- busted's plain report, followed by the line with totals that spec/support/run
-- and others read. The file named in PERIGEE_RUNNING always names the test that
-- runs, so that it is known if the process dies in it.
local running = os.getenv "PERIGEE_RUNNING"

return function(options)
  local busted = require "busted"
  local handler = require("busted.outputHandlers.plainTerminal")(options)

  busted.subscribe({ "test", "start" }, function(element)
    local file = running and io.open(running, "w")
    if file then
      file:write(("%s:%d: %s\n"):format(element.trace.short_src,
        element.trace.currentline, handler.getFullName(element)))
      file:close()
    end
    return nil, true
  end)

  busted.subscribe({ "suite", "end" }, function()
    io.write(("\n%d passed, %d failed, %d skipped\n"):format(
      handler.successesCount,
      handler.failuresCount + handler.errorsCount,
      handler.pendingsCount))
    io.flush()
    return nil, true
  end)

  return handler
end
