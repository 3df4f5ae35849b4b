/* SPDX-License-Identifier: Apache-2.0
 *
 * prepared.c - transfers that are checked once and posted many times.
 */
#include <stdlib.h>
#include <string.h>

#include "core/lanes.h"
#include "core/lock.h"
#include "transfer.h"

static void simplify(struct perigee_prepared *p) {
  p->simple = p->count == 1 &&
              transfer_reaches(p->session, &p->list[0], &p->local) &&
              p->local.total <= AT_ONCE && p->local.count == 1 &&
              p->remote.count == 1 && p->operation != PERIGEE_OP_WRITE_IMM &&
              transfer_immediate(p->session);
}

/* Is one of its regions closed? Their handles are kept for this. */
static bool is_stale(const struct perigee_prepared *p) {
  for (uint32_t i = 0; i < p->count; i++)
    if (p->list[i].local.region->closed)
      return true;
  return false;
}

static int stale(const struct perigee_prepared *p) {
  return fail(p->session->engine, PERIGEE_STALE, "the local region was closed");
}

int perigee_prepare(struct perigee_session *s, int operation,
                    const struct perigee_transfer *list, uint32_t count,
                    uint64_t immediate, struct perigee_prepared **out) {
  ENTER(s->engine);
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (count == 0)
    return fail(s->engine, PERIGEE_INVALID, "nothing to prepare");
  if (!list)
    return fail_missing(s->engine, "list of transfers");
  status = transfer_check_all(s, operation, list, count);
  if (status < 0)
    return status;
  struct perigee_prepared *p = calloc(1, sizeof *p + count * sizeof *list);
  if (!p)
    return PERIGEE_NO_MEMORY;
  p->session = s;
  p->operation = (uint8_t)operation;
  p->count = count;
  p->immediate = immediate;
  p->posted = -1;
  memcpy(p->list, list, count * sizeof *list);
  for (uint32_t i = 0; i < count; i++)
    region_keep(list[i].local.region);
  payload_bytes(&p->local, NULL, 0);
  transfer_check(s, operation, &p->list[0], &p->remote, &p->local);
  simplify(p);
  p->next = s->operations.prepared;
  s->operations.prepared = p;
  *out = p;
  return PERIGEE_OK;
}

BESIDE post_shared(struct perigee_prepared *p, int64_t timeout) {
  WITHIN(p->session->engine, ENTRY_WORK, perigee_post(p, timeout));
}

int perigee_post(struct perigee_prepared *p, int64_t timeout) {
  if (SHARED(p->session->engine))
    return post_shared(p, timeout);
  struct perigee_session *s = p->session;
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (p->simple) {
    if (UNLIKELY(p->list[0].local.region->closed))
      return stale(p);
    struct payload remote = p->remote, local = p->local;
    int64_t n = transfer_copy(s, &p->list[0], &remote, &local, local.total,
                              p->operation);
    transfer_count(s, p->operation, p->list, n < 0 ? 0 : 1);
    return n < 0 ? (int)n : PERIGEE_INLINE;
  }
  if (is_stale(p))
    return stale(p);
  if (p->posted >= 0)
    return fail(s->engine, PERIGEE_AGAIN, "it is posted already");
  status = transfer_start(s, p->operation, p->list, p->count, p->immediate,
                          timeout, p);
  if (status >= 0 && status != PERIGEE_INLINE)
    p->posted = status;
  return status;
}

void perigee_prepared_free(struct perigee_prepared *p) {
  LOOK(p->session->engine);
  struct perigee_prepared **at = &p->session->operations.prepared;
  while (*at && *at != p)
    at = &(*at)->next;
  if (*at)
    *at = p->next;
  for (uint32_t i = 0; i < p->count; i++)
    region_drop(p->list[i].local.region);
  free(p);
}
