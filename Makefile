# SPDX-License-Identifier: Apache-2.0
#
# Perigee's one Makefile. "make help" lists the targets. Plain "make" builds
# and touches nothing outside build/ but the generated lua/perigee/cdef.lua;
# demo, test and the other checks first see to it that the Debian packages they
# need are there (.ci/packages).

MAKEFLAGS += --no-print-directory --no-builtin-rules
SHELL := /bin/bash
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

CC := gcc
CLANG := clang
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LUADIR ?= $(PREFIX)/share/lua/5.1
LIBDIR ?= $(PREFIX)/lib/lua/5.1
CLIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DESTDIR ?=
WERROR ?= -Werror
V ?= 0

ifeq ($(V),0)
MAKEFLAGS += --silent
say = @printf '  %-8s %s\n' $(1) $@
endif

# ---- The core --------------------------------------------------------------

# A second object, with other servers' protocols by their libraries, so that the
# core needs none of these. It is left out if they are missing.
CONTROL := $(wildcard native/control/*.c)
CONTROL_LIBS := -lcurl -lmicrohttpd -lsqlite3 -lhiredis -lcares -lsodium -lssl \
                -lcrypto
CURL := $(wildcard /usr/include/curl/curl.h /usr/include/*/curl/curl.h)
CONTROL_NEEDS := hiredis/hiredis.h microhttpd.h sqlite3.h
CONTROLLED := $(if $(filter $(words $(CONTROL_NEEDS)),$(words $(wildcard \
                $(CONTROL_NEEDS:%=/usr/include/%)))),\
                $(if $(CURL),perigee/control.so))
# A third object, with a cache's directory, space and files. It needs libsodium,
# as the core does, and xxhash's header; files are read by liburing, or by threads
# if that is missing.
CACHE := $(wildcard native/cache/*.c)
# A program that cache.so has in it, as a list of bytes. It is linked with
# nothing, and built for processors whose system calls it knows.
HOLDER := native/cache/holder/holder.c
HOLDS := $(filter x86_64 aarch64,$(shell uname -m))
URING := $(if $(wildcard /usr/include/liburing.h),-luring)
CORE := $(filter-out $(CONTROL) $(CACHE) $(HOLDER),$(wildcard native/*/*.c native/*/*/*.c))
HEADERS := $(wildcard native/*.h native/*/*.h native/*/*/*.h)
LUA := $(shell find lua/perigee -name '*.lua' ! -name cdef.lua 2>/dev/null)
CDEF := lua/perigee/cdef.lua
CONTROL_CDEF := lua/perigee/net/cdef.lua
CACHE_CDEF := lua/perigee/cache/cdef.lua
STATS_CDEF := lua/perigee/stats/cdef.lua
CDEFS := $(CDEF) $(CONTROL_CDEF) $(CACHE_CDEF) $(STATS_CDEF)
COMMAND := lua/perigee/cli/perigee
MANPAGE := lua/perigee/cli/perigee.1

FLAGS := -std=c17 -D_GNU_SOURCE $(URING:%=-DPERIGEE_URING) -Inative -Ibuild -g -Wall -Wextra $(WERROR) \
         -fvisibility=hidden -fPIC -pthread -MMD -MP
# Structures of some hundred bytes are zeroed for each call; tuned for generic
# x86-64, GCC does that by "rep stos", whose start alone costs 30 cycles.
TUNE := $(if $(filter x86_64,$(shell uname -m)),-mtune=skylake)
# Fat objects, so that the archive can be linked with or without LTO. In one
# partition: across partitions GCC saves registers around calls, so that the files
# of a call cost more or less by the order in which they are linked.
RELEASE := -O2 $(TUNE) -flto=auto -flto-partition=one -ffat-lto-objects -DNDEBUG
DEBUG := -O1 -DPERIGEE_DEBUG -fno-omit-frame-pointer
# Under a sanitizer GCC's guess at what is uninitialized is often wrong.
SANITIZED := $(DEBUG) -Wno-maybe-uninitialized
ASAN := $(SANITIZED) -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN := $(SANITIZED) -fsanitize=thread

# The libraries that the core is linked with.
LIBS := -lsodium -lcrypto -lcares -lrt
# The core as a library of C programs. Lua loads a copy of it, core.so.
SONAME := libperigee.so.0
EXPORTS := native/perigee.map
VERSION := $(shell sed -n 's/^return "\(.*\)"$$/\1/p' lua/perigee/version.lua)

# The files that test programs share: their helpers and the plugins, of which
# one has more than one file.
INPROC := $(wildcard spec/native/inproc_*.c)
SUPPORT := $(filter-out %_test.c spec/native/cache_%,$(wildcard spec/native/*.c))
# These see the hidden symbols of the cache's object as well, and share files of
# their own.
CACHE_TESTS := $(patsubst %.c,%,$(wildcard spec/native/*cache_*_test.c))
CACHE_SUPPORT := $(filter-out %_test.c,$(wildcard spec/native/cache_*.c))

# Each function that the core calls is looked up when it is loaded: a look-up at
# the first call saves registers on the stack, and with them a secret that was
# just copied.
NOW := -Wl,-z,now

# A program may have two copies of the core: libperigee.so.0, and core.so by an
# embedded LuaJIT, maybe of another version. Neither calls the other's functions.
OWN := -Wl,-Bsymbolic-functions

# A flavour of everything that is made of C: $(1) its folder, $(2) its flags.
# Test programs see the core's hidden symbols, so they take the archive.
define flavour
$(1)/obj/%.o: %.c $(firstword $(MAKEFILE_LIST))
	$$(call say,CC)
	mkdir -p $$(@D)
	$$(CC) $$(FLAGS) $(2) $$(CFLAGS) -c -o $$@ $$<

$(1)/libperigee.a: $(CORE:%.c=$(1)/obj/%.o)
	$$(call say,AR)
	rm -f $$@ && $$(AR) rcs $$@ $$^

$(1)/$(SONAME): $(CORE:%.c=$(1)/obj/%.o) $(EXPORTS)
	$$(call say,LINK)
	mkdir -p $$(@D)
	$$(CC) -shared $(2) -pthread -Wl,-z,nodelete -Wl,-z,defs $(NOW) \
	  $(OWN) -Wl,-soname,$(SONAME) -Wl,--version-script=$(EXPORTS) $$(LDFLAGS) \
	  -o $$@ $$(filter %.o,$$^) $(LIBS)

$(1)/obj/native/cache/hold.o: build/holder.inc

# A new file: a process that has the old one mapped keeps that.
$(1)/perigee/core.so: $(1)/$(SONAME)
	mkdir -p $$(@D)
	cp --remove-destination $$< $$@

$(1)/perigee/control.so: $(CONTROL:%.c=$(1)/obj/%.o)
	$$(call say,LINK)
	mkdir -p $$(@D)
	$$(CC) -shared $(2) -pthread -Wl,-z,nodelete -Wl,-z,defs \
	  $$(LDFLAGS) -o $$@ $$^ $(CONTROL_LIBS)

$(1)/perigee/cache.so: $(CACHE:%.c=$(1)/obj/%.o)
	$$(call say,LINK)
	mkdir -p $$(@D)
	$$(CC) -shared $(2) -pthread -Wl,-z,nodelete -Wl,-z,defs $(NOW) $(OWN) \
	  $$(LDFLAGS) -o $$@ $$^ -lsodium $(URING)

$(CACHE_TESTS:%=$(1)/%): $(CACHE:%.c=$(1)/obj/%.o) \
  $(CACHE_SUPPORT:%.c=$(1)/obj/%.o)
$(CACHE_TESTS:%=$(1)/%): LINKED := $(URING)

$(1)/spec/native/%_test: $(1)/obj/spec/native/%_test.o \
  $(SUPPORT:%.c=$(1)/obj/%.o) $(1)/libperigee.a
	$$(call say,LINK)
	mkdir -p $$(@D)
	$$(CC) $(2) -pthread -o $$@ $$(filter %.o,$$^) $$(filter %.a,$$^) -lcmocka \
	  $(LIBS) $$(LINKED)

$(1)/spec/plugin_%.so: $(1)/obj/spec/native/plugin_%.o $(1)/libperigee.a
	$$(call say,LINK)
	mkdir -p $$(@D)
	$$(CC) -shared $(2) -pthread -Wl,-z,nodelete -Wl,-z,defs \
	  -Wl,--exclude-libs,ALL -o $$@ $$(filter %.o,$$^) $$(filter %.a,$$^) $(LIBS)

$(1)/spec/plugin_inproc.so: $(INPROC:%.c=$(1)/obj/%.o)
endef

build/holder: $(HOLDER) native/cache/hold.h native/cache/cache.h
	$(call say,LINK)
	mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE -Inative -Os -Wall -Wextra $(WERROR) \
	  -ffreestanding -fno-stack-protector -fno-tree-loop-distribute-patterns \
	  -fno-asynchronous-unwind-tables -fno-pie -no-pie -static -nostdlib -s \
	  -Wl,--build-id=none -Wl,-z,noexecstack -Wl,-z,noseparate-code -o $@ $<

build/holder.inc: $(if $(HOLDS),build/holder)
	mkdir -p $(@D)
	cat $^ /dev/null | od -An -v -tu1 | sed -E 's/ +([0-9]+)/\1,/g' > $@

$(eval $(call flavour,build,$(RELEASE)))
$(eval $(call flavour,build/debug,$(DEBUG)))
$(eval $(call flavour,build/asan,$(ASAN)))
$(eval $(call flavour,build/tsan,$(TSAN)))
# With time stamps, for bench/anatomy.lua.
$(eval $(call flavour,build/anatomy,$(RELEASE) -DPERIGEE_ANATOMY))

.SECONDARY:

# LuaJIT's declarations are the public headers themselves, so they cannot part.
$(CDEF): native/perigee.h
$(CONTROL_CDEF): native/control/control.h
$(CACHE_CDEF): native/cache/cache.h
$(STATS_CDEF): native/stats.h
$(CDEFS):
	$(call say,CDEF)
	mkdir -p $(@D)
	{ echo '-- Made from $< by make; not to be edited.' && \
	  echo 'return [[' && $(CC) -E -P -DPERIGEE_CDEF $< && echo ']]'; } \
	  > $@.$$$$ && mv $@.$$$$ $@

.PHONY: all core install install-lua install-c uninstall rock clean help
all: core floors ## build the core and the floors of the benches

core: build/$(SONAME) build/perigee/core.so build/perigee/cache.so $(CONTROLLED:%=build/%) $(CDEFS) ## build what install installs

install: install-lua install-c ## install below PREFIX (BINDIR, LUADIR, LIBDIR, MANDIR, CLIBDIR, INCLUDEDIR, DESTDIR)

# A module of an earlier version that is a folder now would be found first.
install-lua: core
	rm -rf "$(DESTDIR)$(LUADIR)/perigee"
	for f in $(LUA) $(CDEFS); do install -D -m 644 "$$f" \
	  "$(DESTDIR)$(LUADIR)/$${f#lua/}" || exit; done
	for f in core.so cache.so $(notdir $(CONTROLLED)); do install -D -m 755 \
	  build/perigee/$$f "$(DESTDIR)$(LIBDIR)/perigee/$$f" || exit; done
	install -D -m 755 $(COMMAND) "$(DESTDIR)$(BINDIR)/perigee"
	install -D -m 644 $(MANPAGE) "$(DESTDIR)$(MANDIR)/man1/perigee.1"

# For C programs. ldconfig makes the system's loader find a new library; it is
# root's, and pointless below DESTDIR.
install-c: core build/perigee.pc
	install -D -m 755 build/$(SONAME) "$(DESTDIR)$(CLIBDIR)/$(SONAME)"
	ln -sf $(SONAME) "$(DESTDIR)$(CLIBDIR)/libperigee.so"
	install -D -m 644 native/perigee.h "$(DESTDIR)$(INCLUDEDIR)/perigee.h"
	install -D -m 644 native/stats.h "$(DESTDIR)$(INCLUDEDIR)/perigee_stats.h"
	install -D -m 644 build/perigee.pc \
	  "$(DESTDIR)$(CLIBDIR)/pkgconfig/perigee.pc"
	[ -n "$(DESTDIR)" ] || [ $$(id -u) != 0 ] || ldconfig 2>/dev/null || true

# The folders are those of this run, so it is made each time, also after a run
# of root's. abspath of make would take blanks for ends of names.
.PHONY: build/perigee.pc
build/perigee.pc:
	mkdir -p $(@D)
	rm -f $@
	printf '%s\n' "libdir=$$(realpath -ms "$(CLIBDIR)")" \
	  "includedir=$$(realpath -ms "$(INCLUDEDIR)")" '' 'Name: perigee' \
	  'Description: Remote memory and RPC between processes and hosts' \
	  'Version: $(VERSION)' 'Libs: -L"$${libdir}" -lperigee' \
	  'Cflags: -I"$${includedir}"' > $@

uninstall: ## remove what make install has put there
	rm -rf "$(DESTDIR)$(LUADIR)/perigee" "$(DESTDIR)$(LIBDIR)/perigee" \
	  "$(DESTDIR)$(BINDIR)/perigee" "$(DESTDIR)$(MANDIR)/man1/perigee.1" \
	  "$(DESTDIR)$(CLIBDIR)/"{$(SONAME),libperigee.so,pkgconfig/perigee.pc} \
	  "$(DESTDIR)$(INCLUDEDIR)/"{perigee.h,perigee_stats.h}

# The input of "luarocks install": the rockspec and the folder that it names.
# Packed from this checkout, so that nothing has to be fetched.
SOURCES := native lua examples bench spec Makefile LICENSE README.md \
           CHANGELOG.md SECURITY.md perigee-scm-1.rockspec $(wildcard .busted .luacheckrc .clang-* .ci)

rock: ## pack perigee-scm-1.src.rock for luarocks install
	rm -rf build/rock *.src.rock && mkdir -p build/rock/perigee
	cp -R $(SOURCES) build/rock/perigee && rm -f $(CDEFS:%=build/rock/perigee/%)
	cp perigee-scm-1.rockspec build/rock
	cd build/rock && zip -qr ../../perigee-scm-1.src.rock *

clean: ## remove everything that make made
	rm -rf build $(CDEFS) *.rock

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | \
	  sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 24

include spec/checks.mk
-include $(shell find build -name '*.d' 2>/dev/null)
