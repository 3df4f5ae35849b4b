/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_ways.c - whether a payload is better staged by its owner, or pulled from
 * its owner's memory or copied from where it was lent.
 *
 * Processors and kernels differ too much for a rule: of payloads of 96 KiB
 * between near cores, one machine stages in half the time, and another pulls in
 * 0.9 of it (bench/history/tried.md, "Large raw calls"). So the receiver
 * measures how long either way takes it, from the first look at the payload to
 * its last byte, and says in a word of its outbox which way it prefers. A near
 * owner does what the word says, if it can. A peer that lies gets its payloads
 * later.
 *
 * Lengths between two powers of two are learned together, from LEAST on:
 *
 *   state    event                             becomes
 *   settled  `left` payloads came              trial: the other way is said
 *   trial    the other way was measured        settled: the better one is said,
 *            `tries` times, or `left`          until `pause` payloads came
 *            payloads came
 *
 * The owner may be unable to go the other way: who lends always lends. A pause
 * doubles if the trial changed nothing. What is read where it was lent is not
 * brought here, and not counted. What was lent is copied from there without a
 * system call, so it tells nothing of what is pulled: it is measured only as long
 * as nothing was pulled, as in replies that lie in their request's block.
 *
 * A time may have anything in it: a process that was away, pages that are new.
 * So the cost of a way is about the least of its times: it falls to a lesser one
 * at once, and rises by an eighth at a greater one. Payloads are staged only if
 * that is clearly quicker, as the owner copies as well.
 */
#include "shm.h"

enum { LEAST_BITS = 14, LEAST = 1 << LEAST_BITS };
enum { TRIES = 4, PATIENCE = 32, PAUSE = 63, PAUSE_MOST = 4095 };
/* Before a way's first times count so much has to go it: blocks have new pages
 * until their stretch was filled once. As much is to come for the stretch to be
 * made, if it is not there. */
enum { WARM = 8 << 20 };

_Static_assert(2 * SHM_LENGTHS <= 32, "the word says all of them");

/* Which lengths so many bytes are among; -1: none. */
static int ways_of(uint64_t bytes) {
  if (bytes < LEAST)
    return -1;
  return least(63 - __builtin_clzll(bytes) - LEAST_BITS, SHM_LENGTHS - 1);
}

/* The word has two bits for each. It is a hint: nothing is ordered by it. */
bool ways_staged(const struct lane *lane, uint64_t bytes, bool first) {
  int i = ways_of(bytes);
  if (i < 0)
    return first;
  uint32_t said =
      atomic_load_explicit(&lane->peer->ways, memory_order_relaxed) >> (2 * i) &
      3;
  return said == SHM_WAY_NONE ? first : said == SHM_STAGED;
}

static void ways_say(struct lane *lane, int i, enum shm_way way) {
  uint32_t word = atomic_load_explicit(&lane->own->ways, memory_order_relaxed);
  word = (word & ~(UINT32_C(3) << (2 * i))) | (uint32_t)way << (2 * i);
  atomic_store_explicit(&lane->own->ways, word, memory_order_relaxed);
}

/* ---- Learning ------------------------------------------------------------ */

/* Slots are no way to choose: they are for what cannot be pulled. Windows as
 * short try the distance. */
static enum shm_way way_of_source(const struct source *s, uint64_t total) {
  if (s->kind == SOURCE_STAGED)
    return s->stride == total || s->stride > SHM_STAGE ? SHM_STAGED
                                                       : SHM_WAY_NONE;
  bool one = s->count == 1;
  return one && (s->kind == SOURCE_PRIVATE || s->kind == SOURCE_LOAN)
             ? SHM_UNSTAGED
             : SHM_WAY_NONE;
}

int64_t ways_begin(const struct lane *lane, const struct fetch *f) {
  bool learns = lane->pulls && lane->options.sized && ways_of(f->total) >= 0 &&
                way_of_source(&f->source, f->total) != SHM_WAY_NONE;
  return learns ? shm_clock(lane) : 0;
}

static enum shm_way way_other(enum shm_way way) {
  return way == SHM_STAGED ? SHM_UNSTAGED : SHM_STAGED;
}

static void ways_measure(struct shm_ways *w, enum shm_way way, int64_t took,
                         uint64_t bytes) {
  uint64_t ns = took > 0 ? least((uint64_t)took, UINT32_MAX) : 0;
  uint64_t cost = least((ns << 20) / bytes + 1, UINT32_MAX / 2);
  uint32_t *known = &w->cost[way];
  uint64_t risen = *known + *known / 8 + 1;
  *known = (uint32_t)(*known == 0 ? cost : least(cost, risen));
}

static enum shm_way ways_better(const struct shm_ways *w) {
  uint64_t staged = w->cost[SHM_STAGED], unstaged = w->cost[SHM_UNSTAGED];
  if (staged == 0 || unstaged == 0)
    return w->best;
  return staged * 16 < unstaged * 15 ? SHM_STAGED : SHM_UNSTAGED;
}

/* Returns the way to say. */
static enum shm_way ways_try(struct shm_ways *w, uint64_t bytes) {
  enum shm_way other = way_other(w->best);
  w->tries = TRIES + (w->cost[other] == 0 ? (uint32_t)(WARM / bytes) : 0);
  w->left = w->tries + PATIENCE + (uint32_t)(WARM / bytes);
  return other;
}

static enum shm_way ways_settle(struct shm_ways *w) {
  enum shm_way better = ways_better(w);
  w->pause =
      better == w->best ? (uint32_t)least(2 * w->pause + 1, PAUSE_MOST) : PAUSE;
  w->best = better;
  w->tries = 0;
  w->left = w->pause;
  return better;
}

/* Is a payload measured that came this way, which was lent or was not? */
static bool ways_measures(struct shm_ways *w, enum shm_way way, bool lent) {
  if (way == SHM_STAGED)
    return true;
  if (lent)
    return !w->pulls;
  if (!w->pulls)
    w->cost[way] = 0; /* what lent ones cost */
  w->pulls = true;
  return true;
}

/* A payload came this way: does the state end? */
static bool ways_step(struct shm_ways *w, enum shm_way way, uint64_t bytes) {
  if (w->best == SHM_WAY_NONE) {
    w->best = way;
    w->left = TRIES + (uint32_t)(WARM / bytes);
    w->pause = PAUSE;
  }
  if (w->tries > 0 && way != w->best && --w->tries == 0)
    return true;
  return --w->left == 0;
}

void ways_learn(struct lane *lane, const struct fetch *f, int64_t begun) {
  int i = ways_of(f->total);
  if (i < 0)
    return;
  struct shm_ways *w = &lane->ways[i];
  enum shm_way way = way_of_source(&f->source, f->total);
  bool trial = w->tries > 0;
  if (ways_measures(w, way, f->source.kind == SOURCE_LOAN))
    ways_measure(w, way, shm_clock(lane) - begun, f->total);
  else
    way = w->best; /* it is no try, but a payload of those to wait for */
  if (ways_step(w, way, f->total))
    ways_say(lane, i, trial ? ways_settle(w) : ways_try(w, f->total));
}
