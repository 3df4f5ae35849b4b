# SPDX-License-Identifier: Apache-2.0
#
# The checks and the demo. Each target installs what is missing, builds what it
# needs and calls a script that can also be run alone. Variables: ONLY=text runs
# the files with text in their path, V=1 shows all output, FUZZ_SECONDS=n is the
# time of each fuzzer, MINUTES=n that of "make hostile" (SEED=n repeats a run),
# RDMA=all|few|none how many of the tests that need an RDMA device "make test"
# runs, in a guest that has one.

FUZZ_SECONDS ?= 60
# The longest time: each fuzzer ends when it has found its bug.
PLANTED_SECONDS ?= 300
# Settings of "make hostile".
MINUTES ?= 10
SEED ?=
ONLY ?=
RDMA ?= all
export ONLY V RDMA

TESTS := $(patsubst %.c,%,$(wildcard spec/native/*_test.c))
# The lying peer of the C tests as a program, to attack whole agents.
LIAR := spec/hostile/liar
# A C program with a name, as programs of users are built.
NAMED := build/spec/support/named
# The command that attackers are started with.
SPARSE := build/spec/hostile/sparse.so
STRESS := $(patsubst %.c,%,$(wildcard spec/native/stress*_test.c)) \
  spec/native/join_test spec/native/join_meanwhile_test
PLUGINS := $(patsubst spec/native/%.c,spec/%.so, \
             $(wildcard spec/native/plugin_*.c))
FUZZERS := $(patsubst spec/fuzz/%.c,%,$(wildcard spec/fuzz/*_fuzz.c))
# UCX, which bench/ucx.lua measures: a folder with its include and lib.
UCX ?= build/libucx-cu12/libucx
NEEDS_UCX := $(if $(wildcard $(UCX)/include/ucp/api/ucp.h),,bench/ucx_echo.c)
NEEDS_HTTP := $(if $(CONTROLLED),,bench/floor_http.c)
FLOORS := $(patsubst bench/%.c,build/bench/%, \
            $(filter-out $(NEEDS_UCX) $(NEEDS_HTTP),$(wildcard bench/*.c)))
LIBASAN = $(shell $(CC) -print-file-name=libasan.so)

RUN := spec/support/run
NAMES := registries listing finding rendezvous
.PHONY: deps demo bench bench-control figures compare compare-rdma compare-deps
.PHONY: soak floors test
.PHONY: test-jit count-check anatomy
.PHONY: check-gpu check-cuda-headers test-interpreter asan tsan hostile hostile-names hostile-caches
.PHONY: control-stores
.PHONY: check-openapi test-opaque check-rdma rdma-shell fuzz fuzz-agents fuzz-planted lint
.PHONY: format check-abi check-install bundle check-bundle check-cuda-kernel

deps: ## install every Debian package needed (or, not as root, tell how)
	.ci/deps --all

# ---- The demo and the benches ----------------------------------------------

build/bench/%: bench/%.c $(firstword $(MAKEFILE_LIST))
	$(call say,CC)
	mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE -Inative -Ibench -O3 -g -Wall -Wextra \
	  $(WERROR) -pthread -MMD -MP -o $@ $< $(LINKED) -lsodium -lcrypto -lrt

# The only C programs that are not floors: the two ends of an echo, those of what
# count.lua counts, a caller and clients of a cache, and a cache's core and files
# by themselves.
ON_CORE := build/bench/echo build/bench/counted build/bench/c_caller \
  build/bench/cache_clients
$(ON_CORE): build/$(SONAME)
$(ON_CORE): LINKED = -Lbuild -l:$(SONAME) \
  -Wl,-rpath,'$$ORIGIN/..'
build/bench/cache_clients: LINKED += -lm

ON_CACHE := build/bench/cache_core build/bench/cache_file
$(ON_CACHE): build/perigee/cache.so
$(ON_CACHE): LINKED = build/perigee/cache.so \
  -Wl,-rpath,'$$ORIGIN/../perigee'

# The same echo with time stamps.
build/anatomy/bench/echo: bench/echo.c build/anatomy/$(SONAME)
	$(call say,CC)
	mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE -Inative -Ibench -O3 -g -Wall -Wextra \
	  $(WERROR) -DPERIGEE_ANATOMY -pthread -MMD -MP -o $@ $< \
	  -Lbuild/anatomy -l:$(SONAME) -Wl,-rpath,'$$ORIGIN/..'

build/bench/floor_http: LINKED = -lmicrohttpd

# CUDA's driver is opened as the core does, so it is not needed to build.
build/bench/floor_cuda: build/obj/native/memory/cuda/driver.o
build/bench/floor_cuda: LINKED = build/obj/native/memory/cuda/driver.o

build/bench/ucx_echo: LINKED = -isystem $(UCX)/include -L$(UCX)/lib \
  -lucp -lucs -Wl,-rpath,$(abspath $(UCX)/lib)

include bench/peers/peers.mk

floors: $(FLOORS) ## build the C programs that benches compare with

demo: ## set up, build, and show a worker and a driver at work
	.ci/deps build
	$(MAKE) all
	luajit examples/call.lua

bench: ## sweep sizes of calls and transfers (figures, no verdict)
	.ci/deps build bench
	$(MAKE) all
	spec/support/with luajit bench/rpc.lua $(ARGS)
	spec/support/with luajit bench/transfer.lua $(ARGS)

figures: ## write bench/figures.md and its pictures (ARGS="--quick", --resume)
	.ci/deps build bench
	$(MAKE) all peers
	spec/support/with luajit bench/figures.lua $(ARGS)

count-check: ## instructions of calls beside those recorded (bench/counts.json)
	.ci/deps build test
	$(MAKE) core build/bench/counted
	luajit bench/count.lua --check $(ARGS)

anatomy: ## where the time of a call goes (ARGS="--transport tcp --window 64")
	.ci/deps build
	$(MAKE) all build/anatomy/perigee/core.so build/anatomy/bench/echo
	luajit bench/anatomy.lua $(ARGS)

soak: ## many peers, disturbed for MINUTES=10 (ARGS="--transport tcp --seed 7")
	.ci/deps build bench
	$(MAKE) all
	spec/support/with luajit bench/soak.lua --minutes $(or $(MINUTES),10) $(ARGS)

bench-control: ## what names at the control server cost (ARGS="--only ends")
	.ci/deps build bench
	$(MAKE) all
	spec/support/with luajit bench/control.lua $(ARGS)

compare: ## Perigee beside other systems, in turns (ARGS="--peers ucx")
	.ci/deps build bench
	$(MAKE) all peers
	spec/support/with luajit bench/compare.lua $(ARGS)

build/spec/rdma/yield.so: spec/rdma/yield.c
	$(call say,CC)
	mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE -O2 -Wall -Wextra $(WERROR) -shared -fPIC \
	  -o $@ $<

compare-rdma: ## compare over RDMA, in a guest (ARGS=..., VM="-c 2 -t 900")
	.ci/deps build bench rdma
	$(MAKE) all floors peers build/spec/rdma/yield.so
	mkdir -p bench/results
	spec/rdma/vm -m 3072 -t 1800 -c 8 -y -w bench/results $(VM) \
	  spec/support/with luajit bench/compare.lua --peers verbs --modes echo \
	  --sizes 1K,64K,1M,16M --rounds 2 --seconds 1 --attempts 1 $(ARGS)

# "make compare-deps zeromq nng": the words behind it are peers, not targets.
ifeq ($(firstword $(MAKECMDGOALS)),compare-deps)
WANTED := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
$(eval $(WANTED):;@:)
endif

compare-deps: ## install other systems for compare (PEER..., YES=1: unasked)
	.ci/deps build bench
	$(MAKE) core
	spec/support/with luajit bench/compare_deps.lua $(WANTED)
	$(MAKE) peers

# ---- Tests -----------------------------------------------------------------

# $(1): the folder of the flavour.
define liar
$(1)/$(LIAR): $(1)/obj/$(LIAR).o $(1)/obj/spec/native/liar.o $(1)/libperigee.a
	$$(call say,LINK)
	mkdir -p $$(@D)
	$$(CC) $(2) -pthread -o $$@ $$^ $(LIBS)
endef

$(eval $(call liar,build,$(RELEASE)))
$(eval $(call liar,build/asan,$(ASAN)))

$(SPARSE): build/obj/spec/hostile/sparse.o
	$(call say,LINK)
	mkdir -p $(@D)
	$(CC) -shared -o $@ $^

$(NAMED): spec/support/named.c native/perigee.h build/$(SONAME)
	$(call say,CC)
	mkdir -p $(@D)
	$(CC) -std=c17 -Inative -O2 -g -Wall -Wextra $(WERROR) -o $@ $< \
	  -Lbuild -l:$(SONAME) -Wl,-rpath,'$$ORIGIN/../..'

# Specs run with the core as it is installed, C tests with one that has checks.
.PHONY: tests tests-asan tests-tsan
tests: all peers $(TESTS:%=build/debug/%) $(PLUGINS:%=build/%) build/$(LIAR) \
  $(SPARSE) $(NAMED) build/spec/libcuda_fake.so
tests-asan: $(CDEFS) build/asan/perigee/core.so $(TESTS:%=build/asan/%) \
  $(PLUGINS:%=build/asan/%) build/asan/$(LIAR) build/asan/perigee/cache.so \
  $(CONTROLLED:%=build/asan/%) $(NAMED) build/asan/spec/libcuda_fake.so
tests-tsan: $(STRESS:%=build/tsan/%)

test: ## set up, build, and run all the tests
	.ci/deps build test
	$(MAKE) tests
	$(RUN) native specs transports net hostile model rdma

test-jit: ## the specs with everything compiled at once
	.ci/deps build test
	$(MAKE) tests
	PERIGEE_LUAJIT_FLAGS='-Ohotloop=1 -Ohotexit=1' $(RUN) specs contract

test-interpreter: ## the specs without the compiler
	.ci/deps build test
	$(MAKE) tests
	PERIGEE_LUAJIT_FLAGS=-joff $(RUN) specs contract

hostile: ## random mixes of attacks for MINUTES=10 (SEED= repeats a run)
	.ci/deps build test
	$(MAKE) tests
	spec/support/with luajit spec/hostile/soak.lua $(MINUTES) $(SEED)

hostile-names: ## holders of names in trouble for MINUTES=10 (SEED= repeats)
	.ci/deps build test
	$(MAKE) tests
	spec/support/with luajit spec/hostile/names_soak.lua $(MINUTES) $(SEED)

hostile-caches: ## caches, writers and readers in trouble for MINUTES=10 (SEED=)
	.ci/deps build test
	$(MAKE) tests
	spec/support/with luajit spec/hostile/caches_soak.lua $(MINUTES) $(SEED)

STORES := redis etcd
control-stores: ## the control server's and names' specs over a Redis and an etcd
	.ci/deps build test
	$(MAKE) tests
	for store in $(STORES); do PERIGEE_SPEC_STORE=$$store spec/support/with \
	  busted --filter control --filter topology spec/lua/control_*_spec.lua \
	  spec/lua/topology_spec.lua \
	  $(NAMES:%=spec/contract/%_spec.lua) || exit 1; done

FAKE_CUDA := $(wildcard spec/gpu/libcuda_fake*.c)
build/spec/libcuda_fake.so: $(FAKE_CUDA) spec/gpu/libcuda_fake.h \
  native/memory/cuda/driver.h
	$(call say,CC)
	mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(FLAGS)) -O2 -shared -Wl,-z,defs -o $@ \
	  $(FAKE_CUDA)

# A program under ASan has the same one.
build/asan/spec/libcuda_fake.so: build/spec/libcuda_fake.so
	mkdir -p $(@D)
	cp $< $@

# DRIVER= (empty) takes the real one.
check-gpu: ## the contract's specs on a GPU's memory, by a fake driver (DRIVER=)
	.ci/deps build test
	$(MAKE) tests
	$(if $(filter undefined,$(origin DRIVER)),,PERIGEE_CUDA_LIBRARY=$(DRIVER)) \
	  $(RUN) gpu

check-cuda-headers: ## our declarations of CUDA beside CUDA's headers (PyPI)
	spec/gpu/headers

check-cuda-kernel: ## NVIDIA's assemblers take the copy kernel's text (PyPI)
	spec/gpu/assemble

test-opaque: ## the contract's specs on memory that the CPU must not touch
	.ci/deps build test
	$(MAKE) tests
	PERIGEE_TEST_MEMORY=opaque $(RUN) contract

check-openapi: ## a control server by its document, by schemathesis (PyPI)
	.ci/deps build test
	$(MAKE) all
	spec/openapi/check $(EXAMPLES) $(SEED)

asan: ## C tests and specs under AddressSanitizer and UBSan
	.ci/deps build test
	$(MAKE) tests-asan
	PERIGEE_BUILD=build/asan PERIGEE_PRELOAD=$(LIBASAN) \
	  PERIGEE_SPEC_SLOW=$${PERIGEE_SPEC_SLOW:-3} \
	  $(RUN) native transports hostile specs net

check-rdma: ## C tests and specs over verbs, in a guest with RDMA devices
	.ci/deps build test
	$(MAKE) tests
	$(RUN) rdma

rdma-shell: ## run CMD="..." on this checkout in the guest of check-rdma
	.ci/deps build test rdma
	$(MAKE) tests
	spec/rdma/vm -p spec/support/with bash -c '$(subst ','\'',$(CMD))'

tsan: ## the core's stress tests under ThreadSanitizer
	.ci/deps build test
	$(MAKE) tests-tsan
	PERIGEE_BUILD=build/tsan $(RUN) native

# ---- Fuzzers ---------------------------------------------------------------

FUZZ := -O1 -fsanitize=fuzzer-no-link,address,undefined \
        -fno-sanitize-recover=all -fprofile-instr-generate -fcoverage-mapping

FUZZ_WITH := spec/native/hand spec/native/plugin_opaque
# The core, the cache, and what is fuzzed of the object that speaks with other
# servers.
FUZZED := $(CORE) $(CACHE) native/control/json.c native/control/bytes.c

fuzz_cc = $(CLANG) $(filter-out -Werror,$(FLAGS)) $(FUZZ)
fuzz_link = $(CLANG) $(FUZZ) -fsanitize=fuzzer -pthread

build/fuzz/obj/%.o: %.c $(firstword $(MAKEFILE_LIST)) spec/checks.mk
	$(call say,CLANG)
	mkdir -p $(@D)
	$(fuzz_cc) -c -o $@ $<

build/fuzz/obj/native/cache/hold.o: build/holder.inc
FUZZ_OBJECTS := $(FUZZ_WITH:%=build/fuzz/obj/%.o) \
                $(FUZZED:%.c=build/fuzz/obj/%.o)

build/fuzz/%_fuzz: build/fuzz/obj/spec/fuzz/%_fuzz.o $(FUZZ_OBJECTS)
	$(call say,LINK)
	$(fuzz_link) -o $@ $^ $(LIBS) $(URING)

# spec/fuzz/x_fuzz.patch plants a bug for x_fuzz in a copy of one file of the
# core, which is found by its name alone. A patch that no longer fits the file
# exactly is an error.
planted = $(filter %/$(shell sed -n 's/^--- //p' spec/fuzz/$*_fuzz.patch),$(FUZZED))

build/planted/%_fuzz.c: spec/fuzz/%_fuzz.patch $(FUZZED)
	$(call say,PATCH)
	mkdir -p $(@D)
	patch --silent --force --fuzz=0 --reject-file=- -o $@ -i $< $(planted)

build/planted/%_fuzz.o: build/planted/%_fuzz.c
	$(call say,CLANG)
	$(fuzz_cc) -iquote $(dir $(planted)) -c -o $@ $<

build/planted/%_fuzz: build/planted/%_fuzz.o \
  build/fuzz/obj/spec/fuzz/%_fuzz.o $(FUZZ_OBJECTS)
	$(call say,LINK)
	$(fuzz_link) -o $@ \
	  $(filter-out $(planted:%.c=build/fuzz/obj/%.o),$^) $(LIBS) $(URING)

.PHONY: fuzzers fuzzers-planted
fuzzers: $(FUZZERS:%=build/fuzz/%)
fuzzers-planted: $(FUZZERS:%=build/planted/%)

fuzz: ## each decoder's fuzzer for FUZZ_SECONDS, then its coverage
	.ci/deps build fuzz
	$(MAKE) fuzzers
	spec/support/fuzz build/fuzz $(FUZZ_SECONDS)

fuzz-agents: ## whole agents that a liar talks to, for FUZZ_SECONDS each
	.ci/deps build test
	$(MAKE) all
	PERIGEE_FUZZ_SECONDS=$(FUZZ_SECONDS) \
	  PERIGEE_FUZZ_SEED=$${PERIGEE_FUZZ_SEED:-$$RANDOM} \
	  LIMIT=$$((3 * $(FUZZ_SECONDS) + 600)) ONLY=lua/agents_fuzz $(RUN) specs

fuzz-planted: ## each fuzzer must find the bug planted for it
	.ci/deps build fuzz
	$(MAKE) fuzzers-planted
	spec/support/fuzz --planted build/planted $(PLANTED_SECONDS)

# ---- Lint ------------------------------------------------------------------

# perigee.h is a manual: its comments are laid out by hand.
C_FILES := $(wildcard native/*.[ch] native/*/*.[ch] native/*/*/*.[ch] \
             spec/native/*.[ch] spec/fuzz/*.[ch] spec/hostile/*.[ch] \
             spec/support/*.[ch] spec/gpu/libcuda_fake*.[ch] bench/*.[ch] \
             bench/peers/*.[ch] spec/rdma/*.c)
FORMATTED := $(filter-out native/perigee.h,$(C_FILES)) \
             $(wildcard bench/peers/*.cc)
TIDIED := $(filter-out $(NEEDS_UCX) $(filter-out $(PEER_SOURCES),\
            $(wildcard bench/peers/*.c)),$(filter %.c,$(C_FILES)))
TIDY_FLAGS := -std=c17 -D_GNU_SOURCE -Inative -Ibuild -Ibench -isystem $(UCX)/include \
              $(addprefix -isystem ,$(OPENMPI) $(MPICH)) -DPERIGEE_DEBUG \
              $(URING:%=-DPERIGEE_URING)

.PHONY: house lint-lua lint-format lint-tidy lint-cppcheck lint-shell
.PHONY: lint-planted
lint: ## house, luacheck, clang-format, clang-tidy, cppcheck, shellcheck
	.ci/deps build lint
	$(MAKE) $(CDEF)
	$(MAKE) --keep-going house lint-lua lint-format lint-tidy lint-cppcheck \
	  lint-shell lint-planted

# Uses the debug flavour: with LTO the objects have other symbols.
house: build/debug/libperigee.a $(CONTROL:%.c=build/debug/obj/%.o) $(CACHE:%.c=build/debug/obj/%.o) ## which folder of native/ uses which
	spec/support/house build/debug/obj

lint-lua:
	luacheck --quiet .

lint-format:
	clang-format --dry-run -Werror $(FORMATTED)

format: ## set every C file in the house style
	.ci/deps lint
	clang-format -i $(FORMATTED)

lint-tidy: $(TIDIED:%=build/lint/%.tidied)

build/lint/native/cache/hold.c.tidied: build/holder.inc
build/lint/%.tidied: % $(HEADERS) .clang-tidy
	$(call say,TIDY)
	mkdir -p $(@D)
	clang-tidy --quiet --warnings-as-errors='*' $< -- $(TIDY_FLAGS) \
	  2> >(grep -vE 'warnings? generated|^Suppressed|^Use -header' >&2)
	touch $@

lint-cppcheck:
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr \
	  --enable=warning,performance,portability -D_GNU_SOURCE \
	  --suppress=missingIncludeSystem -Inative $(filter native/%.c,$(C_FILES))

SCRIPTS := .ci/deps .ci/run bench/run_rpc_bench.sh $(shell grep -lE '^\#!/bin/(ba)?sh' \
             spec/support/* spec/support/bin/* spec/*/check* spec/rdma/* \
             2>/dev/null | sort -u)

lint-shell:
	shellcheck --severity=warning $(SCRIPTS)

lint-planted: $(FUZZERS:%=build/planted/%.c) # each patch still fits

# ---- The manual ------------------------------------------------------------

.PHONY: doc
doc: ## build the manual, from the sources, into build/doc
	.ci/deps doc
	luajit spec/manual/make.lua build/manual $(CURDIR)/build/doc
	@echo "build/doc/index.html"

# ---- Installing ------------------------------------------------------------

ROCKS := luarocks --lua-version=5.1

# A library whose structures have grown, as those of a later version may.
GROWN := build/grown
GROWING := options session_info counters shares failure device gid \
           agent_options entry
$(GROWN)/perigee.h: native/perigee.h $(firstword $(MAKEFILE_LIST))
	mkdir -p $(@D)
	awk '/^struct perigee_($(subst $() ,|,$(GROWING))) \{$$/ { grows = 1 } \
	  grows && /^};/ { print "  uint64_t later[5];"; grows = 0 } \
	  { print }' $< > $@
$(CORE:%.c=$(GROWN)/obj/%.o): $(GROWN)/perigee.h
$(eval $(call flavour,$(GROWN),-include $(GROWN)/perigee.h -O0))

check-abi: ## C programs of the last version, and of the next, with this library
	.ci/deps build abi
	$(MAKE) build/$(SONAME) $(GROWN)/$(SONAME)
	mkdir -p build/abi/grown
	cp build/$(SONAME) build/abi/
	cp $(GROWN)/$(SONAME) $(GROWN)/perigee.h build/abi/grown/
	spec/support/abi build/abi

# One file for hosts where nothing can be installed (spec/bundle/make).
VERSION := $(shell sed -n 's/^return "\(.*\)"$$/\1/p' lua/perigee/version.lua)
BUNDLE := build/bundle/perigee-$(VERSION)-x86_64.tar.gz

bundle: ## one file that runs on other x86-64 hosts, with nothing installed
	.ci/deps build bundle
	$(MAKE) all tests
	spec/bundle/make $(VERSION)

check-bundle: bundle ## try the bundle in an empty root (CHECK="shm tcp"; wants root)
	spec/bundle/try $(BUNDLE) $(or $(CHECK),shm)

check-install: ## install by make, by luarocks and from a packed rock
	.ci/deps build rock
	$(MAKE) rock
	mkdir -p "build/tree/by make/share/lua/5.1/perigee"
	echo 'error "of an earlier version"' \
	  >"build/tree/by make/share/lua/5.1/perigee/agent.lua"
	$(MAKE) install PREFIX="build/tree/by make"
	$(ROCKS) make --deps-mode=none --tree=build/tree/rock
	$(ROCKS) install --deps-mode=none --tree=build/tree/packed \
	  perigee-scm-1.src.rock
	for tree in "by make" rock packed; do spec/support/installed \
	  "$(CURDIR)/build/tree/$$tree" || exit; done
	spec/support/installed_c "$(CURDIR)/build/tree/by make"
