-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl`: the control server, its tokens, and who is
-- to be connected.
return {
  name = "ctrl",
  summary = "Run the control server, which holds names over HTTP.",
  description = "The control server holds names of agents and other things, "
    .. "and tells who watches, over HTTP. Agents use it by registry = "
    .. "\"http://HOST:7470\". It keeps what it is told in a file of its own, "
    .. "or in Redis or etcd. Servers over the same Redis or etcd are equal: "
    .. "agents may use any of them, as by \"http://HOST:7470,HOST:7470\", and "
    .. "Redis or etcd itself.",
  commands = {
    require "perigee.cli.ctrl.serve",
    require "perigee.cli.ctrl.start",
    require "perigee.cli.ctrl.status",
    require "perigee.cli.ctrl.stop",
    require "perigee.cli.ctrl.token",
    require "perigee.cli.ctrl.topology",
  },
}
