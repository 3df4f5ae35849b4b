-- SPDX-License-Identifier: Apache-2.0
-- A program in a terminal of a given size, as its user sees it: what is on the
-- screen, keys, another size. It knows the sequences that `perigee top` writes,
-- and fails at any other one. cleanup() ends all programs.
local ffi = require "ffi"
local process = require "spec.support.process"

if not pcall(ffi.typeof, "struct spec_winsize") then ffi.cdef [[
  struct spec_winsize { uint16_t rows, columns, width, height; };
  struct spec_termios { uint32_t input, output, control, flags, rest[32]; };
  int spec_openpt(int) __asm__("posix_openpt");
  int spec_grantpt(int) __asm__("grantpt");
  int spec_unlockpt(int) __asm__("unlockpt");
  const char *spec_ptsname(int) __asm__("ptsname");
  int spec_open_terminal(const char *, int, ...) __asm__("open");
  int spec_setsid(void) __asm__("setsid");
  int spec_ioctl(int, unsigned long, ...) __asm__("ioctl");
  int spec_tcgetattr(int, struct spec_termios *) __asm__("tcgetattr");
  long spec_write(int, const void *, size_t) __asm__("write");
]] end

local C = ffi.C
local O_RDWR, O_NOCTTY, O_CLOEXEC = 2, 256, 0x80000
local TIOCSWINSZ, TIOCSCTTY, POLLIN, KILL = 0x5414, 0x540e, 1, 9
local ICANON, ECHO = 2, 8
local chunk = ffi.new "char[65536]"

local Terminal = {}
Terminal.__index = Terminal
local M = { all = {} }

-- ---- The screen -------------------------------------------------------------

local function clear(self)
  self.lines, self.settled = {}, true
  for i = 1, self.rows do self.lines[i] = "" end
end

local function put(self, text)
  local line = self.lines[self.row]
  if not line then return end
  line = line .. (" "):rep(self.column - 1 - #line)
  self.lines[self.row] = line:sub(1, self.column - 1) .. text
    .. line:sub(self.column + #text)
  self.column = self.column + #text
  if self.settled and self.column > self.columns + 1 then
    error("a line is longer than the terminal: " .. self.lines[self.row], 0)
  end
end

local SEQUENCES = {
  ["^\27%[(%d+);1H"] = function(self, row)
    self.row, self.column = tonumber(row), 1
    if self.settled and self.row > self.rows then
      error("below the terminal", 0)
    end
  end,
  ["^\27%[K"] = function(self)
    local line = self.lines[self.row]
    self.lines[self.row] = line and line:sub(1, self.column - 1)
  end,
  ["^\27%[2J"] = clear,
  ["^\27%[(%d+)m"] = function(self, style) self.styles[style] = true end,
  ["^\27%[%?(%d+)([hl])"] = function(self, mode, on)
    self.modes[mode] = on == "h"
  end,
}

local function sequence(self)
  for pattern, f in pairs(SEQUENCES) do
    local _, last, first, second = self.text:find(pattern)
    if last then
      f(self, first, second)
      self.text = self.text:sub(last + 1)
      return true
    end
  end
  if #self.text > 12 then
    error(("what is %q?"):format(self.text:sub(1, 12)), 0)
  end
  return false                          -- its rest is still to come
end

local function show(self)
  while self.text ~= "" do
    if self.text:byte() == 27 then
      if not sequence(self) then return end
    else
      local text = self.text:match "^[^\27]+"
      self.text = self.text:sub(#text + 1)
      if text:find "[%z\1-\31\127-\255]" then
        self.rest = self.rest .. text   -- not of the screen
      else
        put(self, text)
      end
    end
  end
end

-- ---- The program ------------------------------------------------------------

local function resize(self, columns, rows)
  self.columns, self.rows, self.row, self.column = columns, rows, 1, 1
  clear(self)
  local size = ffi.new("struct spec_winsize", rows, columns)
  C.spec_ioctl(self.fd, TIOCSWINSZ, size)
end

-- In the child.
local function become(name, words)
  C.spec_setsid()
  local fd = C.spec_open_terminal(name, O_RDWR)
  C.spec_ioctl(fd, TIOCSCTTY, ffi.cast("int", 0))
  for i = 0, 2 do C.spec_dup2(fd, i) end
  local argv = ffi.new("const char *[?]", #words + 1)
  for i, word in ipairs(words) do argv[i - 1] = word end
  C.spec_execvp(argv[0], argv)
  C.spec_exit(127)
end

-- Starts a program in a terminal of that size.
function M.start(columns, rows, words)
  local fd = C.spec_openpt(O_RDWR + O_NOCTTY + O_CLOEXEC)
  assert(fd >= 0 and C.spec_grantpt(fd) == 0 and C.spec_unlockpt(fd) == 0)
  local self = setmetatable({ fd = fd, text = "", rest = "", modes = {},
                              styles = {} }, Terminal)
  resize(self, columns, rows)
  local name = ffi.string(C.spec_ptsname(fd))
  self.held = C.spec_open_terminal(name, O_RDWR + O_NOCTTY + O_CLOEXEC)
  self.pid = C.spec_fork()
  if self.pid == 0 then become(name, words) end
  M.all[self] = true
  return self
end

function Terminal:press(keys) C.spec_write(self.fd, keys, #keys) end

-- Gives the terminal another size; what was on it is gone. Until the program
-- clears it, it may still write for the size before.
function Terminal:resize(columns, rows)
  resize(self, columns, rows)
  self.settled = false
end

-- Shows what the program writes within some seconds; false: nothing came.
function Terminal:read(seconds)
  local poll = ffi.new("struct spec_poll", self.fd, POLLIN, 0)
  if C.spec_poll(poll, 1, seconds * 1000) <= 0 then return false end
  local n = tonumber(C.spec_read(self.fd, chunk, 65536))
  if n <= 0 then return false end
  self.text = self.text .. ffi.string(chunk, n)
  show(self)
  return true
end

-- The screen as one text.
function Terminal:screen()
  return table.concat(self.lines, "\n")
end

local function has_ended(self)
  local status = ffi.new "int[1]"
  if self.pid and C.spec_waitpid(self.pid, status, 1) ~= 0 then
    self.pid, self.status = nil, status[0]
  end
  return not self.pid
end

-- Waits until a pattern is on the screen, or f(screen) is true, and until all
-- of that is of the terminal's size. Returns its first capture.
function Terminal:expect(what)
  local limit = process.now() + 30 * process.slow
  local f = type(what) == "function" and what
    or function(screen) return screen:match(what) end
  repeat
    local found = self.settled and f(self:screen())
    if found then return found end
    local ended = has_ended(self)
    if not self:read(0.05) and ended then break end
  until process.now() > limit
  error(("not on the screen: %s\n%s%s"):format(tostring(what), self:screen(),
                                               self.rest), 2)
end

-- Does the terminal echo, and wait for whole lines?
function Terminal:is_cooked()
  local mode = ffi.new "struct spec_termios"
  C.spec_tcgetattr(self.held, mode)
  return bit.band(mode.flags, ICANON + ECHO) == ICANON + ECHO
end

-- Waits for the program's end; returns as Process:wait does.
function Terminal:wait()
  local limit = process.now() + 30 * process.slow
  while not has_ended(self) do
    if process.now() > limit then return nil, "timeout" end
    self:read(0.01)
  end
  while self:read(0) do end
  local signal = bit.band(self.status, 127)
  if signal ~= 0 then return "signal", signal end
  return "exit", bit.band(bit.rshift(self.status, 8), 255)
end

function Terminal:close()
  if self.pid then
    C.spec_kill(self.pid, KILL)
    C.spec_waitpid(self.pid, nil, 0)
  end
  C.spec_close(self.fd)
  C.spec_close(self.held)
  M.all[self] = nil
end

-- For after_each: ends all programs.
function M.cleanup()
  for self in pairs(M.all) do self:close() end
end
jit.off(M.cleanup) -- pairs() is compiled wrongly at times

return M
