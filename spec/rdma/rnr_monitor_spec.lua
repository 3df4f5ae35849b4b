-- SPDX-License-Identifier: Apache-2.0
-- perigee.RnrMonitor: on a made-up /sys, and on a device that is made to find
-- its receiver not ready.
local fake_sysfs = require "spec.rdma.fake_sysfs"
local perigee = require "perigee"

describe("a monitor of receiver-not-ready", function()
  local sys

  before_each(function()
    sys = fake_sysfs()
    sys:port("rxe0", 1)
    sys:count("rxe0", 1, "send_rnr_err", 5)
    sys:count("rxe0", 1, "rcvd_rnr_err", 7)
    sys:count("rxe0", 1, "retry_rnr_exceeded_err", 0)
    sys:port("mlx5_0", 1)
    sys:count("mlx5_0", 1, "out_of_buffer", 100)
    sys:count("mlx5_0", 1, "rnr_nak_retry_err", 1)
  end)
  after_each(function() sys:remove() end)

  local function monitor(options)
    options = options or {}
    options.sysfs = sys.root
    return perigee.RnrMonitor(options)
  end

  it("reads what each port has", function()
    local m = assert(monitor())
    assert.same({
      ["rxe0/1"] = { send_rnr_err = 5, rcvd_rnr_err = 7,
                     retry_rnr_exceeded_err = 0 },
      ["mlx5_0/1"] = { out_of_buffer = 100, rnr_nak_retry_err = 1 },
    }, m:snapshot())
  end)

  it("says what each port lacks", function()
    assert.same({
      ["rxe0/1"] = { "out_of_buffer", "rnr_nak_retry_err", "rnr_naks_rcvd" },
      ["mlx5_0/1"] = { "send_rnr_err", "rcvd_rnr_err",
                       "retry_rnr_exceeded_err", "rnr_naks_rcvd" },
    }, assert(monitor()):missing())
    local m = assert(monitor { counter = { "out_of_buffer" } })
    assert.same({ ["rxe0/1"] = { "out_of_buffer" }, ["mlx5_0/1"] = {} },
                m:missing())
  end)

  it("tells what grew since the last snapshot", function()
    local m = assert(monitor { devices = "rxe0" })
    assert.equal(0, m:total_delta())
    sys:count("rxe0", 1, "send_rnr_err", 8)
    sys:count("rxe0", 1, "rcvd_rnr_err", 9)
    for _ = 1, 2 do
      assert.same({ ["rxe0/1"] = { send_rnr_err = 3, rcvd_rnr_err = 2,
                                   retry_rnr_exceeded_err = 0 } }, m:delta())
      assert.equal(5, m:total_delta())
    end
    assert.equal(8, m:snapshot()["rxe0/1"].send_rnr_err)
    assert.equal(0, m:total_delta())
  end)

  it("is not changed by what is done to its tables", function()
    local m = assert(monitor())
    m:snapshot()["rxe0/1"].send_rnr_err = 1000
    m:missing()["rxe0/1"][1] = nil
    assert.equal(0, m:total_delta())
    assert.equal(3, #m:missing()["rxe0/1"])
  end)

  it("watches one counter, or some", function()
    local m = assert(monitor { counter = "send_rnr_err" })
    assert.same({ ["rxe0/1"] = { send_rnr_err = 5 }, ["mlx5_0/1"] = {} },
                m:snapshot())
    m = assert(monitor { devices = { "mlx5_0:1" },
                         counter = { "out_of_buffer", "rcvd_rnr_err" } })
    assert.same({ ["mlx5_0/1"] = { out_of_buffer = 100 } }, m:snapshot())
  end)

  it("reads what a device counts for all its ports", function()
    sys:put("mlx5_0/hw_counters/out_of_buffer", 11)
    local m = assert(monitor { devices = { "mlx5_0", "mlx5_0/1" } })
    assert.same({
      mlx5_0 = { out_of_buffer = 11 },
      ["mlx5_0/1"] = { out_of_buffer = 100, rnr_nak_retry_err = 1 },
    }, m:snapshot())
  end)

  it("knows large values and those that began anew", function()
    sys:count("rxe0", 1, "send_rnr_err", "18446744073709551615")
    local m = assert(monitor { devices = { "rxe0" } })
    assert.equal(2 ^ 64, m:snapshot()["rxe0/1"].send_rnr_err)
    sys:count("rxe0", 1, "send_rnr_err", 4)
    assert.equal(4, m:total_delta())
  end)

  it("finds devices that came", function()
    local m = assert(monitor())
    sys:port("rxe9", 1)
    sys:count("rxe9", 1, "send_rnr_err", 3)
    assert.equal(0, m:total_delta())
    assert.equal(3, m:snapshot()["rxe9/1"].send_rnr_err)
  end)

  it("says that a device is gone, and goes on with those that stay", function()
    local m = assert(monitor())
    sys:remove("rxe0")
    for _, method in ipairs { "delta", "total_delta" } do
      local value, err = m[method](m)
      assert.is_nil(value)
      assert.equal("not_found", err.kind)
      assert.matches("rxe0/1 is gone", err.message)
    end
    assert.is_nil(m:snapshot()["rxe0/1"])
    assert.equal(0, m:total_delta())
  end)

  it("says that a device of its own is gone, each time", function()
    local m = assert(monitor { devices = { "rxe0" } })
    sys:remove("rxe0")
    for _ = 1, 2 do
      local value, err = m:snapshot()
      assert.is_nil(value)
      assert.matches("no RDMA device rxe0; there are: mlx5_0/1", err.message)
      assert.is_nil(m:delta())
    end
    sys:port("rxe0", 1)
    sys:count("rxe0", 1, "send_rnr_err", 0)
    assert.equal(0, assert(m:snapshot())["rxe0/1"].send_rnr_err)
  end)

  it("is not made where it would see nothing", function()
    for text, options in pairs {
      ["no RDMA device$"] = { sysfs = "/nowhere" },
      ["no RDMA device x; there are: mlx5_0/1, rxe0/1"] =
        { devices = { "x" }, sysfs = sys.root },
      ["there is no foo on mlx5_0/1, rxe0/1"] =
        { counter = "foo", sysfs = sys.root },
    } do
      local m, err = perigee.RnrMonitor(options)
      assert.is_nil(m)
      assert.is_true(perigee.is_error(err))
      assert.matches(text, err.message)
    end
  end)

  it("raises for what is no name", function()
    for _, options in ipairs { { devices = { "../x" } }, { devices = {} },
                               { counter = "a/b" }, { counter = 1 } } do
      assert.error_matches(function() monitor(options) end, "must be")
    end
  end)
end)

-- perftest with only one receive posted: most messages find it taken, unless
-- the receiver happens to be as fast as the sender. The sender tries until the
-- receiver listens.
local PROVOKE = [[ { all='ib_send_bw -F -d %s -x %d -p 18777 -n 200 -s 64'
  timeout 30 $all -r 1 &
  for try in 1 2 3 4 5 6 7 8 9; do
    sleep 0.5; timeout 20 $all %s && break
  done; wait; } >/dev/null 2>&1 ]]

describe("a receiver that is not ready", function()
  it("is seen on a real device", function()
    local port = assert(perigee.devices { state = "active" })[1]
    if not port then return pending("there is no RDMA device") end
    if os.execute("command -v ib_send_bw >/dev/null") ~= 0 then
      return pending("there is no ib_send_bw (package perftest)")
    end
    local address
    for _, gid in ipairs(port.gids) do
      if gid.index == port.gid then
        address = gid.address:match("^::ffff:([%d.]+)$")
      end
    end
    if not address then return pending("its port has no IPv4 address") end
    local m = assert(perigee.RnrMonitor { devices = { port.name } })
    local seen
    for _ = 1, 8 do
      os.execute(PROVOKE:format(port.name, port.gid, address))
      os.execute("sleep 0.05") -- the kernel's values are some ms old
      seen = m:total_delta() > 0
      if seen then break end
    end
    assert.is_true(seen)
    m:snapshot()
    assert.equal(0, m:total_delta())
  end)
end)
