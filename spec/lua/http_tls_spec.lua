-- SPDX-License-Identifier: Apache-2.0
-- TLS of the control server and of the client of HTTP servers: whom a client
-- trusts, and what a server still speaks.
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"

local function shell(text, ...)
  local pipe = io.popen((text:gsub("%$(%d)", { ["1"] = (...),
                                               ["2"] = (select(2, ...)) })))
  local said = pipe:read "*a"
  pipe:close()
  return said
end

-- Makes a certificate for 127.0.0.1 and its key.
local function certify(name)
  local path = cases.folder .. "/" .. name
  assert.equal(0, os.execute(([[mkdir -p -m 700 '%s' && openssl req -x509 \
    -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=%s -addext subjectAltName=IP:127.0.0.1 -keyout '%s.key' \
    -out '%s.pem' 2>/dev/null]]):format(cases.folder, name, path, path)))
  return path .. ".pem", path .. ".key"
end

needing("TLS", { control }, function()
  local server, cert

  before_each(function()
    cases.engine()
    local key
    cert, key = certify "server"
    server = control.start({ "--tls-cert", cert, "--tls-key", key }, "https")
  end)
  after_each(cases.cleanup)

  -- What a client says that trusts ca, on a host whose authorities are those in
  -- the folder; nil if no such host can be made here.
  local function asked(folder, ca)
    local script = cases.folder .. "/ask.lua"
    local file = assert(io.open(script, "w"))
    file:write(([[
      local perigee = require "perigee"
      local engine = assert(perigee.engine())
      perigee.run(function()
        local client = require "perigee.net.http".new()
        local answer, kind, why = client:ask { url = "%s/healthz",
          timeout = %d, tls = { ca = %s } }
        print(answer and answer.status or kind, why)
      end)
      engine:close()
    ]]):format(server.url, 60 * cases.slow, ca and ("%q"):format(ca) or "nil"))
    file:close()
    local said = shell([[for way in -m -rm; do unshare $way true 2>/dev/null &&
      exec unshare $way sh -c "mount --bind '$1' /etc/ssl/certs &&
        exec luajit '$2'" 2>&1; done]], folder, script)
    return said ~= "" and said or nil
  end

  it("has a client trust the authorities that it is given, and no others",
     function()
    local system = cases.folder .. "/system"
    shell([[mkdir '$1' && cp '$2' '$1/ca-certificates.crt' &&
      cp '$2' "$1/$(openssl x509 -noout -subject_hash -in '$2').0"]], system,
      cert)
    local said = asked(system)
    if not said then pending "no mounts can be made here (are you root?)" end
    assert.matches("^200", said)
    assert.matches("^200", asked(system, cert))
    assert.matches("^denied", asked(system, (certify "other")))
  end)

  it("offers no key exchange and no cipher of yesterday", function()
    local path = cases.folder .. "/rsa"
    shell([[openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=rsa \
      -addext subjectAltName=DNS:rsa.example -keyout '$1.key' -out '$1.pem' \
      2>/dev/null]], path)
    local rsa = control.start({ "--tls-cert", path .. ".pem", "--tls-key",
                                path .. ".key" }, "https")
    local function agreed(options)
      return shell(([[openssl s_client -connect 127.0.0.1:%d %s </dev/null \
        2>/dev/null | grep 'Cipher is']]):format(rsa.port, options))
    end
    for _, cipher in ipairs { "AES256-SHA", "AES128-GCM-SHA256",
                              "ECDHE-RSA-AES256-SHA", "ECDHE-RSA-AES256-SHA384",
                              "DHE-RSA-AES256-GCM-SHA384" } do
      assert.matches("NONE", agreed("-tls1_2 -cipher " .. cipher
                                    .. ":@SECLEVEL=0"))
    end
    assert.matches("ECDHE-RSA-AES128-GCM-SHA256",
      agreed "-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256", 1, true)
    assert.matches("TLS_AES_256_GCM_SHA384", agreed "-tls1_3", 1, true)
    -- It goes by the names of its certificate.
    local function status(host)
      return shell([[printf 'GET /healthz HTTP/1.0\r\nHost: $1\r\n\r\n' |
        openssl s_client -quiet -connect 127.0.0.1:$2 2>/dev/null]], host,
        rsa.port):match "^HTTP/1.1 (%d+)"
    end
    assert.equal("200", status "rsa.example:7470")
    assert.equal("403", status "other.example")
  end)

  it("takes no key that others can read", function()
    local _, key = certify "open"
    shell("chmod 644 '$1'", key)
    local said = shell(([[luajit lua/perigee/cli/perigee ctrl serve \
      --store '%s/open.db' --listen https://127.0.0.1:0 --tls-cert '%s' \
      --tls-key '%s' 2>&1; echo $?]]):format(cases.folder, cert, key))
    assert.matches("reading %-%-tls%-key: .*chmod 600%)\n2\n$", said)
  end)

  -- Runs a script, with the address and the port of the server and the names of
  -- files as its arguments, on a terminal that nobody writes to.
  local function on_terminal(script, ...)
    local path = cases.folder .. "/terminal.lua"
    local file = assert(io.open(path, "w"))
    file:write(script)
    file:close()
    local words = { "timeout", 20 * cases.slow, "luajit", path, server.url,
                    server.port, ... }
    return shell("script -qec '$1' /dev/null </dev/null 2>&1",
                 table.concat(words, " "))
  end

  it("does not ask the terminal for a key's password", function()
    local mine, key = certify "mine"
    local locked = cases.folder .. "/locked.key"
    assert.equal(0, os.execute(([[openssl pkey -in '%s' -aes128 -out '%s' \
      -passout pass:secret]]):format(key, locked)))
    assert.matches("^denied", on_terminal([[
      local perigee = require "perigee"
      local engine = assert(perigee.engine())
      perigee.run(function()
        local client = require "perigee.net.http".new()
        print(select(2, client:ask { url = arg[1], tls = {
          ca = arg[3], cert = arg[4], key = arg[5] } }))
      end)
      engine:close()
    ]], cert, mine, locked))
    assert.matches("^ended", on_terminal([[
      local control = require "perigee.net.native"
      local to, wait = control.to_t(), control.wait_t()
      to.host, to.port, to.tls = "127.0.0.1", tonumber(arg[2]), 1
      to.authorities, to.certificate, to.key = arg[3], arg[4], arg[5]
      local stream, status = control.C.perigee_stream_open(to)
      repeat status = control.C.perigee_stream_step(stream, wait)
      until status ~= 0
      print(status < 0 and "ended")
    ]], cert, mine, locked))
  end)

  it("is of version 1.2 at least", function()
    local function answer(version)
      return shell([[printf 'GET /healthz HTTP/1.0\r\n\r\n' |
        timeout 60 openssl s_client -quiet -ign_eof $1 \
        -cipher ALL:@SECLEVEL=0 -connect 127.0.0.1:$2 2>/dev/null]], version,
        tostring(server.port))
    end
    assert.matches("^HTTP/1.[01] 200", answer "-tls1_2")
    assert.matches("^HTTP/1.[01] 200", answer "-tls1_3")
    assert.equal("", answer "-tls1_1")
    assert.equal("", answer "-tls1")
  end)
end)
