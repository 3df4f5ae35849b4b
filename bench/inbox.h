/* SPDX-License-Identifier: Apache-2.0
 *
 * The events of an engine one at a time, for echoes over Perigee in C.
 */
#ifndef BENCH_INBOX_H
#define BENCH_INBOX_H

#include "perigee.h"

enum { BATCH = 64 };

struct inbox {
  struct perigee_engine *engine;
  int under;                          /* calls under way at most */
  struct perigee_event events[BATCH]; /* polled together and not yet handled */
  int first, found;
};

/* Waits for the next event: 1 or a status. It polls for as many events as can
 * be under way, so with one call under way it does not look for a second
 * event. */
static inline int inbox_next(struct inbox *in, int64_t limit,
                             const struct perigee_event **event) {
  int room = in->under < BATCH ? in->under : BATCH, status = 0;
  if (in->first == in->found) {
    in->first = 0;
    while (status >= 0 &&
           (in->found = perigee_poll(in->engine, in->events, room)) == 0)
      status = perigee_wait(&in->engine, 1, limit);
    if (status < 0 || in->found < 0)
      return status < 0 ? status : in->found;
  }
  *event = &in->events[in->first++];
  return 1;
}

/* Waits for the reply of a caller that has one call under way. */
static inline const struct perigee_event *
inbox_await(struct inbox *in, int operation, int64_t spin) {
  struct perigee_event *e = in->events;
  while (perigee_await(in->engine, operation, e, spin) == 0)
    if (perigee_poll(in->engine, e, 1) == 1)
      break; /* the reply came between the two calls */
  return e;
}

#endif
