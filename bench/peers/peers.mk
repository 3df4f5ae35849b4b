# SPDX-License-Identifier: Apache-2.0
#
# The adapters of bench/compare.lua that are C programs. Each is built where the
# headers of its system are; "make peers" builds those and leaves out the rest.
# $(call peer,NAME,SOURCE,HEADER,FLAGS)

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

$(eval $(call peer,perigee,perigee.c,native/perigee.h,\
  -Lbuild/perigee -l:core.so -Wl$(,)-rpath$(,)'$$$$ORIGIN/../../perigee'))
build/bench/peers/perigee: build/perigee/core.so
$(eval $(call peer,sockets,sockets.c,bench/peers/sockets.c,))
$(eval $(call peer,ucx,ucx.c,$(UCX)/include/ucp/api/ucp.h,\
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

.PHONY: peers
peers: $(PEERS) ## build the adapters of make compare whose systems are here
