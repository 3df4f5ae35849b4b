/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.h - the whole interface of perigee/cache.so: one tenant's store of
 * blocks that are found by key, and files for what memory evicts. It is an
 * object of its own, loaded where a cache runs, and where a client looks into a
 * cache of its host. Its ffi.cdef is made of this file.
 *
 * A store belongs to one thread. It starts no thread, asks the system for no more
 * than its own memory and a random seed, and reads no clock: `now` is the
 * caller's, in ns, and never goes back. It never touches the bytes of values, but
 * of small ones that come or go with a request. Files and holders, which are at
 * the end, do call the system; files may start threads, holders are processes.
 * The caller makes all memory that clients see, and owns it:
 *
 *   slabs    have the values. A client sees a slab's number and an offset.
 *   pieces   have the directory. Clients of the host may map them, but only for
 *            reading: the store believes what it finds there.
 *
 * Results are >= 0, or a negative perigee_status, or one of these: */
#ifndef PERIGEE_CACHE_H
#define PERIGEE_CACHE_H

#ifdef PERIGEE_CDEF
#define PERIGEE_API
#else
#include <stdint.h>
#define PERIGEE_API __attribute__((visibility("default")))
#endif

enum perigee_cache_status {
  PERIGEE_CACHE_EXISTS = -101, /* the key is there, and if_absent was asked */
  PERIGEE_CACHE_BUSY = -102,   /* another writer has reserved the key */
  PERIGEE_CACHE_WANTS = -103,  /* memory is wanted (perigee_cache_wants): give
                                * it, and try again */
  /* Of who serves a store: */
  PERIGEE_CACHE_CLIENTS = -104, /* it has as many clients as it may have */
  PERIGEE_CACHE_FORGETS = -105, /* its file has too much to forget */
  /* Of files: */
  PERIGEE_CACHE_NO_SPACE = -111,  /* the file system is full */
  PERIGEE_CACHE_READ_ONLY = -112, /* nobody may write there, or we may not */
  PERIGEE_CACHE_FOREIGN = -113,   /* the file is not ours */
  PERIGEE_CACHE_IN_USE = -114,    /* another cache has it */
  PERIGEE_CACHE_IO = -115         /* the device failed, or the file was cut */
};

/* Raised when a declaration below changes; Lua refuses an object with another
 * number. */
enum { PERIGEE_CACHE_ABI = 4 };
PERIGEE_API int perigee_cache_abi(void);

enum {
  PERIGEE_CACHE_KEY = 512,           /* bytes of a key at most; 1 at least */
  PERIGEE_CACHE_PIECE = 16777216,    /* bytes of a piece of the directory */
  PERIGEE_CACHE_PIECES = 1024,       /* at most */
  PERIGEE_CACHE_LARGEST = 1073741824 /* bytes of a value at most */
};
/* Soft pins are evicted last, hard pins never. A copy of what another cache has
 * (see "Hot keys") is evicted first. It is found by its key alone: LIST and EVENTS
 * do not tell of it. */
enum {
  PERIGEE_CACHE_UNPINNED,
  PERIGEE_CACHE_SOFT,
  PERIGEE_CACHE_HARD,
  PERIGEE_CACHE_COPY
};

/* ---- A store ----------------------------------------------------------- */

struct perigee_cache;

/* 0 stands for the value in brackets. */
struct perigee_cache_options {
  uint64_t quota;       /* bytes of slabs, together; may change */
  uint64_t slab;        /* bytes of an ordinary slab (64 MiB; 1 GiB at most) */
  uint64_t hard;        /* bytes of hard pins at most (half of the quota) */
  int64_t lease;        /* ns for which a client may read (10 s) */
  int64_t margin;       /* ns for which the store waits longer (lease / 8) */
  int64_t decay;        /* ns after which LFU forgets one use (60 s) */
  uint32_t clients;     /* at a time (1024; at most 65535) */
  uint32_t leases;      /* of all clients (65536) */
  uint32_t leases_each; /* of one client (leases / 8) */
  uint32_t reserved_each; /* reservations of one client (256) */
  uint32_t groups;        /* at a time (4096): a new one has an old one go */
  uint32_t events;        /* that are kept, a power of two (16384) */
  uint32_t event_bytes;   /* of their keys, a power of two (1 MiB) */
  uint8_t high, low;      /* percent of the quota: eviction begins (95), and
                            * ends (90) */
  uint8_t lfu;            /* 1: the least often used of some old ones goes; 0:
                            * the least recently used one, to 67 ms */
  uint8_t sums;           /* 1: values that come with a PUT get a checksum */
  uint8_t seed[16];       /* of the hash of keys; zeros: random */
};

/* Returns PERIGEE_INVALID: options contradict each other; PERIGEE_NO_MEMORY. A
 * store is of use when it has its first piece. */
PERIGEE_API int perigee_cache_open(const struct perigee_cache_options *options,
                                   int64_t now, struct perigee_cache **cache);
/* Slabs and pieces stay the caller's. */
PERIGEE_API void perigee_cache_close(struct perigee_cache *cache);
PERIGEE_API void perigee_cache_quota(struct perigee_cache *cache,
                                     uint64_t quota);

/* ---- Memory ------------------------------------------------------------ */

/* Memory that the store would use: bytes of a slab (0: none), pieces. `idle` is
 * the number of a slab that has nothing in it and is of no use now, or -1: the
 * caller removes these first, so that the new slab is within the quota. `next`
 * is the number that the next slab will have. */
struct perigee_cache_want {
  uint64_t slab;
  int64_t idle;
  uint32_t pieces, next;
};
PERIGEE_API void perigee_cache_wants(struct perigee_cache *cache,
                                     struct perigee_cache_want *want);
/* Gives a slab of PERIGEE_CACHE_LARGEST bytes at most, of which pointer is NULL
 * if this process cannot read it. Returns its number: the lowest that is free
 * of 65,535, and, above these 16 bits, how often that was used before. So a
 * client that knows a slab does not take another one for it, before 4096 have
 * come and gone. */
PERIGEE_API int64_t perigee_cache_add(struct perigee_cache *cache,
                                      void *pointer, uint64_t length);
/* Takes a slab back; PERIGEE_AGAIN: there is something in it. */
PERIGEE_API int perigee_cache_remove(struct perigee_cache *cache,
                                     uint32_t slab);
/* No place in this slab is taken any more: it can only be read. When nothing is
 * in it, it is idle. */
PERIGEE_API int perigee_cache_retire(struct perigee_cache *cache,
                                     uint32_t slab);
/* Gives a piece of PERIGEE_CACHE_PIECE bytes, all zeros and aligned to a page,
 * for the store's whole life. Returns its number: 0, 1, ... */
PERIGEE_API int64_t perigee_cache_grow(struct perigee_cache *cache,
                                       void *piece);

/* ---- Clients ----------------------------------------------------------- */

/* Returns the number of a new client; PERIGEE_NO_MEMORY: there are too many. */
PERIGEE_API int64_t perigee_cache_client(struct perigee_cache *cache);
/* Aborts the client's reservations, gives its leases back, and frees its
 * number. Call it when nothing of the client can read or write any more: its
 * session has ended, and its lane is fenced. */
PERIGEE_API int perigee_cache_client_gone(struct perigee_cache *cache,
                                          uint32_t client);

/* ---- Entries ----------------------------------------------------------- */

/* A place in a slab. entry: of a reservation. lease: 0 without one. bucket,
 * sequence: of a look into the directory. */
struct perigee_cache_place {
  uint64_t entry, lease, offset, length, version, checksum;
  uint32_t slab, bucket, sequence;
};

/* parent: the key of the entry before this one in a chain; it is not evicted
 * while this one is there. NULL: none. group: entries of one group are evicted
 * together, 1024 at most, and not while one of them is reserved, or the parent
 * of one outside (two groups with parents in each other stay for ever); 0:
 * none. ttl in ns, 0: none; an entry lives for up to 134 ms longer, and for 2
 * years at most. A value takes 4 KiB at least. if_absent: EXISTS for a key that
 * is there; else its entry is replaced at the seal. A copy has a ttl, and
 * neither group nor parent. again: the value is the key's from before, for
 * perigee_cache_seal_again; another reservation of the key is no reason not to
 * have it back meanwhile. */
struct perigee_cache_put {
  uint64_t length, group;
  int64_t ttl;
  const char *parent;
  uint32_t parent_length, client;
  uint8_t if_absent, pin, again;
};

/* Reserves a place for a value, which nobody sees before the seal.
 * PERIGEE_AGAIN: the client has too many reservations; PERIGEE_NO_MEMORY: the
 * store is full now; PERIGEE_NOT_FOUND: the parent is not there;
 * PERIGEE_TOO_LARGE: it is, also for the quota; EXISTS, BUSY, WANTS. May evict
 * some entries. */
PERIGEE_API int perigee_cache_reserve(struct perigee_cache *cache,
                                      const char *key, uint32_t key_length,
                                      const struct perigee_cache_put *put,
                                      int64_t now,
                                      struct perigee_cache_place *place);
/* The value is complete. The entry has a version then, larger than all before
 * it in this store. PERIGEE_STALE: it is no reservation, or no more. */
PERIGEE_API int64_t perigee_cache_seal(struct perigee_cache *cache,
                                       uint64_t entry, uint64_t checksum,
                                       int64_t now);
/* The same for a value that was here before and comes back: with the version that
 * it had then. */
PERIGEE_API int64_t perigee_cache_seal_again(struct perigee_cache *cache,
                                             uint64_t entry, uint64_t checksum,
                                             uint64_t version, int64_t now);
/* Nobody may write to the place any more. */
PERIGEE_API int perigee_cache_abort(struct perigee_cache *cache,
                                    uint64_t entry);
/* These are about sealed entries: PERIGEE_NOT_FOUND. */
PERIGEE_API int perigee_cache_delete(struct perigee_cache *cache,
                                     const char *key, uint32_t key_length);
PERIGEE_API int perigee_cache_touch(struct perigee_cache *cache,
                                    const char *key, uint32_t key_length,
                                    int64_t now);
PERIGEE_API int perigee_cache_pin(struct perigee_cache *cache, const char *key,
                                  uint32_t key_length, int pin);
PERIGEE_API int perigee_cache_stat(struct perigee_cache *cache, const char *key,
                                   uint32_t key_length, int64_t now,
                                   struct perigee_cache_place *place);

/* ---- Leases ------------------------------------------------------------ */

/* Grants a client a lease of an entry. No clocks are compared. The client may
 * read for `options.lease` from when it sent its request, by its own clock, and
 * looks at its clock again when it has read. The store waits for lease plus
 * margin from now, by its own clock, before it uses the space for another
 * value. Both begin in this order, so the margin only has to be more than the
 * client's clock is slower in that time. PERIGEE_AGAIN: the client, or all
 * clients, have too many leases. */
PERIGEE_API int perigee_cache_locate(struct perigee_cache *cache,
                                     uint32_t client, const char *key,
                                     uint32_t key_length, int64_t now,
                                     struct perigee_cache_place *place);
/* As perigee_cache_locate, but does not count as a use: for who moves entries. */
PERIGEE_API int perigee_cache_lease(struct perigee_cache *cache,
                                    uint32_t client, const char *key,
                                    uint32_t key_length, int64_t now,
                                    struct perigee_cache_place *place);
/* PERIGEE_STALE: it is no lease of this client's, or no more. */
PERIGEE_API int perigee_cache_release(struct perigee_cache *cache,
                                      uint32_t client, uint64_t lease);

/* ---- Its turn ---------------------------------------------------------- */

/* Ends what is over: leases, entries with a TTL; evicts; empties slabs that
 * other sizes need. Takes at most `budget` steps of less than a microsecond or
 * two each (one that evicts a group: as many as it has members). Returns 1 if
 * there is more to do now, else 0. Call it some times a second at least, and
 * after PERIGEE_NO_MEMORY. */
PERIGEE_API int perigee_cache_turn(struct perigee_cache *cache, int64_t now,
                                   uint32_t budget);

struct perigee_cache_counters {
  uint64_t entries, reserved, held; /* held: gone, but leased */
  uint64_t quota, slabs, used;      /* bytes: allowed, given, in entries */
  uint64_t values;                  /* bytes of the values themselves */
  uint64_t hard;                    /* bytes of hard pins */
  uint64_t directory;               /* bytes of the directory in use, in pieces
                                     * and beside them */
  uint64_t buckets, leases, clients, version;
  uint64_t hits, misses, sealed, evicted, expired, deleted;
  uint64_t copies; /* of `entries` */
  uint64_t huge;   /* bytes of `slabs` in huge pages: perigee_cache_huge */
  uint64_t failed; /* copies to or from a GPU's slabs: perigee_cache_failed */
  /* Of a store below that clients read: what is there, and bytes as above. Its
   * hits and leases, and its directory, are counted in those of above. */
  uint64_t spilled, spill_quota, spill_slabs, spill_used, spill_values;
  uint64_t spill_evicted;
};
/* Tells how many bytes of the slabs that it has are in huge pages. */
PERIGEE_API void perigee_cache_huge(struct perigee_cache *cache, uint64_t huge);
/* Counts a copy between its slabs, in memory of a GPU, and what is below that
 * has failed. */
PERIGEE_API void perigee_cache_failed(struct perigee_cache *cache);
PERIGEE_API void perigee_cache_count(const struct perigee_cache *cache,
                                     struct perigee_cache_counters *counters);

/* ---- Sums --------------------------------------------------------------- */

/* Returns the checksum of a value, for perigee_cache_seal and for who reads it.
 * It is made of pieces of PERIGEE_CACHE_SUM_PIECE bytes, of which the last one
 * may be shorter: the sum of a piece is its XXH3 of 64 bits with the sum before
 * it as the seed, 1 in place of 0; `before` the first one it is 0. So the work
 * can be cut at multiples of that many bytes: sum(a and b, before) is
 * sum(b, sum(a, before)). The sum of no bytes is `before`. A piece takes about
 * 30 us, or 80 without AVX2. */
enum { PERIGEE_CACHE_SUM_PIECE = 1048576 };
PERIGEE_API uint64_t perigee_cache_sum(const void *value, uint64_t length,
                                       uint64_t before);

/* ---- Requests of clients ----------------------------------------------- */

/* Answers one request; all of it is checked. Returns the length of the answer;
 * PERIGEE_CACHE_WANTS: nothing was done, for memory is wanted;
 * PERIGEE_PROTOCOL: it is no request; PERIGEE_TOO_LARGE: `room` is too small
 * even for an answer without any item. An answer that has fewer items than
 * were asked for had no room for more: the rest is to be asked for again.
 *
 * All numbers are little endian, without gaps. A key is u16 length, bytes.
 *
 *   request   u8 1, u8 what, u16 flags, u32 count, then count items
 *   answer    u8 1, u8 what, u16 0, u32 count, then count items
 *
 *   what      item asked              item answered
 *   HAS       key                     u8: 1 or 0
 *   MATCH     key                     none; count: how many of the keys, from
 *                                     the first, are there
 *   LOCATE    key                     i32 status, and if it is 0: place, and
 *                                     u32 n, n bytes of the value
 *   RELEASE   u64 lease               i32 status
 *   DELETE    key                     i32 status
 *   TOUCH     key                     i32 status
 *   PIN       key                     i32 status
 *   STAT      key                     i32 status, and if it is 0: place
 *   STAT      nothing (count 0)       u64 of each of perigee_cache_counters
 *   LIST      u64 cursor, key         u64 cursor, then count times key (the
 *             (may be empty): prefix  cursor ends with all ones)
 *   EVENTS    u64 number              u64 next number, u64 1 if some before the
 *                                     first are lost, else 0, then count events
 *   PUT       key, u64 group, i64 ttl,  i32 status, u64 version
 *             u8 pin, u8 if_absent,
 *             parent's key (may be empty),
 *             u64 checksum (`sums`: not
 *             looked at), u32 n, n bytes
 *
 *   place     u32 slab, u32 1 if it is in the store below, else 0, u64 offset,
 *             length, version, checksum, lease, and lease's ns, no more than its
 *             TTL leaves (of STAT: both 0)
 *   event     u8 what (perigee_cache_event), u64 number, u64 version, u64
 *             length of the value, key
 *
 * flags: of LOCATE, the KiB of a value up to which its bytes come along, and no
 * lease (0: never; nor do those of the first value if they have no room); of
 * PIN, the pin; of LIST and EVENTS, how many at most (0: as many as there is
 * room for). Count is at most PERIGEE_CACHE_MANY, and 1 for LIST and EVENTS,
 * whose answers want room for the longest key. A list has each key that was
 * there throughout at least once, those of the store below after the others;
 * but one that was below only, and is put again meanwhile, may be left out.
 * Numbers of events count up from 1; a client that begins asks from 0, which is
 * the oldest one kept. */
enum perigee_cache_request {
  PERIGEE_CACHE_HAS = 1,
  PERIGEE_CACHE_MATCH,
  PERIGEE_CACHE_LOCATE,
  PERIGEE_CACHE_RELEASE,
  PERIGEE_CACHE_DELETE,
  PERIGEE_CACHE_TOUCH,
  PERIGEE_CACHE_PIN,
  PERIGEE_CACHE_STAT,
  PERIGEE_CACHE_LIST,
  PERIGEE_CACHE_EVENTS,
  PERIGEE_CACHE_PUT
};
enum { PERIGEE_CACHE_MANY = 4096 };
/* HAS, MATCH, STAT and LIST find what is in a store below, too (NULL: there is
 * none), from which the caller brings it; DELETE finds it, and the caller
 * deletes it there; what is there EXISTS for if_absent. */
PERIGEE_API void perigee_cache_below(struct perigee_cache *cache,
                                     struct perigee_cache *below);
/* The same, once and before there are clients, of a store whose slabs clients
 * read, too, and that has room for as many clients. So LOCATE, TOUCH and PIN are
 * about what is below, if it is there alone; a PIN of what is above takes a pin
 * below away. To the numbers of slabs there, answers add PERIGEE_CACHE_SPILLED.
 * Counters tell of both stores. What goes from below loses its mark above
 * (perigee_cache_mark). The caller brings what is to be evicted there, gives
 * `below` its turns, and closes it together with `cache`: of a store whose other
 * one is closed nothing is asked but its own close. */
enum { PERIGEE_CACHE_SPILLED = 268435456 };
PERIGEE_API void perigee_cache_spill(struct perigee_cache *cache,
                                     struct perigee_cache *below);
enum perigee_cache_event {
  PERIGEE_CACHE_SEALED = 1,
  PERIGEE_CACHE_EVICTED,
  PERIGEE_CACHE_DELETED,
  PERIGEE_CACHE_EXPIRED,
  PERIGEE_CACHE_REPLACED
};
PERIGEE_API int64_t perigee_cache_answer(struct perigee_cache *cache,
                                         uint32_t client, const void *request,
                                         uint64_t length, void *reply,
                                         uint64_t room, int64_t now);

/* ---- Memory that outlives the process ---------------------------------- */

enum { PERIGEE_CACHE_HELD_NAME = 64 }; /* bytes, with the zero at the end */
/* Connects to the holder at a path, a process of this user that keeps
 * descriptors by names; starts one if there is none: a program of its own, which
 * this object has, with its socket alone and no environment. It serves one
 * process at a time, and ends when none has come for `stay` ns. Returns a
 * descriptor, which the caller closes; PERIGEE_INVALID: the path is too long;
 * PERIGEE_NAME_TAKEN: other processes wait for it; PERIGEE_UNSUPPORTED: not on
 * this processor; PERIGEE_SYSTEM: or memory may not be executed here
 * (vm.memfd_noexec). Who is told nothing by the holder within a second, ask what
 * he may, is not served: another process has it, or it is stopped. */
PERIGEE_API int perigee_cache_hold(const char *path, int64_t stay);
/* These ask, and do not wait for the answer; at most 5 ms if the holder has left
 * many requests unread. What was asked is done also if this process ends before
 * it is answered. PERIGEE_PEER_LOST: the holder is gone, or reads nothing;
 * PERIGEE_INVALID: the name.
 *
 * put keeps a descriptor, which stays the caller's; drop drops one. take asks
 * for what is kept: number 0, 1, ... end ends the holder, and drops all. */
PERIGEE_API int perigee_cache_hold_put(int holder, const char *name, int fd);
PERIGEE_API int perigee_cache_hold_drop(int holder, const char *name);
PERIGEE_API int perigee_cache_hold_take(int holder, uint32_t number);
PERIGEE_API int perigee_cache_hold_end(int holder);
/* Returns the next answer, in the order of the requests; waits for it for so
 * many milliseconds at most. name has room for PERIGEE_CACHE_HELD_NAME bytes; the
 * caller closes *fd, which is -1 but for what was taken. PERIGEE_AGAIN: there is
 * none yet; PERIGEE_NO_MEMORY: it has 4096; PERIGEE_NOT_FOUND;
 * PERIGEE_PEER_LOST. */
PERIGEE_API int perigee_cache_hold_answer(int holder, int milliseconds,
                                          char *name, int *fd);

struct perigee_cache_view;
/* Puts the entries back that a store had whose process has ended. `view` sees
 * its directory; slab from[i] of it was added here as slab to[i], in which
 * nothing is yet. Entries with a TTL, and of slabs that are not named, are left
 * out; chains and groups are not known any more, pins are. Enough pieces were
 * given before: as many as that store had, and one. Returns how many entries
 * have come; PERIGEE_NO_MEMORY. Takes some 300 ns an entry. */
PERIGEE_API int64_t perigee_cache_revive(struct perigee_cache *cache,
                                         const struct perigee_cache_view *view,
                                         const uint32_t *from,
                                         const uint32_t *to, uint32_t count,
                                         int64_t now);

/* ---- Which of several caches ------------------------------------------- */

/* Returns the SipHash of bytes, keyed by a seed. Clients choose among caches by
 * it: the cache with the highest of the numbers -weight / ln(h) has a key, where
 * h is perigee_cache_hash(key, of the cache's name with the seed 0), as a
 * fraction of 2^64. */
PERIGEE_API uint64_t perigee_cache_hash(const char *bytes, uint64_t length,
                                        uint64_t seed);

/* ---- Hot keys ------------------------------------------------------------ */

/* A client may read a key that is asked for often from other caches than the
 * one that has it, as copies (PERIGEE_CACHE_COPY). A copy's key is
 *
 *   0 'c' 'o' 'p' 'y' 0, epoch, version, key
 *
 * the epoch of the session with the cache that has the key, and the version of
 * its entry there: 16 hexadecimal digits each. So a copy is of one life of one
 * cache, and never changes: who asks for it knows that this version is the
 * key's, or was a moment ago. */
enum { PERIGEE_CACHE_COPY_PREFIX = 38 }; /* bytes before the key */

/* ---- What is written out before it is evicted ---------------------------- */

/* An entry near its eviction. left: ns of its TTL, 0: it has none. */
struct perigee_cache_cold {
  struct perigee_cache_place place;
  int64_t left;
  uint32_t key_length;
  char key[PERIGEE_CACHE_KEY];
};
/* Names up to `most` entries that go next, the coldest first, but for those
 * that are marked; looks at `looks` entries at most. Returns how many. */
PERIGEE_API uint32_t perigee_cache_coldest(struct perigee_cache *cache,
                                           struct perigee_cache_cold *cold,
                                           uint32_t most, uint32_t looks);
/* Marks a key's entry of this version: its value is elsewhere, too; or takes
 * the mark away (marked 0). An entry that replaces it has no mark.
 * PERIGEE_STALE: it has another version. */
PERIGEE_API int perigee_cache_mark(struct perigee_cache *cache, const char *key,
                                   uint32_t key_length, uint64_t version,
                                   int marked);
/* Returns how many ns of its TTL a key's entry has left, 0: it has no TTL. */
PERIGEE_API int64_t perigee_cache_left(struct perigee_cache *cache,
                                       const char *key, uint32_t key_length,
                                       int64_t now);

/* Names up to `most` entries of the store below (perigee_cache_spill) that are
 * there alone, and of which clients have got 8 leases within about a second
 * since they were named last; values that go along with answers are best there.
 * For who copies them back. Returns how many. */
PERIGEE_API uint32_t perigee_cache_hot(struct perigee_cache *cache,
                                       struct perigee_cache_cold *hot,
                                       uint32_t most, int64_t now);

/* ---- What was there before --------------------------------------------- */

/* Puts a sealed entry back where it was: the slab, offset, length, version and
 * checksum of `place`; ttl in ns, 0: none. Those of a slab come in the order of
 * their offsets, before anything is reserved in it. PERIGEE_RANGE: no place of
 * that size is there, or one further on has come; PERIGEE_CACHE_EXISTS: the key
 * has an entry of the same or a later version (one of an earlier version is
 * replaced); BUSY, WANTS, PERIGEE_INVALID, PERIGEE_NO_MEMORY. Later versions
 * are larger than this one. */
PERIGEE_API int perigee_cache_restore(struct perigee_cache *cache,
                                      const char *key, uint32_t key_length,
                                      const struct perigee_cache_place *place,
                                      int64_t ttl, int64_t now);
/* Has all later versions be larger than this. */
PERIGEE_API void perigee_cache_versions(struct perigee_cache *cache,
                                        uint64_t above);

/* ---- Values in a file -------------------------------------------------- */

/* A file with values, and a store that is its directory: what the store calls
 * slabs are parts of the file. It belongs to the thread that opened it, as its
 * store does. Only opening may block. What is asked for ends in a later poll,
 * in any order; the caller's memory stays until then. What a read brings is to
 * be checked by its checksum: the device may have lost or mixed up anything.
 *
 * When the process ends in any way, and opens the same file again, all is there
 * of which the write had ended a moment before, but what was forgotten. */
struct perigee_cache_file;

/* 0 stands for the value in brackets. A file that has another size or slab is
 * begun anew. */
struct perigee_cache_file_options {
  const char *path;
  uint64_t size;      /* bytes of the file: 1 MiB at least, a multiple of 4096
                        */
  uint64_t slab;      /* bytes of a part of it (64 MiB, or a 16th of the file)
                        */
  uint32_t depth;     /* reads, writes, forgets at a time (64; 1000 at most) */
  uint32_t threads;   /* if the kernel has no io_uring (4; 64 at most) */
  uint8_t by_threads; /* 1: not by io_uring */
  uint8_t buffered;   /* 1: by the page cache, not by O_DIRECT */
};

/* status: PERIGEE_OK; PERIGEE_CACHE_IO; PERIGEE_CACHE_NO_SPACE;
 * PERIGEE_CANCELLED: the key was forgotten while it was written. */
struct perigee_cache_file_end {
  uint64_t token;
  int64_t status;
};

/* ready: 0 while what was in the file is looked for. ring: by io_uring; direct:
 * by O_DIRECT. failed: 0, or the status that ended all writing: the device may
 * show forgotten values again, so the caller removes the file. */
struct perigee_cache_file_state {
  int32_t failed;
  uint32_t under_way; /* of the caller's: their ends are still to come */
  uint8_t ready, ring, direct;
};

/* Opens a file, or makes it, with mode 0600. `wall` is the time of day in ns,
 * for TTLs. memory: a store whose entries are marked while the file has their
 * values, or NULL; it stays open until the file is closed. PERIGEE_CACHE_...,
 * PERIGEE_INVALID, PERIGEE_SYSTEM, PERIGEE_NO_MEMORY: `reason` says why. */
PERIGEE_API int
perigee_cache_file_open(const struct perigee_cache_file_options *options,
                        struct perigee_cache *memory, int64_t now, int64_t wall,
                        struct perigee_cache_file **file, char *reason,
                        uint64_t room);
/* PERIGEE_AGAIN: something is under way; poll. The file's space stays. */
PERIGEE_API int perigee_cache_file_close(struct perigee_cache_file *file);
/* A descriptor that is readable when a poll has something to do. */
PERIGEE_API int
perigee_cache_file_descriptor(const struct perigee_cache_file *file);
PERIGEE_API void
perigee_cache_file_state(const struct perigee_cache_file *file,
                         struct perigee_cache_file_state *state);
/* The directory, for perigee_cache_stat, _touch, _left, _count, and requests
 * HAS, MATCH, STAT, LIST. All else is the file's own. */
PERIGEE_API struct perigee_cache *
perigee_cache_file_store(struct perigee_cache_file *file);

/* What all three return: PERIGEE_AGAIN: too much is under way, or the file is
 * not ready; the status of a file that failed; PERIGEE_INVALID. Values of more
 * than 16 KiB begin at a multiple of 4096 in memory.
 *
 * Writes a value; others may go for it. version: the one that the value has in
 * memory; checksum: perigee_cache_sum of it; ttl: what is left, 0: none.
 * PERIGEE_NO_MEMORY, PERIGEE_TOO_LARGE: there is no place for it now;
 * PERIGEE_CACHE_BUSY: the key is being written, or is reserved in memory;
 * PERIGEE_CACHE_EXISTS: the file has this version, or a later one;
 * PERIGEE_STALE: memory does not have this version of the key any more. */
PERIGEE_API int perigee_cache_file_write(struct perigee_cache_file *file,
                                         const char *key, uint32_t key_length,
                                         const void *value, uint64_t length,
                                         uint64_t version, uint64_t checksum,
                                         int64_t ttl, uint64_t token);
/* Reads a value to memory of `room` bytes. Says at once what comes: length,
 * version, checksum of `place`. PERIGEE_NOT_FOUND, PERIGEE_TOO_LARGE. */
PERIGEE_API int perigee_cache_file_read(struct perigee_cache_file *file,
                                        const char *key, uint32_t key_length,
                                        void *to, uint64_t room, uint64_t token,
                                        struct perigee_cache_place *place);
/* Forgets a key's value, here and after a restart: when a key is replaced or
 * deleted in memory, and after a read whose checksum was wrong. Returns 0: that
 * is so now; 1: it is so here now, and after a restart from the end with this
 * token on. Who seals or deletes a key in memory only then, while it is
 * reserved there, never shows an older value after a newer one, even if the
 * process is killed in between. PERIGEE_AGAIN: it is so here now, but nobody is
 * told when it is so after a restart: ask again. PERIGEE_AGAIN before the file
 * is ready: it is not so here either; from a moment later until
 * perigee_cache_file_settled, a process that ends leaves a file that is begun
 * anew, since nobody could say what to forget there. */
PERIGEE_API int perigee_cache_file_forget(struct perigee_cache_file *file,
                                          const char *key, uint32_t key_length,
                                          uint64_t token);
/* The caller has forgotten, to the ends, all that it could not before the file
 * was ready. */
PERIGEE_API void perigee_cache_file_settled(struct perigee_cache_file *file);
/* Goes on, and returns how many ends there are, at most `most`; if that many,
 * there may be more. Call it when the descriptor is readable, and some times a
 * second for what is over in time. */
PERIGEE_API int64_t perigee_cache_file_poll(struct perigee_cache_file *file,
                                            int64_t now, int64_t wall,
                                            struct perigee_cache_file_end *ends,
                                            uint64_t most);

/* ---- A client's view of the directory ---------------------------------- */

/* The mapped directory of a store of this host, whose process may write to it
 * at any time, or be dead in the midst of that. Nothing that is read there is
 * believed. A view belongs to one thread. */
struct perigee_cache_view;
PERIGEE_API struct perigee_cache_view *perigee_cache_view_open(void);
/* The pieces stay mapped; they are the caller's. */
PERIGEE_API void perigee_cache_view_close(struct perigee_cache_view *view);
/* Tells where a piece is mapped: PERIGEE_CACHE_PIECE readable bytes. */
PERIGEE_API int perigee_cache_view_piece(struct perigee_cache_view *view,
                                         uint32_t number, const void *piece);
/* Returns how many pieces the directory has now. */
PERIGEE_API int64_t
perigee_cache_view_pieces(const struct perigee_cache_view *view);
/* Looks a key up. PERIGEE_OK: it is sealed, at `place`, without a lease.
 * PERIGEE_NOT_FOUND: it is not there. PERIGEE_AGAIN: this cannot tell: pieces
 * are not mapped, or the store is writing, or died at it; ask by a request.
 * An entry whose TTL is over may be seen until the store's next turn. */
PERIGEE_API int perigee_cache_seen(const struct perigee_cache_view *view,
                                   const char *key, uint32_t key_length,
                                   struct perigee_cache_place *place);
/* Is a place that was seen still the key's? After a copy without a lease: 1:
 * the copy has the entry's bytes, if the slab is mapped, too (a fence comes
 * first). 0: drop it. */
PERIGEE_API int perigee_cache_same(const struct perigee_cache_view *view,
                                   const char *key, uint32_t key_length,
                                   const struct perigee_cache_place *place);

#endif
