-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: Perigee itself, its environment, its secret.
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
    case.expect("settings", "environment", "ok",
           "PERIGEE_RDMA, PERIGEE_SCOPE, PERIGEE_TRANSPORT set")
  end)

  it("tells names that mean nothing", function()
    case.fake:set("PERIGEE_TRANSPROT", "tcp")
    case.expect("settings", "environment", "warning",
           "PERIGEE_TRANSPROT means nothing", "unset PERIGEE_TRANSPROT")
  end)

  it("tells values that are none", function()
    case.fake:set("PERIGEE_TRANSPORT", "udp"):set("PERIGEE_SCOPE", ".x y")
      :set("PERIGEE_RDMA", "qps=2 speed=9"):set("PERIGEE_NICS", "mlx5_9")
    case.expect("settings", "environment", "problem",
           'PERIGEE_TRANSPORT: "udp" is none of', "unset PERIGEE_TRANSPORT")
    case.expect("settings", "environment", "problem", '".x y" is no scope')
    case.expect("settings", "environment", "problem", "no such key as speed")
    case.expect("settings", "environment", "problem",
      "names mlx5_9, which is not")
  end)

  it("finds the NICs that are named", function()
    case.rdma "mlx5_0"
    case.fake:set("PERIGEE_NICS", "mlx5_0:1,mlx5_0")
    case.expect("settings", "environment", "ok", "PERIGEE_NICS set")
  end)
end)

describe("the check of the secret", function()
  local function file(mode, content)
    case.fake:put("/secret", content or "long and random", mode)
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
    case.fake.machine.uid = case.fake.machine.uid + 1
    case.expect("settings", "secret", "problem", "belongs to user")
  end)

  it("tells an empty one", function()
    file "600"
    os.execute("truncate -s 0 " .. case.fake.root .. "/secret")
    case.expect("settings", "secret", "problem", "/secret is empty")
  end)

  it("would rather have a file", function()
    case.fake:set("PERIGEE_SECRET", "in the open")
    case.expect("settings", "secret", "note", "in the environment itself")
  end)
end)
