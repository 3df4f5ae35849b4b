/* SPDX-License-Identifier: Apache-2.0
 *
 * pins.c - host memory of regions that the driver has registered, so that
 * devices copy there and from there directly. Such memory is registered in
 * pieces, when a piece is used for the second time: what is used once is
 * copied through a slot in less time than registering it takes.
 *
 *   pin          event                               becomes
 *   free         a copy comes to it                  seen
 *   seen         a copy begins there before the      registered, or refused
 *                last one: another pass
 *   registered   its place is wanted, no copy there  free: unregistered
 *   any          its area goes, or the context       free: unregistered
 *
 * Registering makes all pages of a piece. So areas of a peer's memory say when
 * they may be (area.pins).
 *
 * A context has PINS of them, in sets of a few, in which the one that was not
 * used for the longest time gives way.
 */
#include "cuda.h"

enum { PIN_PIECE = 4 << 20, PIN_LEAST = 1 << 20, PAGE = 4096 };

static void pin_drop(struct cuda *c, struct pin *pin) {
  if (pin->state == PIN_REGISTERED && cuda_enter(c) == CUDA_SUCCESS) {
    c->driver->cuMemHostUnregister(pin->base);
    cuda_leave(c);
  }
  *pin = (struct pin){.state = PIN_FREE};
}

/* Makes the pin of the piece of an area that a byte lies in: whole pages. */
static struct pin pin_around(const struct area *area, const uint8_t *at) {
  uintptr_t first = (uintptr_t)at & ~(uintptr_t)(PIN_PIECE - 1);
  uintptr_t end = first + PIN_PIECE, base = (uintptr_t)area->base;
  if (first < base)
    first = (base + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
  if (end > base + area->length)
    end = (base + area->length) & ~(uintptr_t)(PAGE - 1);
  return (struct pin){.area = area,
                      .base = (uint8_t *)first,
                      .length = end > first ? end - first : 0,
                      .state = PIN_SEEN};
}

static struct pin *pin_set(struct cuda *c, const uint8_t *at) {
  return c->pins[(uintptr_t)at / PIN_PIECE % PIN_SETS];
}

static bool pin_has(const struct pin *pin, const uint8_t *at, uint64_t length) {
  return pin->state != PIN_FREE && at >= pin->base && length <= pin->length &&
         (uint64_t)(at - pin->base) <= pin->length - length;
}

static struct pin *pin_find(struct cuda *c, const uint8_t *at,
                            uint64_t length) {
  struct pin *set = pin_set(c, at);
  for (int i = 0; i < PIN_WAYS; i++)
    if (pin_has(&set[i], at, length))
      return &set[i];
  return NULL;
}

/* Returns the place of the pin that gives way, or NULL. */
static struct pin *pin_place(struct cuda *c, const uint8_t *at) {
  struct pin *set = pin_set(c, at), *oldest = NULL;
  for (int i = 0; i < PIN_WAYS; i++)
    if (set[i].busy == 0 && (!oldest || set[i].used < oldest->used))
      oldest = &set[i];
  return oldest;
}

static void pin_register(struct cuda *c, struct pin *pin) {
  unsigned flags = CU_MEMHOSTREGISTER_PORTABLE |
                   (pin->area->read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0);
  CUresult result = cuda_enter(c);
  if (result == CUDA_SUCCESS) {
    result = c->driver->cuMemHostRegister(pin->base, pin->length, flags);
    cuda_leave(c);
  }
  pin->state = result == CUDA_SUCCESS ? PIN_REGISTERED : PIN_REFUSED;
}

static void pin_begin(struct cuda *c, struct area *area, const uint8_t *at) {
  struct pin new = pin_around(area, at), *place = pin_place(c, at);
  if (!place || !pin_has(&new, at, 1))
    return;
  pin_drop(c, place);
  *place = new;
  place->last = at;
  place->used = ++c->pin_clock;
  area->pinned = true;
}

/* The area is one of this process, and tells when it goes (unpin). */
uint64_t cuda_most(const struct memory_context *context, struct area *area,
                   const uint8_t *at) {
  struct cuda *c = context->own;
  if (!c->pins_work || area->length < PIN_LEAST)
    return COPY_PIECE;
  struct pin *pin = pin_find(c, at, 1);
  if (!pin) {
    pin_begin(c, area, at);
    return COPY_PIECE;
  }
  pin->used = ++c->pin_clock;
  if (pin->state == PIN_SEEN && at < pin->last)
    pin_register(c, pin);
  pin->last = at;
  return pin->state == PIN_REGISTERED ? pin->length - (uint64_t)(at - pin->base)
                                      : COPY_PIECE;
}

struct pin *pin_take(struct cuda *c, const uint8_t *at, uint64_t length) {
  struct pin *pin = pin_find(c, at, length);
  if (!pin || pin->state != PIN_REGISTERED)
    return NULL;
  pin->busy++;
  return pin;
}

void cuda_unpin(const struct memory_context *context, const struct area *area) {
  struct cuda *c = context->own;
  for (int i = 0; i < PIN_SETS * PIN_WAYS; i++)
    if (c->pins[i / PIN_WAYS][i % PIN_WAYS].area == area)
      pin_drop(c, &c->pins[i / PIN_WAYS][i % PIN_WAYS]);
}

void pins_close(struct cuda *c) {
  for (int i = 0; i < PIN_SETS * PIN_WAYS; i++)
    pin_drop(c, &c->pins[i / PIN_WAYS][i % PIN_WAYS]);
}
