/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_distance.c - are the cores of the two sides near or far?
 *
 * Two cores are near if they share a cache, and far if they do not; a line that
 * goes from one to the other tells. A store to a line that the peer's core has,
 * as the reader of what was there before, first fetches that line: 25 ns a KiB
 * near, some 200 far. A streaming store fetches nothing and takes 40 ns a KiB in
 * either case, and the peer then reads memory in place of a cache
 * (bench/history/tried.md, "Large raw calls"). So what goes to a far peer is
 * streamed: payloads (shm_stage.c), what programs copy to loans (copy_far),
 * one-sided writes (shm_regions.c), and long records (ring_out.streams).
 *
 *   state   a line that was tried came        becomes
 *   near    late, and the one before it       far
 *   far     soon                              near
 *
 * The thread of a virtual machine moves from core to core, so it is tried again
 * after EVERY payloads, and after a slow copy, unless that was done within the
 * last SOON. Nobody tries the line of a window that the receiver empties by
 * itself, so the next trial is after SOON. The time of copies tells no more than
 * that, as what they read may come from memory, and what they write over may be
 * there, too. A loan counts as a payload, and is tried when it comes back, by its
 * first line.
 *
 * One-sided writes have a distance of their own, by the first line that one of them
 * is about to write: nobody tells whether the peer has read it. If it has not, the
 * line comes soon, unless it was streamed or never used: then only memory has it,
 * and it is late on near cores, too. What is written to such lines takes no longer
 * past the caches; what is written again and again to the same place without being
 * read takes 1.4 times as long, once it is streamed.
 *
 * Long records of a session's rings have a distance of their own, as its trials
 * are less certain: their lines are those of a lap. Each time that a ring hears of
 * one (at most three times a lap), that counts as one payload for each LAP bytes of
 * the ring. A line is tried that is free for the next records, and of which this
 * side has not taken hold yet (ring_own). The peer read what was there in the lap
 * before, which was a whole one, written through the caches (ring_out.since):
 * streamed lines that the peer's program did not read come from memory, so a near
 * ring would stay far. So before a trial of a ring that streams, one lap of it goes
 * through the caches, and there are fewer trials. If no ring of the lane has heard
 * of a long record for RECENT, caches may have dropped what was there: the cores
 * are taken for near, and are tried a lap later.
 */
#include <sys/mman.h>

#include "base/copy.h"
#include "base/least.h"
#include "shm.h"

enum { EVERY = 127, SOON = 8, LAP = 64 << 10 };

/* How often a ring that streams hears of long records between two laps through the
 * caches, which take up to 1.5 times as long. */
enum { SELDOM = 128 };

/* ns: a line took 0 to 65 near and 100 to 180 far. */
static const int64_t LATE = 85;
static const int64_t SLOW = 90; /* ns a KiB */

/* ns since a ring of the lane heard of a long record: long enough for records that
 * follow closely. */
static const int64_t RECENT = 20000000;

bool distance_due(const struct shm_distance *d) {
  return d->wait == 0;
}

bool distance_begin(struct shm_distance *d) {
  bool due = distance_due(d);
  if (due)
    d->wait = SOON;
  return due;
}

void distance_pass(struct shm_distance *d, uint32_t payloads) {
  d->wait -= (uint32_t)least(d->wait, payloads);
}

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

/* perigee_copy hears of what has changed. */
static void distance_tell(struct lane *lane, bool far) {
  if (far && !lane->told_far) {
    lane->told_far = copy_far(lane->arena, lane->arena_length);
  } else if (!far && lane->told_far) {
    lane->told_far = false;
    copy_near(lane->arena);
  }
}

void distance_end(struct lane *lane) {
  distance_tell(lane, false);
}

/* Measures how long the line takes to come, less what a reading of the clock
 * takes, once all stores before are done. The first reading behind the fence takes
 * longer, and is left out. Nothing in the line changes, whoever writes there
 * meanwhile. (Not inline: GCC says of such a fence that ThreadSanitizer knows
 * none.) */
__attribute__((noinline)) void
distance_try_line(struct lane *lane, struct shm_distance *d, uint8_t *line) {
  _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)line;
  atomic_thread_fence(memory_order_seq_cst);
  shm_clock(lane);
  int64_t before = shm_clock(lane), begin = shm_clock(lane);
  atomic_fetch_add_explicit(word, 0, memory_order_relaxed);
  distance_learn(d, shm_clock(lane) - begin - (begin - before));
  distance_tell(lane, lane->distance.far);
}

/* What nobody has written is read without making its page: nor is it made here. */
static bool page_is_there(uint8_t *bytes) {
  unsigned char there;
  return mincore(bytes, 1, &there) == 0 && there & 1;
}

void distance_try_read(struct lane *lane, uint8_t *bytes) {
  if (!distance_begin(&lane->distance))
    distance_pass(&lane->distance, 1);
  else if (page_is_there(bytes))
    distance_try_line(lane, &lane->distance, bytes);
}

/* As how many payloads it counts that a ring has heard so often of long records. */
static uint32_t ring_payloads(const struct ring_out *ring, uint32_t times) {
  return times * (uint32_t)((ring->size + LAP - 1) / LAP);
}

static void ring_stream(struct ring_out *ring, bool stream) {
  if (!stream)
    ring->since = ring->head;
  ring->streams = stream;
}

static void rings_stream(struct lane *lane, bool stream) {
  for (int i = 0; i < RINGS; i++)
    ring_stream(&lane->out[i], stream);
}

/* The line is one of those where the record goes: what a lap leaves at its end
 * was never read. */
static void ring_try_line(struct lane *lane, struct ring_out *ring,
                          uint64_t length) {
  struct shm_distance *d = &lane->records;
  uint64_t at = ring->head & (ring->size - 1), rest = ring->size - at;
  uint64_t end = ring->head + (length <= rest ? 0 : rest) + RING_LONG;
  uint8_t *line = ring->bytes + ((end - RING_UNIT) & (ring->size - 1));
  if (end < ring->since + ring->size + RING_UNIT ||
      !ring_is_behind(ring, end - ring->size))
    return;
  distance_try_line(lane, d, line);
  if (d->far)
    d->wait = ring_payloads(ring, SELDOM);
  rings_stream(lane, d->far);
}

void distance_try_ring(struct lane *lane, struct ring_out *ring,
                       uint64_t length) {
  struct shm_distance *d = &lane->records;
  int64_t now = *lane->options.now;
  bool recent = now - d->tried < RECENT;
  d->tried = now;
  if (!recent) {
    *d = (struct shm_distance){.tried = now};
    rings_stream(lane, false);
  } else if (!distance_due(d)) {
    distance_pass(d, ring_payloads(ring, 1));
  } else if (ring->streams) {
    ring_stream(ring, false); /* for one lap */
  } else {
    ring_try_line(lane, ring, length);
  }
}
