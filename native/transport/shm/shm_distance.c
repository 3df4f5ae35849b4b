/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_distance.c - whether the cores of the two sides share a cache (near) or do
 * not (far), as a line tells that goes from one to the other.
 *
 * A store to a line that the peer's core has, as the reader of what was there
 * before, first fetches that line: 25 ns a KiB near, some 200 far. A streaming
 * store fetches nothing and takes 40 ns a KiB in either case, and the peer then
 * reads memory in place of a cache (bench/tried.md, "Large raw calls").
 *
 *   state   a line that was tried came        becomes
 *   near    late, and the one before it       far
 *   far     soon                              near
 *
 * The thread of a virtual machine moves from core to core, so it is tried again
 * after EVERY payloads, and after a slow copy, unless that was done within the
 * last SOON. How long copies take tells no more than that, as what they read may
 * come from memory, and what they write over may be there, too.
 */
#include "shm.h"

enum { EVERY = 64, SOON = 8 };
/* ns: a line took 0 to 65 near and 100 to 180 far. */
static const int64_t LATE = 85;
static const int64_t SLOW = 90; /* ns a KiB */

void distance_learn(struct shm_distance *d, int64_t line) {
  bool late = line > LATE;
  d->far = late && (d->late || d->far);
  d->wait = late && !d->far ? 0 : EVERY;
  d->late = late;
}

void distance_copied(struct shm_distance *d, uint64_t bytes, int64_t took) {
  bool slow = took > SLOW * (int64_t)bytes / 1024;
  if (slow && d->wait <= EVERY - SOON)
    d->wait = 0;
}
