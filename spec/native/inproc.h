/* SPDX-License-Identifier: Apache-2.0
 *
 * inproc.h - what the files of the in-process transport share. plugin_inproc.c
 * has the lane that a session begins with, inproc_payloads.c what both lanes
 * carry, inproc_link.c the additional lane.
 */
#ifndef INPROC_H
#define INPROC_H

#include "transport/transport.h"

enum { CREDIT = 64 << 10, REGIONS = 4096, OPERATIONS = 65536, SPLINTER = 5000 };

struct late {
  struct late *next;
  uint64_t length;
  int delay;
  _Alignas(64) uint8_t bytes[];
};

struct queue {
  struct late *first, **last, *peeked;
  uint64_t bytes; /* not yet released */
};

/* An item of a job, which is copied through a block of its own. */
struct task {
  struct task *next;
  struct job *job;
  uint32_t slot;
  struct payload from, to;
  struct copies from_copies, to_copies;
  uint64_t wanted, filled, put; /* bytes of this splinter */
  uint64_t done, total;
  uint8_t block[SPLINTER];
};

struct lane {
  struct lane_head head;
  struct lane *peer, *next; /* next: of all that there are */
  uint64_t number;
  struct share *share;
  struct late *reserved[RINGS];
  struct queue in[RINGS];
  struct exposed *loans; /* all loans not yet withdrawn */
  uint64_t regions[REGIONS];
  uint32_t marks[OPERATIONS];
  uint32_t seed, arms, kicked;
  bool armed, joined, alone, met, over;
  uint8_t *said; /* bytes from the peer, in place of a socket */
  uint64_t said_length, said_taken;
  bool dialed, broken; /* of an additional lane */
  struct area *areas[REGIONS];
  struct task *tasks;
};

/* What a source's address points to. It lives until it is withdrawn and no
 * fetch from it is under way. */
struct exposed {
  struct payload *payload; /* the operation's; a loan's: own; NULL: withdrawn */
  struct payload own;
  struct exposed *next;
  int fetches;
};

static inline uint32_t inproc_chance(struct lane *lane) {
  lane->seed = lane->seed * 1664525 + 1013904223;
  return lane->seed >> 16;
}

static inline bool inproc_later(struct lane *lane) {
  return !lane->armed && inproc_chance(lane) % 3 != 0;
}

static inline uint64_t inproc_splinter(struct lane *lane, uint64_t length) {
  uint64_t n = 1 + inproc_chance(lane) % SPLINTER;
  return n < length ? n : length;
}

/* plugin_inproc.c */
int inproc_open(const struct lane_options *options, struct lane **lane,
                struct offer *offer, char reason[REASON]);
int inproc_join(struct lane *lane, const struct offer *offer,
                char reason[REASON]);
void inproc_close(struct lane *lane);
void inproc_cut(struct lane *lane);
extern const struct transport_sleep inproc_sleep;

/* inproc_payloads.c */
extern const struct transport_payloads inproc_payloads;
extern const struct transport_loans inproc_loans;
void inproc_loans_end(struct lane *lane);

/* inproc_regions.c */
/* Does the peer still let this side use that? 0, or why not. */
int inproc_refuses(const struct lane *lane, const struct window *window);
extern const struct transport_access inproc_access;
extern const struct transport_copies inproc_copies;

/* inproc_link.c */
void inproc_tasks_end(struct lane *lane);
void inproc_link_gone(const struct lane *lane);

#endif
