-- SPDX-License-Identifier: Apache-2.0
--- `perigee completion SHELL`: what a shell needs to complete commands and
-- options, made from the same table as --help.
local M = {
  name = "completion",
  summary = "Print what completes commands and options in a shell.",
  description = "Prints a script for a shell, which then completes commands "
    .. "and options. For bash: eval \"$(perigee completion bash)\" in "
    .. "~/.bashrc. For zsh: the output as _perigee in a folder of $fpath. For "
    .. "fish: as ~/.config/fish/completions/perigee.fish.",
}

function M.configure(parser)
  parser:argument("shell", "bash, zsh or fish.")
    :choices { "bash", "zsh", "fish" }
end

function M.run(given)
  local out = require "perigee.cli.out"
  out.write(given.root["get_" .. given.shell .. "_complete"](given.root))
  out.finish()
end

return M
