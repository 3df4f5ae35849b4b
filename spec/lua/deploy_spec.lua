-- SPDX-License-Identifier: Apache-2.0
-- The files of examples/deploy: linted where the linter is installed, and what
-- they serve is served.
local cases = require "spec.support.cases"

local ROOT = "examples/deploy/"

local function read(path)
  local file = assert(io.open(ROOT .. path))
  local text = file:read "*a"
  file:close()
  return text
end

local function output(command)
  local pipe = io.popen(command .. " 2>&1; echo; echo $?")
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.*)\n(%d+)\n$"
  return tonumber(status), said
end

local function has(program)
  return (output("command -v " .. program)) == 0
end

describe("examples/deploy", function()
  after_each(cases.cleanup)

  it("has units that systemd takes", function()
    if not has "systemd-analyze" then
      return pending "systemd-analyze is missing (Debian's systemd)"
    end
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    -- It wants the program that a unit starts to be there.
    for _, name in ipairs { "perigee-worker@.service", "perigee.target",
                            "perigee-metrics.service" } do
      local file = assert(io.open(cases.folder .. "/" .. name, "w"))
      file:write((read("systemd/" .. name):gsub("/usr/local/bin/perigee",
                                                "/bin/true")))
      file:close()
    end
    local status, said = output(("cd '%s' && systemd-analyze verify --man=no "
      .. "./perigee-worker@0.service ./perigee.target "
      .. "./perigee-metrics.service"):format(cases.folder))
    local ours = said:match "[^\n]*perigee[^\n]*"
    assert.is_nil(ours)
    assert.equal(0, status, said)
  end)

  it("has workers that others reach, and a target that stops them", function()
    local unit = read "systemd/perigee-worker@.service"
    for _, wanted in ipairs {
      "\nExecStart=[^\n]* %-%-listen %${PERIGEE_LISTEN} ",
      "\nEnvironment=PERIGEE_LISTEN=tcp://0%.0%.0%.0:",
      "\nPartOf=perigee%.target\n", "\nAlso=perigee%.target\n",
    } do
      assert.is_truthy(unit:find(wanted), wanted)
    end
  end)

  it("keeps the tokens of metrics where their unit may write", function()
    local unit = read "systemd/perigee-metrics.service"
    assert.is_truthy(unit:find "\nProtectSystem=strict\n")
    local own = "^/var/lib/" .. unit:match "\nStateDirectory=(%w+)\n" .. "/"
    local readme = read "README.md"
    for _, option in ipairs { "store", "tokens" } do
      assert.matches(own, readme:match("%-%-" .. option .. " (/%S+)"))
    end
  end)

  it("restarts a service that is edited, as systemd does not", function()
    local readme = read "README.md"
    for unit, rest in readme:gmatch "systemctl edit (%S+)(.*)" do
      assert.is_truthy(rest:find("systemctl restart " .. unit, 1, true), unit)
    end
  end)

  it("keeps the host's build out of the image", function()
    local file = assert(io.open ".dockerignore")
    assert.is_truthy(("\n" .. file:read "*a"):find "\nbuild\n")
    file:close()
  end)

  it("has manifests that yamllint takes", function()
    if not has "yamllint" then
      return pending "yamllint is missing (Debian's yamllint)"
    end
    local status, said = output("yamllint --strict -d '{extends: default, "
      .. "rules: {document-start: disable, octal-values: disable, "
      .. "comments: {min-spaces-from-content: 1}}}' " .. ROOT)
    assert.equal(0, status, said)
  end)

  it("has an image in which both libraries can be built", function()
    local file = read "Containerfile"
    for line in io.lines ".ci/packages" do
      local package = line:match "^build (%S+%-dev)$"
      assert.is_truthy(not package or file:find(" " .. package, 1, true),
                       package)
    end
  end)

  -- The files of a volume or a bind mount are root's or the host's.
  it("gives containers the secret itself", function()
    for _, path in ipairs { "compose/compose.yaml",
                            "kubernetes/workers.yaml" } do
      local text = read(path)
      assert.is_truthy(text:find "PERIGEE_SECRET")
      assert.is_nil(text:find "file:/")
    end
  end)

  it("serves what its worker returns", function()
    local options = assert(loadfile(ROOT .. "worker.lua"))()
    options.name = "worker"
    local worker = assert(cases.agent("worker", options))
    local proxy = assert(assert(cases.agent()):proxy("worker", "clock"))
    assert.equal("number", type(proxy:now()))
    assert.equal("ping", proxy:echo "ping")
    worker:close()
  end)

  it("tells of each of its files", function()
    local text = read "README.md"
    local pipe = io.popen("cd " .. ROOT .. " && find . -type f")
    for path in pipe:lines() do
      local first = path:match "^%./([^/]+)"
      assert.is_truthy(first == "README.md"
        or text:find("`" .. first, 1, true), path)
    end
    pipe:close()
  end)
end)
