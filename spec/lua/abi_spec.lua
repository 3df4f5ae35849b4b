-- SPDX-License-Identifier: Apache-2.0
-- C and LuaJIT agree about the public header: sizes of all structures, offsets
-- of fields that scripts use, values of constants.
local ffi = require "ffi"
local cases = require "spec.support.cases"
local cdef = require "perigee.cdef"
local native = require "perigee.native"
local process = require "spec.support.process"

local C = native.C

-- Structures that are declared with their fields, by name.
local function structures()
  local list = {}
  for name in cdef:gmatch "struct (perigee_[%w_]+)%s*{" do
    list[#list + 1] = name
  end
  return list
end

local OFFSETS = {
  perigee_event = {
    kind = 0, flags = 1, method = 2, session = 4, status = 8, operation = 12,
    pointer = 16, length = 24, slice = 32, capacity = 40, immediate = 40,
    landed = 40, remaining = 48, code = 56,
  },
  perigee_slice = {
    region = 0, remote = 0, offset = 8, length = 16, count = 24, stride = 32,
  },
  perigee_transfer = { ["local"] = 0, remote = 40 },
  perigee_message = {
    method = 0, flags = 2, status = 4, head = 8, length = 16, slice = 24,
    into = 64, capacity = 104, timeout = 112, code = 120,
  },
  perigee_loan = { pointer = 0, length = 8 },
}

describe("the C core and its declarations", function()
  it("agree on the ABI", function()
    assert.are.equal(tonumber(C.PERIGEE_ABI), C.perigee_abi())
  end)

  it("agree on the size of every structure", function()
    local names = structures()
    assert.is_true(#names >= 8)
    for _, name in ipairs(names) do
      assert.are.equal(ffi.sizeof("struct " .. name),
        tonumber(C.perigee_sizeof(name)), name)
    end
    assert.are.equal(0, tonumber(C.perigee_sizeof("perigee_nothing")))
  end)

  it("agree that an event is one cache line", function()
    assert.are.equal(64, ffi.sizeof "struct perigee_event")
  end)

  it("agree on offsets", function()
    for name, fields in pairs(OFFSETS) do
      for field, offset in pairs(fields) do
        assert.are.equal(offset, ffi.offsetof("struct " .. name, field),
          name .. "." .. field)
      end
    end
  end)

  it("agree on the defaults", function()
    local options = native.options_t()
    C.perigee_options_init(options, ffi.sizeof(options))
    assert.are.equal(16384, options.operations)
    assert.are.equal(256, options.hellos)
    assert.are.equal(65536, tonumber(options.ring))
    assert.are.equal(16384, tonumber(options.eager))
    assert.are.equal(2^40, tonumber(options.message))
    assert.are.equal(1, options.pull)
    assert.is_true(options.transports == nil and options.memories == nil)
  end)

  it("have a name and a sentence for every status", function()
    local seen = {}
    for name in cdef:gmatch "(PERIGEE_[A-Z_]+) = %-%d+" do
      local status = C[name]
      local text = ffi.string(C.perigee_status_name(status))
      assert.are.equal(name, "PERIGEE_" .. text:upper())
      assert.is_nil(seen[status])
      seen[status] = true
      local sentence = ffi.string(C.perigee_status_text(status))
      assert.is_true(#sentence > 5)
      assert.is_nil(sentence:match "%.$")
    end
    assert.are.equal("unknown", ffi.string(C.perigee_status_name(-99)))
  end)
end)

describe("what is not LuaJIT", function()
  local programs = {}

  after_each(function()
    for _, path in ipairs(programs) do
      os.remove(path)
      os.remove(path .. ".cc")
    end
    programs = {}
    cases.cleanup()
  end)

  -- The status and the output of a shell's command.
  local function shell(command)
    local pipe = io.popen("{ " .. command .. "; } 2>&1; echo $?")
    local output = pipe:read "*a"
    pipe:close()
    local text, status = output:match "^(.-)(%d+)\n$"
    return tonumber(status), text
  end

  -- Compiles a C++ program and returns its path. In a sanitized build it only
  -- checks the syntax, and returns nil and the compiler's status.
  local function compiled(text)
    local path = os.tmpname()
    local file = assert(io.open(path .. ".cc", "w"))
    file:write(text)
    file:close()
    programs[#programs + 1] = path
    local compile = ("g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Inative "
      .. "%s.cc "):format(path)
    -- A program that links to a sanitized core must be sanitized itself.
    if cases.sanitized then return nil, shell(compile .. "-fsyntax-only") end
    local build = native.path:match "^(.*)/perigee/core%.so$"
    local status, said = shell(
      ("%s -L%s -l:libperigee.so.0 -Wl,-rpath,%s -o %s"):format(
        compile, build, build, path))
    assert.are.equal(0, status, said)
    return path
  end

  it("may be C++, which compiles and links with the header", function()
    local program, status = compiled [[
      #include "perigee.h"
      int main() {
        struct perigee_options options;
        perigee_engine *engine = nullptr;
        perigee_options_init(&options, sizeof options);
        if (perigee_engine_open(&options, &engine) != PERIGEE_OK) return 1;
        perigee_engine_close(engine);
        return perigee_abi() == PERIGEE_ABI ? 0 : 2;
      }
    ]]
    assert.are.equal(0, status or (shell(program)))
  end)

  -- Those that a function has the name of, too.
  it("may be C++, where each structure is a type by its name", function()
    local lines = {}
    for name in cdef:gmatch "struct (perigee_[a-z_]+)" do
      lines[name] = ("static_assert(sizeof(%s *) > 0, \"\");\n"):format(name)
    end
    assert.is_truthy(lines.perigee_options and lines.perigee_transfer)
    local types = {}
    for _, line in pairs(lines) do types[#types + 1] = line end
    local program, status = compiled('#include "perigee.h"\n'
      .. table.concat(types) .. [[
      int main() {
        perigee_options options;
        perigee_engine *engine = nullptr;
        perigee_options_init(&options, sizeof options);
        if (perigee_engine_open(&options, &engine) != PERIGEE_OK) return 1;
        const perigee_session *none = perigee_session(engine, 1);
        const perigee_counters *counters = perigee_counters(engine, none);
        perigee_shares shares;
        perigee_shares_read(engine, nullptr, &shares, sizeof shares);
        perigee_transfer list[2] = {};
        if (none) /* never: only that it compiles */
          perigee_transfer(perigee_session(engine, 1), PERIGEE_OP_READ, list,
                           2, 0, -1);
        int calls = static_cast<int>(counters->calls);
        perigee_engine_close(engine);
        return calls;
      }
    ]])
    assert.are.equal(0, status or (shell(program)))
  end)

  it("has the text of a call that failed as plain text", function()
    local program, status = compiled [[
      #include "perigee.h"
      #include <cstdio>
      static perigee_event end_of(perigee_engine *engine, int operation) {
        perigee_event event = {};
        while (perigee_poll(engine, &event, 1) == 0 ||
               event.operation != operation)
          perigee_wait(&engine, 1, 1000000000);
        return event;
      }
      int main(int, char **argv) {
        perigee_engine *engine = nullptr;
        if (perigee_engine_open(nullptr, &engine) != PERIGEE_OK) return 1;
        perigee_event event = end_of(
            engine, perigee_connect(engine, argv[1], nullptr, 5000000000));
        if (event.status != PERIGEE_OK) return 2;
        perigee_message message = {};
        message.method = 1;
        message.timeout = 5000000000;
        message.flags = PERIGEE_TYPED;
        event = end_of(engine, perigee_call(
            perigee_session(engine, event.session), &message));
        std::printf("%s: %.*s\n", perigee_status_name(event.status),
                    static_cast<int>(event.length),
                    reinterpret_cast<const char *>(event.pointer));
        perigee_engine_close(engine);
        return 0;
      }
    ]]
    if status then return assert.are.equal(0, status) end
    local child = process.start(function(child)
      child.serve { name = "fails", methods = {
        fails = function() error("no such layer: \0", 0) end } }
    end)
    child:expect("ready")
    local text
    status, text = shell(("%s unix:$XDG_RUNTIME_DIR/perigee/%s/worker.sock")
      :format(program, cases.scope))
    child:kill()
    assert.are.equal(0, status, text)
    assert.are.equal("remote: no such layer: \\0\n", text)
  end)

  it("is told in a sentence what to run instead", function()
    local _, text = shell "LUA_INIT= lua5.1 -e 'require \"perigee\"'"
    assert.matches("Perigee is for LuaJIT 2.1, and this is Lua 5.1", text)
  end)
end)
