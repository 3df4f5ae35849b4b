-- SPDX-License-Identifier: Apache-2.0
--- `perigee nics`: the RDMA ports of this host as its kernel counts, and which
-- agents of this user have them open. Neither a device nor an agent is asked:
-- counters are files of the kernel, and so is what a process has open.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local M = {
  name = "nics",
  summary = "Tell what this host's RDMA ports count, and who uses them.",
  description = "Tells the state, the rate and the counters of this host's "
    .. "RDMA ports, as its kernel has them, and which agents of this user, of "
    .. "whatever scope, have a port's device open. No device and no agent is "
    .. "asked.",
}

function M.configure(parser)
  parser:option("-d --delay", "Count for that long, and tell numbers a second "
    .. "in place of those since the device was made.")
    :argname "TIME":convert(options.positive)
  parser:flag("--gpus", "Also tell which GPUs are nearest to a port; this "
    .. "starts CUDA, which may take seconds.")
  options.json(parser)
  options.registry(parser)
end

-- ---- Counters ---------------------------------------------------------------

-- What drivers count by which names. Of FIRST each name counts the same, so the
-- first that is there is taken, times a number: ports count words of 4 bytes.
-- The names of SUM are of different events.
local FIRST = {
  bytes_sent = { { "port_xmit_data", 4 }, { "tx_bytes", 1 } },
  bytes_received = { { "port_rcv_data", 4 }, { "rx_bytes", 1 } },
  packets_sent = { { "port_xmit_packets", 1 }, { "tx_pkts", 1 },
                   { "sent_pkts", 1 } },
  packets_received = { { "port_rcv_packets", 1 }, { "rx_pkts", 1 },
                       { "rcvd_pkts", 1 } },
}

local SUM = {
  -- Senders that sent anew.
  retries = { "local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err",
              "rcvd_seq_err", "completer_retry_err", "to_retransmits",
              "seq_err_naks_rcvd", "retrans_pkts" },
  -- Links and connections that failed, and packets that were lost.
  errors = { "link_downed", "link_error_recovery", "symbol_error",
             "local_link_integrity_errors", "excessive_buffer_overrun_errors",
             "port_rcv_errors", "port_rcv_constraint_errors",
             "port_xmit_constraint_errors", "port_xmit_discards", "rx_drops",
             "retry_exceeded_err", "max_retry_exceeded", "send_err" },
}

-- The numbers in the files of a folder, added to `all`. Some drivers have files
-- that cannot be read, or say "N/A (no PMA)".
local function read_folder(machine, folder, all)
  for _, path in ipairs(machine:glob(folder .. "/*")) do
    all[path:match "[^/]+$"] = machine:number(path)
  end
end

local function read_counters(machine, port)
  local device = "/sys/class/infiniband/" .. port.name
  local of_port, all = ("%s/ports/%d"):format(device, port.port), {}
  read_folder(machine, device .. "/hw_counters", all)
  read_folder(machine, of_port .. "/counters", all)
  read_folder(machine, of_port .. "/hw_counters", all)
  return all
end

local function add_sum(figures, name, counters, list)
  for _, each in ipairs(list) do
    local value = counters[each]
    if value then figures[name] = (figures[name] or 0) + value end
  end
end

-- The few figures of a table; nil: no counter tells it.
local function figures_of(counters)
  local figures = {}
  for name, list in pairs(FIRST) do
    for i = #list, 1, -1 do
      local value = counters[list[i][1]]
      if value then figures[name] = value * list[i][2] end
    end
  end
  for name, list in pairs(SUM) do add_sum(figures, name, counters, list) end
  -- Receivers that were not ready.
  add_sum(figures, "rnr", counters,
          require "perigee.engine.rnr_monitor".COUNTERS)
  return figures
end

-- ---- Who uses them ----------------------------------------------------------

-- The names of devices by the files below /dev that stand for them.
local function device_files(machine)
  local names = {}
  for _, path in ipairs(machine:glob "/sys/class/infiniband_verbs/uverbs*") do
    names["/dev/infiniband/" .. path:match "[^/]+$"] =
      machine:read(path .. "/ibdev")
  end
  return names
end

-- The devices that a process has open, by name; none of a process that this
-- user may not look into.
local function opened(machine, pid, names)
  local found = {}
  for _, path in ipairs(machine:glob(("/proc/%d/fd/*"):format(pid))) do
    local name = names[machine:link(path) or ""]
    if name then found[name] = true end
  end
  return found
end

local function sessions_over(told, transport)
  local count = 0
  for _, each in ipairs(told.sessions) do
    if not each.ended and each.transport == transport then count = count + 1 end
  end
  return count
end

-- Lists of agents by the device that their process has open. agents: as
-- perigee.stats.read tells them.
local function users_of(machine, agents)
  local names, users = device_files(machine), {}
  for _, told in ipairs(next(names) and agents or {}) do
    for name in pairs(told.state ~= "dead" and opened(machine, told.pid, names)
                      or {}) do
      users[name] = users[name] or {}
      table.insert(users[name], { agent = told.name, scope = told.scope,
        pid = told.pid, sessions = sessions_over(told, "verbs") })
    end
  end
  return users
end

-- ---- All of it --------------------------------------------------------------

-- Names of GPUs by the device that is nearest to them.
local function gpus_near(list)
  local near = {}
  for _, gpu in ipairs(list) do
    for _, name in ipairs(gpu.nics) do
      near[name] = near[name] or {}
      table.insert(near[name], ("gpu%d"):format(gpu.device))
    end
  end
  return near
end

--- What a machine (perigee.cli.doctor.machine) tells of its ports.
-- agents: tables of perigee.stats.read; gpus: of perigee.devices, or nil.
-- @treturn table a list of ports with name, port, state, link, rate, netdev,
--   counters, figures, agents, gpus; or nil and an error
function M.look(machine, agents, gpus)
  local json = require "perigee.cli.json"
  local list, err = require "perigee.engine.devices".ports(machine.root
                                                           .. "/sys")
  if not list then return nil, err end
  local users, near = users_of(machine, agents), gpus and gpus_near(gpus)
  local ports = json.list {}
  for i, port in ipairs(list) do
    local counters = read_counters(machine, port)
    ports[i] = {
      name = port.name, port = port.port, state = port.state, link = port.link,
      rate = port.rate, netdev = port.netdev, numa = port.numa,
      driver = port.driver, counters = counters,
      figures = figures_of(counters),
      agents = json.list(users[port.name] or {}),
      gpus = near and json.list(near[port.name] or {}),
    }
  end
  return ports
end

--- Adds `per_second` to each port of M.look: its figures' growth since an
-- earlier look, so many seconds ago. Of a counter that began anew, what it has.
function M.rates(ports, earlier, seconds)
  local before = {}
  for _, port in ipairs(earlier) do
    before[port.name .. ":" .. port.port] = port.figures
  end
  for _, port in ipairs(ports) do
    local was = before[port.name .. ":" .. port.port] or port.figures
    port.per_second = {}
    for name, value in pairs(port.figures) do
      local since = was[name] or value
      port.per_second[name] =
        (value >= since and value - since or value) / seconds
    end
  end
end

-- ---- The command ------------------------------------------------------------

local function agents_here(url)
  local host = require "perigee.stats.host"
  local stats, list = require "perigee.stats", {}
  for _, scope in ipairs(host.scopes(url)) do
    for _, path in ipairs(host.paths(url, scope)) do
      list[#list + 1] = stats.read(path)
    end
  end
  return list
end

local function names_of_users(port)
  local names = {}
  for i, each in ipairs(port.agents) do
    names[i] = ("%s (%d)"):format(each.agent, each.sessions)
  end
  return names[1] and table.concat(names, ", ")
end

local function row_of(port, timed)
  local figures = timed and port.per_second or port.figures
  local function count(name)
    return figures[name] and ("%.0f"):format(figures[name]) or nil
  end
  local function size(name)
    return figures[name] and units.format_size(figures[name]) or nil
  end
  return { ("%s:%d"):format(port.name, port.port), port.state,
           ("%g Gb/s"):format(port.rate), size "bytes_sent",
           size "bytes_received", count "packets_sent",
           count "packets_received", count "rnr", count "retries",
           count "errors", names_of_users(port),
           port.gpus and table.concat(port.gpus, ",") }
end

--- Writes ports of M.look as a table. given: the command's options.
function M.tell(ports, given)
  local out, rows = require "perigee.cli.out", {}
  for i, port in ipairs(ports) do rows[i] = row_of(port, given.delay) end
  local headings = { "PORT", "STATE", "RATE", "SENT", "RECEIVED", "PACKETS OUT",
                     "IN", "RNR", "RETRIES", "ERRORS", "AGENTS (SESSIONS)" }
  if given.gpus then headings[#headings + 1] = "GPUS" end
  if given.delay then
    for i = 4, 10 do headings[i] = headings[i] .. "/s" end
  end
  out.columns(headings, rows)
end

-- Looks once, or before and after a while.
local function look(given, agents, gpus)
  local process = require "perigee.cli.process"
  local machine = require "perigee.cli.doctor.machine".new()
  local client = require "perigee.cli.client"
  local earlier, began = given.delay and
    client.check(M.look(machine, {})), process.now()
  if given.delay then process.poll({}, given.delay) end
  local ports = client.check(M.look(machine, agents(), gpus))
  if earlier then M.rates(ports, earlier, process.now() - began) end
  return ports
end

local function gpus_here(client, given)
  if not given.gpus then return nil end
  return client.check(client.used(client.library().devices, { kind = "gpu" }))
end

function M.run(given)
  local client = require "perigee.cli.client"
  client.library()
  local url = client.registry(given)
  local ports = look(given, function() return agents_here(url) end,
                     gpus_here(client, given))
  if given.json then
    require "perigee.cli.out".json(ports)
  elseif #ports == 0 then
    io.stderr:write(given.path, ": this machine has no RDMA device; perigee "
      .. "doctor tells more\n")
  else
    M.tell(ports, given)
  end
  require "perigee.cli.out".finish()
end

return M
