/* SPDX-License-Identifier: Apache-2.0
 *
 * spin.c - learns from waits that have ended (spin.h).
 */
#include "spin.h"

/* ns after which a yielded core came back: from OTHERS on another process
 * wanted it, from COMPUTES on one that computes. */
static const int64_t OTHERS = 2000, COMPUTES = 500000;
static const int64_t MOST = 50000;       /* ns, default limit */
static const int64_t PAUSE = 1000000000; /* ns, longest pause */
/* A pause is FAIR times what polling lost: going shy over most, most / 2, ...
 * costs 2 * most. */
enum { FAIR = 16, HOLD = 64, LEAST = 16, SOON = 2 };

void spin_open(struct spin *spin, int64_t most, bool always) {
  bool given = most >= 0;
  if (!given)
    most = MOST;
  *spin = (struct spin){.most = most,
                        .limit = most,
                        .given = given,
                        .always = always,
                        .wasted = UINT64_MAX};
}

void spin_lengthen(struct spin *spin, int times) {
  if (!spin->given)
    spin->limit = spin->most = times * MOST;
}

int64_t spin_begin(struct spin *spin, int64_t now, uint64_t progress) {
  if (spin->wasted == progress)
    return 0;
  if (spin->limit == 0 && spin->soon && now >= spin->tries)
    spin->limit = spin->most;
  spin->soon = false;
  return spin->limit;
}

static int64_t longer(int64_t pause, int64_t least) {
  int64_t next = pause < least ? least : 2 * pause;
  return next < PAUSE ? next : PAUSE;
}

void spin_wasted(struct spin *spin, int64_t now, uint64_t progress) {
  if (spin->always)
    return;
  spin->wasted = progress;
  spin->limit /= 2;
  if (spin->limit >= spin->most / LEAST)
    return;
  spin->limit = 0;
  spin->tries = now + spin->pause;
  spin->pause = longer(spin->pause, FAIR * 2 * spin->most);
}

void spin_woken(struct spin *spin, int64_t after) {
  spin->soon = after <= SOON * spin->most;
}

bool spin_yields(const struct spin *spin, int64_t now) {
  return !spin->always && now >= spin->yields;
}

void spin_yielded(struct spin *spin, int64_t now, int64_t took) {
  spin->others = took >= OTHERS && took < COMPUTES;
  spin->hold = took < COMPUTES ? 0 : longer(spin->hold, HOLD * took);
  spin->yields = now + spin->hold;
}
