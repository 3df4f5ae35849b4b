/* SPDX-License-Identifier: Apache-2.0
 *
 * support.h - two engines in one thread, polled in turn, and a suite that runs
 * every test over each transport and each kind of memory.
 */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Before cmocka.h, which defines a macro named fail. */
#include "core/engine.h"

#include <cmocka.h>

#include "perigee.h"

enum { KIB = 1 << 10, MIB = 1 << 20, INBOX = 4096 };
static const int64_t MS = 1000000;

extern const struct perigee_transport perigee_transport_inproc;
/* The same as an additional lane, for opaque memory. perigee_inproc_break()
 * breaks the newest lane of the side that dialed (1) or listened (0). */
extern const struct perigee_transport perigee_transport_inproc_additional;
void perigee_inproc_break(int dialed);
extern const struct perigee_memory perigee_memory_opaque;

/* The state of a test points to one. */
struct variant {
  const char *name, *transport, *memory;
  int pull;
  const char *how; /* perigee_options.rdma; over tcp: "sealed", "streams" */
};
extern const struct variant variant_default;

struct pair {
  const struct variant *variant;
  struct perigee_engine *engine[2]; /* 0 dials, 1 listens */
  struct perigee_session *session[2];
  struct perigee_listener *listener;
  struct perigee_event inbox[2][INBOX]; /* not yet taken by the test */
  int kept[2];
  bool still[2];              /* do not poll this side: it is busy or stopped */
  char path[64], address[80]; /* path: only of a Unix address */
};

/* Options with the specs' plugins, as the variant needs them. */
void variant_options(const struct variant *v, struct perigee_options *o);
void pair_open(struct pair *p, void *state);
/* The path of the next pair's socket, for children that are forked before it
 * is opened. */
const char *pair_path_next(void);
void pair_open_with(struct pair *p, void *state,
                    const struct perigee_options *options);
/* Side 1 listens at an address that suits the variant. */
void pair_listen(struct pair *p);
/* Opens another session between the two; [0] dials, [1] listens. */
void pair_dial(struct pair *p, struct perigee_session *session[2]);
/* Fails if an operation is in flight or pool memory is in use; then closes. */
void pair_close(struct pair *p);
/* The same without the checks. */
void pair_drop(struct pair *p);

/* Polls both sides until one side has an event, and takes it. A side whose last
 * event holds pointers is not polled until that event is taken. */
struct perigee_event any_event(struct pair *p, int side);
/* The same; fails if the event is of another kind. */
struct perigee_event until(struct pair *p, int side, int kind);
/* Polls a side once, if it may be polled. */
void poll_side(struct pair *p, int side);
/* Takes a waiting event; false if there is none. */
bool taken(struct pair *p, int side, struct perigee_event *event);
/* Polls both sides for some rounds, and fails if an event comes. */
void quiet(struct pair *p, int rounds);
/* Polls both sides until neither has an operation. */
void settle(struct pair *p);
uint64_t operations(struct pair *p, int side);

/* The next of a row of numbers, which begins anew when any_seed is set. */
extern uint32_t any_seed;
uint32_t any_below(uint32_t most);
/* length + 1 bytes, which the caller frees. */
uint8_t *pattern(uint64_t length, uint8_t seed);
/* A region in memory of the variant's kind. */
struct perigee_region *region_of(struct pair *p, int side, const char *name,
                                 uint64_t length, int access);
void fill(struct perigee_region *region, uint64_t offset, const void *bytes,
          uint64_t length);
void fill_byte(struct perigee_region *region, int byte);
void same(struct perigee_region *region, uint64_t offset, const void *bytes,
          uint64_t length);
void all_byte(struct perigee_region *region, int byte);
void none_byte(struct perigee_region *region, int byte);
void region_end(struct perigee_region *region);
struct perigee_slice all_of(struct perigee_region *region, uint64_t length);

struct perigee_remote *look_up(struct pair *p, const char *name);
/* Awaits the end of an operation of side 0; op may be PERIGEE_INLINE. */
void finish(struct pair *p, int op, int status);
/* The same of a transfer, which succeeds and has moved so many bytes. */
void finish_moved(struct pair *p, int op, uint64_t bytes);
/* The next event of the side must be the end of this operation. */
struct perigee_event ended(struct pair *p, int side, int op, int status);

int64_t clock_now(void);
int descriptors(void);

/* Runs each test over all variants. */
int run_matrix(const char *suite, const struct CMUnitTest *tests, int count);
/* Runs a test over one variant. */
#define OVER(variant, test)                                                    \
  { #test " (" #variant ")", test, NULL, NULL, (void *)(uintptr_t)(&(variant)) }
#define RUN_MATRIX(suite, tests)                                               \
  run_matrix(suite, tests, (int)(sizeof(tests) / sizeof *(tests)))

#endif
