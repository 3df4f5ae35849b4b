/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - an engine, which owns all: sessions, operations, regions, memory.
 * Nothing of it is touched by two threads at once (lock.h).
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "base/blocks.h"
#include "base/spin.h"
#include "clock.h"
#include "errors.h"
#include "security/vault.h"
#include "session.h"
#include "transport/fault/fault.h"

/* Strangers that were refused, until the program is told. */
struct refusals {
  struct timer timer;
  int64_t every, next; /* ns: between two events; when there may be one */
  uint64_t count;
  int32_t status;
  bool on, due;
  char text[2 * ADDRESS_TEXT + REASON], told[2 * ADDRESS_TEXT + REASON];
};

/* Of memory that goes back to the system (trim.c). */
struct trim {
  struct timer timer;
  bool soon;            /* it is due for more of the last look, */
  uint32_t look;        /* by its number, */
  uint32_t left;        /* which so many keepers did not have yet */
  struct node keepers;  /* sessions whose lanes keep memory for blocks */
  uint32_t count;       /* of them */
  uint32_t ended, seen; /* sessions since malloc was asked; at the last look */
  bool heap_due;        /* it is to be */
};

struct perigee_engine {
  const uint8_t *alive;    /* a page that a child process finds wiped */
  struct progress *thread; /* its own (progress.h); NULL: none, and no lock */
  struct lock *lock;       /* (lock.h) */
  struct perigee_options options;
  struct perigee_event *out; /* of the poll under way */
  int room, filled;
  struct perigee_event
      pending_event; /* found by await for somebody else, or a wait */
  bool
      event_awaited; /* it is what a wait was for: nothing had come for a while */
  bool shared;       /* with a thread: the program has to take it first */
  bool aside;        /* this is the thread's turn */
  bool event_pending, armed, woken, sockets_due, keep, copying;
  bool moved;      /* payload, since the clock was read: time has passed */
  bool away;       /* the program was elsewhere since then: here, too */
  bool more_ready; /* than the last look at the sockets took note of */
  bool notices;    /* there may be a REFUSED or a READY to give */
  uint32_t idle;   /* polls since the clock was read */
  int64_t now, sockets_at;
  uint64_t budget;   /* bytes that this poll may still copy */
  uint64_t asked;    /* by requests that it has read: of long replies */
  uint64_t progress; /* anything at all that happened, counted */
  struct node ready; /* operations with an event */
  uint32_t ready_count;
  struct node late;    /* operations that the program may still look into */
  struct node given;   /* those whose event was given: over at next poll */
  struct node moving;  /* to be stepped at each poll */
  struct node lenders; /* sessions with replies that lie (room.c) */
  struct node fresh;
  struct migration *migration; /* migrate.c: NULL until needed */
  struct node sessions, listeners, endpoints, dead;
  struct node granted; /* sessions whose peer may be inside of a region */
  struct node hot;     /* sessions to poll; others are parked (schedule.c) */
  struct node *turn;   /* of them the next, in schedule_poll */
  uint32_t hot_count, parked;
  struct node news, losses; /* sessions with ACCEPTED, LOST to be told */
  struct perigee_session **by_nonce; /* chains of those called over TCP */
  struct perigee_session **by_id;    /* by id modulo id_slots, a power of two */
  uint32_t id_slots, last_id;
  struct operation *table;
  uint32_t *generations; /* of those beyond table_used, what they had */
  uint32_t table_used, live;
  uint32_t swept;   /* of the table, by messages_sweep */
  struct node free; /* operations */
  struct part *parts;
  struct stage *stages; /* of loan.c, that nobody has */
  uint8_t mark[16];     /* what lies behind loans: random */
  struct timers timers;
  struct watched_set *watched; /* watched.c: NULL until needed */
  struct regions regions;
  struct shares shares;
  struct blocks pool;
  uint8_t *pool_memory;
  struct area pool_area; /* of all of it, for devices */
  struct {
    const struct transport_fabric *table;
    struct fabric *fabric;
  } fabrics[TRANSPORTS_MAX]; /* made when they were first needed */
  uint32_t fabric_count;
  struct watcher fabrics_watcher; /* of all their descriptors */
  char no_devices[REASON];  /* why verbs cannot be had, if it was asked; */
  int64_t no_devices_until; /* and till when nobody asks again */
  uint8_t *scratch;         /* copies of typed heads of this poll */
  uint64_t scratch_used;
  struct vault vault;
  struct secret *secret; /* in it, as is the next */
  uint8_t *cookie_key;   /* cookie.c: NULL until needed */
  struct refusals refusals;
  struct trim trim;
  int epoll, spare_fd;   /* the other: handing.c */
  struct faults *faults; /* on purpose; NULL: none */
  uint64_t epoch;
  uint64_t features;     /* that it has (features.h) */
  uint64_t spans;        /* how many were made (trace.c), from a random
                                  number on; 0: none yet */
  char name[TERMS_NAME]; /* that it goes by, or "" */
  uint32_t hellos;       /* of strangers, under way */
  struct unauth *unauth; /* unauth.c */
  int64_t worked_at;     /* when a session had work last */
  struct spin spin;
  char detail[512];
  struct perigee_counters counters; /* its own, and of sessions that ended */
  struct perigee_counters totals;
};

/* Is there room for one more event of this poll? */
static inline bool engine_room(const struct perigee_engine *engine) {
  return engine->filled + (int)engine->ready_count < engine->room;
}

#endif
