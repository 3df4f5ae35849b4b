/* SPDX-License-Identifier: Apache-2.0
 *
 * spin.h - how long a wait polls before it sleeps: as long as that has paid
 * lately, by how the engine's own waits ended; and when it gives its core up
 * meanwhile. These functions decide, from times that they are told; wait.c
 * waits.
 *
 *   state   a wait                         event                      becomes
 *   eager   polls for `limit`, which is    it found something         eager: most
 *           `most` at most, then sleeps    it found nothing           eager: half
 *                                          the same, and half is less
 *                                          than a sixteenth of most   shy
 *   shy     polls for a moment, and        it was woken soon, and
 *           sleeps                         `pause` is over            eager: most
 *
 * Woken soon: within twice most, so it could have been found while polling, by
 * a peer that does not need this core. It is tried whether it is: with no pause
 * the first time, then, until something is found, after pauses that double. So
 * what does not pay costs a sixteenth of the time at most. It is tried for some
 * waits in a row, as every other one may be long.
 *
 *   state   a wait that polls              event                      becomes
 *   alone   gives the core up every 64     that took some us          others
 *           polls (by sched_yield)         it took half a ms          hold
 *   others  after each poll                it took next to nothing    alone
 *                                          it took half a ms          hold
 *   hold    keeps the core                 64 times what it took      alone
 *                                          are over; twice as long
 *                                          from one to the next
 *
 * Nobody has to be asked how many cores there are for how many processes: who
 * gives a core up learns whether somebody else wanted it. What ran meanwhile is
 * mostly the peer that the wait is for, or one that will sleep soon; so two
 * processes on one core hand it to and fro, and neither sleeps nor wakes the
 * other. Those who compute keep a core for milliseconds: one's own share of it is
 * had by not giving it up.
 *
 * Owner: the thread that the engine belongs to. Cost: none for what is found
 * within a moment, of 64 polls of one session or some 3 us; then a system call
 * of 0.2 us, and two looks at the clock, in 64 polls.
 */
#ifndef SPIN_H
#define SPIN_H

#include <stdbool.h>
#include <stdint.h>

struct spin {
  int64_t most;  /* ns: options.spin, or by default */
  int64_t limit; /* for the next wait; 0: shy */
  int64_t pause; /* the next one; 0: something was found since the last, */
  int64_t tries; /* and when it is over */
  int64_t hold;  /* the same for giving the core up */
  int64_t yields;
  uint64_t wasted; /* the engine's progress when a wait polled in vain last */
  bool given;      /* most is options.spin */
  bool always;     /* options.spin_always: limit is most, the core is kept */
  bool others;     /* ran when the core was given up last */
  bool soon;       /* the last sleep was short */
};

/* most < 0: by default. */
void spin_open(struct spin *spin, int64_t most, bool always);
/* Sleeping and waking take longer from now on: a default is so many times. */
void spin_lengthen(struct spin *spin, int times);
/* A wait begins, when so much has happened in all: for how long may it poll? Not
 * at all if the one before did, in vain, and nothing has happened since. */
int64_t spin_begin(struct spin *spin, int64_t now, uint64_t progress);
/* It found something that was not there yet, */
static inline void spin_paid(struct spin *spin) {
  spin->limit = spin->most;
  spin->pause = 0;
}
/* or nothing within its limit, */
void spin_wasted(struct spin *spin, int64_t now, uint64_t progress);
/* and was woken so long after it had begun. */
void spin_woken(struct spin *spin, int64_t after);
/* Is the core to be given up now? When it was, it was ours again after `took`. */
bool spin_yields(const struct spin *spin, int64_t now);
void spin_yielded(struct spin *spin, int64_t now, int64_t took);

#endif
