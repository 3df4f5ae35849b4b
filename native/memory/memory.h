/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - the tables that a kind of memory fills in: perigee_memory, and one
 * for each group of functions; and payloads, through which alone the core
 * touches user memory.
 *
 * Host memory is `direct`: the core loads and stores there by itself and asks
 * its kind for no copy. All other kinds (such as a GPU's) copy asynchronously:
 * copy() starts a copy and gives a ticket, and finished() tells whether the
 * copy has ended. The core asks again in later polls and does not wait, except
 * where the program asked for that: in perigee_region_read and _write, and when
 * it closes an engine.
 *
 * A payload has a few copies under way. Each step collects those that have
 * ended, and asks for as many as there is room for. An operation that ends
 * meanwhile has quiet_wait set, and is told of once its copies are over. A
 * receive whose message is lost is free again then, and a freed session is
 * destroyed then.
 */
#ifndef PERIGEE_MEMORY_H
#define PERIGEE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/copy.h"
#include "perigee.h"

enum { MEMORY_REASON = 240, MEMORY_KEY = 120, MEMORY_FDS = 2 };

/* The memory of one device, as one engine uses it. contexts.c makes it when a
 * region of that memory is first made; it is closed with the engine, after all
 * of the engine's regions. The core reads it. The kind keeps its own data in
 * `own`: for CUDA the device's context, a stream, and events. */
struct memory_context {
  const struct perigee_memory *kind;
  void *own;
  uint32_t device;
  bool direct;   /* copied from the kind */
  bool pinnable; /* as the kind has told when the context was made */
};

/* One copy: count blocks of block bytes. The starts of two blocks lie to_stride
 * and from_stride bytes apart (as in cudaMemcpy2D). A side that is not in
 * memory of the copying kind is in direct memory. */
struct memory_copy {
  const struct memory_context *to_memory, *from_memory;
  uint8_t *to;
  const uint8_t *from;
  uint64_t block, count, to_stride, from_stride;
  bool waited_for; /* the program does nothing else until it has ended */
};

/* The key by which another process uses the memory: bytes that the same kind
 * understands there, and descriptors that are sent along. */
struct memory_key {
  uint8_t bytes[MEMORY_KEY];
  uint32_t length, fd_count;
  int fds[MEMORY_FDS];
};

/* ---- What a kind of memory may do -----------------------------------------
 *
 * Each group is a table of its own. A kind that does not support a group has
 * NULL in its place; in a group that it supports, all functions are set, except
 * those whose comment tells what NULL means.
 *
 * Threads. The functions of a context are called by one thread at a time, the
 * one that has its engine. Other threads may use contexts of other engines
 * meanwhile, so a kind locks what its contexts share. No function but dismiss is
 * called in a child process after fork.
 *
 * Statuses are those of perigee.h and negative. A function that returns one has
 * begun nothing and keeps nothing of its arguments. */

/* Copies of memory that is not direct.
 *
 * copy asks for one, of at most COPY_PIECE bytes if one side is direct, or of as
 * many as most has told. One side or both are memory of this kind: of this
 * context's device, or one of them of another device. Both sides have the same
 * blocks. It returns 0 and a ticket, which is not 0 and which no other copy of
 * the context has until finished has ended it; PERIGEE_AGAIN if no more copies
 * can be under way now; or a status. A copy that is waited for is never refused
 * so while the context has no other such copy: the owners of all other tickets
 * do not ask for them meanwhile. It does not block. Copies need not end in
 * the order in which they were asked for. Overlapping copies are never asked
 * for.
 *
 * While a ticket is open, neither the core nor the owner of the memory writes
 * the bytes that are copied from, touches the bytes that are copied to, or
 * releases either memory. The memory_copy itself belongs to the caller again
 * when copy returns.
 *
 * copy_all asks for several copies at once, with one ticket. Both sides of each
 * are memory of this kind, and of this context's device by its addresses: own,
 * or adopted. They are done in any order. One that fails may have begun; then
 * the status comes from finished. NULL: the kind has no such way.
 *
 * finished tells the state of an open ticket. 0: still under way. 1: all bytes
 * have arrived, visible to the CPU and to devices. A status: the copy has
 * failed; it touches no byte any more, and the bytes that it should have
 * written are undefined. 1 and a status end the ticket. finished does not
 * block. It may be called seldom, or not again until drain, so copies must make
 * progress without it.
 *
 * most tells how many bytes a copy may have that begins at a byte of direct
 * memory, which is of that area; it is asked only if area.pins. The kind may pin
 * memory of the area then, and sets area.pinned, until unpin; the core calls that
 * before the area goes, when no copy is under way there, but perhaps one of
 * another area with the same bytes, for which unpin waits. (Both NULL:
 * COPY_PIECE, and there is nothing to undo.)
 *
 * tell has a descriptor of the context become readable once copies that are under
 * way now have ended: all of them, or all of one of the kind's queues. It is called
 * by an engine that goes to sleep, any number of times for the same copies, and
 * returns 1 and the descriptor, which is the same each time, belongs to the
 * kind, and is nobody's to read; 0: no ticket is open; or a status: the kind
 * cannot tell, or a copy has ended by now. Each time it tells, the descriptor has
 * a new edge (EPOLLET). It may tell late, or not at all: who waits looks now and
 * then. It does not block. (NULL: it never tells.)
 *
 * drain blocks until no copy of the context is under way: finished then returns
 * no 0. Tickets stay open. */
struct area;

struct memory_copies {
  int (*copy)(const struct memory_context *context,
              const struct memory_copy *copy, uint64_t *ticket);
  int (*finished)(const struct memory_context *context, uint64_t ticket);
  int (*tell)(const struct memory_context *context, int *fd);
  void (*drain)(const struct memory_context *context);
  int (*copy_all)(const struct memory_context *context,
                  const struct memory_copy *copies, uint32_t count,
                  uint64_t *ticket);
  uint64_t (*most)(const struct memory_context *context, struct area *area,
                   const uint8_t *at);
  void (*unpin)(const struct memory_context *context, const struct area *area);
};

/* Sharing with other processes, which are of this host but for share_bytes.
 *
 * share fills a key for memory that allocate made with shared true, or that was
 * admitted; PERIGEE_UNSUPPORTED: such memory has none. It may be
 * called any number of times until release, with the same access each time:
 * PERIGEE_READ, and PERIGEE_WRITE if a process with the key may write. The kind
 * owns the descriptors, which stay open until release; sending them makes the
 * kernel duplicate them.
 *
 * share_bytes does the same by a key without descriptors, which may go to a
 * process that none reaches, such as one of another host; what it grants is
 * reading and writing. (NULL: there is no such key.)
 *
 * binds tells whether a key that does not grant writing withholds it from
 * processes that do not keep to that.
 *
 * whose returns the number of the device, as this process counts them, that the
 * memory of a key is of; or -1: the key is invalid, or the device is hidden from
 * this process. NULL: there is one device.
 *
 * spans returns how many bytes of addresses adopt takes for a key, or 0 if it is
 * invalid. (NULL: as many as the memory has.)
 *
 * adopt makes the memory of a key usable in another process, for the device of
 * the context, which may be another one than the memory's. It gives the
 * address by which copies name the memory (of direct memory: the CPU's address)
 * and a handle for leave. The key comes from another process, so adopt checks
 * its bytes, and its descriptors may be anything. The caller keeps the
 * descriptors and may close them at once. The memory has to have at least
 * `length` bytes and to allow that access; otherwise, or if the key is invalid,
 * adopt returns PERIGEE_PROTOCOL. The memory lives at least until leave, whatever
 * its owner does, and the owner's release does not wait for that.
 *
 * Admitted memory may not live as long. Then each process that has a key keeps
 * its descriptors open for as long as it uses the memory, and held, from its
 * first call on, tells whether any still does. No key is given after that call.
 * (NULL: all memory lives on.) */
struct memory_sharing {
  bool binds;
  int (*whose)(const struct memory_key *key);
  uint64_t (*spans)(const struct memory_key *key);
  int (*share)(const struct memory_context *context, uint8_t *pointer,
               uint64_t length, void *handle, int access,
               struct memory_key *key);
  int (*share_bytes)(const struct memory_context *context, uint8_t *pointer,
                     void *handle, struct memory_key *key);
  int (*adopt)(const struct memory_context *context,
               const struct memory_key *key, uint64_t length, int access,
               uint8_t **pointer, void **handle);
  void (*leave)(const struct memory_context *context, uint8_t *pointer,
                uint64_t length, void *handle);
  bool (*held)(const struct memory_context *context, void *handle);
};

/* Memory that the program allocated, and registers.
 *
 * admit looks what it is, and gives a handle of it; or a status, with a reason.
 * The bytes are one device's, as owner_of has told of the first. valid tells
 * whether the memory is still the one that was admitted, not one that was
 * allocated later at its address; it may be called before each use. dismiss
 * ends the handle; it asks no device for anything, and may be called in a child
 * process. */
struct memory_admission {
  int (*admit)(const struct memory_context *context, uint8_t *pointer,
               uint64_t length, void **handle, char reason[MEMORY_REASON]);
  bool (*valid)(const struct memory_context *context, const uint8_t *pointer,
                const void *handle);
  void (*dismiss)(const struct memory_context *context, void *handle);
};

struct perigee_memory {
  const char *name; /* the kind= of a region, without a colon */
  /* True if the CPU may load and store there; copies is NULL then. */
  bool direct;

  /* open makes the kind's part of a context, for one of its devices (numbers
   * start at 0). It returns 0, PERIGEE_NOT_FOUND if there is no such device, or
   * another status, with a reason or "". close is called once no copy is under
   * way and all memory of the context was released. Both NULL: there is one
   * device, and `own` is not used. */
  int (*open)(uint32_t device, void **own, char reason[MEMORY_REASON]);
  /* Asked once, after open: does a kernel module let RDMA devices pin addresses
   * of that device as if they were host memory (nvidia-peermem)? NULL: no. */
  bool (*pinnable)(const void *own);
  void (*close)(void *own);

  /* Returns the number of the device that a pointer's memory belongs to, or -1
   * if it is not of this kind (cuPointerGetAttribute). It may be called with
   * any pointer and does not follow it. NULL: the kind cannot tell. */
  int (*owner_of)(const void *pointer);

  /* Allocates page-aligned zeroed bytes, with a handle that the other functions
   * get. The memory can be shared if `shared`. Returns 0 or a status. The
   * caller owns the memory until it calls release, which it does once no copy
   * is under way there. */
  int (*allocate)(const struct memory_context *context, uint64_t length,
                  bool shared, uint8_t **pointer, void **handle);
  void (*release)(const struct memory_context *context, uint8_t *pointer,
                  uint64_t length, void *handle);

  /* For RDMA devices, and memory that is not direct: returns a dma-buf
   * descriptor, which the caller closes, and the offset in it at which the
   * bytes begin; or a negative number if there is none. NULL: there never is
   * one. */
  int (*dmabuf)(const struct memory_context *context, const uint8_t *pointer,
                uint64_t length, uint64_t *offset);

  /* Returns a sentence on what failed last in the context, or "". NULL: the
   * kind tells nothing. */
  const char *(*why)(const struct memory_context *context);
  /* Writes a sentence for users: the device, and how it copies. It returns as
   * snprintf does. NULL: the kind tells nothing. */
  int (*describe)(const struct memory_context *context, char *text,
                  size_t size);

  const struct memory_copies *copies;
  const struct memory_sharing *sharing;
  const struct memory_admission *admission; /* NULL: nothing is asked */
};

extern const struct perigee_memory memory_host_kind, memory_cuda_kind;
extern const struct memory_context memory_host;
/* Maps a memfd of sealed size, which stays the caller's, as memory that
 * memory_host_kind.release takes back. What is written to it here stays here.
 * PERIGEE_INVALID: it is no such file, or is shorter. */
int memory_host_of_file(int fd, uint64_t length, uint8_t **pointer,
                        void **handle);

/* Memory that devices register once and then use often: a region, the pool, an
 * arena. The transports that have registered it keep `keys`. The owner of the
 * area makes them drop their keys before the memory goes. */
struct area {
  const struct memory_context *memory;
  uint8_t *base;
  uint64_t length;
  uint64_t chunk; /* size of parts to register; 0: as a whole */
  void *handle;   /* of the kind */
  bool shared;    /* the kind's share gives keys of it */
  int rights;     /* PERIGEE_READ, and PERIGEE_WRITE if such a key grants it */
  bool readable;  /* peers may read all of it */
  bool told;      /* a lane told a peer of it (lanes_forget) */
  bool pins;      /* its owner calls contexts_unpin before any of it goes */
  bool pinned;    /* some of it may be */
  bool read_only; /* neither the CPU nor a device may write to it */
  struct keys *keys;
};

/* ---- Copies between memory that the CPU may touch ------------------------- */

/* Payloads from BULK_LEAST bytes on are copied past the caches if that is the
 * faster way, which is tried anew after each BULK_TRY bytes; pieces shorter than
 * BULK_PIECE are not. */
enum { BULK_LEAST = 512 << 10, BULK_TRY = 1 << 20, BULK_PIECE = 64 << 10 };
/* From so many bytes on each thread learns which way is faster, as caches do not
 * keep as much. Constant once the library is loaded. */
extern uint64_t bulk_vast;
/* Pieces as short as this may be streamed of twice that: they come through a
 * window, which leaves more room in the caches (bench/history/tried.md). */
enum { BULK_SHORT = 8 << 10 };
enum bulk_way { BULK_UNKNOWN, BULK_CACHED, BULK_STREAMED };

/* Copies n bytes, at least 64, past the caches: as bulk_copy, a later release
 * store publishes them. */
void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n);

/* The same as bulk_copy, for COPY_BY_LINES bytes and more. */
void bulk_copy_long(uint8_t *to, const uint8_t *from, uint64_t n,
                    uint64_t total, uint8_t *way);

/* Copies n bytes, which are all or a part of total, as memcpy does: a later
 * release store publishes them, whatever stores it took. way is what was found
 * out by the pieces before. */
static inline void bulk_copy(uint8_t *to, const uint8_t *from, uint64_t n,
                             uint64_t total, uint8_t *way) {
  if (__builtin_expect(n < COPY_BY_LINES, 1))
    memcpy(to, from, n);
  else
    bulk_copy_long(to, from, n, total, way);
}

/* Shorter blocks of lists, loans and staged pieces are not streamed. */
enum { STREAM_LEAST = 4096 };

/* A bundle copies blocks past the caches, several at a time. Each block has 64
 * bytes at least. bundle_end copies those that are left, and a later release store
 * publishes all. */
enum { BUNDLE = 8 };
struct bundle {
  uint64_t n; /* of each block: whole lines */
  uint32_t count;
  struct {
    uint8_t *to; /* begins a line */
    const uint8_t *from;
  } block[BUNDLE];
};

void bundle_begin(struct bundle *b);
void bundle_add(struct bundle *b, uint8_t *to, const uint8_t *from, uint64_t n);
void bundle_end(struct bundle *b);

/* ---- Payloads -------------------------------------------------------------- */

/* COPIES_MOST copies may be under way for one payload. One to or from direct
 * memory has at most COPY_PIECE bytes, so that one end of a staging block is
 * filled while the other is emptied. One inside of a kind has COPY_LONG, as it
 * cannot be called back, and COPY_BLOCKS blocks: the kind may have to ask for
 * each. */
enum { COPIES_MOST = 8, COPY_PIECE = 128 << 10, COPY_LONG = 64 << 20 };
enum { COPY_BLOCKS = 2048 };

/* Copies under way between a payload that is not direct and other memory, in
 * the order of the payload's bytes. All zero: none. */
struct copies {
  uint64_t asked;  /* bytes of the payload that copies were asked for */
  int status;      /* of a failed copy, after which no more are asked for */
  bool again;      /* the kind takes no more copies for now */
  bool waited_for; /* as of a memory_copy */
  uint8_t first, count;
  struct copy_ticket {
    const struct memory_context *by;
    uint64_t ticket, length;
  } tickets[COPIES_MOST];
};

/* One of several places over which the bytes of a payload are spread: blocks, of
 * which the first begins with the payload's byte `begin`. */
struct extent {
  uint8_t *base;
  uint64_t block, count, stride;
  uint64_t begin;
  struct area *area; /* the area that holds all of it, or NULL */
};

/* Returns the number of the extent with byte `at`, of count that there are. */
uint64_t extent_number(const struct extent *extents, uint64_t count,
                       uint64_t at);

/* Bytes of user memory in some shape, moved from front to back. The owner of
 * the payload sets `copies` before it is moved, if the memory is not direct.
 *
 * The payload of a list has extents, at least two, all of one kind of memory and
 * none empty. Their owner keeps them for as long as there is the payload, or a
 * copy of it. `count` is then the number of extents, and `block` the mean length
 * of their blocks. */
struct payload {
  const struct memory_context *memory;
  struct area *area; /* the area that holds all of it, or NULL */
  uint8_t *base;     /* start of the first block */
  uint64_t block, count, stride;
  uint64_t total;               /* block * count, or that of all extents */
  uint64_t done;                /* bytes that have arrived */
  const struct extent *extents; /* NULL: one shape, as told above */
  struct copies *copies;
  int64_t delayed_until; /* set by injected faults */
  uint8_t way;           /* enum bulk_way, of less than bulk_vast bytes */
  bool vast; /* part of so many bytes that they leave the caches, or far */
};

void payload_bytes(struct payload *payload, const void *bytes, uint64_t length);
/* Returns the longest run of contiguous bytes at the present position. */
uint8_t *payload_run(const struct payload *payload, uint64_t *length);
/* Returns the extent at the present position of a payload that has some, as a
 * payload of its own with that position. */
struct payload payload_extent(const struct payload *payload);
/* Returns the area with the payload's byte `at`, or NULL, and the byte at which
 * the next area may begin. */
struct area *payload_area(const struct payload *payload, uint64_t at,
                          uint64_t *end);
/* Moves at most length bytes into or out of the payload at its position.
 * Returns the number of bytes that have arrived, by which the position
 * advances; 0 if all are under way; or a status. The host's bytes must not
 * change or move while a copy is under way (payload_busy), if the payload's
 * memory is not direct. The next call names again the bytes that have not
 * arrived, and may name more behind them, which are then asked for at once. */
int64_t payload_put(struct payload *payload, const uint8_t *from,
                    uint64_t length);
int64_t payload_take(struct payload *payload, uint8_t *to, uint64_t length);
/* As payload_take; what is in one piece goes past the caches. */
int64_t payload_stream(struct payload *payload, uint8_t *to, uint64_t length);
/* Does the same between two payloads, for at most limit bytes. The copies are
 * those of `to` if both are of one kind of memory that is not direct. Returns
 * PERIGEE_UNSUPPORTED for two different kinds that are both not direct. */
int64_t payload_move(struct payload *to, struct payload *from, uint64_t limit);
/* Makes the next copy between two payloads, of which one at least is not direct:
 * of at most limit bytes, `on` bytes past their positions. Returns its bytes. */
uint64_t payload_copy_ahead(const struct payload *to,
                            const struct payload *from, uint64_t on,
                            uint64_t limit, struct memory_copy *copy);
/* Copies at most limit bytes between two payloads that the CPU may touch;
 * returns their number. */
uint64_t payload_copy(struct payload *to, struct payload *from, uint64_t limit);
/* Returns whether the memory may be released: false while a copy is under way.
 * Copies that have ended are taken back. The owner of a payload that is given
 * up calls this until it is true. */
bool payload_quiet(struct payload *payload);

/* Moves the position of a payload that is quiet. */
static inline void payload_seek(struct payload *payload, uint64_t at) {
  payload->done = at;
  if (payload->copies)
    payload->copies->asked = at;
}

/* Returns whether a copy was under way when last looked at. */
static inline bool payload_busy(const struct payload *payload) {
  return payload->copies && payload->copies->count > 0;
}

/* Returns whether the payload needs another look later: a copy is under way or
 * waits to be asked for. */
static inline bool payload_waits(const struct payload *payload) {
  return payload->copies &&
         (payload->copies->count > 0 || payload->copies->again);
}

/* ---- The devices whose memory an engine uses ----------------------------- */

/* The devices whose memory an engine uses. Each has a context,
 * made when it is first asked for. A device is named by its kind ("gpu", its
 * first device) or by kind and number ("gpu:3"). */

struct context;
struct contexts {
  /* The program's kinds: NULL-terminated, or NULL. */
  const struct perigee_memory *const *kinds;
  struct context *first;
};

/* Finds the context of a name; NULL and "host" are host memory. The context
 * stays until the contexts close. Returns PERIGEE_UNSUPPORTED for an unknown
 * kind, PERIGEE_NOT_FOUND for a missing device, or the status of opening it,
 * with a reason. */
int contexts_find(struct contexts *contexts, const char *name,
                  const struct memory_context **out,
                  char reason[MEMORY_REASON]);
/* Finds the context of the memory that a pointer leads to: of the first kind
 * that recognizes the pointer, else host memory. */
int contexts_owner(struct contexts *contexts, const void *pointer,
                   const struct memory_context **out,
                   char reason[MEMORY_REASON]);
/* Finds a context of the kind that is open: that of the device that the memory of
 * the key is of, else any one; NULL: none is. *device is the number of that
 * device (sharing.whose), which is asked for once. */
enum { DEVICE_UNASKED = -2 };
const struct memory_context *contexts_opened(const struct contexts *contexts,
                                             const char *kind,
                                             const struct memory_key *key,
                                             int *device);
/* The area goes: undoes what contexts have pinned of it. */
void contexts_unpin(struct contexts *contexts, const struct area *area);
/* Returns what failed last in some context, or "". */
const char *contexts_trouble(const struct contexts *contexts);
/* Has the contexts tell by descriptors when copies that are under way have ended.
 * watch is called with each descriptor once; false: it cannot be watched. Returns
 * whether there are such copies, and all that there may be are told of. */
bool contexts_tell(struct contexts *contexts, bool (*watch)(void *of, int fd),
                   void *of);
/* Writes what the open contexts of that kind tell of themselves, each behind
 * "; ", as far as there is room. */
void contexts_describe(const struct contexts *contexts, const char *kind,
                       char *text, size_t size);
/* Blocks until no context has a copy under way. */
void contexts_drain(struct contexts *contexts);
/* Call it after all memory of the contexts was released. */
void contexts_close(struct contexts *contexts);
/* Frees them in a child process without calling any kind of memory. */
void contexts_forsake(struct contexts *contexts);

#endif
