/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_again.c - what a lost stream owed is sent again, by stream 0: the peer
 * knows that one to be alive, and reads there what else concerns the operation.
 * It goes in short fragments, so that records are not held up. What belongs to
 * an operation that has ended is left out.
 */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

enum { FIRST_ROOM = 64 };

static struct owed *first(const struct lane *lane) {
  return &lane->again[lane->again_first];
}

static void drop_first(struct lane *lane) {
  lane->again_first++;
  if (--lane->again_count == 0)
    lane->again_first = 0;
}

static bool grow(struct lane *lane) {
  if (lane->again_first > 0)
    memmove(lane->again, first(lane), lane->again_count * sizeof *lane->again);
  lane->again_first = 0;
  if (lane->again_count < lane->again_room)
    return true;
  uint32_t room = lane->again_room ? 2 * lane->again_room : FIRST_ROOM;
  struct owed *more = realloc(lane->again, room * sizeof *more);
  if (!more)
    return false;
  lane->again = more;
  lane->again_room = room;
  return true;
}

bool tcp_again(struct lane *lane, const struct owed *owed) {
  if (!grow(lane)) {
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what is sent again");
    return false;
  }
  lane->again[lane->again_count++] = *owed;
  return true;
}

bool tcp_again_has(const struct lane *lane, const struct exposure *e) {
  for (uint32_t i = 0; i < lane->again_count; i++)
    if (tcp_is_owed(&first(lane)[i], e))
      return true;
  return false;
}

static struct exposure *exposure_of(const struct lane *lane,
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
 * of it is to be sent again, tcp_feed leaves it alone. What tcp_feed has begun
 * to gather is gathered anew. */
static int gather(struct lane *lane, struct exposure *e, struct owed *o,
                  uint64_t length, struct payload *walk) {
  struct payload *p = e->payload;
  if (!o->begun && (tcp_sending(lane, e) || !payload_quiet(p)))
    return 0;
  if (!o->begun)
    payload_seek(p, o->at);
  o->begun = true;
  uint64_t filled = p->done - o->at;
  int status = tcp_gather(e, &filled, length);
  if (status == 0)
    return 0;
  o->begun = false;
  if (payload_quiet(p))
    payload_seek(p, e->fed);
  payload_bytes(walk, tcp_exposed(e)->block, length);
  return status;
}

/* Sets a walk over the next bytes: 1, 0 not now, or a status. */
static int next_bytes(struct lane *lane, struct exposure *e, struct owed *o,
                      uint64_t length, struct payload *walk) {
  if (tcp_gathers(e->payload))
    return gather(lane, e, o, length, walk);
  *walk = *e->payload;
  walk->done = o->at;
  return 1;
}

static uint32_t length_of(const struct exposure *e, const struct owed *o) {
  uint32_t most = tcp_gathers(e->payload) ? TCP_BOUNCE : TCP_MEDIUM;
  return o->length < most ? o->length : most;
}

/* Sends a part of the first that is owed; false: not now. */
static bool send_some(struct lane *lane, struct exposure *e) {
  struct stream *s = lane->streams[0];
  struct owed *o = first(lane);
  struct payload walk;
  struct tcp_head head = {.length = length_of(e, o),
                          .type = TCP_FRAGMENT,
                          .which = o->which,
                          .operation = o->operation,
                          .generation = o->generation,
                          .at = o->at};
  int status = next_bytes(lane, e, o, head.length, &walk);
  if (status == 0 || !tcp_put_fragment(s, &head, &walk, e))
    return false;
  if (status < 0) /* the peer's operation ends, as it cannot have the bytes */
    tcp_disown(lane, e);
  o->at += head.length;
  o->length -= head.length;
  if (o->length == 0)
    drop_first(lane);
  tcp_send(s, lane->may_send[0]);
  return true;
}

/* The window that the fragment took is free again. */
static void leave_out(struct lane *lane) {
  if (first(lane)->which & PART_EAGER)
    lane->eager_sent -= first(lane)->length;
  drop_first(lane);
}

void tcp_send_again(struct lane *lane) {
  struct stream *s = lane->streams[0];
  bool goes_on = true;
  while (goes_on && lane->again_count > 0 && lane->status == 0) {
    struct exposure *e = exposure_of(lane, first(lane));
    if (!e)
      leave_out(lane);
    else
      goes_on = s->fd >= 0 && s->left == 0 && lane->may_send[0] > 0 &&
                s->out.end - s->out.first < TCP_WAITING && send_some(lane, e);
  }
}
