/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - the table that every kind of memory fills, and the payload: the
 * only way in which the core touches user memory.
 *
 * Copies are submit and poll, because some memory (GPU) cannot be touched by
 * the CPU and copies on its own time. Host memory completes at once and is
 * recognised by `direct`, for which the core copies by itself.
 */
#ifndef PERIGEE_MEMORY_H
#define PERIGEE_MEMORY_H

#include <stdint.h>

#include "perigee.h"

struct perigee_memory {
  const char *name;
  /* The CPU may load and store: no copy function is ever called. */
  bool direct;
  /* Page-aligned zeroed bytes and what release needs; 0 or a status. */
  int (*allocate)(uint64_t length, uint8_t **pointer, void **context);
  void (*release)(uint8_t *pointer, uint64_t length, void *context);
  /* Starts a copy between memory of this kind (inside) and host memory.
   * The ticket is not 0. Both sides stay untouched until finished says so. */
  int (*copy_in)(uint8_t *inside, const uint8_t *host, uint64_t length,
                 uint64_t *ticket);
  int (*copy_out)(uint8_t *host, const uint8_t *inside, uint64_t length,
                  uint64_t *ticket);
  /* 1: done, 0: not yet, negative: it failed, and touches nothing more. */
  int (*finished)(uint64_t ticket);
  /* For NICs, of memory that is not direct. A dma-buf descriptor (the caller's
   * to close) and where in it the bytes begin, or negative; NULL: has none. */
  int (*dmabuf)(const uint8_t *pointer, uint64_t length, uint64_t *offset);
  /* A kernel module pins such addresses as if they were host memory. */
  bool pinnable;
};

extern const struct perigee_memory memory_host;

/* Memory that a device is told of once and then uses often: a region, the
 * pool, an arena. keys belongs to the transports that have registered it; who
 * owns the area has them forget it before the memory goes. */
struct area {
  const struct perigee_memory *memory;
  uint8_t *base;
  uint64_t length;
  uint64_t chunk; /* registered in parts of this size; 0: as a whole */
  bool read_only; /* the CPU, and so a device, may not write to it */
  struct keys *keys;
};

/* Bytes of user memory in some shape, walked from front to back. */
struct payload {
  const struct perigee_memory *memory;
  struct area *area; /* that all of it lies in, or NULL */
  uint8_t *base;     /* of the first block */
  uint64_t block, count, stride;
  uint64_t total;        /* block * count */
  uint64_t done;         /* bytes walked */
  uint64_t ticket;       /* a copy under way */
  uint64_t pending;      /* its length */
  int64_t delayed_until; /* by faults: until when */
};

void payload_bytes(struct payload *payload, const void *bytes, uint64_t length);
/* The longest run of contiguous bytes at the present position. */
uint8_t *payload_run(const struct payload *payload, uint64_t *length);
/* Moves bytes into or out of the payload at its position: how many have
 * arrived and were walked; 0: a copy is under way (call again with the very
 * same arguments); or a status. Never more than length. */
int64_t payload_put(struct payload *payload, const uint8_t *from,
                    uint64_t length);
int64_t payload_take(struct payload *payload, uint8_t *to, uint64_t length);
/* Between two payloads that the CPU may touch: bytes moved, at most limit. */
uint64_t payload_copy(struct payload *to, struct payload *from, uint64_t limit);
/* May the memory be given back? False while a copy is under way. */
bool payload_quiet(struct payload *payload);

#endif
