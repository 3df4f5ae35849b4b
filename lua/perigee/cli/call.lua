-- SPDX-License-Identifier: Apache-2.0
--- `perigee call NAME SERVICE.METHOD [ARGUMENT...]`: one call. Typed methods
-- take and give JSON, raw and inplace ones bytes.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local json = require "perigee.cli.json"
local options = require "perigee.cli.options"
local printable = require "perigee.runtime.printable"

local M = {
  name = "call",
  summary = "Call a method of an agent's service.",
  description = "Calls a method, and prints each result as a line of JSON; the "
    .. "bytes of a raw or inplace method, or of a slice that is the only "
    .. "result, as they are. Arguments are JSON: 1, '\"text\"', '[1, 2]', "
    .. "'{\"key\": null}'. A raw or inplace method takes at most one argument, "
    .. "a JSON string, or --stdin. With --stdin the argument - of a typed "
    .. "method is a slice of the bytes read. Results that are 64-bit integers "
    .. "are strings, and a string that is no UTF-8 is {\"$base64\": \"...\"}; "
    .. "an argument may be such an object, or {\"$int64\": \"-1\"} or "
    .. "{\"$uint64\": \"1\"}.",
}

function M.configure(parser)
  options.agent(parser)
  parser:argument("method", "The service and its method, as in calc.add.")
    :argname "SERVICE.METHOD"
  parser:argument("arguments", "The arguments, as JSON."):argname "ARGUMENT"
    :args "*"
  parser:flag("--stdin", "Read the body of the call from stdin.")
  parser:option("--into", "Write the bytes of the reply to this file.")
    :argname "FILE"
  parser:option("--capacity", "Room for the reply of an inplace method, or for "
    .. "the slice in that of a typed one, as in 64K.")
    :argname "SIZE":convert(options.size)
  options.json(parser, "Print one JSON document: the list of results, or "
    .. "{\"error\": {\"kind\": ..., \"message\": ...}}.")
  options.place(parser)
  options.timeout(parser, 30)
end

-- ---- The request -----------------------------------------------------------

local function parse_method(text)
  local service, method = text:match "^(.+)%.([^.]+)$"
  if not service then
    failure.misuse("%s is no method: write SERVICE.METHOD, as calc.add",
                   printable.line(text))
  end
  return service, method
end

local function body(given)
  local text, why = io.stdin:read "*a"
  if not text then failure.failed("reading stdin: %s", why) end
  given.body = text
end

-- The arguments' values, n of them; STDIN stands for the body.
local STDIN = {}

local function values_of(given)
  local values = { n = #given.arguments }
  for i, text in ipairs(given.arguments) do
    local fine, value = true, STDIN
    if text ~= "-" then fine, value = json.decode(text) end
    if not fine then
      failure.misuse("argument %d, %s, is no JSON (%s); a text is written as "
        .. "'\"text\"'", i, printable.line(client.cut(text)), value)
    elseif value == STDIN and not given.stdin then
      failure.misuse("the argument - stands for stdin, which needs --stdin")
    end
    values[i] = value
  end
  return values
end

local function slice_of(agent, text)
  local region = client.check(agent.engine:alloc(math.max(#text, 1)))
  local slice = region:slice(0, #text)
  if #text > 0 then slice:write(text) end
  return slice
end

local function typed(agent, given, values)
  local used = false
  for i = 1, values.n do
    if values[i] == STDIN then
      if used then failure.misuse "the argument - can be given once" end
      values[i], used = slice_of(agent, given.body), true
    end
  end
  if given.stdin and not used then
    failure.misuse("%s is a typed method: the argument - says where the bytes "
      .. "of stdin go", printable.line(given.method))
  end
  return values
end

local function raw(given, values)
  local method = printable.line(given.method)
  if values.n > 1 or values.n == 1 and given.stdin and values[1] ~= STDIN then
    failure.misuse("%s takes bytes: one JSON string, or --stdin", method)
  end
  local value = given.stdin and given.body or values[1] or ""
  if type(value) ~= "string" then
    failure.misuse("%s takes bytes: its argument has to be a JSON string, as "
      .. "'\"text\"', or --stdin", method)
  end
  return { value, n = 1 }
end

-- ---- The reply -------------------------------------------------------------

local function is_slice(value)
  return require "perigee.memory.slice".is_slice(value)
end

-- The text that is printed for a result.
local function shown(value)
  if is_slice(value) then return { length = value.length } end
  return value
end

-- The texts of all results.
local function texts_of(results)
  local all = {}
  for i = 1, results.n do all[i] = json.exact(shown(results[i])) end
  return all
end

local function told(results)
  return results.n > 0 and table.concat(texts_of(results), ", ") or "none"
end

local function store(path, bytes)
  local file, why = io.open(path, "wb")
  local fine = file and true
  if file then
    fine, why = file:write(bytes)
    local closed, other = file:close()
    if fine and not closed then fine, why = nil, other end
  end
  if not fine then failure.failed("writing the reply: %s", why) end
end

-- The bytes among the results: of a raw method, or of the slice.
local function bytes_of(results, kind)
  for i = 1, results.n do
    if is_slice(results[i]) then return results[i]:string(), i end
  end
  if kind ~= "typed" then return results[1], 1 end
end

local function write(results, kind, given, out)
  local bytes, place = bytes_of(results, kind)
  if given.into then
    if not bytes then
      failure.failed("%s has no bytes among its results, which --into needs: "
        .. "they are %s", given.method, client.cut(told(results)))
    end
    store(given.into, bytes)
    results[place] = { into = given.into, length = #bytes }
  elseif bytes and results.n == 1 and not given.json then
    return out.write(bytes)
  end
  local all = texts_of(results)
  if given.json then return out.write("[", table.concat(all, ","), "]\n") end
  for i = 1, results.n do out.write(all[i], "\n") end
end

-- ---- The call --------------------------------------------------------------

local function gathered(...) return { n = select("#", ...), ... } end

local function is_failure(results)
  return results.n == 2 and results[1] == nil
    and require "perigee".is_error(results[2])
end

-- Calls; misuse of the library here is misuse of the command.
local function ask(proxy, method, values)
  local fine, results = pcall(function()
    return gathered(proxy[method](proxy, unpack(values, 1, values.n)))
  end)
  if not fine then failure.misuse("%s", client.bare(results)) end
  return results
end

local function options_of(agent, kind, given)
  local chosen = { timeout = client.left(given),
                   capacity = kind ~= "typed" and given.capacity or nil }
  if kind == "typed" and given.capacity then
    chosen.into = client.check(agent.engine:alloc(given.capacity)):slice()
  end
  return chosen
end

local function no_method(name, service, method, kinds)
  local errors = require "perigee.runtime.errors"
  local has = require "perigee.serving.service".names(kinds)
  client.fail(errors.new("no_method", ("calling %s.%s of %s: %s has no such "
    .. "method; it has %s"):format(service, printable.line(method), name,
      printable.line(service), has), false))
end

-- Ends the command by the error of a call; a handler's has its traceback.
local function fail(err, name)
  local sentence = client.sentence(err, name)
  if err.traceback then
    local trace = err.traceback:gsub("^stack traceback:\n", "")
    sentence = ("%s\nThe handler's traceback:\n%s"):format(sentence, trace)
  end
  failure.by(err, sentence)
end

local function tell_failure(err)
  local out = require "perigee.cli.out"
  out.json { error = { kind = err.kind, message = tostring(err),
                       code = err.code, sent = err.sent,
                       traceback = err.traceback } }
  out.finish()
end

local function call(given)
  local name = client.peer(given.name)
  local service, method = parse_method(given.method)
  local values = values_of(given)
  if given.stdin then body(given) end
  local out = require "perigee.cli.out"
  return client.run(given, function(agent)
    local proxy, err = client.used(agent.proxy, agent, name, service,
                                   { timeout = client.left(given) })
    client.check(proxy, err, name)
    local kinds = proxy[1].class.methods
    local kind = kinds[method]
    if not kind then no_method(name, service, method, kinds) end
    values = kind == "typed" and typed(agent, given, values)
      or raw(given, values)
    local results = ask(proxy:with(options_of(agent, kind, given)), method,
                        values)
    if is_failure(results) then fail(results[2], name) end
    write(results, kind, given, out)
  end)
end

function M.run(given)
  local fine, status, message = xpcall(call, failure.traced, given)
  if fine then return status, message end
  if given.json and status.err then tell_failure(status.err) end
  error(status, 0)
end

return M
