/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_distance.c - whether the cores of the two sides share a cache (near) or do
 * not (far), as copies into staging blocks tell.
 *
 * A store to a line that the peer's core has, as the reader of what was there
 * before, first fetches that line: 25 ns a KiB near, some 200 far. A streaming
 * store fetches nothing and takes 40 ns a KiB in either case, and the peer then
 * reads memory in place of a cache (bench/tried.md, "Copies past the caches").
 *
 *   state   the copy that was measured      becomes
 *   near    was slow, and the one before    far
 *   far     was fast                        near
 *
 * The thread of a virtual machine moves from core to core, so it is measured
 * again and again: each payload that is copied as a whole, by its time; of
 * those that are streamed, or would be pulled, one of EVERY by a piece that is
 * streamed and one that is copied, as where the payload comes from takes time,
 * too. After a first slow copy the next payload is measured.
 */
#include "shm.h"

enum { EVERY = 64, TIMES = 4 };
static const int64_t SLOW = 90; /* ns a KiB */

static void learn(struct shm_distance *d, bool slow) {
  bool again = d->slow || d->far;
  d->wait = slow && !again ? 0 : EVERY;
  d->far = slow && again;
  d->slow = slow;
}

void distance_copied(struct shm_distance *d, uint64_t bytes, int64_t took) {
  learn(d, took > SLOW * (int64_t)bytes / 1024);
}

void distance_compared(struct shm_distance *d, int64_t streamed,
                       int64_t copied) {
  learn(d, copied > TIMES * streamed);
}
