-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: what processes of one host need.
local case = require "spec.support.doctor_case"

before_each(case.start)
after_each(case.finish)

describe("the check of the registry", function()
  it("takes a folder that can be made, or is private", function()
    case.fake:put("/run/user/1/", nil, "700"):set("XDG_RUNTIME_DIR",
      "/run/user/1")
    case.expect("one host", "registry", "ok", "/run/user/1/perigee, made when")
    case.fake:put("/run/user/1/perigee/default/a.sock", "")
    case.expect("one host", "registry", "ok", "perigee/default, 1 names")
    case.fake:set("PERIGEE_SCOPE", "mine")
    case.expect("one host", "registry", "ok", "perigee/mine, 0 names")
  end)

  it("counts the names that nobody holds any more", function()
    case.fake:put("/run/user/1/", nil, "700"):set("XDG_RUNTIME_DIR",
      "/run/user/1")
    local folder = "/run/user/1/perigee/default/"
    for _, name in ipairs { "dead", "live" } do
      case.fake:put(folder .. name .. ".sock", "")
      case.fake:put(folder .. name .. ".lock", "")
    end
    local inode = case.fake.machine:stat(folder .. "live.lock").inode
    case.fake:put("/proc/locks", ("1: FLOCK  ADVISORY  WRITE 7 00:1b:%d 0 EOF")
      :format(inode))
    case.expect("one host", "registry", "ok",
      "2 names, 1 of them left over by processes that died")
  end)

  it("tells one that is open to others, or somebody else's", function()
    case.fake:set("XDG_RUNTIME_DIR", "/x"):put("/x/perigee/default/", nil,
      "755")
    case.expect("one host", "registry", "problem", "mode 0755, open to others",
           "chmod 700 /x/perigee/default")
    case.fake.machine.uid = case.fake.machine.uid + 7
    case.expect("one host", "registry", "problem", "belongs to user")
  end)

  it("tells what is no folder", function()
    case.fake:set("TMPDIR", "/x/")
    case.fake:put("/x/perigee-" .. case.fake.machine.uid, "")
    case.expect("one host", "registry", "problem", "is no folder but a file")
  end)

  it("tells that names are at home, as another has made theirs", function()
    local first = "/x/perigee-" .. case.fake.machine.uid
    case.fake:set("TMPDIR", "/x"):set("HOME", "/home/me")
    case.fake:put("/home/me/", nil, "755"):put(first, "")
    case.fake:put("/proc/sys/kernel/hostname", "node7.example.org")
    case.expect("one host", "registry", "note",
      "/home/me/.cache/perigee/node7/default, 0 names, as " .. first,
      "export XDG_RUNTIME_DIR=/run/user/" .. case.fake.machine.uid)
    case.fake:put("/home/me/.cache/perigee/node7/default/a.sock", "")
    case.expect("one host", "registry", "note", "default, 1 names")
    os.remove(case.fake.root .. first)
    case.expect("one host", "registry", "note", "default, 1 names")
  end)

  it("tells where none can be made", function()
    case.fake:set("XDG_RUNTIME_DIR", "/run/user/7"):put "/run/"
    case.fake.forbidden["/run"] = "w"
    case.expect("one host", "registry", "problem",
           "is not there, and /run may not be written", "unset XDG_RUNTIME_DIR")
  end)

  it("tells paths that leave no room for a name", function()
    case.expect("one host", "path length", "ok", "room for 64 bytes")
    case.fake:set("XDG_RUNTIME_DIR", "/" .. ("x"):rep(50))
    case.expect("one host", "path length", "note", "room for 34 bytes")
    case.fake:set("XDG_RUNTIME_DIR", "/" .. ("x"):rep(90))
    case.expect("one host", "path length", "problem", "room for 0 bytes")
  end)

  it("tells variables that are ignored", function()
    case.fake:set("TMPDIR", "tmp")
    case.expect("one host", "folders", "note", 'TMPDIR is "tmp"',
      "unset TMPDIR")
  end)
end)

describe("the check of copying once", function()
  local file = "/proc/sys/kernel/yama/ptrace_scope"

  it("wants no restriction", function()
    case.expect("one host", "copying once", "ok", "no Yama")
    case.fake:put(file, 0)
    case.expect("one host", "copying once", "ok", "= 0")
    case.fake:put(file, 1)
    case.expect("one host", "copying once", "note", "ptrace_scope = 1",
           "sysctl -w kernel.yama.ptrace_scope=0")
    case.fake:put(file, 3)
    case.expect("one host", "copying once", "note", "until the next start")
  end)

  it("knows who is exempt", function()
    case.fake:put(file, 2)
    case.capabilities "0000000000080000"
    case.expect("one host", "copying once", "ok", "CAP_SYS_PTRACE")
  end)

  it("notices a filter of system calls", function()
    case.fake.machine.can_pull = function() return false end
    case.expect("one host", "copying once", "note",
      "process_vm_readv is refused")
  end)
end)
