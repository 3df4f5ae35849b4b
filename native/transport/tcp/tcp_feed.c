/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_feed.c - payloads at their owner: cut into fragments that streams send
 * from the payload's memory. Short blocks, and memory that no CPU can read, are
 * first gathered in a block of the exposure.
 */
#include <stdlib.h>

#include "tcp.h"

/* ---- Exposing ------------------------------------------------------------ */

static uint64_t first_part(const struct lane *lane, uint64_t total) {
  uint64_t first = total < TCP_FIRST ? total : TCP_FIRST;
  uint64_t out = lane->eager_sent - lane->eager_granted;
  uint64_t room = lane->peer_window > out ? lane->peer_window - out : 0;
  return first < room ? first : room;
}

int tcp_expose(struct lane *lane, struct exposure *e, struct payload *p) {
  uint64_t first = first_part(lane, p->total);
  lane->eager_sent += first;
  lane->pushing |= first > 0;
  tcp_exposed(e)->block = NULL;
  list_append(&lane->exposed, &tcp_exposed(e)->node);
  e->fed = 0;
  e->payload = p;
  e->source = (struct source){.kind = SOURCE_PUSHED,
                              .address = first,
                              .block = p->total,
                              .count = 1,
                              .stride = p->total};
  return PERIGEE_OK;
}

void tcp_conceal(struct lane *lane, struct exposure *e) {
  tcp_disown(lane, e);
  if (e->fed < e->source.address) /* the peer will not get the rest of it */
    lane->eager_sent -= e->source.address - e->fed;
  list_remove(&tcp_exposed(e)->node);
  free(tcp_exposed(e)->block);
  tcp_exposed(e)->block = NULL;
  e->payload = NULL;
}

/* ---- Claims -------------------------------------------------------------- */

bool tcp_claimed(struct lane *lane, const struct tcp_head *h) {
  if (h->operation >= lane->options.operations || h->which > PART_MASK)
    return false;
  uint32_t *claim =
      generation_place(&lane->claims, 2u * h->operation + h->which);
  if (claim)
    *claim = h->generation;
  else
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for claims");
  return true;
}

static uint64_t allowed(const struct lane *lane, const struct exposure *e) {
  bool claimed =
      generation_of(&lane->claims, 2u * e->operation + (e->part & PART_MASK)) ==
      e->generation;
  return claimed ? e->payload->total : e->source.address;
}

/* ---- Feeding ------------------------------------------------------------- */

/* Long payloads use the streams for payloads in turn. Returns NULL if all of
 * them are busy, and stream 0 if all of them may be lost. */
static struct stream *pick(struct lane *lane, uint64_t total) {
  bool any = false;
  if (total <= TCP_MEDIUM || lane->stream_count == 1)
    return lane->streams[0];
  for (uint32_t i = 1; i < lane->stream_count; i++) {
    uint32_t at = 1 + lane->next_stream++ % (lane->stream_count - 1);
    struct stream *s = lane->streams[at];
    if (tcp_usable(s) && s->left == 0 && tcp_may_owe(s))
      return s;
    any |= tcp_usable(s) && !s->owing.suspect;
  }
  return any ? NULL : lane->streams[0];
}

bool tcp_sending(const struct lane *lane, const struct exposure *e) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->left > 0 &&
        lane->streams[i]->exposure == e)
      return true;
  return false;
}

bool tcp_gathers(const struct payload *p) {
  return !p->memory->direct || (p->count > 1 && p->block < TCP_SHORT);
}

int tcp_gather(struct exposure *e, uint64_t *filled, uint64_t length) {
  uint8_t **block = &tcp_exposed(e)->block;
  if (!*block && !(*block = malloc(TCP_BOUNCE)))
    return PERIGEE_NO_MEMORY;
  while (*filled < length) {
    int64_t n = payload_take(e->payload, *block + *filled, length - *filled);
    if (n <= 0)
      return (int)n;
    *filled += (uint64_t)n;
  }
  return 1;
}

/* Sets a walk over the next bytes and returns their number, 0 if not now, or a
 * status. Gathered bytes are sent from the block, so many short blocks become
 * one fragment. */
static int64_t gather(struct lane *lane, struct exposure *e, uint64_t length,
                      struct payload *walk) {
  uint64_t filled = e->payload->done - e->fed;
  if (length > TCP_BOUNCE)
    length = TCP_BOUNCE;
  int status = tcp_sending(lane, e) ? 0 : tcp_gather(e, &filled, length);
  if (status <= 0)
    return status;
  payload_bytes(walk, tcp_exposed(e)->block, length);
  return (int64_t)length;
}

static int64_t next_bytes(struct lane *lane, struct exposure *e,
                          uint64_t length, struct payload *walk) {
  struct payload *p = e->payload;
  if (tcp_gathers(p))
    return gather(lane, e, length, walk);
  *walk = *p;
  walk->done = e->fed;
  p->done += length;
  return (int64_t)length;
}

int64_t tcp_feed(struct lane *lane, struct exposure *e) {
  uint64_t most = e->payload ? allowed(lane, e) : 0;
  if (lane->cut || lane->status < 0 || e->fed >= most || tcp_in_doubt(lane, e))
    return 0;
  struct stream *s = pick(lane, e->payload->total);
  if (!s || s->left > 0 || lane->may_send[s->number > 0] == 0)
    return 0; /* each poll continues the copy */
  bool eager = e->fed < e->source.address;
  uint64_t length = (eager ? e->source.address : most) - e->fed;
  if (length > TCP_FRAGMENT_MOST)
    length = TCP_FRAGMENT_MOST;
  struct payload walk;
  int64_t n = next_bytes(lane, e, length, &walk);
  if (n <= 0)
    return n;
  struct tcp_head head = {.length = (uint32_t)n,
                          .type = TCP_FRAGMENT,
                          .which = e->part | (eager ? PART_EAGER : 0),
                          .operation = e->operation,
                          .generation = e->generation,
                          .at = e->fed};
  e->fed += (uint64_t)n;
  struct stream *first = lane->streams[0]; /* its record may wait there */
  if (s != first && first->left == 0 && !first->full)
    tcp_send(first, TCP_TURN);
  if (!tcp_put_fragment(s, &head, &walk, e))
    return n;
  tcp_owe(s, &head);
  tcp_send(s, lane->may_send[s->number > 0]);
  return n;
}
