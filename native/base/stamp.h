/* SPDX-License-Identifier: Apache-2.0
 *
 * stamp.h - when a call passes which point, for bench/anatomy.lua
 *
 * Only a build with PERIGEE_ANATOMY (make anatomy) has stamps; in any other
 * STAMP() is nothing. A process whose environment has PERIGEE_ANATOMY=FOLDER
 * writes the file FOLDER/PID: a word of 64 bits for each stamp, the ticks of
 * the processor's clock times 32, and the point. All processes of a host share
 * that clock. The words behind the last one are 0.
 */
#ifndef STAMP_H
#define STAMP_H

/* bench/anatomy.lua has their numbers. */
enum stamp {
  STAMP_ASKED = 1,     /* the caller's program begins a call */
  STAMP_CALLED = 2,    /* the core is called */
  STAMP_PUBLISHED = 3, /* a record is complete: the transport takes it */
  STAMP_WROTE = 4,     /* a socket took bytes */
  STAMP_READ = 5,      /* a socket gave bytes */
  STAMP_SEEN = 6,      /* a poll found a record */
  STAMP_GIVEN = 7,     /* a poll gives events to the program */
  STAMP_HANDLER = 8,   /* a handler begins */
  STAMP_HANDLED = 9,   /* a handler returns */
  STAMP_DONE = 10,     /* the caller's program has the result */
};

#ifdef PERIGEE_ANATOMY
#include <stdint.h>
#include <time.h>

#define STAMP_API __attribute__((visibility("default")))

STAMP_API extern uint64_t *perigee_stamps_next, *perigee_stamps_end;
/* Opens the file (STAMPS_OPEN() in C). Until then, and without a folder, next
 * is end. */
STAMP_API void perigee_stamps_open(void);
/* The same as STAMP() and stamp_ticks(), for Lua. */
STAMP_API void perigee_stamp(int point);
STAMP_API uint64_t perigee_ticks(void);

static inline uint64_t stamp_ticks(void) {
#ifdef __x86_64__
  return __builtin_ia32_rdtsc();
#else
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
#endif
}

static inline void STAMP(int point) {
  if (perigee_stamps_next != perigee_stamps_end)
    *perigee_stamps_next++ = stamp_ticks() << 5 | (uint64_t)point;
}
#define STAMPS_OPEN() perigee_stamps_open()
#else
#define STAMP(point) ((void)0)
#define STAMPS_OPEN() ((void)0)
#endif

#endif
