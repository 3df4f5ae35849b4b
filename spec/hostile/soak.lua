-- SPDX-License-Identifier: Apache-2.0
-- soak.lua MINUTES [SEED]: random mixes of attacks on one server after another,
-- beside honest clients. Prints a line for each round and a verdict at the end,
-- and exits with a non-zero status if a round failed. A seed repeats the same
-- rounds in the same order.
--
-- A round starts a fresh server over one transport, encrypted or not, and runs
-- one to three attacks at once for some seconds. It is judged as in
-- attacks_spec.lua, when all of them are over.
local cases = require "spec.support.cases"
local judge = require "spec.hostile.judge"
local process = require "spec.support.process"
local scenarios = require "spec.hostile.scenarios"

local minutes = tonumber(arg[1]) or 10
local seed = tonumber(arg[2]) or os.time() % 2 ^ 31
local SECONDS = { 2, 5, 15 }

-- Whole numbers from 0 below limit. The rounds depend on no other randomness.
local dice = seed % 2147483646 + 1
local function random(limit)
  dice = dice * 16807 % 2147483647
  return dice % limit
end

local function pick(list) return list[random(#list) + 1] end

-- One to three of the scenarios that fit. A scenario that brings a client or
-- needs a server of its own is not mixed with another such one, and one whose
-- memory is told from the server's with none.
local function mix(transport)
  local fitting = {}
  for _, one in ipairs(scenarios) do
    if one.on[transport] then fitting[#fitting + 1] = one end
  end
  local chosen = { pick(fitting) }
  if chosen[1].judge and chosen[1].judge.holds then return chosen end
  for _ = 1, random(3) do
    local one = pick(fitting)
    local told = one.judge or {}
    local alone = one.encrypt or told.serves or told.holds
    if not alone and one ~= chosen[1] then chosen[#chosen + 1] = one end
  end
  return chosen
end

local function names(chosen)
  local list = {}
  for i, one in ipairs(chosen) do list[i] = one.name end
  return table.concat(list, " + ")
end

local function round(number)
  local transport = pick { "shm", "tcp" }
  local chosen, seconds = mix(transport), pick(SECONDS)
  local encrypt = chosen[1].encrypt
  if transport == "tcp" and not encrypt and random(3) == 0 then
    encrypt = true
  end
  local own, scale = random(2 ^ 30), random(2)
  local case, said = {}, nil
  local fine, why = pcall(function()
    case = judge.case { transport = transport, encrypt = encrypt, seed = own,
                        scale = scale }
    said = case:attacks(chosen, seconds)
    case:close()
  end)
  if not fine then said = { "the judge: " .. tostring(why) } end
  cases.cleanup()
  local calls = case.calls or { made = 0, p50 = 0, p99 = 0 }
  print(("%4d  %-4s %-6s %2d s  %s: %s (%d calls, p50 %.0f us, p99 %.0f us)")
    :format(number, transport, encrypt and tostring(encrypt) or "", seconds,
      names(chosen), #said == 0 and "fine" or "FAILED", calls.made,
      calls.p50 * 1e6, calls.p99 * 1e6))
  for _, sentence in ipairs(said) do print("        " .. sentence) end
  io.stdout:flush()
  return #said == 0, calls.made
end

print(("%g minutes, SEED=%d"):format(minutes, seed))
local ends, number, failed, calls = process.now() + minutes * 60, 0, 0, 0
while process.now() < ends do
  number = number + 1
  local fine, made = round(number)
  calls = calls + made
  if not fine then failed = failed + 1 end
end
print(("%d rounds, %d checked calls of honest clients, %d failed (SEED=%d)")
  :format(number, calls, failed, seed))
print(("%d passed, %d failed, 0 skipped"):format(number - failed, failed))
os.exit(failed == 0 and 0 or 1)
