/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h - what a store consists of, and what its files do for each other.
 *
 *   records.c     memory of the directory: chunks, and things in them
 *   space.c       slabs, sizes, places
 *   directory.c   the hash table, as its writer sees it
 *   entries.c     life of an entry: reserved, sealed, removed
 *   ties.c        what ties entries together: chains, groups; TTLs
 *   leases.c      clients and their leases
 *   evict.c       which entries go, and the store's turn
 *   heat.c        which of those below are to come back up
 *   events.c      what has happened, for those who ask
 *   file.h        values in a file, of which a store is the directory
 *   sum.c         checksums of values
 *   answer.c      requests of clients
 *   store.c       opening and closing, counters
 *   view.h, seen.c  a client's view of the directory
 *   revive.c      entries of a store whose process has ended
 *   hold.c        memory that outlives the process
 */
#ifndef STORE_H
#define STORE_H

#include "cache/layout.h"

enum {
  SIZES = 73, /* 4 KiB to 1 GiB */
  SLABS = 65535,
  TICK_SHIFT = 26, /* a tick is 2^26 ns: 67 ms, of which there are 9 years */
  WHEEL_LEVELS = 4,
  WHEEL_SLOTS = 256,
  NONE = -1
};

/* What the store alone knows of an entry. */
struct own {
  uint32_t before, after; /* in a list of evictable entries, or of a client's
                           * reservations */
  uint32_t extra;         /* number of what few entries have, or 0 */
  uint32_t used;          /* tick of the last use; if reserved: the client */
  uint16_t leases;
  uint8_t uses;
  uint8_t state : 3, pin : 2, listed : 1, wheeled : 1, marked : 1;
};

/* Chunks of the directory with things of one size; a list has those that have
 * room. free: number + 1 of the first free thing. own: of each thing. */
struct chunk {
  struct own *own;
  uint16_t words, live, fresh, free;
  uint32_t before, after;
};

/* A place's word in `owners` is the ref of its entry, or EMPTY plus the next
 * free place's number + 1. fixed: reservations and hard pins in it. mobile:
 * entries that can be evicted, and such as are held; others go after their
 * children, or those of their groups. */
#define EMPTY UINT32_C(0x80000000)
struct slab {
  uint8_t *pointer;
  uint64_t length;
  uint32_t *owners;
  uint32_t places, live, fresh, free, fixed, mobile;
  uint32_t before, after; /* with room, of a size; or empty: index + 1 */
  uint32_t generation;    /* how often the index was used before */
  uint32_t stuck;         /* the tick, plus 1, in which an entry in it could not
                           * go; 0: none */
  int16_t size;           /* NONE: nothing is in it */
  bool there, draining, listed;
  bool retired; /* no place in it is taken any more */
};

/* Kinds of entries that may be evicted. */
enum { USUAL, SOFT, COPIES, KINDS };

struct ends {
  uint32_t first, last; /* refs; 0: the list is empty */
};

/* What few entries have: ties, and a place in the wheel of TTLs. A free one has
 * the next one's number in `parent`. */
enum { EXTRA_SHIFT = 10, EXTRA_BLOCKS = 1 << 17 };
struct extra {
  uint32_t parent, children, outside; /* outside: not of its group */
  uint32_t group, before, after;      /* index + 1; members */
  uint32_t expires;                   /* tick; 0: never */
  uint32_t earlier, later;            /* in a slot of the wheel */
  uint32_t slot;
};

/* hard, soft: pins of its members. reserved: members that are not sealed yet.
 * outside: children of members, who are not members themselves. */
struct group {
  uint64_t id;
  uint32_t first, next; /* member; group of the same hash, or free: index + 1 */
  uint32_t members, hard, soft, reserved, outside;
};

/* What a file is told of the store that is its directory: an entry that is
 * sealed, or was and is removed (by ref); a slab that a size takes, or that is
 * empty again (by index). */
enum change { CHANGE_SHOWN, CHANGE_GONE, CHANGE_BEGUN, CHANGE_ENDED };

struct lease {
  int64_t until;
  uint32_t entry, client; /* entry 0: free */
  uint32_t generation;
  uint32_t before, after;  /* by time: index + 1 */
  uint32_t earlier, later; /* of the client */
};

struct client {
  struct ends leases;   /* index + 1 */
  uint32_t reservation; /* the first */
  uint32_t leased, reserved;
  uint32_t next;  /* free: number + 1 */
  uint32_t below; /* its number in the store below, if that is read */
  bool there;
};

struct event {
  uint64_t at, version; /* where its key is, of all bytes that ever were */
  uint32_t length;
  uint16_t key_length;
  uint8_t what;
};

struct perigee_cache {
  struct perigee_cache_options o;
  int64_t began, now; /* now: the last that was told */
  /* records.c */
  struct head *head;
  uint8_t *pieces[PERIGEE_CACHE_PIECES];
  struct chunk *chunks;
  uint32_t next_chunk, free_chunk; /* free: number + 1 */
  uint32_t free_chunks;
  uint32_t room[RECORD / 8 + KEY_WORDS + 1]; /* by words: chunk */
  /* space.c */
  struct slab *slabs;
  uint32_t slab_end, with_room[SIZES], empty;
  uint64_t slab_bytes, empty_bytes, wanted;
  uint32_t retired;
  /* directory.c */
  uint64_t linked; /* refs in the table */
  /* entries.c */
  struct perigee_cache_counters n;
  uint64_t reservations, held_bytes;
  uint32_t held_of[SIZES]; /* how many are held, by size */
  /* ties.c */
  struct extra **extras; /* blocks of 2^EXTRA_SHIFT */
  uint32_t free_extra, extra_end;
  struct group *groups;
  uint32_t *group_heads, group_mask, free_group, group_hand;
  uint32_t wheel[WHEEL_LEVELS][WHEEL_SLOTS], tick, wheeled;
  /* leases.c */
  struct lease *leases;
  struct client *clients;
  struct ends granted;
  uint32_t free_lease, lease_end, free_client, client_end;
  /* evict.c */
  struct ends lists[SIZES][KINDS]; /* last used first */
  int starved;                     /* the size that found no place, or NONE */
  uint32_t drained, drain_at; /* the slab that is emptied: number + 1; up to
                                * which of its places */
  bool evicting;
  struct perigee_cache *below; /* answer.c; or NULL */
  bool spills;                 /* clients read what is below */
  struct heat *heat;           /* heat.c; of one that spills, or NULL */
  struct perigee_cache *above; /* the store that spills to this one; or NULL */
  /* file.c; NULL: slabs are memory */
  struct perigee_cache_file *file;
  void (*changed)(struct perigee_cache_file *file, enum change change,
                  uint32_t at);
  /* events.c */
  struct event *events;
  uint8_t *event_keys;
  uint64_t event_next, event_at;
};

/* ---- records.c ----------------------------------------------------------- */

static inline void *thing(const struct perigee_cache *c, uint32_t ref) {
  return c->pieces[ref / REFS_A_PIECE] + (uint64_t)(ref % REFS_A_PIECE) * 8;
}
static inline struct entry *record(const struct perigee_cache *c,
                                   uint32_t ref) {
  return thing(c, ref);
}
static inline struct own *own(const struct perigee_cache *c, uint32_t ref) {
  const struct chunk *k = &c->chunks[ref / (CHUNK / 8)];
  return &k->own[ref % (CHUNK / 8) / k->words];
}
/* Returns the ref of a thing of so many bytes (RECORD + PERIGEE_CACHE_KEY at
 * most), or 0 (record_status). */
uint32_t record_take(struct perigee_cache *c, uint32_t bytes);
void record_give(struct perigee_cache *c, uint32_t ref);
/* Is there a thing of words or more at this ref, used or not? */
bool record_may_be(const struct perigee_cache *c, uint32_t ref, uint32_t words);
/* Returns why there is no thing: PERIGEE_CACHE_WANTS, or PERIGEE_NO_MEMORY. */
int record_status(const struct perigee_cache *c);
/* Has the directory all the pieces that it may have? */
bool records_complete(const struct perigee_cache *c);
/* Returns a chunk of no size, or 0. */
uint32_t chunk_take(struct perigee_cache *c);

/* ---- space.c ------------------------------------------------------------- */

int size_of(uint64_t length);
uint64_t size_bytes(int size);
/* A file has whole blocks, and behind the places of a slab records of them. */
enum { BLOCK = 4096, RECORDS = 7 };
static inline int class_of(const struct perigee_cache *c, uint64_t length) {
  return size_of(c->file ? (length + BLOCK - 1) / BLOCK * BLOCK : length);
}
static inline uint64_t table_bytes(uint64_t places) {
  return (places + RECORDS - 1) / RECORDS * BLOCK;
}
/* Returns how many places of a size a slab of this length has. */
uint64_t slab_places(const struct perigee_cache *c, uint64_t length, int size);
/* Finds a place for an entry: the slab's number, and the place in it, in units.
 * PERIGEE_CACHE_WANTS; PERIGEE_NO_MEMORY. */
int space_take(struct perigee_cache *c, int size, uint32_t entry,
               uint32_t *slab, uint32_t *place);
/* Takes this place; those of a slab come in order. PERIGEE_RANGE: there is
 * none; PERIGEE_NO_MEMORY. */
int space_restore(struct perigee_cache *c, int size, uint32_t entry,
                  const struct perigee_cache_place *place);
/* slab: its index. offset: of the place, in units. */
void space_give(struct perigee_cache *c, uint32_t slab, uint32_t offset);
/* Chooses a slab to be emptied for a size, or, NONE, for the quota; returns its
 * number + 1, or 0. Not one that was found stuck in this tick. */
uint32_t space_drain(struct perigee_cache *c, int size);
/* Would there be one if children of what is in it had gone? */
bool space_waits(const struct perigee_cache *c, int size);
/* An entry in it cannot go. */
void space_stuck(struct perigee_cache *c, uint32_t slab);
/* Would a slab of nothing do for this size? */
bool space_has(const struct perigee_cache *c, int size);

/* ---- directory.c --------------------------------------------------------- */

int directory_open(struct perigee_cache *c);
/* Returns the ref of the key's entry that is sealed, or reserved, or 0. */
uint32_t directory_find(const struct perigee_cache *c, const struct sought *s,
                        bool sealed);
/* PERIGEE_CACHE_WANTS; PERIGEE_NO_MEMORY: its chain is too long. */
int directory_add(struct perigee_cache *c, uint32_t ref, uint16_t tag);
void directory_remove(struct perigee_cache *c, uint32_t ref);
/* Makes a record seen, and takes `old` (or 0) out of the table, at once. */
void directory_show(struct perigee_cache *c, uint32_t ref, uint32_t old);
/* Returns the ref in a place of a bucket's chain, 0: nothing is there; sets
 * *end if the chain has no such place. */
uint32_t directory_at(const struct perigee_cache *c, uint32_t bucket,
                      uint32_t place, bool *end);
static inline uint64_t directory_buckets(const struct perigee_cache *c) {
  return c->head ? atomic_load_explicit(&c->head->buckets, memory_order_relaxed)
                 : 0;
}

/* ---- entries.c ----------------------------------------------------------- */

/* A record that is HELD or a HUSK is in no table and in no list. */
enum state { STATE_NONE, RESERVED, SEALED, HELD, HUSK, STATES };
enum step { STEP_RESERVE, STEP_SEAL, STEP_HOLD, STEP_HUSK, STEP_FREE, STEPS };
/* The state after a step, plus 1; 0: no such step. */
extern const uint8_t entry_next[STATES][STEPS];
/* How often each step was taken, in debug builds. */
extern uint64_t entry_taken[STATES][STEPS];

/* Takes an entry out of the table, for this reason (perigee_cache_event; 0: an
 * abort); its space is free when its leases are. */
void entry_remove(struct perigee_cache *c, uint32_t ref, int why);
/* An entry has a lease less, or a child less. */
void entry_settle(struct perigee_cache *c, uint32_t ref);
/* Puts an entry in the list that it belongs to, or takes it out; first: as one
 * that was just used. */
void entry_list(struct perigee_cache *c, uint32_t ref, bool first);
void entry_use(struct perigee_cache *c, uint32_t ref);
/* As perigee_cache_seal, with a version. */
int64_t entry_seal(struct perigee_cache *c, uint64_t entry, uint64_t checksum,
                   uint64_t version, int64_t now);
int64_t entry_left(const struct perigee_cache *c, uint32_t ref);
void entry_place(const struct perigee_cache *c, uint32_t ref,
                 struct perigee_cache_place *place);
/* Returns the ref of a sealed entry whose TTL is not over, or 0. */
uint32_t entry_find(struct perigee_cache *c, const void *key, uint64_t length,
                    int64_t now);

/* ---- ties.c -------------------------------------------------------------- */

static inline struct extra *extra(const struct perigee_cache *c, uint32_t ref) {
  uint32_t at = own(c, ref)->extra;
  return at ? &c->extras[at >> EXTRA_SHIFT][at & ((1 << EXTRA_SHIFT) - 1)]
            : NULL;
}
static inline uint32_t children(const struct perigee_cache *c, uint32_t ref) {
  const struct extra *x = extra(c, ref);
  return x ? x->children : 0;
}
static inline struct group *group_of(const struct perigee_cache *c,
                                     uint32_t ref) {
  const struct extra *x = extra(c, ref);
  return x && x->group ? &c->groups[x->group - 1] : NULL;
}
/* May its members go, but for soft pins? */
static inline bool group_is_free(const struct group *g) {
  return g->hard == 0 && g->reserved == 0 && g->outside == 0;
}
int ties_open(struct perigee_cache *c);
/* Puts a new record into its group (or 0), for which another one may go. more:
 * it has a parent, or a TTL. */
int ties_group(struct perigee_cache *c, uint32_t ref, uint64_t group,
               bool more);
/* Ties it to its parent then. */
int ties_parent(struct perigee_cache *c, uint32_t ref, uint32_t parent);
void ties_cut(struct perigee_cache *c, uint32_t ref);
/* The record is gone for good. */
void ties_end(struct perigee_cache *c, uint32_t ref);
void ties_pinned(struct perigee_cache *c, uint32_t ref, int pin, int by);
/* A reservation is being sealed. */
void ties_sealed(struct perigee_cache *c, uint32_t ref);
void wheel_add(struct perigee_cache *c, uint32_t ref);
void wheel_remove(struct perigee_cache *c, uint32_t ref);
/* Goes on to now, by at most *budget steps. */
void wheel_turn(struct perigee_cache *c, int64_t now, uint32_t *budget);
static inline uint32_t ticks_of(int64_t time, uint32_t most) {
  int64_t ticks = time >> TICK_SHIFT;
  return ticks > most ? most : (uint32_t)ticks;
}
static inline uint32_t tick_of(const struct perigee_cache *c, int64_t now) {
  return ticks_of(now - c->began, UINT32_MAX);
}

/* ---- leases.c ------------------------------------------------------------ */

int leases_open(struct perigee_cache *c);
struct client *client_of(struct perigee_cache *c, uint32_t client);
void leases_turn(struct perigee_cache *c, int64_t now, uint32_t *budget);

/* ---- evict.c ------------------------------------------------------------- */

/* Evicts an entry of this size and kind, with its group; false: there is none. */
bool evict_one(struct perigee_cache *c, int size, int kind);
/* The same of the entries of any size, by their last use. */
bool evict_oldest(struct perigee_cache *c);
/* The same of those in one bucket's chain. */
bool evict_near(struct perigee_cache *c, uint32_t bucket);
/* The same of some group, of which all there may be are in use. */
bool evict_group(struct perigee_cache *c);

/* Names an entry. */
void cold_fill(const struct perigee_cache *c, uint32_t ref,
               struct perigee_cache_cold *cold);

/* ---- heat.c -------------------------------------------------------------- */

struct heat *heat_open(void);
/* A client has got a lease of a key in the store below. */
void heat_note(struct perigee_cache *c, const char *key, uint32_t length,
               int64_t now);

/* ---- events.c ------------------------------------------------------------ */

int events_open(struct perigee_cache *c);
void event_note(struct perigee_cache *c, uint32_t ref, int what);
/* Returns an event, and its key's bytes copied to `key`; NULL: it is not
 * kept. */
const struct event *event_of(const struct perigee_cache *c, uint64_t number,
                             uint8_t *key);
uint64_t event_oldest(const struct perigee_cache *c);

/* Copies a key's bytes. */
static inline void key_copy(const struct entry *r, uint8_t *to) {
  uint32_t length = what_length(word(&r->what));
  for (uint32_t i = 0; i * 8 < length; i++) {
    uint64_t value = word(&r->key[i]);
    memcpy(to + (size_t)i * 8, &value, length - i * 8 < 8 ? length - i * 8 : 8);
  }
}

#endif
