/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer_check.c - bounds and rights of both sides of a transfer, checked
 * before anything moves.
 */
#include "core/lock.h"
#include "transfer.h"

/* If no CPU reaches the memory, a remote payload's base is an offset. */
static uint8_t *base_of(const struct window *window, uint64_t offset) {
  return (uint8_t *)((uintptr_t)window->pointer + offset);
}

static int remote_payload(struct perigee_session *s, int operation,
                          const struct perigee_slice *slice,
                          struct payload *p) {
  struct perigee_remote *remote = slice->remote;
  if (UNLIKELY(!remote))
    return fail_missing(s->engine, "remote region of a transfer");
  int right = operation == PERIGEE_OP_READ ? PERIGEE_READ : PERIGEE_WRITE;
  if (remote->session != s)
    return fail(s->engine, PERIGEE_INVALID,
                "region \"%s\" is of another session", remote->name);
  if (!(remote->window.access & right))
    return fail(s->engine, PERIGEE_DENIED, "the peer does not let us %s \"%s\"",
                right == PERIGEE_READ ? "read" : "write", remote->name);
  if (shape_total(slice->length, slice->count) == UINT64_MAX ||
      !shape_fits(remote->window.length, slice->offset, slice->length,
                  slice->count, slice->stride))
    return fail(s->engine, PERIGEE_RANGE,
                "a slice lies outside of \"%s\" (%llu bytes)", remote->name,
                (unsigned long long)remote->window.length);
  *p = (struct payload){.memory = &memory_host,
                        .base = base_of(&remote->window, slice->offset),
                        .block = slice->length,
                        .count = slice->count,
                        .stride = slice->stride,
                        .total = slice->length * slice->count};
  return PERIGEE_OK;
}

int transfer_check(struct perigee_session *s, int operation,
                   const struct perigee_transfer *item, struct payload *remote,
                   struct payload *local) {
  int status = remote_payload(s, operation, &item->remote, remote);
  if (status == PERIGEE_OK)
    status = slice_payload(s->engine, &item->local, local);
  if (status == PERIGEE_OK && remote->total != local->total)
    status = fail(s->engine, PERIGEE_INVALID,
                  "from and to differ in length: %llu and %llu",
                  (unsigned long long)local->total,
                  (unsigned long long)remote->total);
  return status;
}

int transfer_check_all(struct perigee_session *s, int operation,
                       const struct perigee_transfer *list, uint32_t count) {
  struct payload remote = {.memory = &memory_host}, local = remote;
  for (uint32_t i = 0; i < count; i++) {
    int status = transfer_check(s, operation, &list[i], &remote, &local);
    if (status < 0)
      return status;
  }
  return PERIGEE_OK;
}
