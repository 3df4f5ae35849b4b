/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_support.h - for tests of sessions with a second lane, named "link"
 * (inproc_link.c): pairs that have one, calls and regions in opaque memory, and
 * what explain() tells of the lane.
 */
#ifndef LANES_SUPPORT_H
#define LANES_SUPPORT_H

#include "support.h"

/* LEAST: bytes from which on the link is used. */
enum { LEAST = 4096, LARGE = 300001 };

extern const struct variant over_shm, over_staged, over_tcp, over_inproc;
#define OVER_ALL(test)                                                         \
  OVER(over_shm, test), OVER(over_staged, test), OVER(over_tcp, test),         \
      OVER(over_inproc, test)

/* Options of an engine that has the link, and pairs of such engines. */
void link_options(const struct variant *v, struct perigee_options *o);
void link_open(struct pair *p, void *state);
void link_open_between(struct pair *p, const struct variant *v,
                       const struct perigee_options *dials,
                       const struct perigee_options *listens);

/* explain() tells this side that text; so many payloads taken and items moved
 * by that side. */
void link_says(struct pair *p, int side, const char *what);
void link_counts(struct pair *p, int side, int payloads, int items);
/* Both sides know that the link is lost, and the session goes on over the first
 * lane. */
void link_goes_on(struct pair *p);

/* A typed message with a slice; `into` may be NULL. */
struct perigee_message typed_message(const struct perigee_slice *slice,
                                     const struct perigee_slice *into);

/* The memory of a call with a slice both ways: side 0's, where it lands at side
 * 1, and where the reply lands. */
struct places {
  struct perigee_region *from, *to, *back;
  uint8_t *bytes;
  uint64_t length;
};
void places_open(struct pair *p, struct places *s, uint64_t length);
void places_close(struct pair *p, struct places *s);
/* Begins the call, up to where its slice lands. */
int places_call(struct pair *p, const struct places *s);
/* A whole call of that length. */
void link_round_trip(struct pair *p, uint64_t length);

/* The memory of transfers by side 0. */
struct sides {
  struct perigee_region *here, *there;
  struct perigee_remote *remote;
  uint8_t *bytes;
};
void sides_open(struct pair *p, struct sides *s, const char *name);
void sides_close(struct pair *p, struct sides *s);
struct perigee_transfer sides_item(const struct sides *s, uint64_t offset,
                                   uint64_t length);
/* Transfers, and awaits the end. */
void sides_move(struct pair *p, int operation, struct perigee_transfer *t,
                uint32_t count, int status);

/* A pair with such memory, of LARGE bytes. */
void link_open_places(struct pair *p, void *state, struct places *s);
void link_close_places(struct pair *p, struct places *s);
void link_open_sides(struct pair *p, void *state, struct sides *s);
void link_close_sides(struct pair *p, struct sides *s);

#endif
