# SPDX-License-Identifier: Apache-2.0
# The interface of capnp.cc.
@0xd4f3b1a0c95e7d26;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("peers");

interface Echo {
  echo @0 (payload :Data) -> (payload :Data);
}
