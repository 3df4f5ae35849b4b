-- SPDX-License-Identifier: Apache-2.0
--- A terminal whose whole screen a command draws, and whose keys it hears. The
-- terminal is given back as it was when the command ends, stops or is ended by
-- a signal that can be caught: these arrive by a descriptor, as keys do, so
-- that nothing ends the process while the terminal is changed.
local process = require "perigee.cli.process"

local ffi = require "ffi"

if not pcall(ffi.typeof, "struct perigee_cli_termios") then ffi.cdef [[
  struct perigee_cli_termios {
    uint32_t input, output, control, local_;
    uint8_t line, characters[32];
    uint32_t speeds[2];
    uint8_t spare[64];
  };
  struct perigee_cli_winsize { uint16_t rows, columns, width, height; };
  int perigee_cli_tcgetattr(int, struct perigee_cli_termios *)
    __asm__("tcgetattr");
  int perigee_cli_tcsetattr(int, int, const struct perigee_cli_termios *)
    __asm__("tcsetattr");
  int perigee_cli_ioctl(int, unsigned long, ...) __asm__("ioctl");
  int perigee_cli_isatty(int) __asm__("isatty");
]] end

local C = ffi.C
local TCSADRAIN, ICANON, ECHO, TIOCGWINSZ = 1, 2, 8, 0x5413
local VTIME, VMIN = 5, 6                -- of characters
local HUP, INT, QUIT, TERM, CONT, TSTP, WINCH = 1, 2, 3, 15, 18, 20, 28

local M = {}

local Terminal = {}
Terminal.__index = Terminal

--- Whether stdin and stdout are terminals that can do what is needed here.
function M.is_live()
  local kind = os.getenv "TERM" or ""
  return C.perigee_cli_isatty(0) == 1 and C.perigee_cli_isatty(1) == 1
    and kind ~= "" and kind ~= "dumb"
end

-- ---- Its state --------------------------------------------------------------

-- The second screen, without a cursor; and the first one again.
local BEGIN, END = "\27[?1049h\27[?25l\27[2J", "\27[0m\27[2J\27[?25h\27[?1049l"

local function write(text)
  local written = io.stdout:write(text) and io.stdout:flush()
  return written ~= nil
end

--- Has keys arrive at once and unseen, and shows the second screen.
function Terminal:enter()
  local raw = ffi.new("struct perigee_cli_termios", self.before)
  raw.local_ = bit.band(raw.local_, bit.bnot(ICANON + ECHO))
  raw.characters[VMIN], raw.characters[VTIME] = 1, 0
  C.perigee_cli_tcsetattr(0, TCSADRAIN, raw)
  self.drawn = {}
  write(BEGIN)
end

--- Gives the terminal back.
function Terminal:leave()
  write(END)
  C.perigee_cli_tcsetattr(0, TCSADRAIN, self.before)
end

--- Ends the process by a signal, as if nothing had caught it.
function M.die(signal)
  process.unwatch()
  process.raise(signal)
end

local function watch(self)
  self.signals = process.watch { HUP, INT, QUIT, TERM, CONT, TSTP, WINCH }
end

-- Stops the process by Ctrl-Z's own signal, which the kernel passes over where
-- nobody could have the process go on. Returns when it goes on.
local function stop(self)
  self:leave()
  process.unwatch()
  process.raise(TSTP)
  process.close(self.signals)
  watch(self)
  self:enter()
end

--- The columns and rows that there are now; 80 and 24 if the terminal does not
-- tell, as some lines do.
function Terminal.size()
  local size = ffi.new "struct perigee_cli_winsize"
  C.perigee_cli_ioctl(1, TIOCGWINSZ, size)
  return size.columns > 0 and size.columns or 80,
         size.rows > 0 and size.rows or 24
end

-- ---- Drawing ----------------------------------------------------------------

-- A line that is cleared before it is written: what clears behind a full line
-- takes its last character with it.
local function line_of(i, line, coloured)
  local text = line.text
  if coloured and line.sgr then
    text = ("\27[%sm%s\27[0m"):format(line.sgr, text)
  end
  return ("\27[%d;1H\27[K%s"):format(i, text)
end

--- Shows lines of { text, sgr: how it looks, or nil }, which fit. Only those
-- that differ from what is there are written.
function Terminal:draw(lines, columns, rows)
  local parts, drawn = {}, {}
  if self.columns ~= columns or self.rows ~= rows then
    self.columns, self.rows, self.drawn = columns, rows, {}
    parts[1] = "\27[2J"
  end
  for i = 1, rows do
    drawn[i] = line_of(i, lines[i] or { text = "" }, self.coloured)
    if drawn[i] ~= self.drawn[i] then parts[#parts + 1] = drawn[i] end
  end
  self.drawn = drawn
  if parts[1] then self.gone = not write(table.concat(parts)) end
end

-- ---- Keys -------------------------------------------------------------------

local KEYS = {
  ["\27[A"] = "up", ["\27[B"] = "down", ["\27[5~"] = "page up",
  ["\27[6~"] = "page down", ["\27[H"] = "home", ["\27[F"] = "end",
  ["\27[1~"] = "home", ["\27[4~"] = "end", ["\27OA"] = "up",
  ["\27OB"] = "down", ["\27OH"] = "home", ["\27OF"] = "end",
  ["\27"] = "escape", ["\r"] = "enter", ["\n"] = "enter",
  ["\127"] = "backspace", ["\8"] = "backspace", ["\12"] = "redraw",
}

--- The keys of bytes that a terminal sent: names as "page up", or characters.
-- Sequences that nobody knows are left out.
function M.keys(bytes)
  local list, at = {}, 1
  while at <= #bytes do
    local key = bytes:match("^\27%[[%d;]*[@-~]", at)
      or bytes:match("^\27O.", at) or bytes:sub(at, at)
    at = at + #key
    if KEYS[key] or #key == 1 then list[#list + 1] = KEYS[key] or key end
  end
  return list
end

-- What a signal is for the command: "redraw", or nil and the signal by which it
-- ends.
local function heard(self, signal)
  if signal == TSTP then
    stop(self)
  elseif signal == CONT then
    self:enter()
  elseif signal ~= WINCH and signal ~= process.CHLD then
    return nil, signal
  end
  return "redraw"
end

--- Waits for keys, for at most so many seconds. Returns a list of keys, which
-- may be empty; or nil and the signal that ends the command, HUP if the
-- terminal is gone.
function Terminal:wait(seconds)
  if self.gone then return nil, HUP end
  local keys = {}
  for _, fd in ipairs(process.poll({ 0, self.signals }, seconds)) do
    if fd == 0 then
      local bytes = process.read(0)
      if bytes == "" then return nil, HUP end
      keys = M.keys(bytes)
    else
      local key, signal = heard(self, process.signal(fd))
      if not key then return nil, signal end
      keys[#keys + 1] = key
    end
  end
  return keys
end

--- Takes the terminal over, until leave(). coloured: whether lines look as they
-- say.
function M.open(coloured)
  local self = setmetatable({ coloured = coloured, drawn = {} }, Terminal)
  self.before = ffi.new "struct perigee_cli_termios"
  C.perigee_cli_tcgetattr(0, self.before)
  watch(self)
  self:enter()
  return self
end

return M
