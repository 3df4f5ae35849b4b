/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_fetch.c - payloads at their receiver.
 */
#include "tcp.h"

struct fetch *tcp_fetch_of(struct lane *lane, const struct tcp_head *h) {
  const struct tcp_peer *peer = tcp_peer(lane, h->operation);
  if (!peer)
    return NULL;
  for (struct node *n = peer->fetches.next; n != &peer->fetches; n = n->next) {
    struct fetch *f =
        CONTAINER(CONTAINER(n, struct tcp_fetch, node), struct fetch, own);
    if (tcp_is_of(h, f))
      return f;
  }
  return NULL;
}

bool tcp_fetch_takes(struct lane *lane, struct fetch *f,
                     const struct tcp_head *h) {
  bool inside = h->at <= f->total && h->length <= f->total - h->at;
  int status = inside ? ranges_add(&tcp_own(f)->received, h->at, h->length)
                      : PERIGEE_PROTOCOL;
  if (status == PERIGEE_NO_MEMORY)
    tcp_break(lane, status, "no memory for what came before its turn");
  else if (status < 0)
    tcp_break(lane, status,
              "the peer broke the protocol: bytes of a payload that it did not "
              "announce, or that it had sent before");
  return status == PERIGEE_OK;
}

void tcp_fetch_back(struct lane *lane, struct fetch *f,
                    const struct tcp_head *h) {
  if (ranges_remove(&tcp_own(f)->received, h->at, h->length) < 0)
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what comes again");
  if (!f->into->memory->direct)
    payload_seek(f->into, h->at);
}

void tcp_fetch_fails(struct fetch *f, int status) {
  if (tcp_own(f)->status == 0)
    tcp_own(f)->status = status;
}

void tcp_fetch_got(struct fetch *f, uint32_t length, bool good) {
  if (good)
    f->done += length;
  else
    tcp_fetch_fails(f, PERIGEE_CANCELLED); /* its owner gave it up */
}

static int begin(struct lane *lane, struct fetch *f) {
  const struct source *s = &f->source;
  struct tcp_head claim = {.type = TCP_CLAIM,
                           .which = f->part,
                           .operation = f->operation,
                           .generation = f->generation};
  if (s->kind != SOURCE_PUSHED || s->count != 1 || s->block != f->total ||
      s->address > f->total || f->part > PART_MASK)
    return PERIGEE_PROTOCOL;
  struct tcp_peer *peer = tcp_peer_new(lane, f->operation);
  if (!peer)
    return PERIGEE_NO_MEMORY;
  tcp_own(f)->begun = true;
  tcp_own(f)->unexpected_bytes = tcp_unexpected_bytes(lane, f, true);
  list_append(&peer->fetches, &tcp_own(f)->node);
  if (s->address == f->total || !tcp_put(lane->streams[0], &claim, NULL))
    return PERIGEE_OK;
  tcp_send(lane->streams[0], TCP_TURN);
  return PERIGEE_OK;
}

/* Reads from all streams. The fetches of one poll share what the poll may read;
 * a stream that had nothing more is not read again in that poll. */
static void pump(struct lane *lane) {
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = tcp_in_turn(lane, i);
    if (!s || s->dry || (lane->armed && !s->readable))
      continue;
    uint64_t n = tcp_receive(s, lane->may_read);
    if (i == 0)
      lane->may_read -= n < lane->may_read ? n : lane->may_read;
  }
}

/* May queued bytes be put where others see them? Not if the operation's end lies
 * unread in stream 0; but if that waits for the room that they take. */
static bool may_land(struct lane *lane, const struct fetch *f) {
  return !f->careful ||
         ((tcp_said_all(lane) || lane->streams[0]->sink == SINK_WAITING) &&
          tcp_live(lane, f->operation, f->generation));
}

int64_t tcp_fetch(struct lane *lane, struct fetch *f) {
  int status = lane->cut ? PERIGEE_PEER_LOST : PERIGEE_OK;
  if (status == PERIGEE_OK && !tcp_own(f)->begun)
    status = begin(lane, f);
  if (status < 0)
    return status;
  pump(lane);
  if (lane->unexpected_count > 0 && may_land(lane, f))
    tcp_unexpected_take(lane, f);
  struct tcp_fetch *own = tcp_own(f);
  if (own->status < 0)
    return own->status;
  int64_t moved = (int64_t)(own->came - own->told);
  own->told = own->came;
  return moved;
}

bool tcp_fetch_end(struct lane *lane, struct fetch *f) {
  list_remove(&tcp_own(f)->node);
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->fetch != f)
      continue;
    s->fetch = NULL;
    s->put = s->bounced;
    if (s->sink == SINK_FETCH)
      s->sink = SINK_DROP;
  }
  tcp_unexpected_forget(lane, f);
  ranges_close(&tcp_own(f)->received);
  return payload_quiet(f->into);
}
