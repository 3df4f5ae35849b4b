/* SPDX-License-Identifier: Apache-2.0
 *
 * partner.h - a pair whose side 1, the partner, is an engine in a thread of its
 * own, which answers side 0, calls it back, or leaves, as a call asks.
 */
#ifndef PARTNER_H
#define PARTNER_H

#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LONG = 300 * KIB, MANY = 2000, BACK_MOST = 64, RW = 3 };
static const int64_t SECOND = 1000000000;

/* What a call asks of the peer, by its method. */
enum asked {
  ECHO = 1,
  BACK,   /* makes `back` calls itself before it answers */
  LATER,  /* the same, and answers once they have ended */
  SILENT, /* no answer */
  LEAVE,  /* closes the session */
  SEND    /* sends a message before it answers */
};

struct partner {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *region; /* of SEND */
  pthread_t thread;
  atomic_bool over;
  pthread_mutex_t lock; /* of the fields below, which both threads use */
  int back;             /* calls that BACK makes, by their lengths */
  uint32_t lengths[BACK_MOST];
  uint8_t *bytes;         /* those of all calls that it makes */
  uint16_t flags;         /* of these calls */
  int silent, later;      /* the call that has no answer, or -1 */
  int replies[BACK_MOST]; /* statuses of what it called, in order */
  int replied, wrong;
};

/* From here on side 1 belongs to its thread. */
void partner_begin(struct partner *w, struct pair *p);
void partner_end(struct partner *w, struct pair *p);
/* What BACK calls: lengths in the ring, of one block, beyond the eager limit. */
void partner_back_in_all_lengths(struct partner *w, int count);
/* The same, of one length. */
void partner_back_alike(struct partner *w, int count, uint32_t length);

/* The pair, and what side 0 needs. */
struct play {
  struct pair pair;
  struct partner partner;
  struct perigee_engine *engine;
  struct perigee_session *session;
  uint8_t *bytes;
  uint16_t flags; /* of the calls of play_echo() */
};

void play_open(struct play *t, void *state);
/* Without the thread yet. most: of requests in service, or 0. */
void play_open_with(struct play *t, void *state, uint64_t most);
/* Side 0 keeps nothing. Nobody looks at what comes to side 1 any more. */
void play_settle(struct play *t);
void play_close(struct play *t);
/* Closes what may have events left. */
void play_drop(struct play *t);

struct perigee_message play_message(enum asked method, const uint8_t *bytes,
                                    uint64_t length);
/* Calls and waits; the reply has the same bytes. */
void play_echo(struct play *t, enum asked method, uint64_t length);
/* The next event, by poll and wait. */
struct perigee_event play_next(struct play *t);
void play_none_waits(struct play *t);
uint64_t play_polls(struct play *t);
/* Takes what BACK has called, in order, and answers. */
void play_serve_all(struct play *t, int count);

#endif
