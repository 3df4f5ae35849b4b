/* SPDX-License-Identifier: Apache-2.0
 *
 * inproc_payloads.c - marks, payloads and loans of the in-process transport. A
 * payload comes in splinters, through a block of the receiver.
 */
#include <stdlib.h>
#include <string.h>

#include "inproc.h"

static void exposed_free(struct exposed *e) {
  if (!e->payload && e->fetches == 0)
    free(e);
}

static void inproc_mark(struct lane *lane, uint16_t op, uint32_t generation) {
  lane->marks[op] = generation;
}

static bool inproc_live(struct lane *lane, uint16_t op, uint32_t generation) {
  return lane->peer && lane->peer->marks[op] == generation;
}

/* ---- Payloads ----------------------------------------------------------- */

static struct source source_of(struct exposed *exposed) {
  uint64_t total = exposed->payload->total;
  return (struct source){1, (uint64_t)(uintptr_t)exposed, total, 1, total};
}

static int inproc_loan(struct lane *lane, uint64_t length, uint8_t **pointer,
                       struct source *source) {
  struct exposed *e = calloc(1, sizeof *e + length);
  if (!e)
    return PERIGEE_NO_MEMORY;
  e->next = lane->loans;
  lane->loans = e;
  *pointer = (uint8_t *)(e + 1);
  e->payload = &e->own;
  payload_bytes(&e->own, *pointer, length);
  *source = source_of(e);
  return PERIGEE_OK;
}

static void inproc_unloan(struct lane *lane, const struct source *source,
                          bool seen) {
  (void)seen;
  struct exposed *e = (struct exposed *)(uintptr_t)source->address;
  struct exposed **at = &lane->loans;
  while (*at != e)
    at = &(*at)->next;
  *at = e->next;
  e->payload = NULL;
  exposed_free(e);
}

static bool inproc_loaned(struct lane *lane, const uint8_t *pointer,
                          uint64_t length, struct source *source) {
  (void)lane, (void)pointer, (void)length, (void)source;
  return false;
}

static const uint8_t *inproc_view(struct lane *lane,
                                  const struct source *source,
                                  uint16_t operation, uint32_t generation) {
  (void)lane, (void)source, (void)operation, (void)generation;
  return NULL;
}

static int inproc_expose(struct lane *lane, struct exposure *exposure,
                         struct payload *payload) {
  (void)lane;
  struct exposed *e = calloc(1, sizeof *e);
  if (!e)
    return PERIGEE_NO_MEMORY;
  e->payload = payload;
  exposure->source = source_of(e);
  exposure->payload = NULL;
  memcpy(exposure->own, &e, sizeof e);
  return PERIGEE_OK;
}

static int64_t inproc_feed(struct lane *lane, struct exposure *exposure) {
  (void)lane, (void)exposure;
  return 0;
}

static void inproc_conceal(struct lane *lane, struct exposure *exposure) {
  (void)lane;
  struct exposed *e;
  memcpy(&e, exposure->own, sizeof e);
  if (e) {
    e->payload = NULL;
    exposed_free(e);
  }
  memset(exposure->own, 0, sizeof exposure->own);
}

/* The state of a fetch at this side. */
struct bounce {
  struct exposed *from;
  uint8_t *block;
  uint64_t wanted, filled, put; /* bytes of this splinter */
};
_Static_assert(sizeof(struct bounce) <= FETCH_OWN, "there is room for it");

static struct bounce *bounce_of(struct fetch *f) {
  return (struct bounce *)(void *)f->own;
}

/* Copies a splinter from the source to the bounce block, and from there to
 * its destination. */
static int64_t inproc_fetch(struct lane *lane, struct fetch *f) {
  if (lane->broken || !inproc_live(lane, f->operation, f->generation))
    return PERIGEE_PEER_LOST;
  struct exposed *e = (struct exposed *)(uintptr_t)f->source.address;
  struct bounce *b = bounce_of(f);
  if (!b->block && !(b->block = malloc(SPLINTER)))
    return PERIGEE_NO_MEMORY;
  if (!b->from) {
    b->from = e;
    e->fetches++;
  }
  if (b->put == b->wanted) {
    if (inproc_later(lane))
      return 0;
    b->wanted = inproc_splinter(lane, f->total - f->done);
    b->filled = b->put = 0;
  }
  if (b->filled < b->wanted) {
    int64_t got =
        payload_take(e->payload, b->block + b->filled, b->wanted - b->filled);
    if (got <= 0)
      return got;
    b->filled += (uint64_t)got;
  }
  if (b->filled < b->wanted)
    return 0;
  int64_t put = payload_put(f->into, b->block + b->put, b->filled - b->put);
  if (put <= 0)
    return put;
  f->done += (uint64_t)put;
  b->put += (uint64_t)put;
  return put;
}

/* The owner's copy may still be writing to our bounce block. */
static bool inproc_fetch_end(struct lane *lane, struct fetch *f) {
  (void)lane;
  struct bounce *b = bounce_of(f);
  struct exposed *e = b->from;
  if (!payload_quiet(f->into) ||
      (e && e->payload && !payload_quiet(e->payload)))
    return false;
  if (e) {
    e->fetches--;
    exposed_free(e);
  }
  free(b->block);
  *b = (struct bounce){0};
  return true;
}

void inproc_loans_end(struct lane *lane) {
  for (struct exposed *e = lane->loans, *next; e; e = next) {
    next = e->next;
    e->payload = NULL;
    exposed_free(e);
  }
}

const struct transport_payloads inproc_payloads = {
    .mark = inproc_mark,
    .live = inproc_live,
    .expose = inproc_expose,
    .feed = inproc_feed,
    .conceal = inproc_conceal,
    .fetch = inproc_fetch,
    .fetch_end = inproc_fetch_end,
};

const struct transport_loans inproc_loans = {
    .loan = inproc_loan,
    .unloan = inproc_unloan,
    .loaned = inproc_loaned,
    .view = inproc_view,
};
