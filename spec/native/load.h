/* SPDX-License-Identifier: Apache-2.0
 *
 * load.h - two engines in one thread that keep each other busy: writes, reads,
 * calls with long arguments and with long results, all the time in both
 * directions. Every byte is checked when its operation ends.
 */
#ifndef LOAD_H
#define LOAD_H

#include "support.h"

enum { LOAD_WRITES = 3, LOAD_READS = 3, LOAD_PUTS = 2, LOAD_GETS = 2 };
enum { LOAD_TRANSFERS = LOAD_WRITES + LOAD_READS };
enum { LOAD_ALL = LOAD_TRANSFERS + LOAD_PUTS + LOAD_GETS };
enum { LOAD_SIZE = 150 * KIB };

struct load_side {
  struct perigee_region *own, *target,
      *source; /* target: the peer writes it; source: it reads it */
  struct perigee_remote *peer_target, *peer_source;
  struct perigee_transfer transfers[LOAD_TRANSFERS];
  int operation[LOAD_ALL]; /* -1: none */
  uint64_t done[LOAD_ALL];
  int lost; /* LOST events */
};

struct load {
  struct pair p;
  struct load_side side[2];
  bool stopping; /* nothing new is begun */
  bool losing;   /* operations may end in peer_lost */
};

/* Opens the session; load_run() puts the load on. */
void load_open(struct load *load, const struct variant *variant);
/* Opens a new session after the last was lost. */
void load_again(struct load *load);
void load_run(struct load *load, int64_t time);
/* Waits until everything that was begun has ended, at most 20 s. */
void load_stop(struct load *load);
/* The number of operations of both sides that succeeded. */
uint64_t load_done(const struct load *load);
void load_close(struct load *load);

#endif
