/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_ranges.c - which bytes of a payload have been received. Each stream
 * brings fragments in order, but streams overtake each other, so there may be
 * gaps for a while. A byte that comes twice violates the protocol: another
 * would be missing although the count is right, and old bytes at its place
 * would be taken for the payload's.
 */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

enum { FIRST_ROOM = 8 };

void ranges_close(struct ranges *c) {
  free(c->ahead);
  *c = (struct ranges){0};
}

static bool grow(struct ranges *c) {
  uint32_t room = c->room ? 2 * c->room : FIRST_ROOM;
  struct stretch *more =
      room <= TCP_AHEAD ? realloc(c->ahead, room * sizeof *more) : NULL;
  if (!more)
    return false;
  c->ahead = more;
  c->room = room;
  return true;
}

static void drop(struct ranges *c, uint32_t i) {
  c->count--;
  memmove(&c->ahead[i], &c->ahead[i + 1], (c->count - i) * sizeof *c->ahead);
}

/* Adds a range behind a gap, before ahead[i], which begins after it. */
static int put(struct ranges *c, uint32_t i, uint64_t at, uint64_t end) {
  if (i > 0 && c->ahead[i - 1].end == at) {
    c->ahead[i - 1].end = end;
    if (i < c->count && c->ahead[i].at == end) {
      c->ahead[i - 1].end = c->ahead[i].end;
      drop(c, i);
    }
    return PERIGEE_OK;
  }
  if (i < c->count && c->ahead[i].at == end) {
    c->ahead[i].at = at;
    return PERIGEE_OK;
  }
  if (c->count == c->room && !grow(c))
    return PERIGEE_NO_MEMORY;
  memmove(&c->ahead[i + 1], &c->ahead[i], (c->count - i) * sizeof *c->ahead);
  c->ahead[i] = (struct stretch){at, end};
  c->count++;
  return PERIGEE_OK;
}

/* Within a range behind a gap, ahead[i]. */
static int remove_ahead(struct ranges *c, uint32_t i, uint64_t at,
                        uint64_t end) {
  struct stretch *from = &c->ahead[i];
  uint64_t last = from->end;
  if (at > from->at) {
    from->end = at;
    return end < last ? put(c, i + 1, end, last) : PERIGEE_OK;
  }
  from->at = end;
  if (end == last)
    drop(c, i);
  return PERIGEE_OK;
}

int ranges_remove(struct ranges *c, uint64_t at, uint64_t length) {
  uint64_t end = at + length, first = c->first;
  uint32_t i = 0;
  if (at < first) {
    c->first = at;
    return end < first ? put(c, 0, end, first) : PERIGEE_OK;
  }
  while (c->ahead[i].end < end)
    i++;
  return remove_ahead(c, i, at, end);
}

int ranges_add(struct ranges *c, uint64_t at, uint64_t length) {
  uint64_t end = at + length;
  uint32_t i = c->count; /* from the end, as most come in order */
  while (i > 0 && c->ahead[i - 1].at >= at)
    i--;
  if (at < c->first || (i > 0 && c->ahead[i - 1].end > at) ||
      (i < c->count && c->ahead[i].at < end))
    return PERIGEE_PROTOCOL;
  if (at > c->first)
    return put(c, i, at, end);
  c->first = end;
  if (c->count > 0 && c->ahead[0].at == end) {
    c->first = c->ahead[0].end;
    drop(c, 0);
  }
  return PERIGEE_OK;
}
