/* SPDX-License-Identifier: Apache-2.0
 *
 * support.h - two engines in one thread, polled in turn, and a suite that
 * runs every test over each transport and each kind of memory.
 */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Before cmocka.h, which has a macro of the name fail. */
#include "core/errors.h"

#include <cmocka.h>

#include "perigee.h"

enum { KIB = 1 << 10, MIB = 1 << 20, INBOX = 4096 };
static const int64_t MS = 1000000;

extern const struct perigee_transport perigee_transport_inproc;
/* The same beside another, for opaque memory; and its newest half of who dialed,
 * or of who listened, breaks. */
extern const struct perigee_transport perigee_transport_inproc_additional;
void perigee_inproc_break(int dialed);
extern const struct perigee_memory perigee_memory_opaque;

/* What a test's state points to. */
struct variant {
  const char *name, *transport, *memory;
  int pull;
  const char *how; /* perigee_options.rdma; of tcp: "sealed", "streams" */
};
extern const struct variant variant_default;

struct pair {
  const struct variant *variant;
  struct perigee_engine *engine[2]; /* 0 dials, 1 listens */
  struct perigee_session *session[2];
  struct perigee_listener *listener;
  struct perigee_event inbox[2][INBOX]; /* not yet asked for by the test */
  int kept[2];
  bool still[2];              /* not polled: the side is busy, or stopped */
  char path[64], address[80]; /* a path only where it is a Unix address */
};

/* Options with the plugins, as the variant wants them. */
void variant_options(const struct variant *v, struct perigee_options *o);
void pair_open(struct pair *p, void *state);
/* The path of the next pair's socket, for children forked before it. */
const char *pair_path_next(void);
void pair_open_with(struct pair *p, void *state,
                    const struct perigee_options *options);
/* Side 1 listens where its variant is dialed. */
void pair_listen(struct pair *p);
/* One more session between the two, [0] and [1] as above. */
void pair_dial(struct pair *p, struct perigee_session *session[2]);
/* Nothing may be left in flight and no pooled byte taken. */
void pair_close(struct pair *p);
/* The same without the checks. */
void pair_drop(struct pair *p);

/* Polls both until an event of one side, which must be of this kind. A side
 * with an event that points to something is not polled until it is taken. */
struct perigee_event until(struct pair *p, int side, int kind);
/* One poll of a side, if it may be polled. */
void poll_side(struct pair *p, int side);
/* Takes an event that is there. */
bool taken(struct pair *p, int side, struct perigee_event *event);
/* Polls both for some rounds, in which neither may have an event. */
void quiet(struct pair *p, int rounds);
/* Polls both until neither has an operation any more. */
void settle(struct pair *p);
uint64_t operations(struct pair *p, int side);

/* length + 1 bytes to be freed. */
uint8_t *pattern(uint64_t length, uint8_t seed);
/* Memory of the variant's kind. */
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
/* The end of an operation of side 0, or PERIGEE_INLINE. */
void finish(struct pair *p, int op, int status);
/* The next event of a side is the end of this operation. */
struct perigee_event ended(struct pair *p, int side, int op, int status);

int64_t clock_now(void);
int descriptors(void);

/* Runs each test over all variants. */
int run_matrix(const char *suite, const struct CMUnitTest *tests, int count);
/* A test over one variant. */
#define OVER(variant, test)                                                    \
  { #test " (" #variant ")", test, NULL, NULL, (void *)(uintptr_t)(&(variant)) }
#define RUN_MATRIX(suite, tests)                                               \
  run_matrix(suite, tests, (int)(sizeof(tests) / sizeof *(tests)))

#endif
