/* SPDX-License-Identifier: Apache-2.0
 *
 * spin.h - decides how long a wait polls before it sleeps, from how the
 * engine's previous waits ended, and when a polling wait yields its core. These
 * functions only decide, from times that they are given; wait.c does the
 * waiting.
 *
 *   state   a wait                         event                      becomes
 *   eager   polls for `limit`, which is    it found something        eager: most
 *           `most` at most, then sleeps    it found nothing          eager: half
 *                                          the same, and half is less
 *                                          than a sixteenth of most   shy
 *   shy     polls for a moment, and        it was woken soon, and
 *           sleeps                         `pause` is over           eager: most
 *
 * "Woken soon" is within twice `most`: a peer that does not need this core
 * could have been found by polling. Polling is then tried again: at once the
 * first time, and after pauses that double until something is found. So polling
 * that does not pay costs at most a sixteenth of the time. Each try lasts for
 * several waits in a row, as every other wait may be a long one.
 *
 *   state   a wait that polls              event                      becomes
 *   alone   gives the core up every 64     that took some us          others
 *           polls (by sched_yield), from   it took 2 ms               hold
 *           the second time on
 *   others  after each poll                it took next to nothing    alone
 *                                          it took 2 ms               hold
 *   hold    keeps the core                 64 times what it took      alone
 *                                          are over; twice as long
 *                                          from one to the next
 *
 * The numbers of cores and processes need not be known: an engine that yields
 * learns whether another process wanted the core. Mostly the peer that the wait
 * is for runs meanwhile, or a process that sleeps soon. So two processes on one
 * core hand it to each other, without sleeps and wake-ups. A process that
 * computes keeps a core for milliseconds; against it, an engine gets its share
 * of the core by not yielding.
 *
 * Those 64 polls are counted from wait to wait, so the first time may come with
 * the first poll of a wait that ends at once.
 *
 * Belongs to the engine's thread. Cost: nothing for what is found within a
 * moment (64 to 128 polls of one session, with a pause in each); after that one
 * system call of 0.2 us and two readings of the clock in 64 polls.
 */
#ifndef SPIN_H
#define SPIN_H

#include <stdbool.h>
#include <stdint.h>

struct spin {
  int64_t most; /* ns: options.spin, or the default */
  struct learned {
    int64_t limit;   /* ns that the next wait may poll; 0: shy */
    int64_t pause;   /* ns of the next pause; 0 once a wait found something */
    int64_t tries;   /* time at which the pause ends */
    uint64_t wasted; /* the engine's progress when a wait last found nothing */
    bool soon;       /* the last sleep was short */
  } of[2];           /* of waits for what others want; for an answer */
  int64_t hold;      /* ns for which the core is kept; doubles like pause */
  int64_t yields;
  bool answer; /* the wait that began last is for an answer */
  bool given;  /* `most` is options.spin, not the default */
  bool always; /* options.spin_always: polls for `most` and never yields */
  bool others; /* another process ran at the last yield */
};

/* most < 0: the default. */
void spin_open(struct spin *spin, int64_t most, bool always);
/* Multiplies the default, on an engine where sleeping and waking take
 * longer. */
void spin_lengthen(struct spin *spin, int times);
/* A wait begins, for an answer or not; progress counts all that the engine has
 * done. Returns for how long it may poll: 0 if the previous wait of its kind
 * found nothing and nothing happened since. */
int64_t spin_begin(struct spin *spin, int64_t now, uint64_t progress,
                   bool answer);
/* The wait found something that was not there at its begin. */
static inline void spin_paid(struct spin *spin) {
  struct learned *at = &spin->of[spin->answer];
  at->limit = spin->most;
  at->pause = 0;
}
/* The wait found nothing within its limit. */
void spin_wasted(struct spin *spin, int64_t now, uint64_t progress);
/* The wait slept and was woken `after` ns after its begin. */
void spin_woken(struct spin *spin, int64_t after);
/* Should the core be yielded now? After a yield, `took` tells for how long. */
bool spin_yields(const struct spin *spin, int64_t now);
void spin_yielded(struct spin *spin, int64_t now, int64_t took);

#endif
