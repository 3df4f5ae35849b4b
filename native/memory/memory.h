/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - the table that every kind of memory fills in, and payloads, by
 * which alone the core touches user memory.
 *
 * A copy is submitted and then polled, because some memory (GPU) cannot be
 * touched by the CPU and copies asynchronously. Host memory is marked `direct`:
 * the core copies it by itself, at once.
 */
#ifndef PERIGEE_MEMORY_H
#define PERIGEE_MEMORY_H

#include <stdint.h>

#include "perigee.h"

struct perigee_memory {
  const char *name;
  /* The CPU may load and store; the copy functions are never called. */
  bool direct;
  /* Allocates page-aligned zeroed bytes, and a context for release; 0 or a
   * status. */
  int (*allocate)(uint64_t length, uint8_t **pointer, void **context);
  void (*release)(uint8_t *pointer, uint64_t length, void *context);
  /* Start a copy between memory of this kind (inside) and host memory. The
   * ticket is never 0. Both sides must stay unchanged until finished says 1. */
  int (*copy_in)(uint8_t *inside, const uint8_t *host, uint64_t length,
                 uint64_t *ticket);
  int (*copy_out)(uint8_t *host, const uint8_t *inside, uint64_t length,
                  uint64_t *ticket);
  /* Returns 1 if done, 0 if not yet, negative if it failed and touches nothing
   * any more. */
  int (*finished)(uint64_t ticket);
  /* For NICs, of memory that is not direct: returns a dma-buf descriptor, which
   * the caller closes, and the offset of the bytes in it; or a negative value.
   * NULL: the kind has no dma-buf. */
  int (*dmabuf)(const uint8_t *pointer, uint64_t length, uint64_t *offset);
  /* A kernel module lets NICs pin such addresses like host memory. */
  bool pinnable;
};

extern const struct perigee_memory memory_host;

/* Memory that is registered with a device once and then used often: a region,
 * the pool, an arena. keys belongs to the transports that have registered it.
 * The owner of the area has them forget it before the memory is freed. */
struct area {
  const struct perigee_memory *memory;
  uint8_t *base;
  uint64_t length;
  uint64_t chunk; /* size of the parts that are registered; 0: all at once */
  bool read_only; /* neither the CPU nor a device may write to it */
  struct keys *keys;
};

/* Bytes of user memory in a shape, walked from front to back. */
struct payload {
  const struct perigee_memory *memory;
  struct area *area; /* the area that contains all of it, or NULL */
  uint8_t *base;     /* of the first block */
  uint64_t block, count, stride;
  uint64_t total;        /* block * count */
  uint64_t done;         /* bytes walked */
  uint64_t ticket;       /* of the copy in progress */
  uint64_t pending;      /* bytes of that copy */
  int64_t delayed_until; /* by fault injection */
};

void payload_bytes(struct payload *payload, const void *bytes, uint64_t length);
/* Returns the longest run of contiguous bytes at the present position. */
uint8_t *payload_run(const struct payload *payload, uint64_t *length);
/* Move bytes into or out of the payload at its position. Return how many bytes
 * were moved and walked, at most length; 0 if a copy is in progress (call again
 * with exactly the same arguments); or a status. */
int64_t payload_put(struct payload *payload, const uint8_t *from,
                    uint64_t length);
int64_t payload_take(struct payload *payload, uint8_t *to, uint64_t length);
/* Copies between two payloads that the CPU may touch; returns the bytes
 * moved. */
uint64_t payload_copy(struct payload *to, struct payload *from, uint64_t limit);
/* May the memory be freed? False while a copy is in progress. */
bool payload_quiet(struct payload *payload);

#endif
