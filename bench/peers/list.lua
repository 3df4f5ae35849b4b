-- SPDX-License-Identifier: Apache-2.0
-- The descriptions of bench/compare.lua's peers, in the order of its tables.
-- The first peer of the first one is what the others are compared with.
return {
  "perigee", "floors", "sockets", "ucx", "ucx_fan", "libfabric", "mpi",
  "zeromq", "nng", "capnp", "grpc", "iceoryx2", "zenoh", "grpc-py", "pulsing",
  "ray", "nixl", "mooncake", "dlslime", "perftest",
}
