/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - the tables that a kind of memory fills: perigee_memory, and one
 * for each group of things that it does; and payloads, the only way in which
 * the core touches user memory.
 *
 * Host memory is `direct`: the core loads and stores there by itself and asks
 * its kind for no copy. All other kinds (a GPU's) copy on their own time:
 * asking for a copy gives a ticket, and finished() tells when it is over. The
 * core asks again in later polls and never waits, but in the two places where
 * the program asked for that: perigee_region_read and _write, and closing an
 * engine.
 */
#ifndef PERIGEE_MEMORY_H
#define PERIGEE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "perigee.h"

enum { MEMORY_REASON = 240, MEMORY_KEY = 80, MEMORY_FDS = 2 };

/* The memory of one device, as one engine uses it: made by contexts.c when a
 * region of it is first made, and closed with the engine, after all of the
 * engine's regions. The core reads it and the kind keeps what it needs in own:
 * of CUDA the device's context, a stream, and events. */
struct memory_context {
  const struct perigee_memory *kind;
  void *own;
  uint32_t device;
  bool direct; /* as the kind is */
};

/* One copy: count blocks of block bytes. The starts of two blocks lie to_stride
 * and from_stride bytes apart (cudaMemcpy2D has the same shape). A side that is
 * not in memory of the copying kind is direct. */
struct memory_copy {
  const struct memory_context *to_memory, *from_memory;
  uint8_t *to;
  const uint8_t *from;
  uint64_t block, count, to_stride, from_stride;
};

/* What lets another process use memory: bytes that mean something to the same
 * kind there, and descriptors that have to be sent along. */
struct memory_key {
  uint8_t bytes[MEMORY_KEY];
  uint32_t length, fd_count;
  int fds[MEMORY_FDS];
};

/* ---- What a kind of memory may do -----------------------------------------
 *
 * Each group is a table of its own. A kind that does not do what a group is for
 * has NULL in its place; within a group all functions are there.
 *
 * Threads. The functions of a context are called by one thread at a time, that
 * which has its engine. Contexts of other engines may be in use by others
 * meanwhile: what a kind keeps for all of its contexts it locks by itself. No
 * function is called in a child process after fork.
 *
 * Statuses are those of perigee.h and negative. Whoever returns one has begun
 * nothing, and keeps nothing of what it was given. */

/* Copies, of memory that is not direct.
 *
 * copy asks for one. Either side, or both, lie in memory of this kind, of this
 * context's device or (one of them) of another's; both have the same blocks. It
 * returns 0 and a ticket, not 0, which no other copy of the context has until
 * finished took it back; PERIGEE_AGAIN if no more copies can be under way now;
 * or a status. It does not block. Copies need not end in the order in which they
 * were asked for, and overlapping ones are never asked for.
 *
 * While a ticket is open the bytes that are copied from are not written, those
 * that are copied to are not touched at all, and neither side's memory is given
 * back: by whoever the core had them from, and by the core. The memory_copy
 * itself is the caller's when copy returns.
 *
 * finished tells of an open ticket: 0: still under way. 1: all is where it
 * belongs, visible to the CPU and to devices. A status: the copy has failed; it
 * touches no byte any more, and those that it should have written are
 * undefined. 1 and a status end the ticket. It does not block; it may be asked
 * seldom or never again until drain, so what has to go on goes on without it.
 *
 * drain blocks until no copy of the context is under way: finished, asked then,
 * returns no 0. Tickets stay open. */
struct memory_copies {
  int (*copy)(const struct memory_context *context,
              const struct memory_copy *copy, uint64_t *ticket);
  int (*finished)(const struct memory_context *context, uint64_t ticket);
  void (*drain)(const struct memory_context *context);
};

/* Sharing, with processes of this host.
 *
 * share fills a key for memory that allocate made with shared true. It may be
 * called any number of times until release, with the same access each time:
 * PERIGEE_READ, and PERIGEE_WRITE if whoever has the key may write. The
 * descriptors stay the kind's, open until release; who sends them has the
 * kernel copy them.
 *
 * adopt, in another process, makes the memory of a key usable there: its
 * address, by which copies name it (of direct memory: by which the CPU reaches
 * it), and a handle for leave. The key is another process's word: its bytes are
 * checked, and its descriptors may be anything. They stay the caller's, who may
 * close them at once. length is what the memory has to have at least; else, or
 * if the key is none, PERIGEE_PROTOCOL. The memory lives at least until leave,
 * whatever its owner does meanwhile, and its owner's release does not wait. */
struct memory_sharing {
  int (*share)(const struct memory_context *context, uint8_t *pointer,
               uint64_t length, void *handle, int access,
               struct memory_key *key);
  int (*adopt)(const struct memory_context *context,
               const struct memory_key *key, uint64_t length, int access,
               uint8_t **pointer, void **handle);
  void (*leave)(const struct memory_context *context, uint8_t *pointer,
                uint64_t length, void *handle);
};

struct perigee_memory {
  const char *name; /* what kind= of a region says, without a colon */
  /* The CPU may load and store, and copies is NULL. */
  bool direct;
  /* A kernel module lets RDMA devices pin such addresses as if they were host
   * memory (nvidia-peermem). */
  bool pinnable;

  /* A context's own part, for one of the kind's devices, from 0 on: 0, or
   * PERIGEE_NOT_FOUND if there is no such device, or another status, with a
   * reason, or "". close is called once no copy is under way and all memory of
   * the context was released. NULL, both: there is one device, without own. */
  int (*open)(uint32_t device, void **own, char reason[MEMORY_REASON]);
  void (*close)(void *own);

  /* Which device's memory is it that a pointer leads to? Its number, or -1: it
   * is not of this kind (cuPointerGetAttribute). Any pointer may be asked
   * about, and is not followed. NULL: nobody knows. */
  int (*owner_of)(const void *pointer);

  /* Page-aligned zeroed bytes, and a handle that the other functions get. With
   * shared they may be shared. 0 or a status. They are the caller's until
   * release, which is called once no copy is under way there. */
  int (*allocate)(const struct memory_context *context, uint64_t length,
                  bool shared, uint8_t **pointer, void **handle);
  void (*release)(const struct memory_context *context, uint8_t *pointer,
                  uint64_t length, void *handle);

  /* For RDMA devices, of memory that is not direct: a dma-buf descriptor, the
   * caller's to close, and where in it the bytes begin; or negative: there is
   * none. NULL: there never is one. */
  int (*dmabuf)(const struct memory_context *context, const uint8_t *pointer,
                uint64_t length, uint64_t *offset);

  const struct memory_copies *copies;
  const struct memory_sharing *sharing;
};

extern const struct perigee_memory memory_host_kind;
extern const struct memory_context memory_host;

/* Memory that a device is told of once and then uses often: a region, the
 * pool, an arena. keys belongs to the transports that have registered it; who
 * owns the area has them forget it before the memory goes. */
struct area {
  const struct memory_context *memory;
  uint8_t *base;
  uint64_t length;
  uint64_t chunk; /* registered in parts of this size; 0: as a whole */
  bool read_only; /* the CPU, and so a device, may not write to it */
  struct keys *keys;
};

/* ---- Payloads -------------------------------------------------------------- */

/* At most so many copies are under way for one payload, each of at most so many
 * bytes, or of one block's part: so that one end of a staging block is filled
 * while the other is emptied. */
enum { COPIES_MOST = 8, COPY_PIECE = 128 << 10 };

/* Copies under way between a payload that is not direct and other memory, in
 * the order of its bytes. All zero: none. */
struct copies {
  uint64_t asked; /* bytes of the payload, from its beginning, asked for */
  int status;     /* why one has failed: nothing more is asked for */
  bool again;     /* the kind takes no more of them for now */
  uint8_t first, count;
  struct copy_ticket {
    const struct memory_context *by;
    uint64_t ticket, length;
  } tickets[COPIES_MOST];
};

/* Bytes of user memory in some shape, walked from front to back. What is not
 * direct has copies, which are its owner's, before it is moved. */
struct payload {
  const struct memory_context *memory;
  struct area *area; /* that all of it lies in, or NULL */
  uint8_t *base;     /* of the first block */
  uint64_t block, count, stride;
  uint64_t total; /* block * count */
  uint64_t done;  /* bytes walked: they have arrived */
  struct copies *copies;
  int64_t delayed_until; /* by faults: until when */
};

void payload_bytes(struct payload *payload, const void *bytes, uint64_t length);
/* The longest run of contiguous bytes at the present position. */
uint8_t *payload_run(const struct payload *payload, uint64_t *length);
/* Moves bytes into or out of the payload at its position: how many have
 * arrived and were walked; 0: all are under way; or a status. Never more than
 * length. Of memory that is not direct the host's bytes stay as they are, and
 * where they are, while a copy is under way (payload_busy). The next call names
 * those that have not arrived, and may name more behind them: these are asked
 * for at once. */
int64_t payload_put(struct payload *payload, const uint8_t *from,
                    uint64_t length);
int64_t payload_take(struct payload *payload, uint8_t *to, uint64_t length);
/* The same between two payloads, of at most limit bytes. Both may be of one
 * kind of memory that is not direct; the copies are then those of `to`. Of two
 * kinds that are not direct: PERIGEE_UNSUPPORTED. */
int64_t payload_move(struct payload *to, struct payload *from, uint64_t limit);
/* Between two payloads that the CPU may touch: bytes moved, at most limit. */
uint64_t payload_copy(struct payload *to, struct payload *from, uint64_t limit);
/* May the memory be given back? False while a copy is under way; copies that
 * have ended by now are. What is given up is asked so until it is true. */
bool payload_quiet(struct payload *payload);

/* Is a copy under way, as far as was seen? */
static inline bool payload_busy(const struct payload *payload) {
  return payload->copies && payload->copies->count > 0;
}

/* Nothing but a later look goes on with it: one is under way, or waits. */
static inline bool payload_waits(const struct payload *payload) {
  return payload->copies &&
         (payload->copies->count > 0 || payload->copies->again);
}

#endif
