/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "memory.h"

void payload_bytes(struct payload *p, const void *bytes, uint64_t length) {
  *p = (struct payload){.memory = &memory_host,
                        .base = (uint8_t *)(uintptr_t)bytes,
                        .block = length,
                        .count = 1,
                        .stride = length,
                        .total = length};
}

uint8_t *payload_run(const struct payload *p, uint64_t *length) {
  if (p->done >= p->total) {
    *length = 0;
    return p->base;
  }
  if (p->count == 1) {
    *length = p->total - p->done;
    return p->base + p->done;
  }
  uint64_t block = p->done / p->block, within = p->done % p->block;
  *length = p->block - within;
  return p->base + block * p->stride + within;
}

/* Starts one contiguous asynchronous copy. */
static int64_t start(struct payload *p, uint8_t *host, uint64_t length,
                     bool in) {
  uint64_t run;
  uint8_t *inside = payload_run(p, &run);
  if (run < length)
    length = run;
  if (length == 0)
    return 0; /* nobody would ask for its end */
  int status = in ? p->memory->copy_in(inside, host, length, &p->ticket)
                  : p->memory->copy_out(host, inside, length, &p->ticket);
  if (status < 0)
    return status;
  p->pending = length;
  return 0;
}

static int64_t finish(struct payload *p) {
  int state = p->memory->finished(p->ticket);
  if (state == 0)
    return 0;
  p->ticket = 0;
  if (state < 0)
    return state;
  p->done += p->pending;
  return (int64_t)p->pending;
}

static int64_t move(struct payload *p, uint8_t *host, uint64_t length,
                    bool in) {
  if (!p->memory->direct)
    return p->ticket ? finish(p) : start(p, host, length, in);
  uint64_t moved = 0, run;
  while (moved < length) {
    uint8_t *inside = payload_run(p, &run);
    if (run == 0)
      break;
    if (run > length - moved)
      run = length - moved;
    memcpy(in ? inside : host + moved, in ? host + moved : inside, run);
    moved += run;
    p->done += run;
  }
  return (int64_t)moved;
}

/* The common case: all that moves is short and in one piece. */
static inline uint8_t *piece(struct payload *p, uint64_t length) {
  if (!p->memory->direct || p->count != 1 || length == 0 ||
      length > p->total - p->done)
    return NULL;
  uint8_t *at = p->base + p->done;
  p->done += length;
  return at;
}

int64_t payload_put(struct payload *p, const uint8_t *from, uint64_t length) {
  uint8_t *to = piece(p, length);
  if (to) {
    memcpy(to, from, length);
    return (int64_t)length;
  }
  return move(p, (uint8_t *)(uintptr_t)from, length, true);
}

int64_t payload_take(struct payload *p, uint8_t *to, uint64_t length) {
  const uint8_t *from = piece(p, length);
  if (from) {
    memcpy(to, from, length);
    return (int64_t)length;
  }
  return move(p, to, length, false);
}

/* A position in a payload: bytes left of its block, and the gap to the next. */
struct place {
  uint8_t *at;
  uint64_t left, block, gap;
};

static struct place place_of(const struct payload *p) {
  uint64_t left;
  uint8_t *at = payload_run(p, &left);
  return (struct place){at, left, p->block, p->stride - p->block};
}

static bool at_block(const struct place *p, uint64_t n) {
  return p->left == n && p->block == n;
}

/* Returns how many whole blocks of n bytes follow at one distance (*step). */
static uint64_t ahead(const struct place *p, uint64_t n, uint64_t rest,
                      uint64_t *step) {
  bool blocks = at_block(p, n);
  *step = blocks ? n + p->gap : n;
  return (blocks || rest < p->left ? rest : p->left) / n;
}

/* Copies blocks of a cache line inline: a call would cost as much. */
static void copy_blocks(uint8_t *to, uint64_t to_step, const uint8_t *from,
                        uint64_t from_step, uint64_t n, uint64_t count) {
  if (n == 64)
    for (; count > 0; count--, to += to_step, from += from_step)
      __builtin_memcpy(to, from, 64);
  else
    for (; count > 0; count--, to += to_step, from += from_step)
      memcpy(to, from, n);
}

/* Moves the position past count blocks of n bytes. */
static void forward(struct place *p, uint64_t n, uint64_t step,
                    uint64_t count) {
  p->at += step * count;
  if (at_block(p, n))
    return;
  p->left -= n * count;
  if (p->left == 0) {
    p->at += p->gap;
    p->left = p->block;
  }
}

uint64_t payload_copy(struct payload *to, struct payload *from,
                      uint64_t limit) {
  uint64_t rest = to->total - to->done, moved = 0;
  if (from->total - from->done < rest)
    rest = from->total - from->done;
  if (rest > limit)
    rest = limit;
  struct place a = place_of(to), b = place_of(from);
  while (moved < rest) {
    uint64_t n = a.left < b.left ? a.left : b.left, a_step, b_step;
    if (n > rest - moved)
      n = rest - moved;
    if (n == 0) /* cannot happen with a checked shape */
      break;
    uint64_t k = ahead(&a, n, rest - moved, &a_step);
    uint64_t l = ahead(&b, n, rest - moved, &b_step);
    if (l < k)
      k = l;
    copy_blocks(a.at, a_step, b.at, b_step, n, k);
    moved += n * k;
    if (moved == rest)
      break;
    forward(&a, n, a_step, k);
    forward(&b, n, b_step, k);
  }
  to->done += moved;
  from->done += moved;
  return moved;
}

bool payload_quiet(struct payload *p) {
  if (p->ticket == 0)
    return true;
  finish(p);
  return p->ticket == 0;
}
