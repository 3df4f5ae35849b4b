/* SPDX-License-Identifier: Apache-2.0
 *
 * spin.c - learns from waits that have ended (spin.h).
 */
#include "spin.h"

/* ns after which a yielded core came back: from OTHERS on another process
 * wanted it, from COMPUTES on one that computes: the scheduler gives such a one
 * some milliseconds (4 where it was measured, Linux 6.18 with two CPUs). Eight servers of one core, each with 64 KiB to copy, are away
 * for most of one millisecond. If they took each other for computing, all would
 * keep the core for as long as they poll, and so be away for as long again. */
static const int64_t OTHERS = 2000, COMPUTES = 2000000;
static const int64_t MOST = 50000;       /* ns, default limit */
static const int64_t PAUSE = 1000000000; /* ns, longest pause */
/* A pause is FAIR times what polling lost: going shy over most, most / 2, ...
 * costs 2 * most. */
enum { FAIR = 16, HOLD = 64, LEAST = 16, SOON = 2 };
/* ns. A longer limit, of which there are multiples, means the same. */
static const int64_t LONGEST = INT64_MAX / (2 * FAIR);

static void spin_limit_all(struct spin *spin, int64_t most) {
  spin->most = spin->of[false].limit = spin->of[true].limit = most;
}

void spin_open(struct spin *spin, int64_t most, bool always) {
  bool given = most >= 0;
  *spin = (struct spin){.of = {{.wasted = UINT64_MAX}, {.wasted = UINT64_MAX}},
                        .given = given,
                        .always = always};
  spin_limit_all(spin, !given ? MOST : most < LONGEST ? most : LONGEST);
}

void spin_lengthen(struct spin *spin, int times) {
  if (!spin->given)
    spin_limit_all(spin, times * MOST);
}

int64_t spin_begin(struct spin *spin, int64_t now, uint64_t progress,
                   bool answer) {
  struct learned *at = &spin->of[answer];
  spin->answer = answer;
  if (at->wasted == progress)
    return 0;
  if (at->limit == 0 && at->soon && now >= at->tries)
    at->limit = spin->most;
  at->soon = false;
  return at->limit;
}

static int64_t spin_longer(int64_t pause, int64_t least) {
  int64_t next = pause < least ? least : 2 * pause;
  return next < PAUSE ? next : PAUSE;
}

void spin_wasted(struct spin *spin, int64_t now, uint64_t progress) {
  struct learned *at = &spin->of[spin->answer];
  if (spin->always)
    return;
  at->wasted = progress;
  at->limit /= 2;
  if (at->limit >= spin->most / LEAST)
    return;
  at->limit = 0;
  at->tries = now + at->pause;
  at->pause = spin_longer(at->pause, FAIR * 2 * spin->most);
}

void spin_woken(struct spin *spin, int64_t after) {
  spin->of[spin->answer].soon = after <= SOON * spin->most;
}

bool spin_yields(const struct spin *spin, int64_t now) {
  return !spin->always && now >= spin->yields;
}

void spin_yielded(struct spin *spin, int64_t now, int64_t took) {
  spin->others = took >= OTHERS && took < COMPUTES;
  spin->hold = took < COMPUTES ? 0 : spin_longer(spin->hold, HOLD * took);
  spin->yields = now + spin->hold;
}
