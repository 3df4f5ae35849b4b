-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: Perigee itself, its environment, its secret.
local Machine = require "perigee.cli.doctor.machine"
local case = require "spec.support.doctor_case"

before_each(case.start)
after_each(case.finish)

describe("the check of the program", function()
  it("wants the compiler on", function()
    case.expect("program", "LuaJIT", "ok", "compiler on")
    case.fake.machine.compiles = false
    case.expect("program", "LuaJIT", "warning", "compiler off")
  end)

  it("wants string.buffer and the core", function()
    case.expect("program", "core", "ok", "core.so, ABI")
    case.fake.machine.module = function() return nil, "it is not\nhere" end
    case.expect("program", "LuaJIT", "problem", "without string.buffer",
           "apt-get install luajit")
    local found = case.expect("program", "core", "problem", "it is not",
                         "make && make install")
    assert.is_nil(found.found:find "\n")
    case.expect("one host", "registry", "note", "unknown: it is not")
    case.expect("one host", "path length", "note", "unknown: it is not")
    case.expect("RDMA", "ports", "note", "unknown: it is not")
  end)

  it("names the library that the core misses", function()
    case.fake.machine.module = function()
      return nil, "libsodium.so.23: cannot open shared object file"
    end
    case.expect("program", "core", "problem", "libsodium.so.23",
      "apt-get install libsodium23")
  end)

  it("notes what servers want that is not there", function()
    case.expect("program", "servers", package.searchpath("perigee.control",
      package.cpath) and "ok" or "note", "control.so")
    case.fake.machine.module = function()
      return nil, "control.so is not here: install libcurl\nor so"
    end
    local found = case.expect("program", "servers", "note", "install libcurl")
    assert.is_nil(found.found:find "\n")
  end)

  it("opens an engine", function()
    case.expect("program", "engine", "ok", "opens, and allocates")
    case.fake.machine.try = function() return nil, "no memory\nat all" end
    case.expect("program", "engine", "problem", "no memory")
  end)

  it("wants a kernel that can", function()
    case.fake:put("/proc/sys/kernel/osrelease", "6.1.0-18-amd64")
    case.expect("program", "kernel", "ok", "Linux 6.1.0-18-amd64")
    case.fake:put("/proc/sys/kernel/osrelease", "4.18.0-553.el8")
    case.expect("program", "kernel", "problem", "Linux 4.18.0")
  end)
end)

describe("the check of the environment", function()
  it("knows the variables that there are", function()
    case.fake:set("HOME", "/root"):set("PERIGEE_TRANSPORT", "tcp")
      :set("PERIGEE_BUILD", "build"):set("PERIGEE_SPEC_SLOW", "10")
      :set("PERIGEE_SCOPE", "mine"):set("PERIGEE_RDMA", "qps=2 gid=3")
      :set("PERIGEE_REGISTRY", "folder:/run/names"):set("PERIGEE_RANK", "0")
      :set("PERIGEE_LOG", "JSON,warn")
    case.expect("settings", "environment", "ok", "PERIGEE_LOG, PERIGEE_RDMA, "
           .. "PERIGEE_REGISTRY, PERIGEE_SCOPE, PERIGEE_TRANSPORT set")
  end)

  it("tells names that mean nothing", function()
    case.fake:set("PERIGEE_TRANSPROT", "tcp")
    case.expect("settings", "environment", "warning",
           "PERIGEE_TRANSPROT means nothing", "unset PERIGEE_TRANSPROT")
  end)

  it("tells values that are none", function()
    case.fake.machine.try = Machine.try
    case.fake:set("PERIGEE_TRANSPORT", "udp"):set("PERIGEE_SCOPE", ".x y")
      :set("PERIGEE_FAULTS", "drop=often")
      :set("PERIGEE_RDMA", "qps=2 speed=9"):set("PERIGEE_NICS", "mlx5_9")
      :set("PERIGEE_REGISTRY", "ftp://names"):set("PERIGEE_LOG", "loud")
    case.expect("settings", "environment", "problem",
           'PERIGEE_LOG: "loud" has to be text or json', "unset PERIGEE_LOG")
    case.expect("settings", "environment", "problem",
           "PERIGEE_REGISTRY: it has to be a registry, by its address")
    case.expect("settings", "environment", "problem",
           'PERIGEE_TRANSPORT: "udp" is none of', "unset PERIGEE_TRANSPORT")
    case.expect("settings", "environment", "problem", '".x y" is no scope')
    case.expect("settings", "environment", "problem",
      'PERIGEE_RDMA: rdma: there is no "speed"', "unset PERIGEE_RDMA")
    case.expect("settings", "environment", "problem",
      'PERIGEE_FAULTS: faults: "drop=often": a probability')
    case.expect("settings", "environment", "problem",
      "names mlx5_9, which is not")
  end)

  it("tells faults on purpose", function()
    case.fake:set("PERIGEE_FAULTS", " ")
    case.expect("settings", "faults", "ok", "none asked for")
    case.fake:set("PERIGEE_FAULTS", "drop=0.1")
    case.expect("settings", "faults", "warning", 'PERIGEE_FAULTS is "drop=0.1"',
      "unset PERIGEE_FAULTS")
  end)

  it("finds the NICs that are named", function()
    case.rdma "mlx5_0"
    case.fake:set("PERIGEE_NICS", "mlx5_0:1,mlx5_0")
    case.expect("settings", "environment", "ok", "PERIGEE_NICS set")
  end)
end)

describe("the check of the secret", function()
  local function file(mode, content)
    case.fake:put("/secret", content or "long and quite random words", mode)
    case.fake:set("PERIGEE_SECRET", "file:/secret")
  end

  it("is content with a file closed to others", function()
    file "600"
    case.expect("settings", "secret", "ok", "/secret, closed to others")
  end)

  it("tells a file that others may read", function()
    file "640"
    case.expect("settings", "secret", "problem", "mode 0640",
      "chmod 600 /secret")
  end)

  it("tells a file that is not there, or is none", function()
    case.fake:set("PERIGEE_SECRET", "file:/secret")
    case.expect("settings", "secret", "problem", "/secret is not there")
    case.fake:put "/secret/"
    case.expect("settings", "secret", "problem", "no file but a folder")
  end)

  it("tells somebody else's", function()
    file "600"
    os.execute("chown 7 " .. case.fake.root .. "/secret 2>/dev/null")
    case.fake.machine.uid = 8
    case.fake.machine.may = function() return true end
    case.expect("settings", "secret", "problem", "belongs to user",
      "chown 8 /secret")
  end)

  it("tells one of another user, even of root", function()
    file "600"
    case.fake.forbidden["/secret"] = "r"
    case.expect("settings", "secret", "problem", "/secret may not be read")
  end)

  it("tells one that is too short or too long", function()
    file("600", "guess me")
    case.expect("settings", "secret", "problem", "9 bytes, not 16 to 4096",
      "head -c 32 /dev/urandom | base64 > /secret")
    file("600", ("x"):rep(4097))
    case.expect("settings", "secret", "problem", "4098 bytes")
    case.fake:set("PERIGEE_SECRET", "guess me")
    case.expect("settings", "secret", "problem", "8 bytes in the environment")
  end)

  it("tells one that was written on Windows", function()
    for _, text in ipairs { "long and quite random words\r",
                            "\239\187\191long and quite random words" } do
      file("600", text)
      case.expect("settings", "secret", "problem", "CR LF or begins with a",
        [[sed -i '1s/^\xef\xbb\xbf//; s/\r$//' /secret]])
    end
  end)

  it("warns of one that can be guessed", function()
    for _, text in ipairs { "password12345678", ("ab"):rep(40),
                            "secret secret secret" } do
      file("600", text)
      case.expect("settings", "secret", "warning", "/secret can be guessed",
        "(umask 077; head -c 32 /dev/urandom | base64 > /secret)")
      case.fake:set("PERIGEE_SECRET", text)
      case.expect("settings", "secret", "warning", "can be guessed")
    end
    file("600", "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=")
    case.expect("settings", "secret", "ok", "closed to others")
  end)

  it("would rather have a file", function()
    case.fake:set("PERIGEE_SECRET", "written in the open, and quite long")
    case.expect("settings", "secret", "note", "in the environment itself")
  end)
end)
