/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - an engine, which owns everything: sessions, operations, regions,
 * memory. It is what a ucp_worker is to UCX. Two threads never touch it at the
 * same time (lock.h).
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/blocks.h"
#include "base/budget.h"
#include "base/spares.h"
#include "base/spin.h"
#include "memory/memory.h"
#include "perigee.h"
#include "security/vault.h"
#include "session.h"
#include "stats.h"
#include "transport/fault/fault.h"

/* Unauthenticated peers that were refused, until the program is told. */
struct refusals {
  struct timer timer;
  int64_t every, next; /* ns between two events; when the next may be given */
  uint64_t count;
  int32_t status;
  bool on, due;
  char text[2 * ADDRESS_TEXT + REASON], told[2 * ADDRESS_TEXT + REASON];
};

/* Memory that goes back to the system (pool.c). */
struct trim {
  struct timer timer;
  bool soon;            /* the timer is for another step of the last look */
  uint32_t look;        /* number of the last look */
  uint32_t left;        /* keepers that this look has not visited yet */
  struct node keepers;  /* sessions whose lanes keep memory for blocks */
  uint32_t count;       /* number of keepers */
  uint32_t ended, seen; /* sessions ended since the heap was trimmed; the same
                           at the last look */
  bool heap_due;        /* the heap is to be trimmed */
};

/* What the engine writes into its stats file, and keeps of it (stats_file.h). */
struct stats_file {
  struct stats *at;
  uint32_t methods;       /* rows in use, with row 0 */
  struct stats_rows rows; /* of own methods */
  char *path;             /* of the file; NULL: there is none */
  uint64_t device, inode; /* of the file */
  uint8_t sessions[256];  /* is the row a session's now? */
  uint32_t next_session;  /* where the next look for a row begins */
  struct node others;     /* sessions without a row, the next to tell first */
  uint32_t hashes[512];   /* of the methods' names */
  struct perigee_stats_operation unread; /* of all operations without a row */
};

/* What goes on that no event will tell of: something, or copies by kinds of memory,
 * which may tell of their end by a descriptor (memory_copies.tell). */
enum soon { SOON_LOOK = 1, SOON_COPIES = 2 };
enum { FRESH_NONE = 1, FRESH = 2 };

struct perigee_engine {
  const uint8_t *alive;    /* a page that is zeroed in a forked child */
  struct progress *thread; /* its own thread (progress.c); NULL: none */
  struct lock *lock;       /* with a thread (lock.h) */
  struct perigee_options options;
  struct perigee_event *out; /* events of the current poll */
  int room, filled;
  struct perigee_event pending_event; /* found by a wait, for the next poll */
  bool event_awaited; /* pending_event came after a quiet time (wait.c) */
#ifdef PERIGEE_DEBUG
  const char *_Atomic user; /* the thread that is in the engine (lock.h) */
  uint32_t uses;            /* how deep */
#endif
  bool shared;       /* there is a thread: the program has to take the lock */
  bool aside;        /* the thread is in a turn */
  bool keeps_events; /* events wait for a later poll: so it is in the thread's
                         turn, and while the program joins an operation */
  bool copies;       /* engine_copies() */
  bool event_pending, armed, woken, sockets_due;
  bool moved;        /* payload was moved since the clock was read */
  bool more_ready;   /* the last look at the sockets did not take all events */
  bool draining;     /* it takes no more calls (session/drain.c) */
  bool withholds;    /* it reads no requests now (session_poll.c) */
  bool notices;      /* there may be an event to give that is no operation's */
  int64_t looked_at; /* when a sleep looked for the next look (watch.c) */
  uint32_t put_off_for;
  struct watcher *put_off; /* to be called then, with these events of epoll */
  uint32_t idle;           /* polls since the clock was read */
  /* Written by each poll. They are apart from those above, which GCC reads
   * several at a time: such a load waits for a store to a part of it. */
  bool keep;
  uint8_t poll_soon; /* bits of enum soon */
  bool away;         /* the program was elsewhere since the clock was read */
  int64_t now, sockets_at;
  int64_t frames_until; /* frames that ask or answer may come (socket.c) */
  struct budget budget; /* of what this poll copies */
  uint64_t asked; /* bytes of long replies asked for by this poll's requests */
  uint64_t progress; /* counts everything that happens */
  struct node ready; /* operations with an event */
  uint32_t ready_count;
  struct node late;    /* ended operations whose memory the program may read */
  struct node given;   /* operations whose event was given: end at next poll */
  struct node awaited; /* those of a pending_event, while the program joins */
  struct operation *joined; /* the operation that is joined: wait.c */
  struct node moving;       /* operations that each poll steps */
  struct node lenders; /* sessions with replies that are not read (loan.c) */
  /* Operations whose timers may not be started yet: FRESH and the index of the
   * last, each with that of the one before. Those that have ended meanwhile stay
   * until the next look at the clock. FRESH_NONE: no more. */
  uint32_t fresh;
  struct migration *migration;       /* migrate.c: NULL until needed */
  const struct wireup_class *wireup; /* the handshake of its sessions */
  struct node sessions, listeners, endpoints, dead;
  struct node granted; /* open sessions whose peer may be inside of a region */
  struct node hot;     /* sessions to poll; others are parked (engine/poll.c) */
  struct node *turn;   /* the next hot session, in schedule_poll */
  uint32_t hot_count, parked;
  struct node news, losses; /* sessions whose ACCEPTED, LOST is to be given */
  struct perigee_session **by_nonce; /* hash chains of sessions over TCP */
  struct perigee_session **by_id;    /* by id modulo id_slots, a power of two */
  uint32_t id_slots, last_id;
  struct operation *table;
  uint32_t *generations; /* last generations of entries beyond table_used */
  uint32_t table_used, live;
  uint32_t swept;   /* position of messages_sweep in the table */
  struct node free; /* free operations */
  struct part *parts;
  struct stage *stages; /* free stages (loan.c) */
  uint8_t mark[16];     /* random bytes that stand behind loans */
  struct timers timers;
  struct watched_set *watched; /* watched.c: NULL until needed */
  struct regions regions;
  struct contexts memories;      /* devices whose memory it uses */
  struct watcher copies_watcher; /* of their descriptors (memory.h, tell) */
  struct shares shares;
  struct blocks pool;
  uint8_t *pool_memory;
  struct area pool_area; /* the whole pool, for devices */
  struct {
    const struct transport_fabric *table;
    struct fabric *fabric;
  } fabrics[TRANSPORTS_MAX]; /* each made when it is first needed */
  uint32_t fabric_count;
  struct watcher fabrics_watcher; /* of all descriptors of fabrics */
  struct fabric_look {
    const struct transport_fabric *table; /* NULL: the entry is free */
    char why[REASON]; /* why the fabric could not be had when last tried */
    int64_t until;    /* until then nobody tries again */
  } fabric_looks[TRANSPORTS_MAX];
  struct spares spares; /* for lists, and transfers that have some */
  uint8_t *scratch;     /* copies of typed heads of this poll */
  uint64_t scratch_used;
  struct vault vault;
  struct secret *secret; /* in the vault */
  uint8_t *cookie_key;   /* in the vault; NULL until needed (wireup.c) */
  struct refusals refusals;
  struct trim trim;
  int epoll, spare_fd;   /* spare_fd: session/socket.c */
  struct faults *faults; /* injected faults; NULL: none */
  uint64_t epoch;
  uint64_t features;     /* of this engine (wire.h) */
  uint64_t additional;   /* bits: which transports could be beside a first lane
                          * (session/lane_offers.c) */
  uint64_t spans;        /* last span made, from a random start; 0: none yet */
  char name[TERMS_NAME]; /* of the agent, or "" */
  uint32_t hellos;       /* handshakes of unauthenticated peers in progress */
  struct unauth *unauth; /* unauthenticated peers (unauth.c) */
  int64_t worked_at;     /* when a session last had work */
  int64_t soon;          /* when naps with poll_soon began; 0: not yet */
  uint64_t soon_after;   /* the progress until then */
  struct spin spin;
  char detail[512];
  struct lane_facts
      facts; /* perigee_session_info's, until it is called again */
  struct stats_file stats;
  struct perigee_counters *counters; /* of the engine, and of ended sessions: in
                                        stats */
  struct perigee_counters totals;
};

/* Is there room for one more event of this poll? */
static inline bool engine_room(const struct perigee_engine *engine) {
  return engine->filled + (int)engine->ready_count < engine->room;
}

/* Returns how many operations of its own are under way: not those of peers. */
static inline uint32_t engine_own(const struct perigee_engine *engine) {
  return engine->live - (uint32_t)engine->shares.engine.used[SHARE_OPERATIONS];
}

/* ---- What the engine's thread may touch ---------------------------------
 * The program may use what a poll showed it until it polls again. The thread
 * polls in between (progress.c has the whole list). */

/* Is this the thread's turn? Then events, the scratch memory, the sentence of a
 * failure and the flag `shared` are the program's. */
static inline bool engine_is_aside(const struct perigee_engine *engine) {
  return engine->aside;
}

/* Must what earlier polls showed the program outlast this poll? So it is in the
 * thread's turn, and in a poll that only adds to the one before. */
static inline bool engine_keeps(const struct perigee_engine *engine) {
  return engine->keep;
}

/* Are heads copied out of the rings, and texts of lanes out of the lanes? So it
 * is with a thread, which reads rings on, and while the program joins an
 * operation, whose own reply may stay where it is. */
static inline bool engine_copies(const struct perigee_engine *engine) {
  return engine->copies;
}

/* May this poll give the room of records back that were read? */
static inline bool engine_releases(const struct perigee_engine *engine) {
  return !engine_keeps(engine) || engine_copies(engine);
}

/* ---- What a wait has found (wait.c) --------------------------------------- */

/* No poll is to give that event any more. Its operation ends as those do whose
 * event was given. */
static inline void engine_end_found(struct perigee_engine *engine) {
  struct node *n = list_pop(&engine->awaited);
  if (n)
    list_append(&engine->given, n);
  engine->event_pending = engine->event_awaited = false;
}

/* ---- Its time and randomness --------------------------------------------- */

/* The defaults of options.clock and options.random. */
int64_t engine_default_clock(void *context);
int engine_default_random(void *context, void *bytes, uint64_t length);
/* Reads the clock, in nanoseconds, and keeps the time in engine->now. */
int64_t engine_clock(struct perigee_engine *engine);
/* Reads the thread's own time, if pieces are to be looked at, in a poll that is
 * about to copy. */
void engine_begin_pieces(struct perigee_engine *engine);
/* This poll has copied so many bytes, or done what takes as long: true once
 * that has taken its time. spend also takes them from its budget. */
bool engine_overdue(struct perigee_engine *engine, uint64_t bytes);
void engine_spend(struct perigee_engine *engine, uint64_t bytes);
uint64_t engine_random(struct perigee_engine *engine);
/* False in a child made by fork: the engine belongs to the parent. */
bool engine_alive(const struct perigee_engine *engine);

/* ---- A status, and its sentence ------------------------------------------ */

/* Keeps the sentence for perigee_detail and returns the status. If engine is
 * NULL, or in the engine's own thread, the sentence belongs to the calling
 * thread. */
int fail(struct perigee_engine *engine, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* PERIGEE_INVALID: the program gave NULL in place of that. */
int fail_missing(struct perigee_engine *engine, const char *what);
/* Returns the sentence that fail has just kept. */
const char *fail_detail(const struct perigee_engine *engine);

/* Returns a status that a peer sent, or PERIGEE_PROTOCOL if it has no name. */
static inline int status_of_peer(int status) {
  bool known = status <= PERIGEE_OK && status >= PERIGEE_DRAINING;
  return known ? status : PERIGEE_PROTOCOL;
}

#endif
