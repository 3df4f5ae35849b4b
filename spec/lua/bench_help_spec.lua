-- SPDX-License-Identifier: Apache-2.0
-- Every bench that a person starts tells what it takes.
local folders = require "bench.lib.folders"

-- Programs that others start.
local PARTS = { ["tree.lua"] = true, ["worker.lua"] = true }

describe("a bench", function()
  for _, name in ipairs(folders.entries "bench") do
    if name:match "%.lua$" and not PARTS[name] then
      it("answers --help: " .. name, function()
        local pipe = io.popen(("luajit bench/%s --help 2>&1; echo status $?")
                              :format(name))
        local text = pipe:read "*a"
        pipe:close()
        assert.matches("%[.+\nstatus 0\n$", text) -- options are in brackets
      end)
    end
  end
end)
