-- SPDX-License-Identifier: Apache-2.0
-- Many peers for many minutes: all kinds of operations between all of them,
-- with payloads that say who, which, and a checksum, while peers are killed,
-- stopped and slow. Ends with one verdict line and a JSON document, and with a
-- non-zero status if anything was wrong. See bench/running.md.
--
--   luajit bench/soak.lua --peers 32 --minutes 10 --transport tcp

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local options = require "bench.lib.options"
local process = require "bench.lib.process"

local MIX = "typed=4 raw=2 inplace=2 write=2 read=2 send=1 bulk=1 brief=1 "
            .. "connect=1 kept=2 again=2"
local KINDS = { typed = true, raw = true, inplace = true, write = true,
                read = true, send = true, bulk = true, brief = true,
                connect = true, kept = true, again = true }
local PLANTS = { lost = true, forgotten = true, flip = true, leak = true }
local SPARE = 2 ^ 31 -- bytes that the large message leaves to others
local SIGKILL = 9
local LARGE = 1800   -- seconds that it may take

-- "typed=4 raw=1" --> a list with each kind that often, and the kinds.
local function mix(text)
  local list, kinds = {}, {}
  for word in text:gmatch "[^%s,]+" do
    local kind, times = word:match "^(%a+)=(%d+)$"
    if not KINDS[kind] then
      return nil, ("'%s' is no part of a mix"):format(word)
    end
    if tonumber(times) > 0 then kinds[#kinds + 1] = kind end
    for _ = 1, tonumber(times) do list[#list + 1] = kind end
  end
  if #list == 0 then return nil, "an empty mix" end
  return { list = list, kinds = kinds }
end

local function plant(text)
  if PLANTS[text] then return text end
  return nil, "what can be planted is lost, forgotten, flip or leak"
end

local function positive(text)
  local number = tonumber(text)
  if number and number > 0 then return number end
  return nil, ("'%s' is not a positive number"):format(text)
end

local function hidden(parser)
  parser:option("--role"):hidden(true)
  parser:option("--who"):hidden(true):convert(tonumber)
  parser:option("--life"):hidden(true):convert(tonumber)
  parser:option("--parent"):hidden(true):convert(tonumber)
  parser:option("--scope"):hidden(true)
end

local function command_line()
  local parser = argparse("luajit bench/soak.lua",
                          "Many peers, disturbed for many minutes.")
  parser:option("--peers", "Processes."):convert(options.whole):default "32"
  parser:option("--minutes", "Time of the rounds; may be a fraction.")
    :convert(positive):default "10"
  parser:option("--transport", "shm, tcp, verbs or auto."):default "auto"
  parser:option("--mix", "Kinds of operations and how often each is made.")
    :convert(mix):default(MIX)
  parser:option("--seed", "Of all random numbers but those of scheduling.")
    :convert(options.whole):default(tostring(os.time() % 1e6 + 1))
  parser:option("--faults", "Faults that all peers' engines inject, as in "
                .. "\"drop=0.001 delay=5ms\" (seeds follow from --seed).")
  parser:flag("--encrypt", "Over TCP: what is sent is sealed.")
  parser:option("--tasks", "Operations that a peer makes at once.")
    :convert(options.whole):default "3"
  parser:option("--pause", "Seconds between two operations of a task.")
    :convert(tonumber):default "0"
  parser:option("--bulk", "Bytes of the longest bulk payload.")
    :convert(options.size):default "4M"
  parser:option("--round", "Seconds of traffic before each rest.")
    :convert(positive):default "60"
  parser:option("--every", "Seconds between two disturbances.")
    :convert(positive):default "1"
  parser:flag("--calm", "Nobody is killed, stopped or slow.")
  parser:option("--timeout", "Of one operation, in seconds.")
    :convert(positive):default "5"
  parser:option("--grace", "Seconds after which an end is missing.")
    :convert(positive):default "15"
  parser:option("--patience", "Seconds after which a process hangs.")
    :convert(positive):default "120"
  parser:option("--giant", "Bytes of the large message; 0: none.")
    :convert(options.size):default "5G"
  parser:option("--plant", "A fault of one peer, to test the soak: a lost end "
                .. "(lost), one whose number is used again (forgotten), a "
                .. "wrong byte (flip), a leaked descriptor (leak).")
    :convert(plant)
  hidden(parser)
  local given = parser:parse()
  given.kinds, given.mix = given.mix.kinds, given.mix.list
  if given.peers < 2 then parser:error "--peers is at least 2" end
  return given
end

local given = command_line()

if given.role then
  process.die_with_parent(given.parent, SIGKILL) -- it may be stopped
  if given.role == "peer" then
    require "bench.lib.soak.peer".run(given)
  else
    require "bench.lib.soak.giant"[given.role](given)
  end
  os.exit(0)
end

-- ---- The judge's side ------------------------------------------------------

local judges = require "bench.lib.soak.judge"
local verdict = require "bench.lib.soak.verdict"

-- This command line with more behind it.
local function command(...)
  local words = process.interpreter()
  for i = 0, #arg do words[#words + 1] = arg[i] end
  for _, word in ipairs { "--seed", given.seed, "--scope",
                          "soak-" .. process.pid(), "--parent", process.pid(),
                          ... } do
    words[#words + 1] = word
  end
  return words
end

local function say(line)
  io.write(line, "\n")
  io.flush()
end

local function available()
  for line in io.lines "/proc/meminfo" do
    local kib = line:match "^MemAvailable:%s*(%d+)"
    if kib then return tonumber(kib) * 1024 end
  end
  return 0
end

local function line_of(child, seconds)
  if #process.readable({ child }, seconds) == 0 then return "it hangs" end
  return child:line() or "it died"
end

-- Has two processes send and receive it; returns how that went in a few words,
-- and whether something was wrong.
local function large_message()
  if given.giant == 0 then return "none" end
  if available() < 2 * given.giant + SPARE then
    return ("none, it needs %.0f GiB of memory"):format(
      (2 * given.giant + SPARE) / 2 ^ 30)
  end
  local taker = assert(process.spawn(command("--role", "receive")))
  local first = line_of(taker, LARGE)
  if first ~= "ready" then return tostring(first), true end
  local giver = assert(process.spawn(command("--role", "send")))
  local sent, came = line_of(giver, LARGE), line_of(taker, LARGE)
  for _, child in ipairs { giver, taker } do
    child:signal(SIGKILL)
    child:wait()
  end
  if sent == "fine" and came == "fine" then
    return ("%.2f GiB came"):format(given.giant / 2 ^ 30)
  end
  return ("sent: %s, received: %s"):format(sent, came), true
end

local judge = judges.new(given, command, say)
local begun = process.now()
local ran, why = pcall(function()
  local said, wrong = large_message()
  judge.giant = said
  if wrong then judge:fault("mismatch", "the large message: %s", said) end
  judge:run(given.minutes * 60)
end)
judge:stop()
if not ran then judge:fault("the soak itself", "%s", tostring(why)) end
local fine, line, document = verdict.of(judge, (process.now() - begun) / 1e9,
                                        judge.giant or "none")
say(document)
say(line)
os.exit(fine and 0 or 1)
