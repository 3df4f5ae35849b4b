# SPDX-License-Identifier: Apache-2.0
#
# The adapters of bench/compare.lua, and of bench/cache.lua's mode peers, that
# are programs in C or C++. Each is built where the headers of its system are;
# "make peers" builds those and leaves out the rest.
# $(call peer,NAME,SOURCE,HEADER,FLAGS)
# $(call peer++,NAME,HEADER,SOURCES GENERATED,FLAGS)

, := ,
PEERS :=
PEER_SOURCES :=

define peer
PEERS += $(if $(wildcard $(3)),build/bench/peers/$(1))
PEER_SOURCES += $(if $(wildcard $(3)),bench/peers/$(2))
build/bench/peers/$(1): bench/peers/$(2) bench/peers/peers.mk
	$$(call say,CC)
	mkdir -p $$(@D)
	$$(CC) -std=c17 -D_GNU_SOURCE -Inative -Ibench -O3 -g -Wall -Wextra \
	  $$(WERROR) -pthread -MMD -MP -o $$@ $$< $(4)
endef

define peer++
PEERS += $(if $(wildcard $(2)),build/bench/peers/$(1))
build/bench/peers/$(1): bench/peers/$(1).cc $(3:%=build/bench/peers/%) \
  bench/floor.h bench/peers/peer.h bench/peers/spread.h bench/peers/peers.mk
	$$(call say,CXX)
	$$(CXX) -std=gnu++23 -Ibench -isystem build/bench/peers -O3 -g -Wall \
	  $$(WERROR) -pthread -o $$@ $$(filter %.cc %.c++,$$^) $(4)
endef

$(eval $(call peer,perigee,perigee.c,native/perigee.h,\
  -Lbuild -l:$(SONAME) -Wl$(,)-rpath$(,)'$$$$ORIGIN/../..'))
build/bench/peers/perigee: build/$(SONAME)
$(eval $(call peer,sockets,sockets.c,bench/peers/sockets.c,))
$(eval $(call peer,ucx,ucx.c,$(UCX)/include/ucp/api/ucp.h,\
  -isystem $(UCX)/include -L$(UCX)/lib -lucp -lucs \
  -Wl$(,)-rpath$(,)$(abspath $(UCX)/lib)))
$(eval $(call peer,ucx-fan,ucx_fan.c,$(UCX)/include/ucp/api/ucp.h,\
  -isystem $(UCX)/include -L$(UCX)/lib -lucp -lucs \
  -Wl$(,)-rpath$(,)$(abspath $(UCX)/lib)))
$(eval $(call peer,ucx-move,ucx_move.c,$(UCX)/include/ucp/api/ucp.h,\
  -isystem $(UCX)/include -L$(UCX)/lib -lucp -lucs \
  -Wl$(,)-rpath$(,)$(abspath $(UCX)/lib)))
$(eval $(call peer,ucx-debian,ucx.c,/usr/include/ucp/api/ucp.h,-lucp -lucs))
$(eval $(call peer,ucx-move-debian,ucx_move.c,/usr/include/ucp/api/ucp.h,\
  -lucp -lucs))
$(eval $(call peer,libfabric,libfabric.c,/usr/include/rdma/fi_tagged.h,-lfabric))
$(eval $(call peer,zeromq,zeromq.c,/usr/include/zmq.h,-lzmq))
$(eval $(call peer,nng,nng.c,/usr/include/nng/nng.h,-lnng))

# Other caches, of bench/cache.lua --peers.
$(eval $(call peer,cache_redis,cache_redis.c,/usr/include/hiredis/hiredis.h,\
  -lhiredis))
$(eval $(call peer,cache_memcached,cache_memcached.c,\
  /usr/include/libmemcached/memcached.h,-lmemcached))

OPENMPI := $(wildcard /usr/lib/*/openmpi/include)
MPICH := $(wildcard /usr/include/*/mpich)
$(eval $(call peer,openmpi,mpi.c,$(OPENMPI)/mpi.h,\
  -isystem $(OPENMPI) -L$(OPENMPI:include=lib) -lmpi))
$(eval $(call peer,mpich,mpi.c,$(MPICH)/mpi.h,-isystem $(MPICH) -lmpich))

# Their compilers of interfaces are packages beside those with the headers.
$(eval $(call peer++,capnp,$(and $(wildcard /usr/bin/capnp),\
  $(wildcard /usr/include/capnp/ez-rpc.h)),echo.capnp.c++,\
  -lcapnp-rpc -lcapnp -lkj-async -lkj))
$(eval $(call peer++,grpc,$(and $(wildcard /usr/bin/grpc_cpp_plugin),\
  $(wildcard /usr/include/google/protobuf/port_def.inc),\
  $(wildcard /usr/include/grpcpp/grpcpp.h)),echo.pb.cc echo.grpc.pb.cc,\
  $$$$(pkg-config --libs grpc++) -lprotobuf))

build/bench/peers/echo.capnp.c++: bench/peers/echo.capnp
	mkdir -p $(@D)
	capnp compile -oc++:$(@D) --src-prefix=$(<D) $<

build/bench/peers/echo.pb.cc build/bench/peers/echo.grpc.pb.cc &: \
  bench/peers/echo.proto
	mkdir -p $(@D)
	protoc --cpp_out=$(@D) --grpc_out=$(@D) -I$(<D) \
	  --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin $<

.PHONY: peers
peers: $(PEERS) ## build the adapters of make compare whose systems are here
