-- SPDX-License-Identifier: Apache-2.0
-- `perigee nics`: ports of made-up machines, and of this one.
local cjson = require "cjson"
local command = require "spec.support.command"
local fake_machine = require "spec.support.fake_machine"
local nics = require "perigee.cli.nics"

local fake

before_each(function() fake = fake_machine() end)
after_each(function()
  fake:remove()
  command.clean()
end)

local function put(device, path, text)
  fake:put(("/sys/class/infiniband/%s/%s"):format(device, path), text)
end

local function port(device)
  put(device, "ports/1/state", "4: ACTIVE")
  put(device, "ports/1/link_layer", "Ethernet")
  put(device, "ports/1/rate", "100 Gb/sec (4X EDR)")
end

local function look(agents, gpus)
  return assert(nics.look(fake.machine, agents or {}, gpus))
end

-- A process that has a device's file open.
local function open(pid, device, number)
  fake:put(("/sys/class/infiniband_verbs/uverbs%d/ibdev"):format(number),
           device)
  fake:put(("/proc/%d/fd/"):format(pid))
  os.execute(("ln -s /dev/infiniband/uverbs%d %s/proc/%d/fd/7"):format(number,
    fake.root, pid))
end

local function agent(name, pid, state, transport)
  return { name = name, scope = "s", pid = pid, state = state or "asleep",
           sessions = { { transport = transport }, { transport = "shm" },
                        { transport = "verbs", ended = 1 } } }
end

describe("the NICs of a host", function()
  it("are none where there is no device", function()
    assert.same({}, look())
  end)

  it("have state and counters, which drivers name as they like", function()
    port "mlx5_0"
    put("mlx5_0", "ports/1/counters/port_xmit_data", 1000)
    put("mlx5_0", "ports/1/counters/port_rcv_packets", 7)
    put("mlx5_0", "ports/1/counters/symbol_error", 2)
    put("mlx5_0", "ports/1/hw_counters/out_of_buffer", 3)
    put("mlx5_0", "ports/1/hw_counters/packet_seq_err", 4)
    put("mlx5_0", "ports/1/hw_counters/local_ack_timeout_err", 5)
    port "rxe0"
    put("rxe0", "ports/1/hw_counters/sent_pkts", 8)
    put("rxe0", "ports/1/hw_counters/send_rnr_err", 1)
    put("rxe0", "ports/1/hw_counters/rcvd_rnr_err", 1)
    local first, second = unpack(look())
    assert.same({ "mlx5_0", 1, "active", 100 },
                { first.name, first.port, first.state, first.rate })
    assert.same({ bytes_sent = 4000, packets_received = 7, errors = 2, rnr = 3,
                  retries = 9 }, first.figures)
    assert.equal(5, first.counters.local_ack_timeout_err)
    assert.same({ packets_sent = 8, rnr = 2 }, second.figures)
  end)

  it("may have counters that tell no number", function()
    port "mlx5_0"
    put("mlx5_0", "ports/1/counters/port_xmit_data", "N/A (no PMA)")
    put("mlx5_0", "ports/1/counters/port_rcv_data/", "")
    assert.same({}, look()[1].figures)
  end)

  it("are used by agents whose process has the device open", function()
    port "mlx5_0"
    port "mlx5_1"
    open(11, "mlx5_0", 0)
    open(12, "mlx5_1", 1)
    local first, second = unpack(look {
      agent("a", 11, nil, "verbs"), agent("b", 11, nil, "tcp"),
      agent("c", 12, "dead"), agent("d", 13),
    })
    assert.same({ { agent = "a", scope = "s", pid = 11, sessions = 1 },
                  { agent = "b", scope = "s", pid = 11, sessions = 0 } },
                first.agents)
    assert.same({}, second.agents)      -- 12 is another process by now
  end)

  it("are nearest to GPUs, as CUDA says", function()
    port "mlx5_0"
    assert.is_nil(look()[1].gpus)
    assert.same({ "gpu1" }, look(nil, { { device = 0, nics = {} },
      { device = 1, nics = { "mlx5_0" } } })[1].gpus)
  end)

  it("count so many a second", function()
    port "mlx5_0"
    put("mlx5_0", "ports/1/hw_counters/out_of_buffer", 3)
    put("mlx5_0", "ports/1/hw_counters/packet_seq_err", 9)
    local earlier = look()
    put("mlx5_0", "ports/1/hw_counters/out_of_buffer", 13)
    put("mlx5_0", "ports/1/hw_counters/packet_seq_err", 1)    -- made anew
    put("mlx5_0", "ports/1/counters/port_rcv_data", 5)        -- came late
    local ports = look()
    nics.rates(ports, earlier, 2)
    assert.same({ rnr = 5, retries = 0.5, bytes_received = 0 },
                ports[1].per_second)
  end)

  it("are told as a table, with texts of files as escapes", function()
    port "mlx5_0"
    put("mlx5_0", "ports/1/counters/port_xmit_data", 1024)
    put("mlx5_0", "ports/1/hw_counters/out_of_buffer", 3)
    local path = command.file("tell.lua", [[
local nics, machine = require "perigee.cli.nics", require
  "perigee.cli.doctor.machine".new { root = arg[1] }
local ports = assert(nics.look(machine, {}))
ports[1].agents[1] = { agent = "a\27[31m", sessions = 2 }
nics.tell(ports, {})
nics.rates(ports, ports, 1)
nics.tell(ports, { delay = 1 })
]])
    local pipe = io.popen(("luajit %s %s"):format(path, fake.root))
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("\nmlx5_0:1 +active +100 Gb/s +4 KiB +%- +%- +%- +3 +%- +%- "
      .. "+a\\x1b%[31m %(2%)\n", text)
    assert.matches(" SENT/s .* ERRORS/s .*\nmlx5_0:1 .* 0 B ", text)
  end)

  it("are told by the command", function()
    local status, text, errors = command.run("nics", "--json")
    assert.equal(0, status, errors)
    for _, each in ipairs(cjson.decode(text)) do
      assert.is_table(each.agents)
    end
    status, text, errors = command.run "nics"
    assert.equal(0, status, errors)
    assert.is_true(text:find "^PORT +STATE +RATE " ~= nil
      or errors:find "^perigee nics: this machine has no RDMA device; " ~= nil)
    assert.equal(0, (command.run("nics", "-d", "50ms")))
    assert.equal(2, (command.run("nics", "-d", "0")))
    assert.equal(2, (command.run("nics", "--scope", "x")))    -- all have ports
  end)
end)
