/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_world.h - a cache and its clients as engines of one thread, over a
 * made-up clock. The cache's engine has a store, whose slabs are regions that
 * peers may read, and serves it as lua/perigee/cache/service.lua does: requests
 * go to perigee_cache_answer as they come, puts are pulled to the place that was
 * reserved for them, and a client is gone when its session has ended and
 * settled. Clients put by one call or piece by piece. They read piece by piece,
 * under leases or, over shared memory, between two looks into the mapped
 * directory. Each has a clock of its own, slower than the cache's. Messages are
 * late or lost, clients are stopped for longer than a lease, sessions are cut,
 * clients and the cache die (their engines close) and come back. A seed
 * determines a world.
 *
 * For every seed these properties must hold; cache_world() fails at the first
 * that does not. A value that a client takes is one that was sealed for its key,
 * whole, and not one that had been replaced, or deleted, when the client asked.
 * The cache loses no hard pin. When all clients are gone and all keys are
 * deleted, the store is empty, and gives all its slabs back.
 *
 * cache_world.c runs a world, cache_world_serve.c is the cache, and
 * cache_world_clients.c are the clients.
 */
#ifndef CACHE_WORLD_H
#define CACHE_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"
#include "perigee.h"
#include "worlds.h"

enum { CLIENTS = 3, TASKS = 4, KEYS = 6, VALUES = 8192 };
enum { SLABS = 64, PATRONS = 16, SERVED = 32, RESERVED = 64, CLOSING = 32 };
enum { MOST = 14 << 10, SLAB = 32 << 10, QUOTA = 96 << 10 };
enum { REPLY = 3 << 10, HEAD = 3 << 10 };

/* Broken rules, which have to be found. */
enum rule {
  ALL_RULES,
  NO_MARGIN,         /* the cache waits no longer than a client may read */
  NO_LOOK_AFTERWARD, /* clients do not look at their clock after a copy */
  NO_SECOND_LOOK,    /* nor at the mapped directory */
  FROM_THE_ANSWER,   /* a client's lease runs from when the answer came */
  SEALED_TOO_SOON,   /* a put is sealed when its place is known */
  SEALED_IN_PIECES,  /* a client seals before its last piece */
  WRONG_ONE_GONE,    /* another client than the one that died is gone */
  NEVER_GONE         /* a client that died is never gone */
};

/* Methods of the cache. ASK takes requests of cache.h. The others take numbers:
 *
 *   PUT      slice; key, stamp, ttl, pin, if_absent   version
 *   RESERVE  key, stamp, ttl, pin, if_absent, length  token
 *   WRITE    slice; token, offset                     0
 *   SEAL     token                                    version
 *   ABORT    token                                    0
 */
enum method { ASK = 1, PUT, RESERVE, WRITE, SEAL, ABORT };
enum { NUMBERS = 6 };

struct world;

/* A clock that is slower, by so many thousandths. */
struct hand {
  struct world *world;
  int slow;
};

/* What was sealed. A version of one life of the cache is at `base` plus it. */
struct value {
  int key;
  uint64_t stamp, length;
  int64_t ttl;
  int pin;
};

/* ---- The cache ----------------------------------------------------------- */

struct patron {
  uint32_t session, client;
  bool there, lost;
};

struct reserved {
  uint64_t token; /* 0: there is none */
  struct perigee_cache_place place;
  struct value value;
  int filling;
  uint32_t session;
  int64_t at; /* of the last that was heard of it */
};

/* A call that is being served. */
struct served {
  enum { NONE, LANDS, REPLIED } state;
  int operation;
  uint16_t method;
  uint64_t token; /* of where its slice lands */
  uint8_t reply[REPLY];
};

struct cacher {
  struct hand hand;
  struct perigee_engine *engine;
  struct perigee_listener *listener;
  struct perigee_cache *store;
  struct perigee_region *slabs[SLABS], *closing[CLOSING];
  struct patron patrons[PATRONS];
  struct reserved reserved[RESERVED];
  struct served served[SERVED];
  uint64_t tokens;
  int64_t still_until;
  char faults[160];
};

/* ---- Clients ------------------------------------------------------------- */

enum task_state {
  IDLE,
  MAPPING,
  ASKING,
  FINDING,
  COPYING,
  RELEASING,
  PUTTING,
  RESERVING,
  WRITING,
  ENDING,
  CHANGING
};

struct task {
  enum task_state state;
  int operation; /* under way, or -1 */
  int64_t at;    /* of its next step */
  int key;
  uint64_t least, base; /* the oldest version to take; of its life */
  int64_t sent, lease;  /* by the client's clock */
  struct perigee_cache_place place;
  bool mapped;
  uint64_t life;
  uint64_t token, stamp, length;
  uint32_t piece, pieces;
  uint8_t head[HEAD];
  struct perigee_transfer item;
};

struct client {
  struct hand hand;
  int index;
  struct perigee_engine *engine;
  struct perigee_region *region;
  struct perigee_session *session; /* NULL: none */
  int connecting;                  /* the operation, or -1 */
  bool lost;
  struct perigee_cache_view *view; /* of the directory, or NULL */
  uint64_t life;                   /* of the cache that it is of */
  struct perigee_remote *slabs[SLABS];
  uint32_t numbers[SLABS];
  struct task tasks[TASKS];
  int64_t still_until;
  char faults[160];
};

/* ---- The world ----------------------------------------------------------- */

struct world {
  uint64_t seed, dice, random;
  int64_t now;
  uint64_t looks; /* at the clock, in this turn */
  enum rule rule;
  bool told, winding_up;
  const char *transport;
  char address[80];
  struct cacher cache;
  struct client clients[CLIENTS];
  struct value values[VALUES];
  uint64_t base, stamps, latest[KEYS];
  int64_t ends[KEYS];          /* when its TTL is over; 0: it has none */
  bool gone[KEYS], hard[KEYS]; /* gone: deleted since */
  struct tally {
    uint64_t taken, small, mapped, late, changed, refused, sealed, aborted,
        deleted, lives, deaths, asked;
  } tally;
};

static inline uint64_t roll(struct world *w, uint64_t n) {
  return dice_below(&w->dice, n);
}
static inline bool chance(struct world *w, double of) {
  return dice_happens(&w->dice, of);
}
int64_t hand_time(const struct hand *hand);
/* Sets options of an engine with this clock; draws its faults. */
void engine_options(struct hand *hand, char *faults, uint64_t size,
                    struct perigee_options *o);
_Noreturn void broken(const struct world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void narrate(const struct world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define HOLDS(world, expression)                                               \
  do {                                                                         \
    if (!(expression))                                                         \
      broken(world, "%s:%d: %s", __FILE__, __LINE__, #expression);             \
  } while (0)

/* The word of a value at this place. */
uint64_t value_word(int key, uint64_t stamp, uint64_t at);
/* Returns the key's name, of 5 bytes. */
enum { NAME = 5 };
const char *name_of(int key);
/* Something with a key has happened in the cache, or it was found there. */
void world_sealed(struct world *w, uint64_t version, const struct value *value);
void world_pinned(struct world *w, int key, int pin);
void world_deleted(struct world *w, int key);
void world_found(struct world *w, int key);

/* Writes and reads numbers as typed data, before the place of a slice. */
uint64_t numbers_write(uint8_t *bytes, uint64_t room, const uint64_t *numbers,
                       int count, bool slice);
bool numbers_read(const struct perigee_event *event, uint64_t *numbers,
                  int count);
/* Little endian, as in cache.h. */
void number_put(uint8_t **at, uint64_t value, unsigned bytes);
uint64_t number_get(const uint8_t *at, unsigned bytes);

/* cache_world_serve.c */
void cacher_open(struct world *w);
void cacher_turn(struct world *w);
/* Are there clients? */
bool cacher_busy(const struct world *w);
/* Nothing may be left: deletes all, and closes. */
void cacher_end(struct world *w);
/* As if its process had ended. */
void cacher_die(struct world *w);

/* cache_world_clients.c */
void client_open(struct world *w, int index);
void client_turn(struct client *c);
bool client_busy(const struct client *c);
void client_end(struct client *c);

/* Runs a world, which goes the same way each time if it is exact. */
bool cache_world_is_exact(uint64_t seed);
struct tally cache_world(uint64_t seed, enum rule rule, bool told);

#endif
