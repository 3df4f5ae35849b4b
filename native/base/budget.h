/* SPDX-License-Identifier: Apache-2.0
 *
 * budget.h - the bound on what a poll copies. A poll stops copying after BUDGET
 * bytes, and earlier once it has taken BUDGET_TIME. Memory that nobody has
 * touched takes thirty times as long as other memory, or more, since the kernel
 * first makes each page. So the clock is read after each piece, and pieces are
 * the shorter, the longer the last ones took.
 *
 * No piece is shorter than the page that the kernel makes for it. A machine
 * that makes 2 MiB at a time mostly needs 0.2 ms for such a page. A virtual
 * machine whose host has to find the memory first needs 4 ms and more, and
 * less for the same memory in small pages. So an engine that meets such a page
 * has the memory of its regions made in small pages for a while (region.c). A
 * piece may also take long because other processes had the core: the time of
 * the thread itself tells these two apart. It costs a system call, so only polls
 * that follow one that copied read it, for the first pieces of an engine's life
 * and for some after each long one.
 */
#ifndef BUDGET_H
#define BUDGET_H

#include <stdbool.h>
#include <stdint.h>

enum { BUDGET = 1 << 20 }; /* bytes */
/* Bytes. A piece that is pulled from another process takes a microsecond of
 * system calls; the longest one takes 25 of copying. An engine begins with half
 * of that, and learns. */
enum { PIECE_LEAST = 16 << 10, PIECE_MOST = 256 << 10 };
enum { BUDGET_TIME = 250000, PIECE_TIME = BUDGET_TIME / 4 }; /* ns */
/* A piece of the thread's own time that tells of such a page (ns), and as many
 * looks at that time. */
enum { PAGE_TIME = 1000000, PAGE_LOOKS = 64 };

struct budget {
  uint64_t left;      /* bytes that this poll may still copy */
  uint64_t piece;     /* the most that is copied in one go */
  uint64_t unclocked; /* bytes copied since the clock was read for them */
  int64_t from, read; /* when a poll last read the clock at its begin, and when
                         it was read last */
  int64_t own;        /* the thread's own time when it was read last */
  uint64_t poll;      /* the poll that read it */
  uint32_t looks;     /* how often it is to be read from now on */
  bool slow_pages;    /* a large page took too long */
};

static inline void budget_open(struct budget *b) {
  *b = (struct budget){.piece = PIECE_MOST / 2, .looks = PAGE_LOOKS};
}

/* Begins a poll that reads the clock, as each poll does after one that copied.
 * Any other poll copies a single piece. */
static inline void budget_begin(struct budget *b, int64_t now) {
  b->from = b->read = now;
}

/* The thread's own time, in a poll that reads the clock, before it copies. */
static inline void budget_begin_own(struct budget *b, int64_t own,
                                    uint64_t poll) {
  b->own = own;
  b->poll = poll;
}

/* The program has worked since a poll began, so the next piece tells nothing. */
static inline void budget_forget_own(struct budget *b) {
  b->poll = 0;
}

/* The same behind a piece. What the program did between two polls is none. */
static inline void budget_look(struct budget *b, int64_t own, uint64_t poll) {
  if (poll == b->poll && own - b->own >= PAGE_TIME)
    b->slow_pages = true;
  budget_begin_own(b, own, poll);
  b->looks--;
}

/* The most that may be copied now in one go. */
static inline uint64_t budget_most(const struct budget *b) {
  return b->left < b->piece ? b->left : b->piece;
}

/* Counts n bytes that were copied; true: the clock is to be read. */
static inline bool budget_counts(struct budget *b, uint64_t n) {
  b->unclocked += n;
  return b->unclocked >= b->piece;
}

/* It was read. True: the poll has taken its time. */
static inline bool budget_is_over(struct budget *b, int64_t now) {
  int64_t took = now - b->read;
  if (took >= PAGE_TIME)
    b->looks = PAGE_LOOKS;
  if (took > PIECE_TIME && b->piece > PIECE_LEAST)
    b->piece /= 2;
  else if (took < PIECE_TIME / 4 && b->piece < PIECE_MOST)
    b->piece *= 2;
  b->unclocked = 0;
  b->read = now;
  return now - b->from >= BUDGET_TIME;
}

#endif
