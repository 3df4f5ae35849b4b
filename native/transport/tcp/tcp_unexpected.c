/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_unexpected.c - the unexpected queue: fragments that came before their
 * landing was known. Each operation of the peer has a queue of its own, so a
 * look-up passes over no other operation's fragments.
 */
#include <stdlib.h>

#include "tcp.h"

enum { FIRST_PEERS = 64 };

/* ---- Operations of the peer ---------------------------------------------- */

struct tcp_peer *tcp_peer(const struct lane *lane, uint16_t operation) {
  return operation < lane->peer_count ? lane->peers[operation] : NULL;
}

static bool room_for(struct lane *lane, uint16_t operation) {
  uint32_t count = lane->peer_count ? lane->peer_count : FIRST_PEERS;
  while (count <= operation)
    count *= 2;
  if (count == lane->peer_count)
    return true;
  if (!tcp_count_memory(lane, (count - lane->peer_count) * sizeof *lane->peers))
    return false;
  struct tcp_peer **more = realloc(lane->peers, count * sizeof *more);
  if (!more)
    return false;
  for (uint32_t i = lane->peer_count; i < count; i++)
    more[i] = NULL;
  lane->peers = more;
  lane->peer_count = count;
  return true;
}

struct tcp_peer *tcp_peer_new(struct lane *lane, uint16_t operation) {
  struct tcp_peer *peer = tcp_peer(lane, operation);
  if (peer || !room_for(lane, operation))
    return peer;
  peer = tcp_count_memory(lane, sizeof *peer) ? calloc(1, sizeof *peer) : NULL;
  if (!peer)
    return NULL;
  list_open(&peer->fetches);
  list_open(&peer->unexpected);
  lane->peers[operation] = peer;
  return peer;
}

bool tcp_count_memory(struct lane *lane, uint64_t bytes) {
  if (!share_take(lane->options.share, SHARE_POOLED, bytes))
    return false;
  lane->counted += bytes;
  return true;
}

/* ---- In and out ---------------------------------------------------------- */

static struct unexpected *entry(struct tcp_peer *peer, struct node *n) {
  return n == &peer->unexpected ? NULL : CONTAINER(n, struct unexpected, node);
}

/* An operation's fragments in order: the first one, and the one behind another.
 * NULL: there is none. */
static struct unexpected *first_of(const struct lane *lane,
                                   uint16_t operation) {
  struct tcp_peer *peer = tcp_peer(lane, operation);
  return peer ? entry(peer, peer->unexpected.next) : NULL;
}

static struct unexpected *behind(const struct lane *lane,
                                 const struct unexpected *e) {
  return entry(tcp_peer(lane, e->head.operation), e->node.next);
}

static uint64_t unexpected_size(const struct tcp_head *h) {
  return sizeof(struct unexpected) + h->length;
}

static bool is_late(const struct unexpected *e) {
  return !(e->head.which & PART_EAGER) && !e->apart;
}

static void unexpected_free(struct lane *lane, struct unexpected *e) {
  tcp_peer(lane, e->head.operation)->unexpected_count--;
  lane->unexpected_count--;
  share_back(lane->options.share, SHARE_POOLED, unexpected_size(&e->head));
  if (is_late(e))
    lane->unexpected_late -= e->head.length;
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->unexpected != e)
      continue;
    s->unexpected = NULL; /* the rest of it is dropped as it comes */
    if (s->sink == SINK_UNEXPECTED)
      s->sink = SINK_DROP;
    e->head.which = 0; /* it is counted when its trailer comes */
  }
  list_remove(&e->node);
  if (e->head.which & PART_EAGER)
    tcp_eager_done(lane, e->head.length);
  free(e);
}

void tcp_unexpected_part(struct stream *s) {
  unexpected_free(s->lane, s->unexpected);
}

bool tcp_unexpected_full(const struct lane *lane, const struct tcp_head *h) {
  const struct tcp_peer *peer = tcp_peer(lane, h->operation);
  return lane->unexpected_count >= TCP_UNEXPECTED ||
         (peer && peer->unexpected_count >= TCP_UNEXPECTED_EACH);
}

struct unexpected *tcp_unexpected_add(struct lane *lane,
                                      const struct tcp_head *head, bool apart) {
  struct tcp_peer *peer = tcp_peer_new(lane, head->operation);
  uint64_t bytes = unexpected_size(head);
  if (!peer || !share_take(lane->options.share, SHARE_POOLED, bytes))
    return NULL;
  struct unexpected *e = malloc(bytes);
  if (!e) {
    share_back(lane->options.share, SHARE_POOLED, bytes);
    return NULL;
  }
  *e = (struct unexpected){.head = *head, .apart = apart};
  list_append(&peer->unexpected, &e->node);
  peer->unexpected_count++;
  lane->unexpected_count++;
  if (is_late(e))
    lane->unexpected_late += head->length;
  return e;
}

uint64_t tcp_unexpected_bytes(struct lane *lane, const struct fetch *f,
                              bool first) {
  const struct unexpected *e = first_of(lane, f->operation);
  uint64_t sum = 0;
  for (; e; e = behind(lane, e))
    if (tcp_is_of(&e->head, f) && (e->first || !first))
      sum += e->head.length;
  return sum;
}

/* With f, drops all its fragments. Otherwise drops those of the generation, but
 * keeps those that are still being copied into their landing: memory that
 * copies on its own time reads from them until the fetch ends. */
static void leave(struct lane *lane, uint16_t operation, uint32_t generation,
                  const struct fetch *f) {
  struct unexpected *e = first_of(lane, operation), *next;
  for (; e; e = next) {
    next = behind(lane, e);
    if (f ? tcp_is_of(&e->head, f)
          : !e->walking && e->head.generation == generation)
      unexpected_free(lane, e);
  }
}

void tcp_unexpected_drop(struct lane *lane, uint16_t operation,
                         uint32_t generation) {
  leave(lane, operation, generation, NULL);
}

void tcp_unexpected_forget(struct lane *lane, const struct fetch *f) {
  leave(lane, f->operation, f->generation, f);
}

static void peer_free(struct lane *lane, struct tcp_peer *peer) {
  struct unexpected *e = entry(peer, peer->unexpected.next), *next;
  for (; e; e = next) {
    next = behind(lane, e);
    share_back(lane->options.share, SHARE_POOLED, unexpected_size(&e->head));
    free(e);
  }
  free(peer);
}

void tcp_peers_close(struct lane *lane) {
  for (uint32_t i = 0; i < lane->peer_count; i++)
    if (lane->peers[i])
      peer_free(lane, lane->peers[i]);
  free(lane->peers);
  share_back(lane->options.share, SHARE_POOLED, lane->counted);
}

/* ---- To where they belong ------------------------------------------------ */

/* Is the fragment complete, and next in order? */
static bool ripe(const struct lane *lane, const struct unexpected *e,
                 const struct fetch *f) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->unexpected == e)
      return false;
  return f->into->memory->direct || e->walking ||
         tcp_is_next(lane, f, e->head.at);
}

/* Moves an entry into its landing and frees it once all of it is there. An
 * entry that was given up is freed at once, as it holds zeros. */
static void deliver(struct lane *lane, struct unexpected *e, struct fetch *f) {
  struct payload *into = f->into;
  if (!e->walking && !tcp_fetch_takes(lane, f, &e->head))
    return;
  if (into->memory->direct) {
    e->walk = *into;
    e->walk.done = e->head.at;
    into = &e->walk;
  }
  if (!e->walking)
    tcp_own(f)->came += e->head.length;
  e->walking = true;
  int64_t n =
      e->good ? payload_put(into, e->bytes + e->put, e->got - e->put) : e->got;
  if (n < 0)
    tcp_own(f)->status = (int)n;
  e->put += n > 0 ? (uint32_t)n : 0;
  if (n >= 0 && e->put < e->got)
    return;
  tcp_fetch_got(f, e->head.length, e->good);
  unexpected_free(lane, e);
}

void tcp_unexpected_take(struct lane *lane, struct fetch *f) {
  struct unexpected *e = first_of(lane, f->operation), *next;
  for (; e; e = next) {
    next = behind(lane, e);
    if (tcp_is_of(&e->head, f) && ripe(lane, e, f))
      deliver(lane, e, f);
    if (lane->status < 0)
      return;
  }
}
