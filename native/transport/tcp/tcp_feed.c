/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_feed.c - payloads at their owner: cut into fragments that streams send
 * from the payload's memory. Short blocks, and memory that no CPU can read, are
 * first gathered in a block of the exposure.
 *
 * Stream 0 sends again what a lost stream owed: the peer knows that one to be
 * alive, and reads there what else concerns the operation. It goes in short
 * fragments, so that records are not held up. Fragments of an operation that
 * has ended are left out.
 */
#include <stdlib.h>

#include "tcp.h"

/* ---- Exposing ------------------------------------------------------------ */

static uint64_t expose_first(const struct lane *lane, uint64_t total) {
  uint64_t first = total < TCP_FIRST ? total : TCP_FIRST;
  uint64_t out = lane->eager_sent - lane->eager_granted;
  uint64_t room = lane->peer_window > out ? lane->peer_window - out : 0;
  return first < room ? first : room;
}

int tcp_expose(struct lane *lane, struct exposure *e, struct payload *p) {
  uint64_t first = expose_first(lane, p->total);
  lane->eager_sent += first;
  lane->pushing |= first > 0;
  tcp_exposed(e)->block = NULL;
  list_append(&lane->exposed, &tcp_exposed(e)->node);
  e->fed = 0;
  e->payload = p;
  e->at_once = first == p->total && first <= TCP_MEDIUM && p->memory->direct;
  e->source = (struct source){.kind = SOURCE_PUSHED,
                              .address = first,
                              .block = p->total,
                              .count = 1,
                              .stride = p->total};
  return PERIGEE_OK;
}

void tcp_conceal(struct lane *lane, struct exposure *e) {
  tcp_hold(lane, e);
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

static uint64_t feed_allowed(const struct lane *lane,
                             const struct exposure *e) {
  bool claimed =
      generation_of(&lane->claims, 2u * e->operation + (e->part & PART_MASK)) ==
      e->generation;
  return claimed ? e->payload->total : e->source.address;
}

/* ---- Gathering ----------------------------------------------------------- */

/* Is some of the exposure on its way in a stream? */
static bool exposure_is_out(const struct lane *lane, const struct exposure *e) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->left > 0 &&
        lane->streams[i]->exposure == e)
      return true;
  return false;
}

/* Does the payload have to be gathered before it is sent? */
static bool payload_is_gathered(const struct payload *p) {
  return !p->memory->direct || (p->count > 1 && p->block < TCP_SHORT);
}

/* Takes bytes of the payload, from its position on, into the exposure's block,
 * of which `filled` bytes are there: 1 once there are `length`, 0 not yet, or a
 * status. */
static int exposure_gather(struct exposure *e, uint64_t *filled,
                           uint64_t length) {
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

/* ---- Feeding ------------------------------------------------------------- */

/* Long payloads use the streams for payloads in turn. Returns NULL if all of
 * them are busy, and stream 0 if all of them may be lost. */
static struct stream *feed_stream(struct lane *lane, uint64_t total) {
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

/* Sets a walk over the next bytes and returns their number, 0 if not now, or a
 * status. Gathered bytes are sent from the block, so many short blocks become
 * one fragment. */
static int64_t feed_gather(struct lane *lane, struct exposure *e,
                           uint64_t length, struct payload *walk) {
  uint64_t filled = e->payload->done - e->fed;
  if (length > TCP_BOUNCE)
    length = TCP_BOUNCE;
  int status =
      exposure_is_out(lane, e) ? 0 : exposure_gather(e, &filled, length);
  if (status <= 0)
    return status;
  payload_bytes(walk, tcp_exposed(e)->block, length);
  return (int64_t)length;
}

static int64_t feed_bytes(struct lane *lane, struct exposure *e,
                          uint64_t length, struct payload *walk) {
  struct payload *p = e->payload;
  if (payload_is_gathered(p))
    return feed_gather(lane, e, length, walk);
  *walk = *p;
  walk->done = e->fed;
  p->done += length;
  return (int64_t)length;
}

int64_t tcp_feed(struct lane *lane, struct exposure *e) {
  uint64_t most = e->payload ? feed_allowed(lane, e) : 0;
  if (lane->cut || lane->status < 0 || e->fed >= most || tcp_in_doubt(lane, e))
    return 0;
  struct stream *s = feed_stream(lane, e->payload->total);
  if (!s || s->left > 0 || lane->may_send[s->number > 0] == 0)
    return 0; /* each poll continues the copy */
  bool eager = e->fed < e->source.address;
  uint64_t length = (eager ? e->source.address : most) - e->fed;
  if (length > TCP_FRAGMENT_MOST)
    length = TCP_FRAGMENT_MOST;
  struct payload walk;
  int64_t n = feed_bytes(lane, e, length, &walk);
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
  tcp_tell_behind(lane);
  tcp_send(s, lane->may_send[s->number > 0]);
  return n;
}

/* ---- Sending again ------------------------------------------------------- */

static struct exposure *again_exposure(const struct lane *lane,
                                       const struct owed *o) {
  struct node *n = lane->exposed.next;
  for (; n != &lane->exposed; n = n->next) {
    struct exposure *e = CONTAINER(CONTAINER(n, struct tcp_exposure, node),
                                   struct exposure, own);
    if (tcp_is_owed(o, e))
      return e;
  }
  return NULL;
}

/* The exposure's block is used for what comes next of it, too: while something
 * of it is to be sent again, tcp_feed leaves it alone. Bytes that tcp_feed has
 * begun to gather are gathered anew. */
static int again_gather(struct lane *lane, struct exposure *e, struct owed *o,
                        uint64_t length, struct payload *walk) {
  struct payload *p = e->payload;
  if (!o->begun && (exposure_is_out(lane, e) || !payload_quiet(p)))
    return 0;
  if (!o->begun)
    payload_seek(p, o->at);
  o->begun = true;
  uint64_t filled = p->done - o->at;
  int status = exposure_gather(e, &filled, length);
  if (status == 0)
    return 0;
  o->begun = false;
  if (payload_quiet(p))
    payload_seek(p, e->fed);
  payload_bytes(walk, tcp_exposed(e)->block, length);
  return status;
}

/* Sets a walk over the next bytes: 1, 0 not now, or a status. */
static int again_bytes(struct lane *lane, struct exposure *e, struct owed *o,
                       uint64_t length, struct payload *walk) {
  if (payload_is_gathered(e->payload))
    return again_gather(lane, e, o, length, walk);
  *walk = *e->payload;
  walk->done = o->at;
  return 1;
}

static uint32_t again_length(const struct exposure *e, const struct owed *o) {
  uint32_t most = payload_is_gathered(e->payload) ? TCP_BOUNCE : TCP_MEDIUM;
  return o->length < most ? o->length : most;
}

/* Sends a part of the first that is owed; false: not now. */
static bool again_send(struct lane *lane, struct exposure *e) {
  struct stream *s = lane->streams[0];
  struct owed *o = tcp_again_first(lane);
  struct payload walk;
  struct tcp_head head = {.length = again_length(e, o),
                          .type = TCP_FRAGMENT,
                          .which = o->which,
                          .operation = o->operation,
                          .generation = o->generation,
                          .at = o->at};
  int status = again_bytes(lane, e, o, head.length, &walk);
  if (status == 0 || !tcp_put_fragment(s, &head, &walk, e))
    return false;
  if (status < 0) /* the peer's operation ends, as it cannot have the bytes */
    tcp_disown(lane, e);
  o->at += head.length;
  o->length -= head.length;
  if (o->length == 0)
    tcp_again_drop(lane);
  tcp_send(s, lane->may_send[0]);
  return true;
}

/* The window that the fragment took is free again. */
static void again_leave_out(struct lane *lane) {
  if (tcp_again_first(lane)->which & PART_EAGER)
    lane->eager_sent -= tcp_again_first(lane)->length;
  tcp_again_drop(lane);
}

void tcp_send_again(struct lane *lane) {
  struct stream *s = lane->streams[0];
  bool goes_on = true;
  while (goes_on && lane->again_count > 0 && lane->status == 0) {
    struct exposure *e = again_exposure(lane, tcp_again_first(lane));
    if (!e)
      again_leave_out(lane);
    else
      goes_on = s->fd >= 0 && s->left == 0 && lane->may_send[0] > 0 &&
                s->out.end - s->out.first < TCP_WAITING && again_send(lane, e);
  }
}
